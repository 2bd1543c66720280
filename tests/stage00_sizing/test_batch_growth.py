"""Task 0.3: how the cache of a batch grows, and gets smaller as its sequences end."""

from __future__ import annotations

import pytest
from sizing_model import Batch


def sizes(rng):
    """Bytes a token, and a block size."""
    return int(rng.integers(2, 900)), int(rng.integers(3, 6))


def prompts_of(rng, count):
    """None of them a multiple of another's block, or the like."""
    return [int(n) for n in rng.integers(1, 12, size=count)]


@pytest.mark.parametrize("count", [1, 3])
def test_each_token_needs_a_slot(parts, rng, count):
    prompts, outputs = prompts_of(rng, count), [int(n) for n in rng.permutation(9)[:count]]
    Batch(prompts, outputs, *sizes(rng), 30).compare(parts, "step", "needed_bytes")


@pytest.mark.parametrize("count", [1, 3])
def test_pages_are_the_whole_blocks_of_each_sequence(parts, rng, count):
    prompts, outputs = prompts_of(rng, count), [int(rng.integers(5, 9))] * count
    Batch(prompts, outputs, *sizes(rng), 30).compare(parts, "paged_bytes")


@pytest.mark.parametrize("count", [1, 3])
def test_a_reservation_is_for_the_longest_sequence_there_can_be(parts, rng, count):
    prompts, outputs = prompts_of(rng, count), [int(rng.integers(2, 9))] * count
    longest = int(rng.integers(30, 99))
    Batch(prompts, outputs, *sizes(rng), longest).compare(parts, "reserved_bytes")


@pytest.mark.parametrize("case", range(2))
def test_what_is_finished_occupies_nothing(parts, rng, case):
    prompts, (short, middle, long) = prompts_of(rng, 4), sorted(rng.permutation(9)[:3].tolist())
    batch = Batch(prompts, [middle, long, short, middle], *sizes(rng), 30)
    batch.compare(parts, "needed_bytes", "paged_bytes", "reserved_bytes")
