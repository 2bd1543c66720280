"""Task 0.2: what fits into the memory that is left."""

from __future__ import annotations

import pytest

from minipaged.course.testing import expect

GIB = 1 << 30
SHARES = (0.95, 0.9, 0.85)


def card_of(rng):
    """Bytes of a card of which no share is a whole number, nor nearly one."""
    return 20 * int(rng.integers(GIB, 4 * GIB)) + int(rng.choice([3, 7, 9]))


@pytest.mark.parametrize("share", SHARES)
def test_the_budget_is_what_weights_and_activations_leave(parts, rng, share):
    card = card_of(rng)
    usable = card * round(100 * share) // 100
    weights, activations = (int(n) for n in rng.integers(1, usable // 3, size=2))
    why = f"kv_budget_bytes({card}, {share}, {weights}, {activations})"
    got = parts.kv_budget_bytes(card, share, weights, activations)
    expect(got, usable - weights - activations, why)


def test_slots_are_tokens_that_fit_whole(parts, rng):
    for token in rng.integers(100, 2_000_000, size=3).tolist():
        slots = int(rng.integers(2, 20_000))
        for over in (0, 1, token - 1):
            why = f"slots_that_fit({slots * token + over}, {token})"
            expect(parts.slots_that_fit(slots * token + over, token), slots, why)


def test_blocks_are_whole(parts, rng):
    for block in rng.integers(1_000, 20_000_000, size=3).tolist():
        blocks = int(rng.integers(2, 2_000))
        for over in (0, 1, block - 1):
            why = f"blocks_that_fit({blocks * block + over}, {block})"
            expect(parts.blocks_that_fit(blocks * block + over, block), blocks, why)
    expect(parts.blocks_that_fit(block - 1, block), 0, f"blocks_that_fit({block - 1}, {block})")


def test_the_watermark_is_rounded_down(parts, rng):
    for percent in (1, 3, 7):
        hundreds, more = int(rng.integers(1, 99)), int(rng.choice([11, 13, 23, 31]))
        blocks = 100 * hundreds + more
        want = blocks * percent // 100
        why = f"watermark_blocks({blocks}, {percent / 100})"
        expect(parts.watermark_blocks(blocks, percent / 100), want, why)
    few = int(rng.integers(1, 99))
    expect(parts.watermark_blocks(few, 0.01), 0, f"watermark_blocks({few}, 0.01)")
    expect(parts.watermark_blocks(blocks, 0.0), 0, f"watermark_blocks({blocks}, 0.0)")


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_partly_filled_block_is_a_block(parts, rng, block_size):
    full = int(rng.integers(2, 100))
    for tokens in (0, 1, block_size, block_size + 1, full * block_size - 1, full * block_size,
                   full * block_size + 1):  # fmt: skip
        want = len(range(0, tokens, block_size))
        why = f"blocks_for_tokens({tokens}, {block_size})"
        expect(parts.blocks_for_tokens(tokens, block_size), want, why)


@pytest.mark.parametrize("case", range(2))
def test_no_two_sequences_are_in_one_block(parts, rng, case):
    block_size = int(rng.integers(3, 17))
    for tokens in (1, block_size, block_size + 1, int(rng.integers(2, 9)) * block_size - 1):
        each = len(range(0, tokens, block_size))
        sequences = int(rng.integers(3, 9))
        for blocks in (sequences * each - 1, sequences * each):
            why = f"sequences_that_fit({blocks}, {tokens}, {block_size})"
            got = parts.sequences_that_fit(blocks, tokens, block_size)
            expect(got, blocks // each, why)
