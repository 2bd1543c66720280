"""Sharing blocks between sequences (paper, section 4.4, figure 8).

A full block is never written again, so any number of sequences may hold it. Only the last,
partly filled block can be shared *and* about to be written: then the writer takes a copy.

Stage 4, copy-on-write::

    read    lessons/04-copy-on-write.md
    write   4.1  Fork            8 points
            4.2  Make writable  14 points
            4.3  The byte copy   8 points
            4.4  A group of n    6 points
    also    robustness 9 points, counterexample.toml 5 points
    check   minipaged grade 4
    stuck   minipaged hint 4.1
    use it  minipaged generate "Once" --model opt-stories --raw -n 3 --temperature 0.8 --parts mine
    next    lessons/05-scheduler.md
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minipaged.kvcache.block_table import BlockTable


def fork(parent: BlockTable) -> BlockTable:
    """A child with the parent's tokens in the parent's blocks.

    Every block has one reference more afterwards; none is allocated, and no byte is copied. The
    parent is as it was. From then on the two are tables of their own: what one appends or frees
    does not show in the other.

    Example: table ``a`` is ``[0, 1*]``, in a pool of 6::

        b = fork(a)    # b.blocks == [0, 1], and 4 blocks are still free
        a.free()       # b still holds both
    """
    raise NotImplementedError("stage 4, task 4.1: see lessons/04-copy-on-write.md")


def make_writable(table: BlockTable) -> tuple[int, int] | None:
    """Called before the next token is written to ``table``'s last, partly filled block.

    Afterwards no other table holds its last block (I3). Where others did, a block of this table's
    own has come in its place, and the one that was shared has one reference less. Where nothing has
    to be copied, nothing changes. The other blocks and ``num_tokens`` are always as they were.

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
    raise NotImplementedError("stage 4, task 4.2: see lessons/04-copy-on-write.md")


def copy_blocks(cache: Any, pairs: list[tuple[int, int]]) -> None:
    """Copy whole blocks within one cache: the byte copy that remapping alone is not.

    Afterwards each target holds what its source holds, bit for bit. Sources, and blocks that are
    in no pair, are as they were.

    Args:
        cache: ``[num_blocks, …]``, a NumPy array or a tensor of any type; changed in place. What
            comes after the first axis is all of a block: ``[num_kv_heads, block_size, head_dim]``
            in one layer's keys, ``[layers, 2, num_kv_heads, block_size, head_dim]`` in the pool of
            all layers. The latter is a view, whose blocks are not contiguous.
        pairs: ``(source, target)``; none at all is fine. Targets are distinct, and none of them is
            a source (I15). A source may have several targets.
    """
    raise NotImplementedError("stage 4, task 4.3: see lessons/04-copy-on-write.md")


def blocks_for_next_token(tables: Iterable[BlockTable]) -> int:
    """Blocks that a group takes from the pool when each of its sequences gets one more token.

    Each in turn is going to be made writable and appended to; this says how many blocks that will
    take, and changes nothing. Whoever else holds a block gets no token meanwhile.

    Args:
        tables: those of all live sequences of the group, of one pool; perhaps as an iterator,
            which can be gone through once.

    Example (``B = 4``): three tables that share ``[0, 1*]`` need 2: two of them copy block 1, and
    the last holder writes in place. If somebody else holds block 1 too, they need 3. Three tables
    that share ``[0, 1]``, both full, need 3. It makes no difference how they come::

        blocks_for_next_token([a, b, c])          # 2
        blocks_for_next_token(iter([a, b, c]))    # 2
    """
    raise NotImplementedError("stage 4, task 4.4: see lessons/04-copy-on-write.md")
