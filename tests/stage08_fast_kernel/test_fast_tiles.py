"""Tasks 8.1 and 8.2: tiles of several blocks, and query heads that share their keys."""

from __future__ import annotations

import numpy as np
import pytest
from fast_kernel_oracle import Batch, expect_array

#: The largest score comes first: nothing that was summed is ever to be mended.
DESCENDING = {"order": -1}
ASCENDING = {"order": 1}
#: A tile is 16 positions of 128 float32 where each query head has keys of its own, and 32 where
#: several share them.
TILE, GROUP_TILE = 16, 32


def move_scores(batch, levels):
    """Change the keys of the only sequence so that all scores of the first query head of each KV
    head are higher by its level."""
    scale = batch.q.shape[2] ** -0.5
    group = batch.q.shape[1] // len(levels)
    for kv_head, level in enumerate(levels):
        q = batch.q[0, kv_head * group]
        batch.keys[0][:, kv_head] += level / scale / (q @ q) * q
    batch.keys[0] = batch.keys[0].astype(np.float32).astype(np.float64)


# --------------------------------------------------------------------------- 8.1 tiles
def test_a_tile_reads_its_blocks_through_the_table(parts, lab, rng):
    for block_size, length in ((16, 16), (8, 16), (4, 48), (1, 32), (64, 64)):
        batch = Batch.random(lab, rng, [length], block_size=block_size, **DESCENDING)
        batch.decode(parts.paged_decode_v1)


def test_a_tile_may_begin_within_a_block(parts, lab, rng):
    for block_size, tiles in ((3, 2), (24, 3), (int(rng.integers(5, 8)), 4)):
        batch = Batch.random(lab, rng, [tiles * TILE], block_size=block_size, **DESCENDING)
        batch.decode(parts.paged_decode_v1)


def test_positions_past_the_context_have_no_weight(parts, lab, rng):
    for length in (1, 15, 17, int(rng.integers(2, 5)) * TILE - 3):
        # Somebody's numbers are in there, and they are no worse than those of the context.
        batch = Batch.random(lab, rng, [length], **DESCENDING)
        batch.decode(parts.paged_decode_v1, outside=rng.standard_normal(97))


def test_a_larger_score_mends_what_came_before(parts, lab, rng):
    for tiles in (2, int(rng.integers(3, 6))):
        Batch.random(lab, rng, [tiles * TILE], **ASCENDING).decode(parts.paged_decode_v1)
        Batch.random(lab, rng, [tiles * TILE]).decode(parts.paged_decode_v1)


def test_scores_of_any_size_are_right(parts, lab, rng):
    """Far from zero on either side: e to the power of 300 is no number that float32 has."""
    for length, level in ((16, 300.0), (int(rng.integers(20, 40)), -300.0), (5, -2000.0)):
        batch = Batch.random(lab, rng, [length])
        move_scores(batch, [level])
        # Scores of this size have fewer digits behind the point.
        batch.decode(parts.paged_decode_v1, why=f"scores about {level:g}", tolerance=5e-3)


def test_a_ragged_batch_keeps_its_sequences_apart(parts, lab, rng):
    for lengths in ([5, 40, 1], [*rng.integers(1, 50, 2).tolist(), 0, 16, 0]):
        Batch.random(lab, rng, lengths, heads=2, kv_heads=2).decode(parts.paged_decode_v1)


def expect_float32_inside(lab, rng, decode, dtype, **sizes):
    """Scores and sums that half precision does not hold."""
    sizes = {"dtype": dtype, "block_size": 16, **sizes}
    decode(Batch.random(lab, rng, [39], **sizes))
    # Products of queries and keys are about 100,000, more than float16 holds.
    decode(Batch.random(lab, rng, [39], size=150.0, **sizes), scale=3e-5, why="large scores")
    # So is the sum of all values; and one that is added to it is less than bfloat16 can tell.
    long = Batch.random(lab, rng, [150], size=0.1, **sizes)
    long.values = [np.full_like(values, 500.0) for values in long.values]
    decode(long, why="large sums")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_summed_in_float32(parts, lab, rng, dtype):
    def decode(batch, **how):
        batch.decode(parts.paged_decode_v1, **how)

    expect_float32_inside(lab, rng, decode, dtype)


# --------------------------------------------------------------------------- 8.2 groups
def test_all_queries_of_a_kv_head_are_answered(parts, lab, rng):
    for heads, length in ((2, 32), (8, 64), (16, 33)):
        Batch.random(lab, rng, [length], heads=heads).decode(parts.paged_decode_v1)


def test_each_group_reads_its_own_kv_head(parts, lab, rng):
    for heads, kv_heads in ((4, 2), (8, 4), (2 * int(rng.integers(3, 6)), 2)):
        batch = Batch.random(lab, rng, [32], heads=heads, kv_heads=kv_heads)
        batch.decode(parts.paged_decode_v1)


