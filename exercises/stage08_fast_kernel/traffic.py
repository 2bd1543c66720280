"""The bytes that each kernel must move, from shapes alone.

Decoding is bound by memory: a step cannot be faster than the keys and values of all contexts come
from it (paper, section 2.2). So a kernel is measured against the bytes that no kernel could do
without. What one really moves is counted in the interpreter, with masked lanes left out; the
ratio *must / does* tells what is read twice.

Plain Python, no tensors. Sizes are in elements, results in bytes of global memory. What two
programs read is counted once, as if a cache held it: except where a function says otherwise.

Stage 8, fast kernels::

    read    lessons/08-fast-kernel.md
    write   8.5  Traffic and machine code   8 points
    also    robustness 12 points
    check   minipaged grade 8
    stuck   minipaged hint 8.5
    use it  minipaged generate Once --model opt-stories --raw --max-tokens 8 \
                --attention triton --parts fast_kernel=mine
    next    lessons/10-evaluation.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TABLE_ENTRY_BYTES = 4
"""An entry of a block table, a context length, a query start: int32."""
SLOT_BYTES = 8
"""A slot of the slot mapping, a block number of a copy: int64."""
WORKSPACE_BYTES = 4
"""A number that the parts of a split context leave for the reduction: float32."""


@dataclass(frozen=True)
class Traffic:
    """Bytes loaded from global memory, and bytes stored to it."""

    loaded: int
    stored: int

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.loaded + self.stored

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.loaded + other.loaded, self.stored + other.stored)


@dataclass(frozen=True)
class AttentionShape:
    """What attention works on.

    Attributes:
        num_heads: query heads.
        num_kv_heads: heads of the cache; ``num_heads`` is a multiple.
        head_dim: elements of one head of one token.
        block_size: tokens of a block.
        element_bytes: of queries, results, keys and values.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    element_bytes: int


def cache_write_traffic(slot_mapping: Sequence[int], shape: AttentionShape) -> Traffic:
    """What storing the keys and values of a step must move.

    Args:
        slot_mapping: a slot for each token; negative: padding. The slots of all tokens are read,
            but of a padding token neither key nor value is.

    Example:
        Slots 5, -1 and 7, and 2 KV heads of 64 float16: two tokens have 2 * 2 * 64 elements each.
        1024 bytes of them are read and as many stored, and 24 bytes of slots are read.
    """
    tokens = sum(slot >= 0 for slot in slot_mapping)
    moved = 2 * tokens * shape.num_kv_heads * shape.head_dim * shape.element_bytes
    return Traffic(moved + len(slot_mapping) * SLOT_BYTES, moved)


def block_copy_traffic(num_pairs: int, num_layers: int, shape: AttentionShape) -> Traffic:
    """What copying ``num_pairs`` blocks within the pool, in all layers, must move.

    A pair is two block numbers. They are read once, however many pieces they move.

    Example:
        One pair, 40 layers, 40 KV heads of 128 float16 and blocks of 16: a block is 12.5 MiB over
        all layers. So much is read and stored, and 16 bytes are read.
    """
    piece = shape.num_kv_heads * shape.block_size * shape.head_dim * shape.element_bytes
    moved = num_pairs * 2 * num_layers * piece
    return Traffic(moved + num_pairs * 2 * SLOT_BYTES, moved)


def decode_traffic(context_lens: Sequence[int], shape: AttentionShape) -> Traffic:
    """What attention of one query a sequence over a paged cache must move.

    Each key and value of a context comes once for all the query heads that share it, each entry
    of the block table that holds a position of the context once, each context length once, the
    queries and the results once. A sequence with an empty context is padding: its length is read
    and its result, zero, is stored; its query is not needed. That a kernel may look an entry up
    again for each position of its block is not counted: this is what it must.

    Args:
        context_lens: positions that each query attends to.

    Example:
        Contexts 33 and 0, blocks of 16, 4 query heads over 2 KV heads of 64 float16. Loaded: K
        and V 2 * 33 * 2 * 64 * 2 = 16896, three entries 12, two lengths 8, one query
        4 * 64 * 2 = 512: together 17428. Stored: two results, 1024.
    """
    raise NotImplementedError("stage 8, task 8.5: see lessons/08-fast-kernel.md")


def split_traffic(
    context_lens: Sequence[int], num_splits: int, tile: int, shape: AttentionShape
) -> Traffic:
    """What splitting contexts costs on top of :func:`decode_traffic`: the workspace.

    A context is ``ceil(context_len / tile)`` tiles; each of ``num_splits`` parts takes the same
    whole number of them, the fewest that let the parts hold all. So the last parts may be empty.
    A query head leaves ``head_dim`` numbers for each part that is not empty, and one number (the
    logarithm of its sum) for each part, empty or not; the parts of padding, a context of 0, are all
    empty. The reduction reads what was left. With one part there is no reduction and no workspace.

    Args:
        num_splits: parts of each context.
        tile: positions of a tile.

    Example:
        4 query heads of 64, 4 parts. Context 100, tiles of 16: 7 tiles, 2 a part, and no part is
        empty: 4 * (4 * 64 + 4) numbers, 4160 bytes stored and as many loaded. Context 60, tiles
        of 32: 2 tiles, 1 a part, and 2 parts are empty: 4 * (2 * 64 + 4) numbers, 2112 bytes.
        Context 0: 4 * 4 numbers, 64 bytes.
    """
    raise NotImplementedError("stage 8, task 8.5: see lessons/08-fast-kernel.md")


def prefill_traffic(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    shape: AttentionShape,
    tile_rows: int | None = None,
) -> Traffic:
    """What causal attention of ragged chunks over a paged cache must move.

    The queries of a sequence are the last ``query_len`` positions of its context. Queries and
    results move once. So do the entries of its block table, its context length and its query
    start; the list of starts has one entry more, its end.

    How often a key moves depends on the tiles. For each KV head, row ``r`` of a sequence is query
    ``r // group`` of one of the ``group`` query heads that share it, and a tile is ``tile_rows``
    rows. It reads the keys and values that its last query sees: those up to that query's own
    position, and each of these once.

    Args:
        query_lens: tokens of each chunk; 0: the sequence has none, and moves only its context
            length and query start.
        context_lens: tokens in the cache, the chunk included.
        tile_rows: None: one tile a chunk, that is each key and value once.

    Example:
        A chunk of 5 of a context of 8, group 1, tiles of 2 rows: the tiles end with queries 1, 3
        and 4, at positions 4, 6 and 7, and read 5 + 7 + 8 = 20 positions. One tile reads 8.
    """
    raise NotImplementedError("stage 8, task 8.5: see lessons/08-fast-kernel.md")


def decode_intensity(context_lens: Sequence[int], shape: AttentionShape) -> float:
    """Floating-point operations of decode attention for each byte that it must move.

    A query head multiplies and adds ``head_dim`` numbers for the score of a position, and again
    for its value: 4 operations an element of K. An A100 could do 200 for each byte that it reads.

    Example:
        A long context in float16: close to 1 without groups, close to ``group`` with them.
    """
    operations = 4 * sum(context_lens) * shape.num_heads * shape.head_dim
    return operations / decode_traffic(context_lens, shape).total


def floor_seconds(traffic: Traffic, bytes_per_s: float) -> float:
    """The shortest time in which memory of this bandwidth moves that much."""
    return traffic.total / bytes_per_s
