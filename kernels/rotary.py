"""Rotary position embedding, fused with the cache write.

The keys of a step are rotated by their positions on their way into the cache, the values go with
them, and the queries are rotated where they stand. As launches of their own the rotation would
write every key and value once, for the cache write to read and write them again.

Bytes: ``2 * T * (num_heads + 2 * num_kv_heads) * head_dim`` elements, each read once and written
once, and ``T * head_dim`` of cosines and sines for each tile of heads.

Claimed for sm_80: no spills, all loads and stores of heads at 128 bit where ``head_dim / 2`` is a
multiple of 8 (half types) or 4 (float32). Speed is not measured.
"""

import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import (
    check_contiguous_rows,
    check_float,
    check_same_type,
    check_write,
)

#: Pairs that one program rotates: 8 for each thread of 4 warps, 128 bits of a half type in each
#: half of a head.
TILE_PAIRS = 1024


@triton.jit
def _rotate(low, high, cos, sin):
    """``low, high: [HEADS, HALF]`` of any type, ``cos, sin: [1, HALF]`` -> both, in float32."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def rotate_and_write_kernel(
    q,
    k,
    v,
    cos,
    sin,
    k_cache,
    v_cache,
    slot_mapping,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    cos_token_stride,
    sin_token_stride,
    block_stride,
    head_stride,
    slot_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HALF_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Program ``(t, i)`` of token ``t``: the first programs rotate ``HEADS`` query heads each,
    the others rotate ``HEADS`` keys into the cache and copy their values.

    Args:
        q, k, v: pointers to ``[T, NUM_HEADS or NUM_KV_HEADS, 2 * HALF_DIM]``.
        cos, sin: pointers to ``[T, HALF_DIM]``: of the angles of the token's pairs.
        k_cache, v_cache: pointers to ``[num_blocks, NUM_KV_HEADS, BLOCK_SIZE, 2 * HALF_DIM]``,
            both with the same strides.
        slot_mapping: pointer to ``[T]`` int64; for a negative slot nothing is done.
        all strides: in elements. An offset into a cache may exceed 32 bits.
        HEADS, PAIRS: the tile of one program, powers of two, ``PAIRS >= HALF_DIM``.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot < 0:  # padding
        return
    Q_TILES: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    tile = tl.program_id(1)
    pairs = tl.arange(0, PAIRS)[None, :]
    cosine = tl.load(cos + token * cos_token_stride + pairs, pairs < HALF_DIM).to(tl.float32)
    sine = tl.load(sin + token * sin_token_stride + pairs, pairs < HALF_DIM).to(tl.float32)

    if tile < Q_TILES:
        heads = tile * HEADS + tl.arange(0, HEADS)[:, None]
        inside = (heads < NUM_HEADS) & (pairs < HALF_DIM)  # [HEADS, PAIRS]
        at = q + token * q_token_stride + heads * q_head_stride + pairs
        low, high = _rotate(tl.load(at, inside), tl.load(at + HALF_DIM, inside), cosine, sine)
        tl.store(at, low.to(q.dtype.element_ty), inside)
        tl.store(at + HALF_DIM, high.to(q.dtype.element_ty), inside)
    else:
        heads = (tile - Q_TILES) * HEADS + tl.arange(0, HEADS)[:, None]
        inside = (heads < NUM_KV_HEADS) & (pairs < HALF_DIM)
        block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        target = block * block_stride + place * slot_stride + heads * head_stride + pairs
        at = k + token * k_token_stride + heads * k_head_stride + pairs
        low, high = _rotate(tl.load(at, inside), tl.load(at + HALF_DIM, inside), cosine, sine)
        tl.store(k_cache + target, low.to(k_cache.dtype.element_ty), inside)
        tl.store(k_cache + target + HALF_DIM, high.to(k_cache.dtype.element_ty), inside)
        at = v + token * v_token_stride + heads * v_head_stride + pairs
        tl.store(v_cache + target, tl.load(at, inside), inside)
        tl.store(v_cache + target + HALF_DIM, tl.load(at + HALF_DIM, inside), inside)


def rotate_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """Rotate the queries in place, and store rotated keys and plain values at their slots.

    The form is rotate-half (Su et al., 2021): dimensions ``i`` and ``i + head_dim/2`` of a head
    are one pair. Products and sums are float32 whatever the type.

    Args:
        q: ``[T, num_heads, head_dim]``, written in place, but for rows of padding.
        k, v: ``[T, num_kv_heads, head_dim]``, not changed. q, k and v may be views of one tensor;
            their last dimension is contiguous.
        cos, sin: ``[T, head_dim/2]``, or wider: what stands past that is not read. Cosine and
            sine of ``position * theta^(-2i/head_dim)``, in any float type.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``, written in place.
            Slot ``s`` of head ``h`` is ``cache[s // block_size, h, s % block_size]``.
        slot_mapping: ``[T]`` int64, contiguous, in no order. A token with slot -1 is padding.
            The other slots are distinct.

    Raises:
        ValueError: shapes, types or strides that do not fit, with the value and what it must be.
    """
    _check(q, k, v, cos, sin, k_cache, v_cache, slot_mapping)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    if num_tokens == 0:
        return
    pairs = triton.next_power_of_2(head_dim // 2)
    heads = min(triton.next_power_of_2(num_heads), max(1, TILE_PAIRS // pairs))
    tiles = triton.cdiv(num_heads, heads) + triton.cdiv(num_kv_heads, heads)
    rotate_and_write_kernel[(num_tokens, tiles)](
        q,
        k,
        v,
        cos,
        sin,
        k_cache,
        v_cache,
        slot_mapping,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        cos.stride(0),
        sin.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=k_cache.shape[2],
        HALF_DIM=head_dim // 2,
        HEADS=heads,
        PAIRS=pairs,
        num_warps=4,
    )


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    if q.dim() != 3 or k.dim() != 3 or v.shape != k.shape or q.shape[::2] != k.shape[::2]:
        raise ValueError(
            f"q {[*q.shape]} must be [T, num_heads, d], and k {[*k.shape]} and v {[*v.shape]} "
            "[T, num_kv_heads, d]"
        )
    num_tokens, _, head_dim = q.shape
    if head_dim % 2:
        raise ValueError(f"rotary embedding needs an even head_dim, not {head_dim}")
    check_float("q", q)
    check_same_type("q", q, k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    for name, tensor in {"cos": cos, "sin": sin}.items():
        if tensor.dim() != 2 or len(tensor) != num_tokens or tensor.shape[1] < head_dim // 2:
            raise ValueError(
                f"{name} is {[*tensor.shape]}, not [{num_tokens}, {head_dim // 2}] or wider"
            )
    check_contiguous_rows(q=q, cos=cos, sin=sin)
    check_write(k, v, k_cache, v_cache, slot_mapping)
