"""Version 1 by another hand: one maximum for a tile, keys loaded the other way round, and e in
place of 2."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_decode, dot_type

MIN_ROWS = MIN_DIMS = 16

STAGES = 3

MAX_REGISTERS = 128


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
    sequence, head = tl.program_id(0), tl.program_id(1)
    context_len = tl.load(context_lens + sequence)
    dims = tl.arange(0, DIMS)
    query = tl.load(
        q + sequence * q_token_stride + head * q_head_stride + dims, dims < HEAD_DIM, other=0.0
    ).to(tl.float32)
    top = float("-inf")
    below = 0.0
    above = tl.zeros([DIMS], tl.float32)
    for first in tl.range(0, context_len, TILE, num_stages=STAGES):
        at = first + tl.arange(0, TILE)
        held = at < context_len
        entries = block_tables + sequence * table_stride + at // BLOCK_SIZE
        blocks = tl.load(entries, mask=held, other=0).to(tl.int64)
        where = blocks * block_stride + head * kv_head_stride + (at % BLOCK_SIZE) * slot_stride
        where = where[:, None] + dims[None, :]
        mask = held[:, None] & (dims < HEAD_DIM)[None, :]
        keys = tl.load(k_cache + where, mask=mask, other=0.0).to(tl.float32)
        values = tl.load(v_cache + where, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(held, tl.sum(keys * query[None, :], 1) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        shares = tl.exp(scores - higher)
        mend = tl.exp(top - higher)
        below = below * mend + tl.sum(shares, 0)
        above = above * mend + tl.sum(shares[:, None] * values, 0)
        top = higher
    result = tl.where(context_len > 0, above / below, 0.0)
    place = out + sequence * out_token_stride + head * out_head_stride + dims
    tl.store(place, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


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
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    context_len = tl.load(context_lens + sequence)
    rows = tl.arange(0, ROWS)[:, None]
    dims = tl.arange(0, DIMS)
    real = (rows < GROUP) & (dims[None, :] < HEAD_DIM)
    first_head = kv_head * GROUP
    q += sequence * q_token_stride + first_head * q_head_stride
    queries = tl.load(q + rows * q_head_stride + dims[None, :], real, other=0.0).to(DOT_TYPE)
    top = tl.full([ROWS], -1e30, tl.float32)
    below = tl.zeros([ROWS], tl.float32)
    above = tl.zeros([ROWS, DIMS], tl.float32)
    for first in tl.range(0, context_len, TILE, num_stages=STAGES):
        at = first + tl.arange(0, TILE)
        held = at < context_len
        entries = block_tables + sequence * table_stride + at // BLOCK_SIZE
        blocks = tl.load(entries, mask=held, other=0).to(tl.int64)
        where = blocks * block_stride + kv_head * kv_head_stride + (at % BLOCK_SIZE) * slot_stride
        keys = tl.load(
            k_cache + where[None, :] + dims[:, None],
            mask=held[None, :] & (dims < HEAD_DIM)[:, None],
            other=0.0,
        )  # [DIMS, TILE]
        scores = tl.dot(queries, keys.to(DOT_TYPE), input_precision="ieee") * scale
        scores = tl.where(held[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shares = tl.exp(scores - higher[:, None])
        mend = tl.exp(top - higher)
        values = tl.load(
            v_cache + where[:, None] + dims[None, :],
            mask=held[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        below = below * mend + tl.sum(shares, 1)
        above *= mend[:, None]
        above += tl.dot(shares.to(DOT_TYPE), values.to(DOT_TYPE), input_precision="ieee")
        top = higher
    result = above / tl.where(below == 0.0, 1.0, below)[:, None]
    place = out + sequence * out_token_stride + (first_head + rows) * out_head_stride
    tl.store(place + dims[None, :], result.to(out.dtype.element_ty), mask=real)


def paged_decode_v1(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
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
    tile_bytes, least = (8192, 8) if group == 1 else (16384, MIN_ROWS)
    return max(least, min(64, tile_bytes // (dims * itemsize)))
