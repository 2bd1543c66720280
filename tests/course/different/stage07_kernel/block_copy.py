"""A right answer that is built in another way: a program moves its part in small steps."""

import triton
import triton.language as tl


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
    index = tl.program_id(0).to(tl.int64)
    plane = tl.program_id(1).to(tl.int64)
    taken = index if source_blocks is None else tl.load(source_blocks + index * block_number_stride)
    given = index if target_blocks is None else tl.load(target_blocks + index * block_number_stride)
    taken = taken * source_block_stride + plane * source_plane_stride
    given = given * target_block_stride + plane * target_plane_stride
    start = tl.program_id(2) * TILE
    for first in range(start, min(start + TILE, PIECE), 1024):
        at = first + tl.arange(0, 1024)
        live = at < min(start + TILE, PIECE)
        tl.store(target + given + at, tl.load(source + taken + at, mask=live), mask=live)


def copy_blocks_in_pool(pool, pairs):
    planes = pool.flatten(0, 1).transpose(0, 1)
    launch(planes, planes, pairs[:, 0], pairs[:, 1], len(pairs), pairs.stride(0))


def gather_blocks(pool, blocks, staging):
    planes = pool.flatten(0, 1).transpose(0, 1)
    launch(planes, staging.flatten(1, 2), blocks, None, len(blocks), 1)


def scatter_blocks(staging, pool, blocks):
    planes = pool.flatten(0, 1).transpose(0, 1)
    launch(staging.flatten(1, 2), planes, None, blocks, len(blocks), 1)


def launch(source, target, source_blocks, target_blocks, count, number_stride):
    piece = source[0, 0].numel()
    block_copy_kernel[(count, source.shape[1], triton.cdiv(piece, 2048))](
        source,
        target,
        source_blocks,
        target_blocks,
        number_stride,
        *source.stride()[:2],
        *target.stride()[:2],
        PIECE=piece,
        TILE=2048,
    )
