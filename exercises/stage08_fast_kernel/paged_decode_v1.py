"""Paged decode, version 1: tiles of several blocks, and each key and value read once.

Over version 0 it changes two things. A step takes a tile of several blocks: every row of the
tile looks its block up for itself, so that a tile is full whatever the block size. And one
program serves a KV head, not a query head: with grouped-query attention the ``group`` queries
that share it are the rows of one matrix, and scores and sums are products on tensor cores.
Without groups (OPT, LLaMA-13B) a product would have a single row, and 15 of 16 rows of a tensor
core's tile would be padding: that case has a kernel of its own, without products.

Bytes: K and V of every context once, ``2 * context_len * num_kv_heads * head_dim`` elements,
plus 4 bytes of block table a position at most.

Claimed for sm_80, read from the machine code: no spills; K and V come by asynchronous 128-bit
copies (``LDGSTS.128``), the next tile's while this one is computed, and so do the table's
entries before them. In half precision at head_dim 128, with blocks of 16, 4 thread blocks of
4 warps on each multiprocessor. Each has room for 32 KB of K and V on their way: two tiles of 32
tokens (``group`` 1), or one of 64. That is 128 KB on a multiprocessor. The memory of an A100 brings
each of its 108 multiprocessors 1,555 GB/s / 108 = 14.4 KB a microsecond, and so much must be on
its way for every microsecond that an answer takes. Speed has not been measured.

Stage 8, fast kernels::

    read    lessons/08-fast-kernel.md
    write   8.1  Tiles of several blocks  16 points
            8.2  Grouped queries          10 points
    also    robustness 12 points
    check   minipaged grade 8
    stuck   minipaged hint 8.1
    use it  minipaged generate Once --model opt-stories --raw --max-tokens 8 \
                --attention triton --parts fast_kernel=mine
    next    paged_decode_v2.py, beside this file
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_decode, dot_type

#: exp(x) is exp2(x * LOG2_E), and exp2 is one instruction.
LOG2_E = tl.constexpr(1.4426950408889634)

#: ``tl.dot`` takes at least so many rows, and so long sums: what has fewer is padded.
MIN_ROWS = MIN_DIMS = 16

#: Stages of the loops: table entries of the tile after the next, K and V of the next, arithmetic.
STAGES = 3

#: Registers of a thread where there are no products: 4 thread blocks of 4 warps share 65,536.
MAX_REGISTERS = 128


# The JIT would compile a kernel anew where the tables have another width. Nothing is won by it:
# their entries are loaded one by one.
@triton.jit(do_not_specialize=["table_stride"])
def paged_decode_v1_kernel(
    out,
    q,
    k_cache,
    v_cache,
    block_tables,
    context_lens,
    scale,
    out_token_stride,
    out_head_stride,
    q_token_stride,
    q_head_stride,
    block_stride,
    kv_head_stride,
    slot_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program ``(s, h)`` computes ``out[s, h]`` where every query head has a KV head of its own.

    Args:
        out, q: pointers to ``[S, num_heads, HEAD_DIM]``.
        k_cache, v_cache: pointers to ``[num_blocks, num_heads, BLOCK_SIZE, HEAD_DIM]``, both
            with the same strides.
        block_tables: pointer to ``[S, max_blocks]`` int32, row ``s`` at ``s * table_stride``.
            Entry ``i`` is the block of positions ``i*BLOCK_SIZE`` and on. Entries past the
            context are arbitrary: no K or V may be loaded through them.
        context_lens: pointer to ``[S]`` int32, one after the other: how many positions the query
            attends to. 0 is possible (padding): then ``out[s, h]`` is zero.
        scale: float; multiplies ``q . k``.
        out_token_stride, out_head_stride, q_token_stride, q_head_stride: in elements. The
            dimensions of one head lie next to each other, here and in the caches.
        block_stride, kv_head_stride, slot_stride: of the caches, in elements. An offset into a
            cache may exceed 32 bits.
        DIMS: ``HEAD_DIM`` rounded up to a power of two.
        TILE: positions of one step, a power of two, whether or not it is a multiple of
            ``BLOCK_SIZE``. A step loads K and V once for each live position of its tile.
        STAGES: what ``tl.range`` of the loop is given, so that loads run ahead.

    What the caches hold past a context may be NaN or infinite and must not show. Scores, softmax
    and sums are float32, whatever the type of the pointers.
    """
    tl.static_assert(False, "stage 8, task 8.1: see lessons/08-fast-kernel.md")


