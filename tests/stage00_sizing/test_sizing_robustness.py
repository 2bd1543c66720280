"""Models that do not fit, heads that cannot be spread, and batches that cannot be."""

from __future__ import annotations

from sizing_model import random_shape

from minipaged.course.testing import expect, expect_error, expect_no_error
from minipaged.errors import ConfigError


def test_heads_that_cannot_be_spread_are_refused(parts, lab, rng):
    shape = random_shape(rng, 6, 2)
    model = shape.make(lab)
    below = -int(rng.integers(1, 9))
    refused = [(0, "0"), (below, str(below)), (5, str(shape.heads)), (24, str(shape.heads))]
    for ranks, named in [*refused, (4, "6")]:
        why = f"kv_heads_per_rank, tensor_parallel={ranks} ({shape})"
        with expect_error(ConfigError, str(ranks), named, why=why):
            parts.kv_heads_per_rank(model, ranks)
        with expect_error(
            ConfigError, why=f"kv_bytes_per_token, tensor_parallel={ranks} ({shape})"
        ):
            parts.kv_bytes_per_token(model, 2, ranks)
        with expect_error(
            ConfigError, why=f"kv_bytes_per_block, tensor_parallel={ranks} ({shape})"
        ):
            parts.kv_bytes_per_block(model, 2, 16, ranks)


def test_a_model_that_is_too_large_leaves_no_room(parts, rng):
    card = 20 * int(rng.integers(1_000, 9_000)) + 9
    usable = 9 * card // 10
    weights, activations = usable + int(rng.integers(5_000)), int(rng.integers(100, 999))
    short = usable - weights - activations
    why = f"kv_budget_bytes({card}, 0.9, {weights}, {activations}), rounded down"
    expect(parts.kv_budget_bytes(card, 0.9, weights, activations), short, why)
    size = int(rng.integers(2, 99))
    for budget in (short, -1, 0):
        expect(parts.slots_that_fit(budget, size), 0, f"slots_that_fit({budget}, {size})")
        expect(parts.blocks_that_fit(budget, size), 0, f"blocks_that_fit({budget}, {size})")


def test_only_a_batch_that_cannot_be_is_refused(parts, rng):
    fits, longest = int(rng.integers(10, 30)), int(rng.integers(50, 99))
    output = longest - fits
    for prompts, outputs in (([fits, fits, 1], [2, 3]), ([fits], [1, 2])):
        why = f"kv_growth of {len(prompts)} prompts with {len(outputs)} outputs"
        with expect_error(ValueError, str(len(prompts)), str(len(outputs)), why=why):
            parts.kv_growth(prompts, outputs, 1, 4, longest)
    for prompts, outputs in (([fits + 1], [output]), ([2, fits], [2, output + 1])):
        why = f"kv_growth of {prompts[-1]} + {outputs[-1]} tokens with max_model_len {longest}"
        named = str(prompts[-1]), str(outputs[-1]), str(longest)
        with expect_error(ValueError, *named, why=why):
            parts.kv_growth(prompts, outputs, 1, 4, longest)
    many = int(rng.integers(300, 400))
    for prompts, outputs, what in (
        ([fits], [output], f"{fits} + {output} tokens with max_model_len {longest}: just as long"),
        ([], [], "an empty batch"),
        ([1] * many, [2] * many, f"{many} prompts with as many outputs, of 2 tokens each"),
    ):
        want = max(outputs, default=-1) + 1
        with expect_no_error(f"kv_growth of {what}, which has {want} entries"):
            entries = len(parts.kv_growth(prompts, outputs, 1, 4, longest))
        expect(entries, want, f"entries of kv_growth of {what}")
    empty = parts.kv_growth([], [], 1, 4, longest)
    expect(empty, [], "kv_growth of an empty batch")
