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

Stage 8, fast kernels::

    read    lessons/08-fast-kernel.md
    write   8.3  Split contexts  18 points
    also    robustness 12 points
    check   minipaged grade 8
    stuck   minipaged hint 8.3
    use it  minipaged generate Once --model opt-stories --raw --max-tokens 8 \
                --attention triton --parts fast_kernel=mine
    next    paged_prefill.py, beside this file
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

#: Programs wanted for each multiprocessor. 4 run on it at a time; with twice as many, one that
#: is done early is followed by another while the rest still read.
PROGRAMS_PER_SM = 8

#: Parts of a context at most: the reduction holds all of them at once.
MAX_SPLITS = 64


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
    tl.static_assert(False, "stage 8, task 8.3: see lessons/08-fast-kernel.md")


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
    tl.static_assert(False, "stage 8, task 8.3: see lessons/08-fast-kernel.md")


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
    raise NotImplementedError("stage 8, task 8.3: see lessons/08-fast-kernel.md")


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
