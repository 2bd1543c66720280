"""Task 0.1: what a token takes, and a block, on one rank."""

from __future__ import annotations

import pytest
from sizing_model import random_shape

from minipaged.course.testing import expect


@pytest.mark.parametrize("kv_heads", [1, 4, 6])
def test_kv_heads_are_spread_over_ranks_and_then_repeated(parts, lab, rng, kv_heads):
    for group in (1, int(rng.choice([4, 6]))):
        shape = random_shape(rng, kv_heads, group)
        model = shape.make(lab)
        for ranks in shape.ranks():
            why = f"kv_heads_per_rank, tensor_parallel={ranks} ({shape})"
            expect(parts.kv_heads_per_rank(model, ranks), shape.heads_of_a_rank(ranks), why)
        why = f"kv_heads_per_rank without tensor_parallel ({shape})"
        expect(parts.kv_heads_per_rank(model), shape.kv_heads, why)


@pytest.mark.parametrize("case", range(2))
def test_a_token_has_a_key_and_a_value_in_each_layer(parts, lab, rng, case):
    shape = random_shape(rng, int(rng.integers(2, 50)), 1)
    model = shape.make(lab)
    for number_bytes in (2, 4, 1):
        why = f"kv_bytes_per_token, dtype_bytes={number_bytes} ({shape})"
        got = parts.kv_bytes_per_token(model, number_bytes)
        expect(got, shape.token_bytes(number_bytes), why)


@pytest.mark.parametrize("kv_heads", [1, 3, 8])
def test_only_kv_heads_are_stored_and_they_are_as_wide_as_they_are(parts, lab, rng, kv_heads):
    shape = random_shape(rng, kv_heads, int(rng.integers(2, 6)))
    for width in (shape.heads * shape.head_dim, shape.heads * int(rng.choice([24, 48, 96]))):
        why = f"kv_bytes_per_token, dtype_bytes=2 ({shape}, hidden_size {width})"
        got = parts.kv_bytes_per_token(shape.make(lab, hidden_size=width), 2)
        expect(got, shape.token_bytes(2), why)


def test_a_rank_stores_its_own_heads(parts, lab, rng):
    for kv_heads, group in ((8, 1), (4, 4), (1, 4)):
        shape = random_shape(rng, kv_heads, group)
        model = shape.make(lab)
        for ranks in shape.ranks():
            why = f"kv_bytes_per_token, dtype_bytes=2, tensor_parallel={ranks} ({shape})"
            expect(parts.kv_bytes_per_token(model, 2, ranks), shape.token_bytes(2, ranks), why)


@pytest.mark.parametrize("case", range(2))
def test_a_block_is_all_its_tokens(parts, lab, rng, case):
    shape = random_shape(rng, 4, int(rng.integers(2, 5)))
    model = shape.make(lab)
    for ranks, number_bytes in ((1, 2), (2, 2), (4, 4)):
        block_size = int(rng.integers(3, 40))
        why = f"kv_bytes_per_block, block_size={block_size}, tensor_parallel={ranks} ({shape})"
        got = parts.kv_bytes_per_block(model, number_bytes, block_size, ranks)
        expect(got, block_size * shape.token_bytes(number_bytes, ranks), why)
    alone = parts.kv_bytes_per_block(model, 2, 1)
    expect(alone, shape.token_bytes(2), f"kv_bytes_per_block, block_size=1 ({shape})")
