"""Cache write: the new keys and values of a step go to their slots, both caches in one launch.

It stands before every attention call (paper, section 4.3): a step's tokens are computed side by
side, but their slots lie in blocks anywhere in the pool.

Bytes: ``2 * T * num_kv_heads * head_dim`` elements are read and as many written, plus 8 bytes of
slot number a token and tile of heads.

Claimed for sm_80, read from the machine code: no spills, and 128-bit loads and stores for any
head_dim that is a multiple of 16. Speed has not been measured.

Stage 7, the paged attention kernel::

    read    lessons/07-kernel.md
    write   7.1  Cache write  12 points
    also    robustness 14 points, counterexample.toml 6 points
    check   minipaged grade 7
    stuck   minipaged hint 7.1
    use it  minipaged generate Once --model opt-stories --raw --max-tokens 8 \
                --attention triton --parts kernel=mine
    next    block_copy.py, beside this file
"""

import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_write

#: Elements of K, and of V, that one program moves: 8 for each thread of 4 warps, that is 128
#: bits of a half type.
TILE_ELEMENTS = 1024


@triton.jit
def cache_write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slot_mapping,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    block_stride,
    head_stride,
    slot_stride,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Program ``(t, i)`` stores heads ``i*HEADS .. i*HEADS + HEADS - 1`` of token ``t``.

    Args:
        k, v: pointers to ``[T, NUM_KV_HEADS, HEAD_DIM]``.
        k_cache, v_cache: pointers to ``[num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM]``, both
            with the same strides.
        slot_mapping: pointer to ``[T]`` int64, one after the other. Slot ``s`` is place
            ``s % BLOCK_SIZE`` of block ``s // BLOCK_SIZE``. For a negative slot nothing is
            stored.
        k_token_stride, k_head_stride, v_token_stride, v_head_stride: in elements. The
            dimensions of one head lie next to each other, here and in the caches.
        block_stride, head_stride, slot_stride: of the caches, in elements. An offset into a
            cache may exceed 32 bits.
        HEADS, DIMS: the tile of one program. Powers of two, ``DIMS >= HEAD_DIM``; what of it
            lies outside ``NUM_KV_HEADS`` and ``HEAD_DIM`` is neither loaded nor stored.
    """
    tl.static_assert(False, "stage 7, task 7.1: see lessons/07-kernel.md")


def cache_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Store the key and value of each token at its slot; all other slots stay as they are.

    Args:
        k, v: ``[T, num_kv_heads, head_dim]`` of the caches' type. May be views; the last
            dimension is contiguous.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``, written in
            place. Slot ``s`` of head ``h`` is ``cache[s // block_size, h, s % block_size]``.
        slot_mapping: ``[T]`` int64, contiguous, in no order. A token with slot -1 is padding,
            wherever it stands: nothing is written for it. The other slots are distinct.

    Raises:
        ValueError: shapes, types or strides that do not fit, with the value and what it must be.
    """
    check_write(k, v, k_cache, v_cache, slot_mapping)
    num_tokens, num_kv_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    dims = triton.next_power_of_2(head_dim)
    heads = min(triton.next_power_of_2(num_kv_heads), max(1, TILE_ELEMENTS // dims))
    cache_write_kernel[(num_tokens, triton.cdiv(num_kv_heads, heads))](
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=k_cache.shape[2],
        HEAD_DIM=head_dim,
        HEADS=heads,
        DIMS=dims,
        num_warps=4,
    )
