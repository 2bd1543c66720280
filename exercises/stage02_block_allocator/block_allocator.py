"""A pool of physical blocks, handed out by number (paper, sections 4.3 and 4.4).

The allocator owns the free list and the reference counts; nobody else writes them. It does not
know what a block holds, nor who holds it: only how many do.

Stage 2, the block allocator::

    read    lessons/02-block-allocator.md
    write   2.1  Allocate and exhaust  12 points
            2.2  References and free   14 points
    also    robustness 10 points, counterexample.toml 4 points
    check   minipaged grade 2
    stuck   minipaged hint 2.1
    use it  minipaged generate --parts mine --model opt-stories --raw "Once upon a time"
    next    lessons/03-block-table.md
"""

from __future__ import annotations

from collections.abc import Iterable

from minipaged.errors import DoubleFree, OutOfBlocks


class BlockAllocator:
    """Hands out physical blocks, and counts the references to each.

    Invariant I2: every block is either free, and in the free list once, or has at least one
    reference, and is not in it. The free list is last-in, first-out: the block freed last is the
    next one handed out, since its memory is the warmest.

    A call that ends in an error has changed nothing, if its docstring says nothing else. The errors
    are in :mod:`minipaged.errors`. Pools know nothing of one another: a server has one of GPU
    blocks and one of CPU blocks.

    Attributes:
        num_blocks: blocks of the pool, free or not; they are numbered 0 to ``num_blocks - 1``.
        name: what error messages call the pool.

    Example::

        pool = BlockAllocator(3)
        pool.allocate()   # 0
        pool.allocate()   # 1
        pool.share(0)     # two references
        pool.free(0)      # False: one is left
        pool.free(0)      # True: it is free again
        pool.allocate()   # 0
    """

    def __init__(self, num_blocks: int, name: str = "GPU") -> None:
        """A pool of ``num_blocks`` free blocks; block 0 is handed out first, then 1, 2, …

        Args:
            num_blocks: 0 or more. A pool of no blocks is exhausted from the start.
        """
        raise NotImplementedError("stage 2, task 2.1: see lessons/02-block-allocator.md")

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        raise NotImplementedError("stage 2, task 2.1: see lessons/02-block-allocator.md")

    @property
    def free_blocks(self) -> list[int]:
        """The free blocks; the next to be handed out is the last of the list. A copy."""
        raise NotImplementedError("stage 2, task 2.1: see lessons/02-block-allocator.md")

    def allocate(self) -> int:
        """Take one free block; it has one reference afterwards.

        Returns:
            The block's number.

        Raises:
            OutOfBlocks: every block is held; the message names the pool and its size.
        """
        raise NotImplementedError("stage 2, task 2.1: see lessons/02-block-allocator.md")

    def allocate_many(self, count: int) -> list[int]:
        """Take ``count`` free blocks (0 or more), or none at all.

        Returns:
            Their numbers, in the order in which :meth:`allocate` would hand them out.

        Raises:
            OutOfBlocks: fewer than ``count`` are free; the message names the pool and ``count``.
        """
        raise NotImplementedError("stage 2, task 2.1: see lessons/02-block-allocator.md")

    def share(self, block: int) -> None:
        """Add one reference to a block that is held.

        Raises:
            DoubleFree: the block is free, so whoever wants to share it holds a stale number; the
                message names the block and the pool.
            ValueError: there is no such block; the message names the number and the pool.
        """
        raise NotImplementedError("stage 2, task 2.2: see lessons/02-block-allocator.md")

    def free(self, block: int) -> bool:
        """Drop one reference.

        Returns:
            True if it was the last one, and the block is free now.

        Raises:
            DoubleFree: the block is free already; the message names the block and the pool.
            ValueError: there is no such block; the message names the number and the pool.
        """
        raise NotImplementedError("stage 2, task 2.2: see lessons/02-block-allocator.md")

    def free_many(self, blocks: Iterable[int]) -> None:
        """Drop one reference to each, in their order.

        Args:
            blocks: may be an iterator, such as ``reversed(table)``.

        Raises:
            DoubleFree, ValueError: as :meth:`free`, at the first block that cannot be freed; those
                before it have been.
        """
        raise NotImplementedError("stage 2, task 2.2: see lessons/02-block-allocator.md")

    def ref_count(self, block: int) -> int:
        """References to a block; 0 for a free one.

        Raises:
            ValueError: there is no such block; the message names the number and the pool.
        """
        raise NotImplementedError("stage 2, task 2.2: see lessons/02-block-allocator.md")
