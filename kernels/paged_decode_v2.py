"""Paged decode, version 2: a long context is split among several programs.

Version 1 has a program for each sequence and KV head: 8 for one sequence of a model with 8 KV
heads, on a card with over a hundred multiprocessors. Here a context is cut into ``num_splits``
parts, each with a program of its own. A part's result is a softmax over its own positions; it is
kept with the logarithm of the sum of its weights, and from these a second, small kernel makes the
softmax over all. Where sequences and heads are enough to fill the card there is one part, and
neither workspace nor second launch.

Bytes: as version 1, and for each part, if there are several, ``head_dim + 1`` float32 numbers a
query head, written and read once: at head_dim 128, 1 KB beside the 64 KB of K and V that a part of
128 half-precision positions has.

Claimed for sm_80, read from the machine code: what version 1 claims, of the same loops. In half
precision at head_dim 128, with blocks of 16: no spills, K and V by ``LDGSTS.128``, 4 thread
blocks of 4 warps on each multiprocessor. Speed has not been measured.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_decode, dot_type

#: exp(x) is exp2(x * LOG2_E), and exp2 is one instruction.
LOG2_E = tl.constexpr(1.4426950408889634)

#: Where a running maximum starts: below any score, and finite, so that differences of two
#: maxima are never inf - inf.
LOWEST = tl.constexpr(-3.0e38)

#: ``tl.dot`` takes at least so many rows, and so long sums: what has fewer is padded.
MIN_ROWS = MIN_DIMS = 16

#: Stages of the loops: table entries of the tile after the next, K and V of the next, arithmetic.
STAGES = 3

#: Registers of a thread where there are no products: 4 thread blocks of 4 warps share 65,536.
MAX_REGISTERS = 128

#: Programs wanted for each multiprocessor. 4 run on it at a time; with twice as many, one that
#: is done early is followed by another while the rest still read.
PROGRAMS_PER_SM = 8

#: Parts of a context at most: the reduction holds all of them at once.
MAX_SPLITS = 64


@triton.jit
def _attend_one(
    query, scale, k_cache, v_cache, table, begin, end, block_stride, slot_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One query ``[DIMS]`` over positions ``begin .. end - 1`` of its KV head.

    Returns ``mixed [1, DIMS]``, ``maximum [1]``, ``total [1]``: sums of weighted values and of
    weights, relative to ``exp2(maximum)``.
    """
    rows = tl.arange(0, TILE)
    dims = tl.arange(0, DIMS)
    query = query.to(tl.float32) * (scale * LOG2_E)

    # Each row of the tile keeps a softmax of its own, over every TILE-th position: no step waits
    # for another row, and so for another warp. They are merged when all is read.
    maximum = tl.full([TILE], LOWEST, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, DIMS], tl.float32)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        position = start + rows
        live = position < end
        inside = live[:, None] & (dims < HEAD_DIM)[None, :]
        block = tl.load(table + position // BLOCK_SIZE, live, other=0).to(tl.int64)
        place = block * block_stride + (position % BLOCK_SIZE) * slot_stride
        offset = place[:, None] + dims[None, :]  # [TILE, DIMS]
        key = tl.load(k_cache + offset, inside, other=0.0)
        value = tl.load(v_cache + offset, inside, other=0.0)

        score = tl.sum(query[None, :] * key.to(tl.float32), axis=1)
        score = tl.where(live, score, float("-inf"))
        new_maximum = tl.maximum(maximum, score)
        weight = tl.exp2(score - new_maximum)
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + weight
        mixed = mixed * rescale[:, None] + weight[:, None] * value.to(tl.float32)
        maximum = new_maximum

    highest = tl.max(maximum, axis=0, keep_dims=True)
    share = tl.exp2(maximum - highest)
    total = tl.sum(total * share, axis=0, keep_dims=True)
    mixed = tl.sum(mixed * share[:, None], axis=0, keep_dims=True)
    return mixed, highest, total


@triton.jit
def _attend_group(
    query, scale, k_cache, v_cache, table, begin, end, block_stride, slot_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr, ROWS: tl.constexpr, DOT_TYPE: tl.constexpr,
):  # fmt: skip
    """The queries ``[ROWS, DIMS]`` of one KV head over its positions ``begin .. end - 1``.

    Returns ``mixed [ROWS, DIMS]``, ``maximum [ROWS]``, ``total [ROWS]``, as :func:`_attend_one`.
    """
    tile = tl.arange(0, TILE)
    dims = tl.arange(0, DIMS)
    query = query.to(DOT_TYPE)

    maximum = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIMS], tl.float32)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        position = start + tile
        live = position < end
        inside = live[:, None] & (dims < HEAD_DIM)[None, :]
        block = tl.load(table + position // BLOCK_SIZE, live, other=0).to(tl.int64)
        place = block * block_stride + (position % BLOCK_SIZE) * slot_stride
        offset = place[:, None] + dims[None, :]  # [TILE, DIMS]
        key = tl.load(k_cache + offset, inside, other=0.0)
        value = tl.load(v_cache + offset, inside, other=0.0)

        score = tl.dot(query, key.to(DOT_TYPE).trans(), input_precision="ieee")  # [ROWS, TILE]
        score = tl.where(live[None, :], score * (scale * LOG2_E), float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(score, axis=1))
        weight = tl.exp2(score - new_maximum[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.sum(weight, axis=1)
        mixed = tl.dot(
            weight.to(DOT_TYPE),
            value.to(DOT_TYPE),
            mixed * rescale[:, None],
            input_precision="ieee",
        )
        maximum = new_maximum
    return mixed, maximum, total


# The JIT would compile a kernel anew where the tables have another width. Nothing is won by it:
# their entries are loaded one by one.
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
    """Program ``(s, g, i)``: part ``i`` of sequence ``s``, for the heads that read KV head ``g``.

    A context of ``n = ceil(context_len / TILE)`` tiles is cut into parts of ``ceil(n / parts)``
    tiles, ``parts`` being the size of the grid's third axis. The last part that holds a position
    may be shorter, and those after it hold none.

    Args:
        out, q: pointers to ``[S, num_heads, HEAD_DIM]``.
        partial: pointer to ``[S, num_heads, parts, HEAD_DIM]`` float32, contiguous: attention to
            the positions of the part alone, as if there were no others. Not written for a part
            that holds none. None: there is one part, and its result goes to ``out``, which
            otherwise is not touched.
        lse: pointer to ``[S, num_heads, parts]`` float32, contiguous: base-2 logarithm of the
            sum of ``exp(scale * (q . k))`` over the positions of the part; -inf for a part that
            holds none. None if ``partial`` is.
        k_cache, v_cache: pointers to ``[num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_DIM]``, both
            with the same strides. Query head ``h`` reads KV head ``h // GROUP``.
        block_tables: pointer to ``[S, max_blocks]`` int32, row ``s`` at ``s * table_stride``.
            Entry ``i`` is the block of positions ``i*BLOCK_SIZE`` and on. Entries past the
            context are arbitrary: no K or V may be loaded through them.
        context_lens: pointer to ``[S]`` int32, one after the other: how many positions the query
            attends to. 0 is possible (padding): then the result is zero.
        scale: float; multiplies ``q . k``.
        out_token_stride, out_head_stride, q_token_stride, q_head_stride: in elements. The
            dimensions of one head lie next to each other, here and in the caches.
        block_stride, kv_head_stride, slot_stride: of the caches, in elements. An offset into a
            cache may exceed 32 bits.
        ROWS: 1 if ``GROUP`` is 1; else ``GROUP`` rounded up to a power of two, and to what
            ``tl.dot`` demands.
        DIMS: ``HEAD_DIM`` rounded up to a power of two.
        TILE: positions of one step, a power of two, whether or not it is a multiple of
            ``BLOCK_SIZE``.
        STAGES: what ``tl.range`` of the loop is given, so that loads run ahead.
        DOT_TYPE: what the operands of ``tl.dot`` are converted to: their own type, but for
            bfloat16 in the interpreter, which would multiply its bits.

    A step loads K and V once for each live position of its tile. What the caches hold past a
    context may be NaN or infinite and must not show. Scores, softmax and sums are float32,
    whatever the type of the pointers, and nothing is rounded to TF32
    (``input_precision="ieee"``).
    """
    sequence, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context_len = tl.load(context_lens + sequence)
    part_len = tl.cdiv(tl.cdiv(context_len, TILE), tl.num_programs(2)) * TILE
    begin = part * part_len
    end = tl.minimum(begin + part_len, context_len)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    in_group = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]  # [ROWS, DIMS]
    heads = kv_head * GROUP + rows
    q += sequence * q_token_stride
    table = block_tables + sequence * table_stride
    k_cache += kv_head * kv_head_stride
    v_cache += kv_head * kv_head_stride
    if GROUP == 1:
        # A vector: from a [1, DIMS] tile the compiler would spread each row over all warps.
        query = tl.load(q + kv_head * q_head_stride + dims, dims < HEAD_DIM, other=0.0)
        mixed, maximum, total = _attend_one(
            query, scale, k_cache, v_cache, table, begin, end, block_stride, slot_stride,
            BLOCK_SIZE, HEAD_DIM, DIMS, TILE, STAGES,
        )  # fmt: skip
    else:
        query = tl.load(q + heads[:, None] * q_head_stride + dims[None, :], in_group, other=0.0)
        mixed, maximum, total = _attend_group(
            query, scale, k_cache, v_cache, table, begin, end, block_stride, slot_stride,
            BLOCK_SIZE, HEAD_DIM, DIMS, TILE, STAGES, ROWS, DOT_TYPE,
        )  # fmt: skip

    seen = total > 0
    total = tl.where(seen, total, 1.0)
    result = mixed / total[:, None]  # without a position: 0 / 1
    if partial is None:
        out += sequence * out_token_stride + heads[:, None] * out_head_stride + dims[None, :]
        tl.store(out, result.to(out.dtype.element_ty), in_group)
    else:
        num_heads = tl.num_programs(1) * GROUP
        place = (sequence * num_heads + heads) * tl.num_programs(2) + part  # [ROWS]
        log_sum = tl.where(seen, maximum + tl.log2(total), float("-inf"))
        tl.store(lse + place, log_sum, rows < GROUP)
        partial += place[:, None] * HEAD_DIM + dims[None, :]
        tl.store(partial, result, in_group & seen[:, None])


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
    """Program ``(s, h)`` makes ``out[s, h]`` of the parts' results.

    Args:
        out: pointer to ``[S, num_heads, HEAD_DIM]``.
        partial: pointer to ``[S, num_heads, num_splits, HEAD_DIM]`` float32, contiguous:
            attention to the positions of each part alone. A part without a position is
            arbitrary (NaN included), and must not show.
        lse: pointer to ``[S, num_heads, num_splits]`` float32, contiguous: base-2 logarithm of
            the sum of ``exp(scale * (q . k))`` over a part; -inf for one without a position. If
            all are, ``out[s, h]`` is zero.
        out_token_stride, out_head_stride: in elements.
        SPLITS, DIMS: ``num_splits`` and ``HEAD_DIM`` rounded up to powers of two.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    first = (sequence * tl.num_programs(1) + head) * num_splits
    parts = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIMS)

    log_sum = tl.load(lse + first + parts, parts < num_splits, other=float("-inf"))
    weight = tl.exp2(log_sum - tl.maximum(tl.max(log_sum, axis=0), LOWEST))  # [SPLITS]
    seen = (log_sum > LOWEST)[:, None] & (dims < HEAD_DIM)[None, :]
    partial += (first + parts[:, None]) * HEAD_DIM + dims[None, :]
    mixed = tl.sum(weight[:, None] * tl.load(partial, seen, other=0.0), axis=0)
    total = tl.sum(weight, axis=0)
    result = mixed / tl.where(total > 0, total, 1.0)
    out += sequence * out_token_stride + head * out_head_stride
    tl.store(out + dims, result.to(out.dtype.element_ty), dims < HEAD_DIM)


def choose_num_splits(
    max_context_len: int, num_seqs: int, num_kv_heads: int, num_sms: int, tile: int
) -> int:
    """Into how many parts each context is cut.

    So many that ``num_seqs * num_kv_heads`` times the number is at least :data:`PROGRAMS_PER_SM`
    for each of ``num_sms`` multiprocessors, and no more than that takes; but no more than
    :data:`MAX_SPLITS`, no more than the longest context has tiles, and with none of its parts
    empty, when each has the same whole number of tiles but for the last.

    It depends on nothing that is on the device, so that a CUDA graph can hold the launch.

    Args:
        max_context_len: of the longest context, in positions; may be 0.
        tile: positions of a tile: a part is a whole number of them.

    Returns:
        1 or more. 1 means that there is nothing to reduce.

    Example:
        One sequence of 1000 positions with 8 KV heads, 108 multiprocessors, tiles of 64: 108
        parts would be wanted, but there are 16 tiles, so the answer is 16. For 8 such sequences
        it is 14 parts that are wanted; with 2 tiles a part, 8 parts hold all.
    """
    wanted = triton.cdiv(PROGRAMS_PER_SM * num_sms, num_seqs * num_kv_heads)
    tiles = max(1, triton.cdiv(max_context_len, tile))
    tiles_of_part = triton.cdiv(tiles, min(wanted, tiles, MAX_SPLITS))
    num_splits: int = triton.cdiv(tiles, tiles_of_part)
    return num_splits


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
        max_context_len: of the longest context, or above it: only the choice of ``num_splits``
            depends on it. A number of the host, so that nothing waits for the device.
        out: where the result goes; a new tensor without it.
        num_splits: parts of a context, 1 to :data:`MAX_SPLITS`; :func:`choose_num_splits` by
            default.

    Returns:
        ``out``: ``[S, num_heads, head_dim]``.

    Raises:
        ValueError: shapes, types, strides or ``num_splits`` that do not fit, with the value and
            what it must be.
    """
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
    """Positions of a tile: 8 KB of K, or 16 KB where tensor cores do the arithmetic. With more,
    fewer thread blocks fit on a multiprocessor; with less, the loop is all overhead."""
    tile_bytes, least = (8192, 8) if group == 1 else (16384, MIN_ROWS)
    return max(least, min(64, tile_bytes // (dims * itemsize)))
