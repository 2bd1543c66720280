"""Task 8.3: a context in parts, each with a program of its own, and their reduction."""

from __future__ import annotations

import numpy as np
from fast_kernel_oracle import Batch
from test_fast_tiles import (
    ASCENDING,
    GROUP_TILE,
    TILE,
    expect_float32_inside,
    far_apart,
    lose_entries_past_the_context,
    move_scores,
)

from minipaged.course.testing import expect

#: Heads, heads of keys, and positions of a tile.
MHA, GQA = (2, 2, TILE), (4, 2, GROUP_TILE)
PROGRAMS_PER_SM, MAX_SPLITS = 8, 64


def random_batch(lab, rng, lengths, heads, kv_heads, **how):
    return Batch.random(lab, rng, lengths, heads=heads, kv_heads=kv_heads, **how)


def test_one_part_is_the_whole(parts, lab, rng):
    for heads, kv_heads, tile in (MHA, GQA):
        for lengths in ([tile], [2 * tile + int(rng.integers(1, tile)), 1]):
            batch = random_batch(lab, rng, lengths, heads, kv_heads)
            batch.decode(parts.paged_decode_v2, splits=1)


def test_parts_of_one_length_are_added_up(parts, lab, rng):
    """All scores are equal, so that the output is the mean of the values."""
    for heads, kv_heads, tile in (MHA, GQA):
        for splits, each in ((2, 1), (int(rng.integers(3, 6)), 2)):
            batch = random_batch(lab, rng, [splits * each * tile], heads, kv_heads, size=0.0)
            batch.decode(parts.paged_decode_v2, splits=splits, why="equal scores")


def test_a_part_weighs_what_its_scores_weigh(parts, lab, rng):
    for heads, kv_heads, tile in (MHA, GQA):
        for splits, how in ((2, {"size": 2.0}), (3, ASCENDING)):
            batch = random_batch(lab, rng, [splits * tile], heads, kv_heads, **how)
            batch.decode(parts.paged_decode_v2, splits=splits)
    for level in (300.0, -300.0):
        batch = random_batch(lab, rng, [4 * TILE], 1, 1)
        move_scores(batch, [level])
        why = f"scores about {level:g}"
        batch.decode(parts.paged_decode_v2, splits=2, why=why, tolerance=5e-3)


def test_the_last_part_may_be_shorter(parts, lab, rng):
    for heads, kv_heads, tile in (MHA, GQA):
        for splits, length in ((2, 3 * tile), (3, 5 * tile - int(rng.integers(1, tile)))):
            batch = random_batch(lab, rng, [length], heads, kv_heads, size=0.0)
            batch.decode(parts.paged_decode_v2, splits=splits, why="equal scores")


def test_parts_without_a_position_do_not_show(parts, lab, rng):
    """Where they would have left something, there is NaN."""
    for heads, kv_heads, tile in ((1, 1, TILE), (2, 1, GROUP_TILE)):
        for splits, lengths in ((3, [1, 3 * tile]), (int(rng.integers(7, 20)), [4 * tile])):
            batch = random_batch(lab, rng, lengths, heads, kv_heads)
            batch.decode(parts.paged_decode_v2, splits=splits, why="parts without a position")


def test_without_a_context_the_output_is_zero(parts, lab, rng):
    for heads, kv_heads, tile in (MHA, GQA):
        for splits in (1, 2):
            batch = random_batch(lab, rng, [0, splits * tile], heads, kv_heads)
            batch.decode(parts.paged_decode_v2, splits=splits, why="a row of padding")


def counted_splits(max_context_len, num_seqs, num_kv_heads, num_sms, tile):
    """By the wording of the specification: what is wanted, and then the most that leaves no part
    empty."""
    wanted = 1
    while wanted * num_seqs * num_kv_heads < PROGRAMS_PER_SM * num_sms:
        wanted += 1
    tiles = max(1, len(range(0, max_context_len, tile)))
    for splits in range(min(wanted, tiles, MAX_SPLITS), 0, -1):
        each = next(n for n in range(1, tiles + 1) if n * splits >= tiles)
        if (splits - 1) * each < tiles:
            return splits
    raise AssertionError("one part is never empty")


def expect_choice(parts, *sizes):
    names = ("max_context_len", "num_seqs", "num_kv_heads", "num_sms", "tile")
    told = ", ".join(f"{name}={size}" for name, size in zip(names, sizes))
    expect(parts.choose_num_splits(*sizes), counted_splits(*sizes), f"choose_num_splits({told})")


def test_there_are_as_many_parts_as_fill_the_card(parts, rng):
    """Contexts so long that tiles are no limit, and so many parts that none can be empty."""
    for num_seqs, num_kv_heads in ((1, 40), (8, 8), (256, 40), (int(rng.integers(2, 60)), 8)):
        for num_sms in (108, int(rng.integers(1, 150))):
            expect_choice(parts, 64 * 10**6, num_seqs, num_kv_heads, num_sms, 64)


def test_no_part_is_empty(parts, rng):
    for context in (0, 1, 64, 65, 1000, *rng.integers(1, 5000, 12).tolist()):
        for num_seqs, num_kv_heads in ((1, 8), (8, 8), (1, 1)):
            expect_choice(parts, context, num_seqs, num_kv_heads, 108, int(rng.choice([16, 64])))


# --------------------------------------------------------------------------- robustness
def test_no_part_shows_what_is_stale(parts, lab, rng):
    """NaN past the context, and entries that are no blocks; odd sizes, and half types."""
    for heads, kv_heads, tile, dtype in ((1, 1, TILE, "float16"), (3, 1, GROUP_TILE, "bfloat16")):
        lengths = [tile + 3, int(rng.integers(2 * tile, 3 * tile))]
        sizes = {"block_size": 7, "head_dim": 80}
        batch = random_batch(lab, rng, lengths, heads, kv_heads, **sizes)
        lose_entries_past_the_context(batch, rng)
        batch.decode(parts.paged_decode_v2, splits=2, outside=np.nan, why="NaN past the context")

        def decode(batch, **how):
            batch.decode(parts.paged_decode_v2, splits=2, **how)

        expect_float32_inside(lab, rng, decode, dtype, heads=heads, kv_heads=kv_heads)


def test_a_part_may_lie_past_32_bits(parts, lab, rng):
    """Half precision: from block to block it is 2 ** 30 elements."""
    for heads, kv_heads in ((1, 1), (2, 1)):
        sizes = {"dtype": "float16", "block_size": 32, "spare": 1}
        batch = random_batch(lab, rng, [150], heads, kv_heads, **sizes)
        batch.decode(parts.paged_decode_v2, splits=2, why="blocks far apart", **far_apart(batch))
