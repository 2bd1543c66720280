"""Cache write: each key and value at its slot, every other slot as it was, bit for bit."""

from __future__ import annotations

import math
import re

import pytest
import torch
from reference_attention_f64 import DEVICE, far_blocks

from minipaged.kernels.cache_write import cache_write

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def slots_of(num_tokens, num_slots, padding=()):
    slots = torch.randperm(num_slots, generator=torch.Generator().manual_seed(7))[:num_tokens]
    slots[list(padding)] = -1
    return slots.to(DEVICE)


def expected(tokens, cache, slots):
    """What the cache must hold: token by token, from the definition of a slot."""
    cache = cache.clone()
    block_size = cache.shape[2]
    for token, slot in zip(tokens, slots.tolist()):
        if slot >= 0:
            cache[slot // block_size, :, slot % block_size] = token
    return cache


def same_bits(a, b):
    """Equal, where a NaN is what it was."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check(k, v, k_cache, v_cache, slots):
    k_expected, v_expected = expected(k, k_cache, slots), expected(v, v_cache, slots)
    cache_write(k, v, k_cache, v_cache, slots)
    assert same_bits(k_cache, k_expected)
    assert same_bits(v_cache, v_expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kv_heads", "d", "block_size"), [(1, 8, 16), (3, 80, 4), (40, 64, 3), (5, 256, 8), (2, 33, 1)]
)
def test_every_token_goes_to_its_slot(dtype, kv_heads, d, block_size):
    k, v = (random(6, kv_heads, d, dtype=dtype, seed=seed) for seed in (1, 2))
    caches = torch.full((2, 9, kv_heads, block_size, d), math.nan, dtype=dtype, device=DEVICE)
    check(k, v, caches[0], caches[1], slots_of(6, 9 * block_size))


@pytest.mark.parametrize("padding", [(), (0,), (2, 3), (6, 7), range(8)], ids=str)
def test_padding_is_written_nowhere(padding):
    # Slot -1 is neither the last slot of the cache nor one before its first.
    k, v = random(8, 2, 16, seed=1), random(8, 2, 16, seed=2)
    pool = torch.full((2, 2, 7, 2, 4, 16), 5.0, device=DEVICE)
    around = pool[:, :, [0, 6]].clone()
    check(k, v, pool[1, 0, 1:6], pool[1, 1, 1:6], slots_of(8, 20, padding))
    assert same_bits(pool[:, :, [0, 6]], around)
    assert (pool[0] == 5.0).all()


def test_keys_and_values_may_be_views():
    packed = random(5, 9, 24)
    # Different strides for K and V: rows of one projection, and a transposed tensor.
    k = packed[:, 4:7, :16]
    v = random(3, 5, 16, seed=2).transpose(0, 1)
    assert not k.is_contiguous()
    assert not v.is_contiguous()
    caches = torch.zeros(2, 6, 3, 8, 16, device=DEVICE)
    check(k, v, caches[0], caches[1], slots_of(5, 48))


def test_the_caches_may_be_views():
    wide = torch.full((2, 12, 5, 10, 20), 3.0, device=DEVICE)
    caches = wide[:, ::2, 1:4, :8, :16]
    k, v = random(5, 3, 16, seed=1), random(5, 3, 16, seed=2)
    check(k, v, caches[0], caches[1], slots_of(5, 48))
    caches.fill_(3.0)
    assert (wide == 3.0).all(), "the kernel wrote outside of the caches"


def test_offsets_beyond_32_bits():
    cache, far = far_blocks((1, 8, 16), torch.float16)
    k = random(1, 1, 16, dtype=torch.float16)
    cache_write(k, k, cache, cache, torch.tensor([far * 8 + 3], device=DEVICE))
    assert torch.equal(cache[far, 0, 3], k[0, 0])
    assert cache[far].count_nonzero() == k.count_nonzero()


def test_no_token_at_all():
    caches = torch.zeros(2, 6, 3, 8, 16, device=DEVICE)
    empty = torch.zeros(0, 3, 16, device=DEVICE)
    check(empty, empty, caches[0], caches[1], slots_of(0, 48))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("k", lambda k: k[0], "k [3, 16], v [5, 3, 16]: both must be [T, num_kv_heads, d]"),
        ("v", lambda v: v[:4], "k [5, 3, 16], v [4, 3, 16]: both must be"),
        ("k_cache", lambda c: c[:2], "k_cache [2, 3, 8, 16], v_cache [6, 3, 8, 16]: both must be"),
        ("v_cache", lambda c: c.mT.contiguous().mT, "with the same strides"),
        ("kv", lambda k: k[:, :2], "k is [5, 2, 16], but the caches [6, 3, 8, 16] have 3 KV heads"),
        ("v", lambda v: v.half(), "v is torch.float16, but k_cache torch.float32"),
        ("kv", lambda k: k.mT.contiguous().mT, "k: its last dimension has stride 3, not 1"),
        ("slots", lambda s: s[:4], "slot_mapping is [4] torch.int64, not [5] torch.int64"),
        ("slots", lambda s: s.int(), "slot_mapping is [5] torch.int32, not [5] torch.int64"),
        ("slots", lambda s: s.repeat(2)[::2], "slot_mapping has stride 2, not 1"),
    ],
)
def test_refusals(name, change, message):
    caches = torch.zeros(2, 6, 3, 8, 16, device=DEVICE)
    given = {"k": random(5, 3, 16), "v": random(5, 3, 16), "slots": slots_of(5, 48),
             "k_cache": caches[0], "v_cache": caches[1]}  # fmt: skip
    for argument in ("k", "v") if name == "kv" else (name,):
        given[argument] = change(given[argument])
    given["slot_mapping"] = given.pop("slots")
    with pytest.raises(ValueError, match=re.escape(message)):
        cache_write(**given)
    assert not caches.any()
