"""From logical to physical blocks (paper, section 4.3).

A sequence's tokens fill its logical blocks 0, 1, 2, … from left to right; the table says which
physical block each one is. Slots number the tokens of the whole pool: block ``b`` holds slots
``b * B`` to ``b * B + B - 1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.kvcache.block_allocator import BlockAllocator


class BlockTable:
    """One sequence's map: logical block ``i`` is physical block ``blocks[i]``.

    Invariant I4: a table of ``num_tokens`` tokens holds exactly ``ceil(num_tokens / B)`` blocks,
    so at most one of them, the last, is partly filled.

    Example (``B = 4``)::

        table = BlockTable(BlockAllocator(8), block_size=4)
        table.append(6)     # blocks [0, 1]: four tokens and two
        table.slot(5)       # 5: block 1, second place
        table.append(2)     # still [0, 1]: both are full
        table.append(1)     # [0, 1, 2]
    """

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        """An empty table, whose blocks will come from ``allocator``."""
        self.allocator = allocator
        self.block_size = block_size
        self.blocks: list[int] = []
        self.num_tokens = 0

    def slot(self, token: int) -> int:
        """The slot of the pool in which token ``token`` (0-based) lives.

        Raises:
            IndexError: the table holds no such token; the message names both numbers.
        """
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"token {token} is not in a table of {self.num_tokens} tokens")
        block, offset = divmod(token, self.block_size)
        return self.blocks[block] * self.block_size + offset

    def slots(self, start: int, stop: int) -> list[int]:
        """The slots of tokens ``start`` to ``stop - 1``, in this order; none if they are equal.

        Raises:
            IndexError: as :meth:`slot`.
        """
        return [self.slot(token) for token in range(start, stop)]

    @property
    def num_free_slots(self) -> int:
        """Tokens that fit into the last block without a new one: 0 to ``B - 1``; 0 for an empty
        table."""
        return len(self.blocks) * self.block_size - self.num_tokens

    def blocks_to_append(self, count: int) -> int:
        """New blocks that ``count`` more tokens would take; changes nothing."""
        return -(-(self.num_tokens + count) // self.block_size) - len(self.blocks)

    def append(self, count: int) -> None:
        """Make room for ``count`` (0 or more) more tokens, at the end of the sequence.

        The blocks that are held already stay where they are; new ones come after them, in the
        order in which the pool hands them out.

        Raises:
            OutOfBlocks: the pool has too few free blocks; the table and the pool are as they were.
        """
        missing = -(-(self.num_tokens + count) // self.block_size) - len(self.blocks)
        if missing:
            self.blocks += self.allocator.allocate_many(missing)
        self.num_tokens += count

    def clone(self) -> BlockTable:
        """The same map in a table of its own. Takes no reference: whoever clones accounts for
        them."""
        twin = type(self)(self.allocator, self.block_size)
        twin.blocks = list(self.blocks)
        twin.num_tokens = self.num_tokens
        return twin

    def free(self) -> None:
        """Give up one reference to every block; the table is empty afterwards.

        Of the blocks that are free then, the first of the sequence is the next one that the pool
        hands out, then the second, and so on. An empty table may be freed again, and grow again.
        """
        # From the end, so that the first block of the sequence is the next one handed out.
        self.allocator.free_many(reversed(self.blocks))
        self.blocks = []
        self.num_tokens = 0
