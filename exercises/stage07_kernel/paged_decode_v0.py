"""Paged decode, version 0: one query token a sequence, one block a step.

Attention of decodes over the paged cache (paper, section 4.3), as plainly as a kernel can say
it. One program owns one query head of one sequence and walks its block table from the first
entry to the last, with a softmax that is corrected as it goes: nothing of size ``context_len``
is ever kept.

Bytes: K and V of every context once for each *query* head, ``2 * group`` times ``context_len *
num_kv_heads * head_dim`` elements: with grouped-query attention ``group`` times what must be
moved. One block is in flight at a time, with its K and V 8 KB for 16 tokens of 128 half-precision
numbers, and nothing while it is computed. Versions 1 and 2 are the fast ones; of this one nothing
is claimed but that it is right.

Stage 7, the paged attention kernel::

    read    lessons/07-kernel.md
    write   7.3  Decode through the table  28 points
    also    robustness 14 points, counterexample.toml 6 points
    check   minipaged grade 7
    stuck   minipaged hint 7.3
    use it  minipaged generate Once --model opt-stories --raw --max-tokens 8 \
                --attention triton --parts kernel=mine
    next    lessons/08-fast-kernel.md
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_decode

#: exp(x) is exp2(x * LOG2_E), and exp2 is one instruction.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def paged_decode_v0_kernel(
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
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Program ``(s, h)`` computes ``out[s, h]``: head ``h`` of sequence ``s``'s one query.

    Args:
        out, q: pointers to ``[S, num_heads, HEAD_DIM]``.
        k_cache, v_cache: pointers to ``[num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM]``, both
            with the same strides. Query head ``h`` reads KV head ``h // GROUP``.
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
        SLOTS, DIMS: ``BLOCK_SIZE`` and ``HEAD_DIM`` rounded up to powers of two: the shape of
            the tiles.

    What the caches hold past a context may be NaN or infinite and must not show. Scores, softmax
    and sums are float32, whatever the type of the pointers.
    """
    tl.static_assert(False, "stage 7, task 7.3: see lessons/07-kernel.md")


def paged_decode_v0(
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
    paged_decode_v0_kernel[(num_seqs, num_heads)](
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
        GROUP=num_heads // num_kv_heads,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        SLOTS=triton.next_power_of_2(block_size),
        DIMS=triton.next_power_of_2(head_dim),
        num_warps=4,
    )
    return out
