"""What the interpreter cannot show: the same kernels, compiled, with the shapes of real models, and
how fast they are."""

from __future__ import annotations

import numpy as np
import pytest
from fast_kernel_oracle import TOLERANCE, Batch
from fast_kernel_oracle import blocks_for as blocks

from minipaged.course.testing import expect

#: Query heads, KV heads, dimensions of a head.
MODELS = ((40, 40, 128), (32, 8, 128), (9, 3, 64), (4, 2, 80), (6, 6, 112))


def random_batch(lab, rng, model, lengths, query_lens=(), dtype="float16"):
    heads, kv_heads, head_dim = model
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 16}
    return Batch.random(lab, rng, lengths, query_lens, dtype=dtype, **sizes)


def ragged(rng):
    return [1, 15, 16, 17, 83, *rng.integers(1, 700, 2).tolist(), 0]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_on_a_gpu_tiles_are_right(parts, lab, rng, dtype):
    for model in MODELS:
        batch = random_batch(lab, rng, model, ragged(rng), dtype=dtype)
        batch.decode(parts.paged_decode_v1, outside=np.nan)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_on_a_gpu_parts_are_right(parts, lab, rng, dtype):
    for model in MODELS:
        batch = random_batch(lab, rng, model, ragged(rng), dtype=dtype)
        for splits in (1, 2, 7):
            batch.decode(parts.paged_decode_v2, splits=splits, outside=np.nan)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_on_a_gpu_prompts_are_right(parts, lab, rng, dtype):
    for model in MODELS:
        lengths, queries = [300, 17, 64, 200], [int(rng.integers(2, 300)), 17, 1, 65]
        batch = random_batch(lab, rng, model, lengths, queries, dtype=dtype)
        batch.prefill(parts.paged_prefill, begin=3, untouched=True, outside=np.nan)


def long_contexts(lab, num_seqs, context_len, heads, kv_heads):
    """A decode step in float16 with blocks of 16 and heads of 128, all zeros, and the bytes of its
    keys and values."""
    each = blocks(context_len, 16)
    cache = np.zeros((num_seqs * each, kv_heads, 16, 128), np.float16)
    order = np.random.default_rng(0).permutation(num_seqs * each).astype(np.int32)
    given = [
        np.zeros((num_seqs, heads, 128), np.float16), cache, cache, order.reshape(num_seqs, each),
        np.full(num_seqs, context_len, np.int32),
    ]  # fmt: skip
    return [lab.tensor(array) for array in given], 2 * cache.nbytes


def test_on_a_gpu_contexts_are_read_at_half_its_bandwidth(parts, lab):
    """Of what the card's own copy of one large tensor reaches, reading and writing counted."""
    for heads, kv_heads, num_seqs in ((40, 40, 16), (32, 8, 64)):
        given, moved = long_contexts(lab, num_seqs, 2048, heads, kv_heads)
        milliseconds = lab.milliseconds(parts.paged_decode_v2, *given, 0.088, 2048)
        reached = moved / (1e-3 * milliseconds) / lab.copy_bandwidth()
        why = f"{num_seqs} contexts of 2048, {heads} heads, {kv_heads} of keys"
        expect(
            reached >= 0.5, True, f"{why}: version 2 reaches {reached:.0%} of the copy bandwidth"
        )


def test_on_a_gpu_parts_speed_up_one_long_context(parts, lab):
    """One sequence of a model with 8 KV heads: 8 programs, or as many as the card takes."""
    given, _ = long_contexts(lab, 1, 32768, 32, 8)
    whole, split = (
        lab.milliseconds(parts.paged_decode_v2, *given, 0.088, 32768, None, splits)
        for splits in (1, None)
    )
    expect(
        split < whole / 3, True, f"one context of 32768: {whole:.2f} ms whole, {split:.2f} in parts"
    )
