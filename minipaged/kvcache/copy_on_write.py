"""Sharing blocks between sequences (paper, section 4.4, figure 8).

A full block is never written again, so any number of sequences may hold it. Only the last,
partly filled block can be shared *and* about to be written: then the writer takes a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minipaged.kvcache.block_table import BlockTable


def fork(parent: BlockTable) -> BlockTable:
    """A child with the parent's tokens in the parent's blocks.

    Every block has one reference more afterwards; none is allocated, and no byte is copied.
    """
    child = parent.clone()
    for block in child.blocks:
        child.allocator.share(block)
    return child


def make_writable(table: BlockTable) -> tuple[int, int] | None:
    """Called before the next token is written to ``table``'s last, partly filled block.

    Afterwards no other table holds that block (I3). Where nothing has to be copied, nothing is
    allocated.

    Returns:
        ``(source, target)``: the bytes of block ``source`` must be copied to block ``target``
        before anything is written to it; None if there is nothing to copy, because the block
        is held by this table alone, or because the next token opens a block of its own.

    Raises:
        OutOfBlocks: a copy is needed and no block is free; nothing has changed.

    Example: two tables ``[7, 2*]``, block 2 partly filled and shared::

        make_writable(a)    # (2, 9), and a.blocks == [7, 9]
        make_writable(b)    # None: b is the last holder of block 2, and writes in place
    """
    if table.num_tokens % table.block_size == 0:
        return None
    source = table.blocks[-1]
    if table.allocator.ref_count(source) == 1:
        return None
    target = table.allocator.allocate()
    table.blocks[-1] = target
    table.allocator.free(source)
    return source, target


def blocks_for_next_token(tables: Iterable[BlockTable]) -> int:
    """Blocks that a group takes from the pool when each of its sequences gets one more token.

    Args:
        tables: those of all live sequences of the group. Nothing changes.

    Example (``B = 4``): three tables that share ``[0, 1*]`` need 2: two of them copy block 1, and
    the last holder writes in place. Three tables that share ``[0, 1]``, both full, need 3.
    """
    need = 0
    shared_last: dict[int, int] = {}
    for table in tables:
        if table.num_free_slots == 0:
            need += 1
        else:
            block = table.blocks[-1]
            shared_last[block] = table.allocator.ref_count(block)
    return need + sum(refs - 1 for refs in shared_last.values())


def copy_blocks(cache: Any, pairs: list[tuple[int, int]]) -> None:
    """Copy whole blocks within one cache: the byte copy that remapping alone is not.

    Args:
        cache: ``[num_blocks, …]``, a NumPy array or a tensor; changed in place.
        pairs: ``(source, target)``. Targets are distinct, and none of them is a source (I15).
    """
    if pairs:
        sources, targets = (list(side) for side in zip(*pairs))
        cache[targets] = cache[sources]
