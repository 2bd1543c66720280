"""Prefill by another hand: the keys that all rows see need no mask, and the others do."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_prefill, dot_type

LOG2_E = tl.constexpr(1.4426950408889634)


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
    sequence, kv_head, tile = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    begin = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - begin
    before = tl.load(context_lens + sequence) - count
    if tile * ROWS < count * GROUP:
        row = tile * ROWS + tl.arange(0, ROWS)
        dims = tl.arange(0, DIMS)
        head = kv_head * GROUP + row % GROUP
        at = before + row // GROUP
        token = (begin + row // GROUP).to(tl.int64)
        real = (row < count * GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
        place = token[:, None] * q_token_stride + head[:, None] * q_head_stride + dims[None, :]
        queries = tl.load(q + place, mask=real, other=0.0).to(DOT_TYPE)
        top = tl.full([ROWS], -1e30, tl.float32)
        below = tl.zeros([ROWS], tl.float32)
        above = tl.zeros([ROWS, DIMS], tl.float32)
        seen_by_all = (before + tile * ROWS // GROUP + 1) // KEYS * KEYS
        seen = before + tl.minimum(count, (tile * ROWS + ROWS + GROUP - 1) // GROUP)
        for first in range(0, seen, KEYS):
            key = first + tl.arange(0, KEYS)
            held = key < seen
            entries = block_tables + sequence * table_stride + key // BLOCK_SIZE
            block = tl.load(entries, mask=held, other=0).to(tl.int64)
            where = block * block_stride + kv_head * kv_head_stride
            where += (key % BLOCK_SIZE) * slot_stride
            mask = (dims < HEAD_DIM)[:, None] & held[None, :]
            keys = tl.load(k_cache + where[None, :] + dims[:, None], mask=mask, other=0.0)
            mask = held[:, None] & (dims < HEAD_DIM)[None, :]
            values = tl.load(v_cache + where[:, None] + dims[None, :], mask=mask, other=0.0)
            scores = tl.dot(queries, keys.to(DOT_TYPE), input_precision="ieee") * scale * LOG2_E
            if first >= seen_by_all:
                scores = tl.where(at[:, None] >= key[None, :], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            shares = tl.exp2(scores - higher[:, None])
            mend = tl.exp2(top - higher)
            below = below * mend + tl.sum(shares, 1)
            above *= mend[:, None]
            above += tl.dot(shares.to(DOT_TYPE), values.to(DOT_TYPE), input_precision="ieee")
            top = higher
        place = token[:, None] * out_token_stride + head[:, None] * out_head_stride + dims[None, :]
        tl.store(out + place, (above / below[:, None]).to(out.dtype.element_ty), mask=real)


def tile_of(dims: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
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
