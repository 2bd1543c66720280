"""Task 7.2: blocks are copied in every layer, within the pool, out of it and into it."""

from __future__ import annotations

import numpy as np
from kernel_oracle import expect_array, rounded

SHAPE = (2, 4, 8)
"""What a block holds in one cache: KV heads, places, dimensions."""


def random_pool(lab, rng, *, layers=3, num_blocks=7, shape=SHAPE, dtype="float32"):
    return rounded(lab, rng.standard_normal((layers, 2, num_blocks, *shape)), dtype)


def told(pool):
    return f"a pool {[*pool.shape]}"


def copy(parts, lab, pool, pairs, *, dtype="float32", stride=0):
    """Copy within a pool, and compare all of it.

    Args:
        stride: elements from cache to cache, if not what a cache takes.
    """
    given = lab.spread(pool, stride, 1, dtype) if stride else lab.tensor(pool, dtype)
    numbers = lab.tensor(np.array(pairs, np.int64).reshape(-1, 2))
    lab.launch(parts.copy_blocks_in_pool, given, numbers)
    want = pool.copy()
    for source, target in pairs:
        want[:, :, target] = pool[:, :, source]
    why = f"{told(pool)}, {dtype}, copies (source, target) {pairs}: pool[layer, K or V, block, …]"
    expect_array(lab.read(given), want, why)


def gather(parts, lab, pool, blocks, *, dtype="float32", stride=0):
    """The same for copies out of the pool."""
    given = lab.spread(pool, stride, 1, dtype) if stride else lab.tensor(pool, dtype)
    want = np.stack([pool[:, :, block] for block in blocks])
    staging = lab.tensor(np.full(want.shape, np.nan), dtype)
    lab.launch(parts.gather_blocks, given, lab.tensor(np.array(blocks, np.int64)), staging)
    why = f"gather_blocks of {blocks} of {told(pool)}, {dtype}: staging[i, layer, K or V, …]"
    expect_array(lab.read(staging), want, why)
    expect_array(lab.read(given), pool, f"{told(pool)} after gather_blocks of {blocks}")


def scatter(parts, lab, rng, pool, blocks, *, dtype="float32", stride=0):
    """The same for copies into the pool."""
    given = lab.spread(pool, stride, 1, dtype) if stride else lab.tensor(pool, dtype)
    layers, two, _, *shape = pool.shape
    rows = rounded(lab, rng.standard_normal((len(blocks), layers, two, *shape)), dtype)
    lab.launch(
        parts.scatter_blocks, lab.tensor(rows, dtype), given, lab.tensor(np.array(blocks, np.int64))
    )
    want = pool.copy()
    for row, block in zip(rows, blocks):
        want[:, :, block] = row
    why = f"scatter_blocks to {blocks} of {told(pool)}, {dtype}: pool[layer, K or V, block, …]"
    expect_array(lab.read(given), want, why)


def distinct_blocks(rng, count, num_blocks=7):
    return rng.permutation(num_blocks)[:count].tolist()


def test_a_block_is_copied_in_every_layer(parts, lab, rng):
    for layers, count, dtype in ((1, 1, "float32"), (3, 2, "float16"), (2, 3, "float32")):
        a = distinct_blocks(rng, 2 * count)
        pairs = list(zip(a[:count], a[count:]))
        copy(parts, lab, random_pool(lab, rng, layers=layers, dtype=dtype), pairs, dtype=dtype)
    source, *targets = distinct_blocks(rng, 3)
    copy(parts, lab, random_pool(lab, rng), [(source, target) for target in targets])


def test_gathered_blocks_are_one_piece_each(parts, lab, rng):
    for layers, count, dtype in ((1, 1, "float32"), (3, 4, "bfloat16"), (2, 3, "float32")):
        pool = random_pool(lab, rng, layers=layers, dtype=dtype)
        gather(parts, lab, pool, distinct_blocks(rng, count), dtype=dtype)


def test_scattered_blocks_are_where_they_belong(parts, lab, rng):
    for layers, count, dtype in ((1, 1, "float32"), (3, 4, "float16"), (2, 3, "float32")):
        pool = random_pool(lab, rng, layers=layers, dtype=dtype)
        scatter(parts, lab, rng, pool, distinct_blocks(rng, count), dtype=dtype)


def test_a_piece_is_copied_to_its_end(parts, lab, rng):
    """Pieces of less than one program's part, and of several, the last of them not full."""
    for shape in ((3, 5, 7), (2, 5, int(rng.integers(1700, 2400)))):
        for call in (copy, gather, scatter):
            pool = random_pool(lab, rng, layers=1, num_blocks=4, shape=shape)
            blocks = distinct_blocks(rng, 2, 4)
            if call is copy:
                copy(parts, lab, pool, [tuple(blocks)])
            elif call is gather:
                gather(parts, lab, pool, blocks)
            else:
                scatter(parts, lab, rng, pool, blocks)


def test_a_plane_may_lie_past_32_bits(parts, lab, rng):
    """Half precision, two layers: the keys of the second are 2 ** 31 elements from those of the
    first."""
    pool = random_pool(lab, rng, layers=2, num_blocks=3, dtype="float16")
    far = {"dtype": "float16", "stride": 2**30}
    source, target, other = distinct_blocks(rng, 3, 3)
    copy(parts, lab, pool, [(source, target)], **far)
    gather(parts, lab, pool, [target, other], **far)
    scatter(parts, lab, rng, pool, [other, source], **far)
