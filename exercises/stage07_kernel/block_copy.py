"""Block copy: whole blocks of all layers, keys and values, in one launch.

Copy-on-write (paper, sections 4.4 and 4.5) copies a block in every layer; swapping moves it out
and back. A launch for each layer, cache and pair would be thousands of launches of a few
kilobytes each. One kernel does all three: within the pool, from the pool to a staging buffer
(where one block, over all layers, is one piece, and so travels in one transfer), and back.

Bytes: each piece ``num_kv_heads * block_size * head_dim`` is read once and written once, for
``2 * layers`` pieces a block.

Claimed for sm_80, read from the machine code: no spills, 128-bit loads and stores for pieces of a
multiple of 16 elements, 8 of them in flight for each thread in half precision, and at least 8
thread blocks of 4 warps on each multiprocessor. Speed has not been measured.

Stage 7, the paged attention kernel::

    read    lessons/07-kernel.md
    write   7.2  Block copy  10 points
    also    robustness 14 points, counterexample.toml 6 points
    check   minipaged grade 7
    stuck   minipaged hint 7.2
    use it  minipaged generate Once --model opt-stories --raw --max-tokens 8 \
                --attention triton --parts kernel=mine
    next    paged_decode_v0.py, beside this file
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Elements that one program moves at most: 8 times 128 bits of a half type for each thread of
#: 4 warps, all in flight at once.
TILE_ELEMENTS = 8192


@triton.jit
def block_copy_kernel(
    source,
    target,
    source_blocks,
    target_blocks,
    block_number_stride,
    source_block_stride,
    source_plane_stride,
    target_block_stride,
    target_plane_stride,
    PIECE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program ``(i, p, c)`` copies part ``c`` of the piece that block ``i`` has in plane ``p``.

    A plane is one cache of one layer; a piece is what a block holds there: ``PIECE`` elements
    that lie next to each other. Element ``e`` of it is at
    ``block * block_stride + plane * plane_stride + e``, which may exceed 32 bits.

    Args:
        source, target: pointers of one type.
        source_blocks: pointer to int64 numbers, one every ``block_number_stride`` elements:
            which block of the source is the ``i``-th to be copied. None: block ``i`` itself.
        target_blocks: the same for the target.
        source_block_stride, source_plane_stride, target_block_stride, target_plane_stride: in
            elements.
        TILE: elements of one part, a power of two: part ``c`` begins at element ``c * TILE``
            and ends with the piece.
    """
    tl.static_assert(False, "stage 7, task 7.2: see lessons/07-kernel.md")


def copy_blocks_in_pool(pool: Tensor, pairs: Tensor) -> None:
    """Copy blocks within the pool, in all layers.

    Args:
        pool: ``[layers, 2, num_blocks, ...]``, changed in place; what one block holds in one
            cache (``...``) is contiguous.
        pairs: ``[P, 2]`` int64 on the pool's device: source and target. Targets are distinct,
            and none of them is a source.

    Raises:
        ValueError: a shape, type or stride that does not fit, with what it must be.
    """
    _check_pool(pool)
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.dtype != torch.int64:
        raise ValueError(f"pairs is {[*pairs.shape]} {pairs.dtype}, not [P, 2] torch.int64")
    planes = pool.flatten(0, 1)  # [2 * layers, num_blocks, ...]
    _launch(planes.transpose(0, 1), planes.transpose(0, 1), pairs[:, 0], pairs[:, 1])


def gather_blocks(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """Copy blocks out of the pool: ``staging[i]`` becomes block ``blocks[i]`` of every layer.

    Args:
        pool: ``[layers, 2, num_blocks, ...]``; what one block holds in one cache is contiguous.
        blocks: ``[n]`` int64 on the pool's device.
        staging: ``[n, layers, 2, ...]`` of the pool's type, contiguous, on its device: changed
            in place.

    Raises:
        ValueError: a shape, type or stride that does not fit, with what it must be.
    """
    _check_pool(pool)
    _check_staging(pool, blocks, staging)
    _launch(pool.flatten(0, 1).transpose(0, 1), staging.flatten(1, 2), blocks, None)


def scatter_blocks(staging: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """Copy blocks into the pool: block ``blocks[i]`` of every layer becomes ``staging[i]``.

    Args:
        staging: ``[n, layers, 2, ...]`` of the pool's type, contiguous, on its device.
        pool: ``[layers, 2, num_blocks, ...]``, changed in place; what one block holds in one
            cache is contiguous.
        blocks: ``[n]`` int64 on the pool's device, distinct.

    Raises:
        ValueError: a shape, type or stride that does not fit, with what it must be.
    """
    _check_pool(pool)
    _check_staging(pool, blocks, staging)
    _launch(staging.flatten(1, 2), pool.flatten(0, 1).transpose(0, 1), None, blocks)


def _launch(
    source: Tensor, target: Tensor, source_blocks: Tensor | None, target_blocks: Tensor | None
) -> None:
    """``source, target: [blocks, planes, ...]``."""
    numbers = source_blocks if source_blocks is not None else target_blocks
    assert numbers is not None
    piece = math.prod(source.shape[2:])
    if numbers.shape[0] == 0 or piece == 0:
        return
    tile = min(TILE_ELEMENTS, triton.next_power_of_2(piece))
    block_copy_kernel[(numbers.shape[0], source.shape[1], triton.cdiv(piece, tile))](
        source,
        target,
        source_blocks,
        target_blocks,
        numbers.stride(0),
        source.stride(0),
        source.stride(1),
        target.stride(0),
        target.stride(1),
        PIECE=piece,
        TILE=tile,
        num_warps=4,
    )


def _check_pool(pool: Tensor) -> None:
    if pool.dim() < 4 or pool.shape[1] != 2:
        raise ValueError(f"pool is {[*pool.shape]}, not [layers, 2, num_blocks, ...]")
    if pool.stride(0) != 2 * pool.stride(1) or not pool[0, 0, :1].is_contiguous():
        raise ValueError(
            f"pool has strides {pool.stride()}: its caches must lie at equal distances, and what "
            "a block holds in one cache must be contiguous"
        )


def _check_staging(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    if blocks.dim() != 1 or blocks.dtype != torch.int64:
        raise ValueError(f"blocks is {[*blocks.shape]} {blocks.dtype}, not [n] torch.int64")
    expected = (blocks.shape[0], *pool.shape[:2], *pool.shape[3:])
    if staging.shape != expected or staging.dtype != pool.dtype:
        raise ValueError(
            f"staging is {[*staging.shape]} {staging.dtype}, not {[*expected]} {pool.dtype}"
        )
    if not staging.is_contiguous():
        raise ValueError(f"staging has strides {staging.stride()}: it must be contiguous")
