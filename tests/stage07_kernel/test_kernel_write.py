"""Task 7.1: new keys and values go to their slots, and nowhere else."""

from __future__ import annotations

import numpy as np
from kernel_oracle import expect_array, put, rounded

SIZES = {"kv_heads": 2, "head_dim": 16, "num_blocks": 6, "block_size": 4}


def write(parts, lab, rng, slots, *, kv_heads, head_dim, num_blocks, block_size, dtype="float32",
          views=None, stride=0):  # fmt: skip
    """Write random tokens into random caches, and compare every slot of both.

    Args:
        views: makes tensors ``k`` and ``v`` of their numbers; by default each is one of its own.
        stride: elements from block to block of the caches, if not what a block takes.
    """
    shape = (num_blocks, kv_heads, block_size, head_dim)
    rows = [
        rounded(lab, rng.standard_normal((len(slots), kv_heads, head_dim)), dtype) for _ in "kv"
    ]
    before = [rounded(lab, rng.standard_normal(shape), dtype) for _ in "kv"]
    if stride:
        caches = [lab.spread(cache, stride, dtype=dtype) for cache in before]
    else:
        caches = [lab.tensor(cache, dtype) for cache in before]
    k, v = views(*rows) if views else [lab.tensor(row, dtype) for row in rows]
    lab.launch(parts.cache_write, k, v, *caches, lab.tensor(np.array(slots, np.int64)))
    what = f"tokens at slots {slots}, {kv_heads} heads of {head_dim}, blocks of {block_size}"
    for name, row, want, cache in zip(("k_cache", "v_cache"), rows, before, caches):
        put(want, slots, row)
        expect_array(lab.read(cache), want, f"{what}; {dtype}: {name}[block, head, place, i]")


def some_slots(rng, count, num_slots):
    return rng.permutation(num_slots)[:count].tolist()


def test_each_token_is_in_its_slot(parts, lab, rng):
    for kv_heads, block_size, dtype in (
        (1, 4, "float32"),
        (4, 4, "float32"),
        (2, 8, "float16"),
        (2, 1, "bfloat16"),
        (2, int(rng.integers(2, 8)), "float32"),
    ):
        sizes = {**SIZES, "kv_heads": kv_heads, "block_size": block_size}
        slots = some_slots(rng, 5, 6 * block_size)
        write(parts, lab, rng, slots, dtype=dtype, **sizes)


def test_padding_is_written_nowhere(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 8))):
        sizes = {**SIZES, "block_size": block_size}
        some = [slot + 1 for slot in some_slots(rng, 4, 6 * block_size - 2)]
        write(parts, lab, rng, [*some, -1, -1], **sizes)
        write(parts, lab, rng, [-1, *some[:2], -1, *some[2:]], **sizes)


def test_every_tile_of_heads_is_written(parts, lab, rng):
    for kv_heads, head_dim in ((8, 512), (int(rng.integers(5, 9)), 256)):
        sizes = {"kv_heads": kv_heads, "head_dim": head_dim, "num_blocks": 3, "block_size": 2}
        write(parts, lab, rng, some_slots(rng, 3, 6), **sizes)


def test_heads_that_fill_no_tile_are_written_whole(parts, lab, rng):
    for kv_heads, head_dim in ((3, 16), (2, 12), (5, 20), (3, 80)):
        sizes = {**SIZES, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 3}
        write(parts, lab, rng, some_slots(rng, 4, 18), **sizes)


def test_tokens_may_be_views(parts, lab, rng):
    """Keys and values are pieces of what one product has computed, or rows among others."""

    def pieces(k, v):
        others = rng.standard_normal((len(k), 3, k.shape[2]))
        qkv = lab.tensor(np.concatenate([others, k, v], axis=1), "float32")
        return lab.split(qkv, [3, k.shape[1], v.shape[1]], axis=1)[1:]

    def with_gaps(axis):
        def views(k, v):
            wide = np.stack([k, rng.standard_normal(k.shape)], axis + 1)
            shape = [2 * n if i == axis else n for i, n in enumerate(k.shape)]
            k = lab.every_other(lab.tensor(wide.reshape(shape), "float32"), axis)
            return k, lab.tensor(v, "float32")

        return views

    for views in (pieces, with_gaps(0), with_gaps(1)):
        write(parts, lab, rng, some_slots(rng, 5, 24), views=views, **SIZES)


def test_a_slot_may_lie_past_32_bits(parts, lab, rng):
    """Half precision, three blocks: the third is 2 ** 31 elements from the first."""
    sizes = {**SIZES, "num_blocks": 3}
    for stride in (2**30, 2**30 + 128):
        slots = [int(8 + rng.integers(4)), int(rng.integers(4)), int(4 + rng.integers(4))]
        write(parts, lab, rng, slots, stride=stride, dtype="float16", **sizes)