@triton.jit(do_not_specialize=["table_stride"])
def paged_decode_v1_gqa_kernel(
    out,
    q,
    k_cache,
    v_cache,
    block_tables,
    context_lens,
    scale,
    out_token_stride,
    out_head_stride,
    q_token_stride,
    q_head_stride,
    block_stride,
    kv_head_stride,
    slot_stride,
    table_stride,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """Program ``(s, g)`` computes ``out[s, h]`` for the heads ``h`` that read KV head ``g``.

    Query head ``h`` reads KV head ``h // GROUP``. A step loads K and V of each live position once
    for all of them, and multiplies by ``tl.dot``, with ``input_precision="ieee"``.

    Args:
        GROUP: query heads of a KV head.
        ROWS: ``GROUP`` rounded up to a power of two, and to what ``tl.dot`` demands.
        DOT_TYPE: what the operands of ``tl.dot`` are converted to: their own type, but for
            bfloat16 in the interpreter, which would multiply its bits.

    All other arguments, and what must hold, are as in :func:`paged_decode_v1_kernel`; the caches
    have ``num_heads // GROUP`` heads.
    """
    tl.static_assert(False, "stage 8, task 8.2: see lessons/08-fast-kernel.md")


def paged_decode_v1(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of one query token a sequence to the first ``context_len`` positions.

    Args:
        q: ``[S, num_heads, head_dim]``, float16, bfloat16 or float32. May be a view; the last
            dimension is contiguous.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]`` of ``q``'s type.
            Query head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``.
        block_tables: ``[S, max_blocks]`` int32: entry ``i`` is the block of positions
            ``i*block_size`` and on. Entries past a context are arbitrary.
        context_lens: ``[S]`` int32, at most ``max_blocks * block_size``. A row of padding has 0
            and becomes zero.
        scale: multiplies the scores.
        out: where the result goes; a new tensor without it.

    Returns:
        ``out``: ``[S, num_heads, head_dim]``.

    Raises:
        ValueError: shapes, types or strides that do not fit, with the value and what it must be.
    """
    out = torch.empty_like(q) if out is None else out
    check_decode(q, k_cache, v_cache, block_tables, context_lens, out)
    num_seqs, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1:3]
    if num_seqs == 0:
        return out
    group = num_heads // num_kv_heads
    arguments = (
        out,
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        scale,
        out.stride(0),
        out.stride(1),
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        block_tables.stride(0),
    )
    dims = max(MIN_DIMS, triton.next_power_of_2(head_dim))
    sizes = {
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "DIMS": dims,
        "TILE": _tile(dims, q.element_size(), group),
        "STAGES": STAGES,
    }
    grid = (num_seqs, num_kv_heads)
    if group == 1:
        paged_decode_v1_kernel[grid](*arguments, **sizes, num_warps=4, maxnreg=MAX_REGISTERS)
    else:
        rows = max(MIN_ROWS, triton.next_power_of_2(group))
        paged_decode_v1_gqa_kernel[grid](
            *arguments,
            GROUP=group,
            ROWS=rows,
            **sizes,
            DOT_TYPE=dot_type(paged_decode_v1_gqa_kernel, q.dtype),
            num_warps=4 if rows <= 32 else 8,
        )
    return out


def _tile(dims: int, itemsize: int, group: int) -> int:
    """Positions of a tile: 8 KB of K, or 16 KB where tensor cores do the arithmetic. With more,
    fewer thread blocks fit on a multiprocessor; with less, the loop is all overhead."""
    tile_bytes, least = (8192, 8) if group == 1 else (16384, MIN_ROWS)
    return max(least, min(64, tile_bytes // (dims * itemsize)))
