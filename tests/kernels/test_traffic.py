"""The traffic model against counting by hand, and against what the kernels move."""

from __future__ import annotations

import itertools

import pytest
import torch

from minipaged.audit.movement import Movement, count_all
from minipaged.kernels.traffic import (
    AttentionShape,
    Traffic,
    block_copy_traffic,
    cache_write_traffic,
    decode_intensity,
    decode_traffic,
    floor_seconds,
    prefill_traffic,
    split_traffic,
)

SHAPE = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=8, block_size=4, element_bytes=2)
TOKEN = 2 * SHAPE.num_kv_heads * SHAPE.head_dim * SHAPE.element_bytes  # K and V
HEADS = SHAPE.num_heads * SHAPE.head_dim * SHAPE.element_bytes


def test_cache_write():
    assert cache_write_traffic([5, -1, 0, 9], SHAPE) == Traffic(3 * TOKEN + 4 * 8, 3 * TOKEN)
    assert cache_write_traffic([-1], SHAPE) == Traffic(8, 0)


def test_block_copy():
    # 3 pairs in 5 layers: a block is 4 tokens in each; a pair is two numbers of 8 bytes.
    assert block_copy_traffic(3, 5, SHAPE) == Traffic(3 * 5 * 4 * TOKEN + 48, 3 * 5 * 4 * TOKEN)


@pytest.mark.parametrize("context_lens", [[1], [4], [5, 3], [0, 9], [0]])
def test_decode(context_lens):
    loaded = 0
    for context_len in context_lens:
        blocks = {position // SHAPE.block_size for position in range(context_len)}
        loaded += context_len * TOKEN + 4 * len(blocks) + 4 + (HEADS if context_len else 0)
    assert decode_traffic(context_lens, SHAPE) == Traffic(loaded, HEADS * len(context_lens))


@pytest.mark.parametrize("tile", [1, 4, 16])
@pytest.mark.parametrize("num_splits", [2, 3, 5])
@pytest.mark.parametrize("context_lens", [[0], [1], [40], [16, 17, 3]])
def test_split_workspace(context_lens, num_splits, tile):
    numbers = 0
    for context_len in context_lens:
        # The shortest parts of whole tiles that hold the context.
        length = next(n * tile for n in itertools.count() if n * tile * num_splits >= context_len)
        seen = sum(part * length < context_len for part in range(num_splits))
        numbers += SHAPE.num_heads * (seen * SHAPE.head_dim + num_splits)
    expected = Traffic(4 * numbers, 4 * numbers)
    assert split_traffic(context_lens, num_splits, tile, SHAPE) == expected


def test_one_part_needs_no_workspace():
    assert split_traffic([100], 1, 16, SHAPE) == Traffic(0, 0)


@pytest.mark.parametrize("tile_rows", [1, 2, 4, 16, None])
@pytest.mark.parametrize(
    ("query_lens", "context_lens"), [([1], [1]), ([5], [8]), ([3, 0, 7], [3, 4, 20])]
)
def test_prefill(query_lens, context_lens, tile_rows):
    group = SHAPE.num_heads // SHAPE.num_kv_heads
    loaded, stored = 4 * (len(query_lens) + 1) + 4 * len(context_lens), 0
    for queries, context_len in zip(query_lens, context_lens):
        # (tile, position) pairs: each position that a tile needs, it reads once.
        reads = {
            (row // (tile_rows or 10**9), position)
            for row in range(queries * group)
            for position in range(context_len - queries + row // group + 1)
        }
        blocks = {position // SHAPE.block_size for position in range(context_len)}
        loaded += len(reads) * TOKEN + queries * HEADS + (4 * len(blocks) if queries else 0)
        stored += queries * HEADS
    assert prefill_traffic(query_lens, context_lens, SHAPE, tile_rows) == Traffic(loaded, stored)


def test_intensity_grows_with_the_group():
    shapes = {g: AttentionShape(8, 8 // g, 128, 16, 2) for g in (1, 2, 8)}
    for group, shape in shapes.items():
        assert decode_intensity([4000] * 3, shape) == pytest.approx(group, rel=0.01)


def test_the_full_pool_of_an_a100_takes_a_fifth_of_a_millisecond_a_layer():
    shape = AttentionShape(40, 40, 128, 16, 2)
    assert floor_seconds(decode_traffic([15_700], shape), 1555e9) == pytest.approx(
        0.21e-3, rel=0.02
    )


@pytest.fixture(scope="module")
def counted() -> dict[tuple[str, str], Movement]:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled in this process")
    return {(movement.function, movement.heads): movement for movement in count_all()}


def test_no_kernel_moves_less_than_it_must(counted):
    assert len(counted) == 12
    assert all(movement.does >= movement.must for movement in counted.values())


def test_cache_write_moves_what_it_must(counted):
    assert all(counted["cache_write", heads].efficiency == 1 for heads in ("4 over 4", "8 over 2"))


def test_version_0_reads_for_each_query_head_and_later_ones_for_each_kv_head(counted):
    assert counted["paged_decode_v0", "4 over 4"].efficiency > 0.95
    assert counted["paged_decode_v0", "8 over 2"].efficiency < 0.3  # a group of 4
    for version in ("paged_decode_v1", "paged_decode_v2"):
        assert counted[version, "8 over 2"].efficiency > 0.9
        assert counted[version, "4 over 4"].efficiency > 0.9
