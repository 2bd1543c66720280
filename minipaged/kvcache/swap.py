"""Moving a group's blocks between the device and the host (paper, section 4.5).

Swapping keeps the *shape* of the tables: two tables that shared a block on one side share a
block on the other, and it travels once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.kvcache.block_allocator import BlockAllocator
    from minipaged.kvcache.block_table import BlockTable


def unique_blocks(tables: Iterable[BlockTable]) -> list[int]:
    """The physical blocks that the tables hold, each once, in the order of their first use.

    Args:
        tables: of one group, in the same pool. They stay as they are.

    Example: ``[7 2]`` and ``[7 5]`` hold ``[7, 2, 5]``.
    """
    return list(dict.fromkeys(block for table in tables for block in table.blocks))


def move(tables: Iterable[BlockTable], target: BlockAllocator) -> list[tuple[int, int]]:
    """Move the tables of a group from the pool that they are in to another one.

    Afterwards every table lives in ``target``: that is its ``allocator``, its ``blocks`` are
    ``target``'s, in the same order, and its ``num_tokens`` are what they were. Tables that shared a
    block share one again; a block there has as many references from these tables as the block it
    came from had. In the pool that they left each table has dropped its references: a block that
    somebody else holds too stays there, for whoever that is.

    No bytes move here. Until they have been copied, nobody may write to the old blocks.

    Args:
        tables: those of all live sequences of the group, in the same pool. An empty one moves too.
            They may come as an iterator, which can be gone through once.
        target: may have blocks in use already.

    Returns:
        ``(old block, new block)`` pairs whose bytes must be copied: each block once, in the order
        of first use. Which blocks are new is for the pool to say; in which order the old ones are
        freed does not matter.

    Raises:
        OutOfBlocks: ``target`` has too few free blocks; nothing has changed.

    Example: ``a = [7 2]``, ``b = [7 5]`` moved to an empty pool become ``a = [0 1]``,
    ``b = [0 2]``, and the pairs are ``(7, 0), (2, 1), (5, 2)``.
    """
    tables = list(tables)
    old = unique_blocks(tables)
    moved = dict(zip(old, target.allocate_many(len(old))))
    held: set[int] = set()
    for table in tables:
        for i, block in enumerate(table.blocks):
            # The allocation above is the first holder's reference.
            if block in held:
                target.share(moved[block])
            held.add(block)
            table.allocator.free(block)
            table.blocks[i] = moved[block]
        table.allocator = target
    return list(moved.items())
