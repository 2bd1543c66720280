"""Task 8.4: chunks of prompts, whose tokens see what came before them."""

from __future__ import annotations

import numpy as np
import pytest
from fast_kernel_oracle import Batch
from test_fast_tiles import far_apart, lose_entries_past_the_context

#: Rows of a tile of float32, and keys of a step.
ROWS = KEYS = 32


def chunks(lab, rng, lengths, query_lens, *, head_dim=16, **how):
    return Batch.random(lab, rng, lengths, query_lens, head_dim=head_dim, **how)


def test_a_prompt_token_sees_those_before_it_and_itself(parts, lab, rng):
    for length in (5, 1, ROWS, int(rng.integers(2 * ROWS + 1, 3 * ROWS))):
        chunks(lab, rng, [length], [length]).prefill(parts.paged_prefill)


def test_a_chunk_of_one_token_sees_all(parts, lab, rng):
    for length in (2, KEYS, KEYS + 1, int(rng.integers(2 * KEYS, 3 * KEYS))):
        chunks(lab, rng, [length], [1]).prefill(parts.paged_prefill)


def test_a_chunk_sees_what_was_before_it(parts, lab, rng):
    for length, queries in ((KEYS + 8, 8), (70, 37), (50, int(rng.integers(2, 49)))):
        chunks(lab, rng, [length], [queries]).prefill(parts.paged_prefill)


def test_heads_of_a_group_are_rows_of_a_tile(parts, lab, rng):
    for heads, kv_heads in ((2, 2), (4, 1), (6, 2), (10, 2)):
        queries = int(rng.integers(5, 20))
        batch = chunks(lab, rng, [queries + 9], [queries], heads=heads, kv_heads=kv_heads)
        batch.prefill(parts.paged_prefill)


def test_a_ragged_batch_keeps_its_chunks_apart(parts, lab, rng):
    for lengths, queries in (
        ([9, 40, 3], [9, 33, 1]),
        ([int(rng.integers(30, 70)), 12, 31], [int(rng.integers(2, 30)), 1, 31]),
    ):
        batch = chunks(lab, rng, lengths, queries, heads=2)
        batch.prefill(parts.paged_prefill)
        batch.prefill(parts.paged_prefill, begin=3, why="decodes stand before them")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_prompts_of_half_types_are_summed_in_float32(parts, lab, rng, dtype):
    sizes = {"dtype": dtype, "block_size": 16}
    chunks(lab, rng, [39], [30], heads=2, **sizes).prefill(parts.paged_prefill)
    # Products of queries and keys are about 100,000, more than float16 holds, and one key stands
    # out: half types keep no other digits of its score.
    large = chunks(lab, rng, [39], [8], size=160.0, **sizes)
    large.prefill(parts.paged_prefill, why="large scores")
    long = chunks(lab, rng, [150], [7], size=0.1, **sizes)
    long.values = [np.full_like(values, 500.0) for values in long.values]
    long.prefill(parts.paged_prefill, why="large sums")


# --------------------------------------------------------------------------- robustness
def test_prompts_do_not_see_what_is_stale(parts, lab, rng):
    for block_size, head_dim, stale in ((4, 16, np.nan), (7, 12, np.inf), (3, 80, np.nan)):
        queries = int(rng.integers(3, 30))
        sizes = {"block_size": block_size, "head_dim": head_dim, "heads": 2}
        batch = chunks(lab, rng, [queries + 20, 5], [queries, 5], **sizes)
        lose_entries_past_the_context(batch, rng)
        why = f"{stale} past the context"
        batch.prefill(parts.paged_prefill, outside=stale, why=why)


def test_rows_of_nobody_are_left_alone(parts, lab, rng):
    """Rows of decodes before the first query, and of padding behind the last."""
    for begin in (0, 5):
        queries = [int(rng.integers(2, 30)), 3]
        batch = chunks(lab, rng, [queries[0] + 4, 3], queries, heads=4, kv_heads=2)
        batch.prefill(parts.paged_prefill, begin=begin, untouched=True)


def test_prompts_may_lie_past_32_bits(parts, lab, rng):
    """Half precision: from block to block it is 2 ** 30 elements. Queries are a view."""
    batch = chunks(lab, rng, [10], [6], dtype="float16", heads=2, spare=1)
    batch.prefill(parts.paged_prefill, why="blocks far apart", **far_apart(batch))
