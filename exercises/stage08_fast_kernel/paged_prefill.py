"""Causal attention of prompts and chunks of prompts over a paged cache (paper, section 4.3).

What it adds to the decode kernels: a sequence brings many queries, and each sees the keys up to
its own position. One program takes a tile of queries of one sequence, all the query heads that
share one KV head, and walks over the keys from position 0 through the block table: those of
earlier steps and those of this one are in the same cache, so a first chunk and a later one are
the same case. Queries are packed with their heads into the rows of the dot products, so that K
and V are read once for all the heads of a group, and a short chunk fills more of a tile.

Bytes: ``q`` and ``out`` once each, ``2 * T * num_heads * head_dim`` elements. A tile of ``R``
rows reads the keys and values of the positions that its last query sees, ``2 * head_dim``
elements a position; the tiles of one sequence and head run together, so all but the first find
most of these in the L2 cache.

Claimed for sm_80 (asserted by ``minipaged kernels audit``; speed is not measured): no spills; all
K and V bytes at 128 bit, copied to shared memory while earlier tiles are computed; both products
on tensor cores in half precision; at least 8 warps a multiprocessor. float32 runs on the ordinary
units, in IEEE arithmetic: TF32 would keep 10 bits of 23.

Stage 8, fast kernels::

    read    lessons/08-fast-kernel.md
    write   8.4  Prefill  16 points
    also    robustness 12 points
    check   minipaged grade 8
    stuck   minipaged hint 8.4
    use it  minipaged generate Once --model opt-stories --raw --max-tokens 8 \
                --attention triton --parts fast_kernel=mine
    next    traffic.py, beside this file
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_prefill, dot_type

#: exp(x) is exp2(x * LOG2_E), and exp2 is one instruction.
LOG2_E = tl.constexpr(1.4426950408889634)


# The JIT would compile a kernel anew where the prompts of a step begin at another row of the
# tables, or the tables have another width. Nothing is won by it: entries are loaded one by one.
@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["block_tables", "query_start", "context_lens"],
)
def paged_prefill_kernel(
    out,
    q,
    k_cache,
    v_cache,
    block_tables,
    query_start,
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
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """One tile of queries of one sequence, for one KV head. Grid: (tiles, KV heads, sequences).

    Row ``r`` of a sequence is its query ``r // GROUP``, head ``r % GROUP`` of the group; a tile
    is ``ROWS`` rows. There are programs for the longest chunk of the batch: those past the end of
    a shorter one do nothing. Which program takes which tile is free; each is taken once.

    With ``h = kv_head * GROUP + r % GROUP``, and ``p`` the position of the query, ``out[t, h]``
    becomes ``sum_j softmax_j(scale * q[t, h] . K[j]) V[j]`` over ``j = 0 .. p``. Scores, softmax
    and sums are float32, whatever the type of the pointers, and nothing is rounded to TF32.
    The launch's ``num_stages`` lets the loads run ahead that feed a ``tl.dot`` of the loop.

    Args:
        out, q: pointers to ``[T, num_heads, HEAD_DIM]``. Rows of no sequence are not touched.
        k_cache, v_cache: pointers to ``[num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM]``, both
            with the same strides. What they hold past a context may be NaN or infinite and must
            not show.
        block_tables: pointer to ``[S, max_blocks]`` int32, row ``s`` at ``s * table_stride``.
            Entry ``i`` is the block of positions ``i*BLOCK_SIZE`` and on. Entries past the
            context are arbitrary: no K or V may be loaded through them.
        query_start: pointer to ``[S + 1]`` int32: sequence ``s`` has the tokens ``query_start[s]``
            up to, but not with, ``query_start[s + 1]`` of ``q`` and ``out``.
        context_lens: pointer to ``[S]`` int32: positions in the cache; the queries are the last.
        scale: float; multiplies ``q . k``.
        out_token_stride, out_head_stride, q_token_stride, q_head_stride: in elements. The
            dimensions of one head lie next to each other, here and in the caches.
        block_stride, kv_head_stride, slot_stride: of the caches, in elements. An offset into a
            cache may exceed 32 bits.
        DIMS: ``HEAD_DIM`` rounded up to a power of two, 16 or more.
        ROWS, KEYS: the tile: rows, and keys a step of the loop; powers of two, 16 or more.
        DOT_TYPE: what the operands of a ``tl.dot`` must be converted to: their own type, but for
            bfloat16 in the interpreter, which would multiply its bits.
    """
    tl.static_assert(False, "stage 8, task 8.4: see lessons/08-fast-kernel.md")


def tile_of(dims: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """``(ROWS, KEYS, num_warps, num_stages)``, chosen from the machine code for sm_80.

    With at least as many rows as dimensions the compiler gives each warp rows of its own in both
    products, and no softmax crosses warps: at 128 dimensions half as many instructions a product
    as with 64 rows. At 256 the accumulators of so many rows do not fit into registers. With three
    stages the block numbers of a tile are on their way before its keys and values are asked for.
    """
    if dtype == torch.float32:
        return (32, 32, 4, 2) if dims <= 128 else (16, 32, 8, 2)
    if dims <= 64:
        return 64, 64, 4, 3
    return (128, 32, 8, 3) if dims <= 128 else (64, 32, 8, 3)


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    max_query_len: int,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of chunks of any lengths to the cached keys and values of their sequences.

    The keys and values of the chunks themselves are in the cache already.

    Args:
        q: ``[T, num_heads, head_dim]``, float16, bfloat16 or float32; may be a view with a
            contiguous last dimension.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]`` of ``q``'s type.
            Query head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``.
        block_tables: ``[S, max_blocks]`` int32: entry ``i`` holds positions ``i * block_size``
            and on. Entries past a context do not matter.
        query_start: ``[S + 1]`` int32: sequence ``s`` has rows ``query_start[s]`` up to, but not
            with, ``query_start[s + 1]``. It need not begin at 0: other rows are left alone.
        context_lens: ``[S]`` int32: tokens in the cache, those of the chunk included, which are
            the last of them.
        scale: multiplies the scores.
        max_query_len: of all sequences.
        out: ``[T, num_heads, head_dim]`` in the type of ``q``, written in place; None: a new one,
            whose rows of no sequence hold anything.

    Returns:
        ``out``.

    Raises:
        ValueError: shapes, types or strides are not these; the message names value and limit.
    """
    out = torch.empty_like(q) if out is None else out
    check_prefill(q, k_cache, v_cache, block_tables, query_start, context_lens, out)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1:3]
    num_seqs, group = len(context_lens), num_heads // num_kv_heads
    if num_seqs == 0 or num_tokens == 0:
        return out
    dims = max(16, triton.next_power_of_2(head_dim))
    rows, keys, num_warps, num_stages = tile_of(dims, q.dtype)
    grid = (triton.cdiv(max_query_len * group, rows), num_kv_heads, num_seqs)
    paged_prefill_kernel[grid](
        out,
        q,
        k_cache,
        v_cache,
        block_tables,
        query_start,
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
        GROUP=group,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        DIMS=dims,
        ROWS=rows,
        KEYS=keys,
        DOT_TYPE=dot_type(paged_prefill_kernel, q.dtype),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out
