"""Task 4.3: whole blocks are copied, and nothing else is touched."""

from __future__ import annotations

import numpy as np
from sharing_model import expect_bits

from minipaged.course.testing import expect


def draw_pairs(rng, num_blocks, count, sources):
    """So many pairs over so many sources; targets are distinct, and none is a source."""
    blocks = [int(block) for block in rng.permutation(num_blocks)]
    froms, targets = blocks[:sources], blocks[sources : sources + count]
    return [(froms[i % sources], target) for i, target in enumerate(targets)]


def copied(blocks, pairs):
    """What a cache must hold afterwards. The first axis is the block."""
    after = blocks.copy()
    for source, target in pairs:
        after[target] = blocks[source]
    return after


def check(parts, lab, cache, pairs):
    """One call on a cache of its own."""
    held = lab.tensor(cache)
    parts.copy_blocks(held, pairs)
    what = f"copy_blocks({pairs}) in a cache {list(cache.shape)}"
    expect_bits(lab.read(held), copied(cache, pairs), what)


def test_the_bytes_go_from_source_to_target_and_nowhere_else(parts, lab, rng):
    for kv_heads, block_size in ((1, 4), (3, 4), (2, int(rng.integers(2, 7)))):
        cache = rng.standard_normal((9, kv_heads, block_size, 4)).astype(np.float32)
        for count in (1, 2, 4):
            check(parts, lab, cache, draw_pairs(rng, 9, count, sources=count))


def test_one_source_may_have_many_targets(parts, lab, rng):
    for count, sources in ((2, 1), (4, 1), (5, 2)):
        cache = rng.standard_normal((10, 2, 4, 3)).astype(np.float32)
        check(parts, lab, cache, draw_pairs(rng, 10, count, sources))


def test_a_block_is_copied_in_every_layer(parts, lab, rng):
    """As the engine's pool lies in memory: ``[layers, 2, num_blocks, heads, block_size, d]``."""
    for layers, kv_heads in ((2, 2), (int(rng.integers(3, 5)), 1)):
        store = rng.standard_normal((layers, 2, 8, kv_heads, 4, 3)).astype(np.float32)
        pairs = draw_pairs(rng, 8, 3, sources=2)
        held = lab.tensor(store)
        parts.copy_blocks(held.movedim(2, 0), pairs)
        what = (
            f"copy_blocks({pairs}) in a pool of {layers} layers, keys and values, seen as "
            f"[num_blocks, layers, 2, …]"
        )
        want = copied(np.moveaxis(store, 2, 0), pairs)
        expect_bits(np.moveaxis(lab.read(held), 2, 0), want, what)


def test_without_pairs_nothing_is_copied(parts, lab, rng):
    for kind in (np.float16, np.float32, np.int64):
        shape = (6, int(rng.integers(1, 4)), 4, 3)
        check(parts, lab, rng.integers(-99, 99, shape).astype(kind), [])


def test_every_type_is_copied_bit_by_bit(parts, lab, rng):
    pairs = draw_pairs(rng, 6, 2, sources=1)
    (source, _), _ = pairs
    for kind in (np.float16, np.float32, np.float64):
        cache = rng.standard_normal((6, 2, 4, 3)).astype(kind)
        cache[source, 0, 0] = np.nan, -np.inf, -0.0
        check(parts, lab, cache, pairs)
    for integer in (np.uint8, np.int8, np.int64):
        limits = np.iinfo(integer)
        cache = rng.integers(limits.min, limits.max, (6, 2, 4, 3), integer, endpoint=True)
        check(parts, lab, cache, pairs)
    cache = rng.integers(-128, 128, (6, 2, 4, 3)).astype(np.float32)  # exact in bfloat16
    held = lab.tensor(cache).bfloat16()
    parts.copy_blocks(held, pairs)
    got = lab.read(held.float())
    expect_bits(got, copied(cache, pairs), f"copy_blocks({pairs}) in a cache of bfloat16")
    expect(got.shape, cache.shape, "its shape")
