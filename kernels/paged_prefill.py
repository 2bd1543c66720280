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
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def paged_prefill_kernel(
    q,
    k_cache,
    v_cache,
    block_tables,
    query_start,
    context_lens,
    out,
    scale,
    q_row_stride,
    q_head_stride,
    out_row_stride,
    out_head_stride,
    block_stride,
    kv_head_stride,
    table_stride,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """One tile of queries of one sequence, for one KV head. Grid: (tiles, KV heads, sequences).

    Row ``r`` of a sequence is query ``r // GROUP`` of it, head ``r % GROUP`` of the group; a tile
    is ``ROWS`` rows. There are programs for the longest chunk of the batch: those past the end of
    a shorter one do nothing. Which program takes which tile is free; each is taken once.

    With ``h = r % GROUP + GROUP * kv_head``, and ``p`` the position of the query, what is stored
    at ``out[t, h]`` is ``sum_j softmax_j(scale * q[t, h] . K[j]) V[j]`` over ``j = 0 .. p``.
    Scores, softmax and sums are float32, and no product is rounded to TF32.

    Args:
        q: ``[T, H, HEAD_DIM]``, strides ``q_row_stride, q_head_stride, 1``.
        k_cache, v_cache: ``[num_blocks, KVH, BLOCK_SIZE, HEAD_DIM]``, strides ``block_stride,
            kv_head_stride, HEAD_DIM, 1``. ``block * block_stride`` can pass 2^31. Slots past a
            context may hold NaN or infinity, which must not show.
        block_tables: ``[S, max_blocks]`` int32, strides ``table_stride, 1``. Entries past the
            context are not followed.
        query_start: ``[S + 1]`` int32: rows of ``q`` and ``out`` of sequence ``s`` are
            ``query_start[s]`` up to, but not with, ``query_start[s + 1]``.
        context_lens: ``[S]`` int32: tokens in the cache; the queries are the last of them.
        out: ``[T, H, HEAD_DIM]``, strides ``out_row_stride, out_head_stride, 1``. Rows of no
            sequence are not touched.
        scale: multiplies the scores.
        all strides: in elements.
        GROUP: query heads a KV head.
        PADDED_DIM: ``HEAD_DIM`` rounded up to a power of two, 16 or more.
        ROWS, KEYS: the tile: rows, and keys a step of the loop; powers of two, 16 or more.
        DOT_TYPE: what the operands of a ``tl.dot`` must be converted to: their own type, but for
            bfloat16 in the interpreter, which would multiply its bits.
    """
    sequence = tl.program_id(2)
    kv_head = tl.program_id(1)
    # The last queries see the most keys: they start first, so that no long tile comes last.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    first_token = tl.load(query_start + sequence)
    num_queries = tl.load(query_start + sequence + 1) - first_token
    if tile * ROWS >= num_queries * GROUP:
        return
    context_len = tl.load(context_lens + sequence)
    history = context_len - num_queries

    row = tile * ROWS + tl.arange(0, ROWS)
    query = row // GROUP
    head = kv_head * GROUP + row % GROUP
    dim = tl.arange(0, PADDED_DIM)
    in_tile = (query < num_queries)[:, None] & (dim < HEAD_DIM)[None, :]
    token = (first_token + query).to(tl.int64)
    q_at = q + token[:, None] * q_row_stride + head[:, None] * q_head_stride + dim[None, :]
    q_tile = tl.load(q_at, mask=in_tile, other=0.0).to(DOT_TYPE)  # [ROWS, PADDED_DIM]

    # exp2 is one instruction where exp is two: the factor log2(e) goes into the scale.
    log2_scale = scale * 1.4426950408889634
    position = history + query
    last_query = tl.minimum((tile * ROWS + ROWS - 1) // GROUP, num_queries - 1)
    num_keys = history + last_query + 1  # that any row of the tile sees
    table = block_tables + sequence * table_stride
    k_head = k_cache + kv_head * kv_head_stride
    v_head = v_cache + kv_head * kv_head_stride

    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for start in range(0, num_keys, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < num_keys
        block = tl.load(table + key // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        slot = block * block_stride + (key % BLOCK_SIZE) * HEAD_DIM
        at = slot[:, None] + dim[None, :]
        # A zero for what nobody sees: stale values may be NaN, and 0 * NaN is NaN.
        visible = seen[:, None] & (dim < HEAD_DIM)[None, :]
        k_tile = tl.load(k_head + at, mask=visible, other=0.0)  # [KEYS, PADDED_DIM]
        v_tile = tl.load(v_head + at, mask=visible, other=0.0)  # [KEYS, PADDED_DIM]

        scores = tl.dot(q_tile, tl.trans(k_tile.to(DOT_TYPE)), input_precision="ieee")
        causal = key[None, :] <= position[:, None]
        scores = tl.where(causal, scores * log2_scale, float("-inf"))  # [ROWS, KEYS]
        # Key 0 is in the first tile and every row sees it: `highest` is finite from there on.
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_highest[:, None])  # [ROWS, KEYS]
        rescale = tl.exp2(highest - new_highest)
        total = total * rescale + tl.sum(weights, axis=1)
        weights = weights.to(v_tile.dtype).to(DOT_TYPE)
        acc = tl.dot(weights, v_tile.to(DOT_TYPE), acc * rescale[:, None], input_precision="ieee")
        highest = new_highest

    out_at = out + token[:, None] * out_row_stride + head[:, None] * out_head_stride + dim[None, :]
    tl.store(out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=in_tile)


def tile_of(padded_dim: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """``(ROWS, KEYS, num_warps, num_stages)``: the largest tiles whose accumulators stay in
    registers on sm_80 up to ``padded_dim`` 256. With three stages the block numbers of a tile are
    on their way before its keys and values are asked for."""
    if dtype == torch.float32:
        return (32, 32, 4, 2) if padded_dim <= 128 else (16, 32, 8, 2)
    if padded_dim <= 64:
        return 64, 64, 4, 3
    return (64, 32, 4, 3) if padded_dim <= 128 else (64, 32, 8, 3)


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

    The keys and values of the chunks themselves are in the cache already. Query head ``h`` reads
    KV head ``h // (num_heads // num_kv_heads)``.

    Args:
        q: ``[T, num_heads, head_dim]``, float16, bfloat16 or float32; may be a view with a
            contiguous last dimension.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]`` in the type of
            ``q``, contiguous.
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
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    out = q.new_empty(q.shape) if out is None else out
    _check(q, k_cache, v_cache, block_tables, query_start, context_lens, out)
    num_seqs = len(context_lens)
    if num_seqs == 0 or num_tokens == 0:
        return out
    group = num_heads // num_kv_heads
    padded_dim = max(16, triton.next_power_of_2(head_dim))
    rows, keys, num_warps, num_stages = tile_of(padded_dim, q.dtype)
    grid = (triton.cdiv(max_query_len * group, rows), num_kv_heads, num_seqs)
    paged_prefill_kernel[grid](
        q,
        k_cache,
        v_cache,
        block_tables,
        query_start,
        context_lens,
        out,
        scale,
        q.stride(0),
        q.stride(1),
        out.stride(0),
        out.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        block_tables.stride(0),
        GROUP=group,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim,
        ROWS=rows,
        KEYS=keys,
        DOT_TYPE=_dot_type(q.dtype),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out


def _dot_type(dtype: torch.dtype) -> tl.dtype:
    compiled = isinstance(paged_prefill_kernel, triton.JITFunction)
    widened = dtype == torch.float32 or (dtype == torch.bfloat16 and not compiled)
    return tl.float32 if widened else tl.float16 if dtype == torch.float16 else tl.bfloat16


def _check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    out: Tensor,
) -> None:
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k_cache.shape[1]
    if k_cache.shape != v_cache.shape or k_cache.shape[3] != head_dim:
        raise ValueError(
            f"k_cache {list(k_cache.shape)} and v_cache {list(v_cache.shape)} must be alike, with "
            f"the head_dim of q {list(q.shape)}"
        )
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are no multiple of {num_kv_heads} KV heads")
    if not q.dtype == k_cache.dtype == v_cache.dtype == out.dtype:
        raise ValueError(
            f"q {q.dtype}, k_cache {k_cache.dtype}, v_cache {v_cache.dtype} and out {out.dtype} "
            "must have one type"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError(f"the caches must be contiguous, not with strides {k_cache.stride()}")
    if out.shape != q.shape or q.stride(2) != 1 or out.stride(2) != 1:
        raise ValueError(
            f"out {list(out.shape)} must have the shape of q {list(q.shape)}, and the last "
            f"dimension of both must be contiguous, not of strides {out.stride(2)}, {q.stride(2)}"
        )
    num_seqs = len(context_lens)
    if len(query_start) != num_seqs + 1 or len(block_tables) != num_seqs:
        raise ValueError(
            f"{num_seqs} context lengths need {num_seqs + 1} query starts and {num_seqs} block "
            f"tables, not {len(query_start)} and {len(block_tables)}"
        )
    for name, index in (
        ("block_tables", block_tables),
        ("query_start", query_start),
        ("context_lens", context_lens),
    ):
        if index.dtype != torch.int32 or index.stride(-1) != 1:
            raise ValueError(
                f"{name} must be int32 with a contiguous last dimension, not {index.dtype} with "
                f"strides {index.stride()}"
            )
