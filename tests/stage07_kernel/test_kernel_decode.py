"""Task 7.3: one query token a sequence attends to its context, wherever its blocks lie."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracle import Decodes, expect_array

#: The largest score comes first: nothing that was summed is ever to be mended.
DESCENDING = {"order": -1}
ASCENDING = {"order": 1}

#: Of scores about 2000 the type holds fewer digits behind the point.
FEW_DIGITS = 5e-3


def test_one_full_block_is_attended_to(parts, lab, rng):
    for block_size, head_dim in ((4, 16), (8, 32), (16, 16)):
        sizes = {"block_size": block_size, "head_dim": head_dim}
        Decodes.random(lab, rng, [block_size], **sizes, **DESCENDING).check(parts)


def test_all_full_blocks_are_read_through_the_table(parts, lab, rng):
    for block_size, count in ((4, 2), (4, int(rng.integers(3, 6))), (16, 3)):
        sizes = {"block_size": block_size}
        Decodes.random(lab, rng, [count * block_size], **sizes, **DESCENDING).check(parts)


def test_slots_past_the_context_have_no_weight(parts, lab, rng):
    for block_size, length in ((4, 1), (4, 3), (8, 9), (4, int(rng.integers(2, 6)) * 4 + 2)):
        sizes = {"block_size": block_size}
        # Somebody's numbers are in there, and they are no worse than those of the context.
        outside = rng.standard_normal(97)
        batch = Decodes.random(lab, rng, [length], **sizes, **DESCENDING)
        batch.check(parts, outside=outside)
    # Whatever an empty slot scores, it is less than any number.
    batch = Decodes.random(lab, rng, [7], **DESCENDING)
    batch.shift(-2000.0)
    batch.check(parts, why="scores about -2000", tolerance=FEW_DIGITS, outside=0.0)


def test_a_larger_score_mends_what_came_before(parts, lab, rng):
    for block_size, count in ((4, 2), (4, int(rng.integers(3, 6))), (1, 6)):
        sizes = {"block_size": block_size}
        Decodes.random(lab, rng, [count * block_size], **sizes, **ASCENDING).check(parts)
        Decodes.random(lab, rng, [count * block_size], **sizes).check(parts)


def test_weights_add_up_to_one(parts, lab, rng):
    """Where all values are equal they are the output, whatever the scores."""
    for count in (1, 3, int(rng.integers(2, 6))):
        batch = Decodes.random(lab, rng, [4 * count], size=2.0, **ASCENDING)
        batch.values = [np.broadcast_to(value[:1], value.shape) for value in batch.values]
        batch.check(parts, why="equal values")


def test_scores_of_any_size_are_right(parts, lab, rng):
    """Far from zero on either side: e to the power of 300 is no number that float32 has."""
    for count in (1, int(rng.integers(2, 5))):
        for level in (300.0, -300.0, -2000.0):
            batch = Decodes.random(lab, rng, [4 * count])
            batch.shift(level)
            batch.check(parts, why=f"scores about {level:g}", tolerance=FEW_DIGITS)


def test_scores_are_multiplied_by_the_scale(parts, lab, rng):
    for scale in (1.0, float(rng.uniform(0.3, 0.9)), 0.02):
        Decodes.random(lab, rng, [4], **DESCENDING).check(
            parts, scale=scale, why=f"scale {scale:.3g}"
        )


def test_query_heads_share_kv_heads(parts, lab, rng):
    for heads, kv_heads in ((3, 1), (6, 2), (6, 3), (4, 4)):
        sizes = {"heads": heads, "kv_heads": kv_heads, "block_size": 8}
        Decodes.random(lab, rng, [8], **sizes).check(parts)


def test_a_ragged_batch_keeps_its_sequences_apart(parts, lab, rng):
    for lengths, more in (([5, 12, 1], 0), ([*rng.integers(1, 16, 3).tolist(), 0, 4, 0], 5)):
        batch = Decodes.random(lab, rng, lengths, heads=2, kv_heads=2)
        rows = [*batch.block_tables.T, *[batch.block_tables[:, -1]] * more]
        batch.block_tables = np.stack(rows, axis=1)  # wider than any context needs
        batch.check(parts)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_summed_in_float32(parts, lab, rng, dtype):
    sizes = {"dtype": dtype, "head_dim": 32}
    # Scores about 60 that differ by about 1: half types have few digits left for that.
    near = Decodes.random(lab, rng, [12], **sizes)
    near.shift(60.0)
    near.check(parts, why="scores about 60")
    # Products of queries and keys are about 100,000, more than float16 holds.
    Decodes.random(lab, rng, [12], size=150.0, **sizes).check(
        parts, scale=6e-5, why="large products"
    )
    # So is the sum of all values; and one that is added to it is less than bfloat16 can tell.
    long = Decodes.random(lab, rng, [320], block_size=32, size=0.1, **sizes)
    long.values = [np.full_like(long.values[0], 500.0) for _ in long.values]
    long.check(parts, why="large sums")


# --------------------------------------------------------------------------- robustness
@pytest.mark.parametrize("stale", [np.nan, np.inf, -np.inf])
def test_stale_slots_do_not_show(parts, lab, rng, stale):
    for lengths in ([1], [3, 4], [5, 0, int(rng.integers(6, 14))]):
        batch = Decodes.random(lab, rng, lengths)
        batch.check(parts, outside=stale, why=f"{stale} in all other slots")


def test_entries_past_the_context_are_not_followed(parts, lab, rng):
    for lengths in ([4], [7, 1, 0], rng.integers(1, 14, 3).tolist()):
        batch = Decodes.random(lab, rng, lengths)
        for row, length in zip(batch.block_tables, lengths):
            row[-(-length // 4) :] = rng.choice([-1, 2**31 - 1, batch.num_blocks])
        batch.check(parts, why="entries past the context are no blocks")


def test_sizes_that_fill_no_tile_are_right(parts, lab, rng):
    for block_size, head_dim in ((3, 16), (4, 12), (5, 80)):
        sizes = {"block_size": block_size, "head_dim": head_dim, "heads": 2, "kv_heads": 2}
        length = 2 * block_size + int(rng.integers(1, block_size))
        Decodes.random(lab, rng, [length, block_size], **sizes).check(parts)


def test_queries_and_outputs_may_be_views(parts, lab, rng):
    """Queries are a piece of what one product has computed; rows of the output lie among others."""
    lengths = [5, int(rng.integers(2, 9))]
    batch = Decodes.random(lab, rng, lengths, heads=2, kv_heads=2)
    others = rng.standard_normal((2, 4, 16))
    (q, _) = lab.split(lab.tensor(np.concatenate([batch.q, others], axis=1), "float32"), [2, 4], 1)
    batch.check(parts, q=q, why="queries are a view")
    for axis in (0, 1):
        shape = [2 * n if i == axis else n for i, n in enumerate(batch.q.shape)]
        wide = lab.tensor(np.full(shape, 7.0, np.float32))
        batch.check(parts, out=lab.every_other(wide, axis), why="the output is a view")
        between = np.delete(lab.read(wide), np.s_[::2], axis)
        expect_array(between, np.full(between.shape, 7.0), "what lies between the output's numbers")


def test_a_block_may_lie_past_32_bits(parts, lab, rng):
    """Half precision: from block to block it is 2 ** 30 elements, or a few more."""
    for stride in (2**30, 2**30 + 128):
        batch = Decodes.random(lab, rng, [10], dtype="float16", kv_heads=2, heads=2, spare=1)
        names = zip(("k_cache", "v_cache"), batch.caches(5.0))
        far = {name: lab.spread(cache, stride, dtype="float16") for name, cache in names}
        batch.check(parts, why="blocks far apart", **far)
