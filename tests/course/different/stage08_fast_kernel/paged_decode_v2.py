"""Version 2 by another hand: one loop for all groups, a reduction that goes from part to part."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_decode, dot_type

LOG2_E = tl.constexpr(1.4426950408889634)


MIN_ROWS = MIN_DIMS = 16

STAGES = 3

MAX_REGISTERS = 128

PROGRAMS_PER_SM = 8

MAX_SPLITS = 64


@triton.jit(do_not_specialize=["table_stride"])
def paged_decode_v2_kernel(
    out,
    partial,
    lse,
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
    sequence, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_parts = tl.num_programs(2)
    context_len = tl.load(context_lens + sequence)
    tiles = (context_len + TILE - 1) // TILE
    tiles_of_part = (tiles + num_parts - 1) // num_parts
    first_tile = part * tiles_of_part
    last_tile = tl.minimum(first_tile + tiles_of_part, tiles)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    heads = kv_head * GROUP + rows
    real = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q += sequence * q_token_stride
    if GROUP == 1:
        queries = tl.load(q + kv_head * q_head_stride + dims, dims < HEAD_DIM, other=0.0)
        queries = queries.to(tl.float32)
    else:
        places = heads[:, None] * q_head_stride + dims[None, :]
        queries = tl.load(q + places, real, other=0.0).to(DOT_TYPE)
    top = tl.full([ROWS], -1e30, tl.float32)
    below = tl.zeros([ROWS], tl.float32)
    above = tl.zeros([ROWS, DIMS], tl.float32)
    for tile in tl.range(first_tile, last_tile, num_stages=STAGES):
        at = tile * TILE + tl.arange(0, TILE)
        held = at < context_len
        entries = block_tables + sequence * table_stride + at // BLOCK_SIZE
        blocks = tl.load(entries, mask=held, other=0).to(tl.int64)
        where = blocks * block_stride + kv_head * kv_head_stride + (at % BLOCK_SIZE) * slot_stride
        where = where[:, None] + dims[None, :]
        mask = held[:, None] & (dims < HEAD_DIM)[None, :]
        keys = tl.load(k_cache + where, mask=mask, other=0.0)
        values = tl.load(v_cache + where, mask=mask, other=0.0)
        if GROUP == 1:
            scores = tl.sum(queries[None, :] * keys.to(tl.float32), 1)[None, :]
        else:
            scores = tl.dot(queries, tl.trans(keys.to(DOT_TYPE)), input_precision="ieee")
        scores = tl.where(held[None, :], scores * (scale * LOG2_E), float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shares = tl.exp2(scores - higher[:, None])  # [ROWS, TILE]
        mend = tl.exp2(top - higher)
        below = below * mend + tl.sum(shares, 1)
        above *= mend[:, None]
        if GROUP == 1:
            share = tl.reshape(shares, [TILE])
            above += tl.sum(share[:, None] * values.to(tl.float32), 0)[None, :]
        else:
            above += tl.dot(shares.to(DOT_TYPE), values.to(DOT_TYPE), input_precision="ieee")
        top = higher
    empty = last_tile <= first_tile
    result = above / tl.where(below == 0.0, 1.0, below)[:, None]
    if partial is None:
        place = sequence * out_token_stride + heads[:, None] * out_head_stride + dims[None, :]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=real)
    else:
        number = (sequence * tl.num_programs(1) * GROUP + heads) * num_parts + part
        log = tl.where(empty, float("-inf"), top + tl.log2(below))
        tl.store(lse + number, log, mask=rows < GROUP)
        if last_tile > first_tile:
            tl.store(partial + number[:, None] * HEAD_DIM + dims[None, :], result, mask=real)


@triton.jit
def paged_decode_v2_reduce_kernel(
    out,
    partial,
    lse,
    out_token_stride,
    out_head_stride,
    num_splits,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    first = (sequence * tl.num_programs(1) + head) * num_splits
    dims = tl.arange(0, DIMS)
    top = float("-inf")
    for i in range(num_splits):
        top = tl.maximum(top, tl.load(lse + first + i))
    below = 0.0
    above = tl.zeros([DIMS], tl.float32)
    for i in range(num_splits):
        log = tl.load(lse + first + i)
        if log > float("-inf"):
            share = tl.exp2(log - top)
            row = tl.load(partial + (first + i) * HEAD_DIM + dims, dims < HEAD_DIM, other=0.0)
            below += share
            above += share * row
    if below > 0:
        above /= below
    place = out + sequence * out_token_stride + head * out_head_stride + dims
    tl.store(place, above.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def choose_num_splits(
    max_context_len: int, num_seqs: int, num_kv_heads: int, num_sms: int, tile: int
) -> int:
    most, tiles = 1, max(1, -(-max_context_len // tile))
    while most * num_seqs * num_kv_heads < PROGRAMS_PER_SM * num_sms:
        most += 1
    for splits in range(min(most, tiles, MAX_SPLITS), 1, -1):
        if (splits - 1) * -(-tiles // splits) < tiles:
            return splits
    return 1


def paged_decode_v2(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    max_context_len: int,
    out: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    out = torch.empty_like(q) if out is None else out
    check_decode(q, k_cache, v_cache, block_tables, context_lens, out)
    num_seqs, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1:3]
    if num_seqs == 0:
        return out
    group = num_heads // num_kv_heads
    dims = max(MIN_DIMS, triton.next_power_of_2(head_dim))
    tile = _tile(dims, q.element_size(), group)
    if num_splits is None:
        num_splits = choose_num_splits(
            max_context_len, num_seqs, num_kv_heads, _num_sms(q.device), tile
        )
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits is {num_splits}, not 1 to {MAX_SPLITS}")
    partial = lse = None
    if num_splits > 1:
        shape = (num_seqs, num_heads, num_splits)
        partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)

    rows = 1 if group == 1 else max(MIN_ROWS, triton.next_power_of_2(group))
    paged_decode_v2_kernel[(num_seqs, num_kv_heads, num_splits)](
        out,
        partial,
        lse,
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
        GROUP=group,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        ROWS=rows,
        DIMS=dims,
        TILE=tile,
        STAGES=STAGES,
        DOT_TYPE=dot_type(paged_decode_v2_kernel, q.dtype),
        num_warps=4 if rows <= 32 else 8,
        maxnreg=MAX_REGISTERS if group == 1 else None,
    )
    if partial is not None:
        paged_decode_v2_reduce_kernel[(num_seqs, num_heads)](
            out,
            partial,
            lse,
            out.stride(0),
            out.stride(1),
            num_splits,
            HEAD_DIM=head_dim,
            DIMS=dims,
            SPLITS=triton.next_power_of_2(num_splits),
            num_warps=4,
        )
    return out


def _num_sms(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 1  # the interpreter runs one program after the other


def _tile(dims: int, itemsize: int, group: int) -> int:
    tile_bytes, least = (8192, 8) if group == 1 else (16384, MIN_ROWS)
    return max(least, min(64, tile_bytes // (dims * itemsize)))