def test_groups_of_any_size_fill_the_rows(parts, lab, rng):
    for group in (3, int(rng.integers(5, 8)), 20):
        batch = Batch.random(lab, rng, [32], heads=2 * group, kv_heads=2)
        batch.decode(parts.paged_decode_v1)


def test_a_group_sees_its_context_and_no_more(parts, lab, rng):
    for lengths, block_size in (
        ([1, 31, 0], 4), ([33, 70], 5), ([int(rng.integers(34, 95)), 0, 2], 24),
    ):  # fmt: skip
        batch = Batch.random(lab, rng, lengths, heads=4, kv_heads=2, block_size=block_size)
        batch.decode(parts.paged_decode_v1, outside=rng.standard_normal(97))


def test_each_query_has_a_maximum_of_its_own(parts, lab, rng):
    """Two heads that share their keys, one with scores of hundreds and one with their opposites."""
    for length in (40, int(rng.integers(65, 90))):
        batch = Batch.random(lab, rng, [length], heads=4, kv_heads=2, **ASCENDING)
        batch.q[:, 1], batch.q[:, 3] = -batch.q[:, 0], 0.5 * batch.q[:, 2]
        move_scores(batch, [400.0, -300.0])
        batch.decode(parts.paged_decode_v1, why="scores about 400 and -400", tolerance=5e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_groups_of_half_types_are_summed_in_float32(parts, lab, rng, dtype):
    def decode(batch, **how):
        batch.decode(parts.paged_decode_v1, **how)

    expect_float32_inside(lab, rng, decode, dtype, heads=3)


# --------------------------------------------------------------------------- robustness of 8.1
#: Heads of queries and of keys: each query head has keys of its own, or two share them.
MHA, GQA = {"heads": 2, "kv_heads": 2}, {"heads": 4, "kv_heads": 2}


def expect_nothing_stale(parts, lab, rng, heads):
    for lengths, stale in (([1], np.nan), ([3, 0, 4], np.inf), ([*rng.integers(5, 40, 2)], np.nan)):
        batch = Batch.random(lab, rng, lengths, **heads)
        batch.decode(parts.paged_decode_v1, outside=stale, why=f"{stale} in all other slots")
    for lengths in ([4, 0], rng.integers(17, 40, 2).tolist()):
        batch = Batch.random(lab, rng, lengths, **heads)
        lose_entries_past_the_context(batch, rng)
        batch.decode(parts.paged_decode_v1, why="entries past the context are no blocks")


def lose_entries_past_the_context(batch, rng):
    for row, length in zip(batch.block_tables, batch.lengths):
        row[-(-length // batch.block_size) :] = rng.choice([-1, 2**31 - 1, batch.num_blocks])


def expect_any_size(parts, lab, rng, heads, tile):
    """Odd heads and blocks; queries are a piece of a product, and outputs lie among others."""
    num_heads = heads["heads"]
    for block_size, head_dim in ((3, 80), (7, 12)):
        length = 2 * tile + int(rng.integers(1, tile))
        sizes = {"block_size": block_size, "head_dim": head_dim, **heads}
        batch = Batch.random(lab, rng, [length, 5], **sizes)
        others = rng.standard_normal(batch.q.shape)
        product = lab.tensor(np.concatenate([batch.q, others], axis=1), "float32")
        (q, _) = lab.split(product, [num_heads, num_heads], 1)
        wide = lab.tensor(np.full((2, 2 * num_heads, head_dim), 7.0, np.float32))
        views = {"q": q, "out": lab.every_other(wide, 1)}
        batch.decode(parts.paged_decode_v1, outside=np.nan, why="views", **views)
        between = lab.read(wide)[:, 1::2]
        expect_array(between, np.full(between.shape, 7.0), "what lies between the outputs")


def expect_64_bits(parts, lab, rng, heads):
    """Half precision: from block to block it is 2 ** 30 elements."""
    batch = Batch.random(lab, rng, [10], dtype="float16", spare=1, **heads)
    batch.decode(parts.paged_decode_v1, why="blocks far apart", **far_apart(batch))


def far_apart(batch):
    """Its caches, spread over more than 32 bits."""
    names = zip(("k_cache", "v_cache"), batch.caches(5.0))
    return {name: batch.lab.spread(cache, 2**30, dtype="float16") for name, cache in names}


def test_stale_slots_do_not_show(parts, lab, rng):
    """What they hold, and where entries past the context would lead."""
    expect_nothing_stale(parts, lab, rng, MHA)


def test_sizes_that_fill_no_tile_are_right(parts, lab, rng):
    expect_any_size(parts, lab, rng, MHA, TILE)


def test_a_block_may_lie_past_32_bits(parts, lab, rng):
    expect_64_bits(parts, lab, rng, MHA)


# --------------------------------------------------------------------------- robustness of 8.2
def test_groups_are_right_in_any_cache(parts, lab, rng):
    """Stale slots, sizes that fill no tile, blocks past 32 bits."""
    expect_nothing_stale(parts, lab, rng, GQA)
    expect_any_size(parts, lab, rng, GQA, GROUP_TILE)
    expect_64_bits(parts, lab, rng, GQA)
