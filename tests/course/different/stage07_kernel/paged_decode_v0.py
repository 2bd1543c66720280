"""A right answer that is built in another way: position by position, with no tile of slots, so
that no slot past the context is ever in a register."""

import torch
import triton
import triton.language as tl


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
    sequence, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, DIMS)
    live = at < HEAD_DIM
    query = tl.load(q + sequence * q_token_stride + head * q_head_stride + at, mask=live, other=0.0)
    query = query.to(tl.float32)
    best = float("-inf")
    weights = 0.0
    sums = tl.zeros([DIMS], tl.float32)
    for position in range(tl.load(context_lens + sequence)):
        block = tl.load(block_tables + sequence * table_stride + position // BLOCK_SIZE)
        row = block.to(tl.int64) * block_stride + (head // GROUP) * kv_head_stride
        row += (position % BLOCK_SIZE) * slot_stride
        key = tl.load(k_cache + row + at, mask=live, other=0.0).to(tl.float32)
        value = tl.load(v_cache + row + at, mask=live, other=0.0).to(tl.float32)
        score = scale * tl.sum(query * key, axis=0)
        if score > best:
            mend = tl.exp(best - score)
            weights = weights * mend + 1.0
            sums = sums * mend + value
            best = score
        else:
            weight = tl.exp(score - best)
            weights += weight
            sums += weight * value
    if weights > 0:
        sums = sums / weights
    target = out + sequence * out_token_stride + head * out_head_stride
    tl.store(target + at, sums.to(out.dtype.element_ty), mask=live)


def paged_decode_v0(q, k_cache, v_cache, block_tables, context_lens, scale, out=None):
    out = torch.empty_like(q) if out is None else out
    num_seqs, num_heads, head_dim = q.shape
    paged_decode_v0_kernel[(num_seqs, num_heads)](
        out,
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        scale,
        *out.stride()[:2],
        *q.stride()[:2],
        *k_cache.stride()[:3],
        block_tables.stride(0),
        GROUP=num_heads // k_cache.shape[1],
        BLOCK_SIZE=k_cache.shape[2],
        HEAD_DIM=head_dim,
        SLOTS=triton.next_power_of_2(k_cache.shape[2]),
        DIMS=triton.next_power_of_2(head_dim),
    )
    return out
