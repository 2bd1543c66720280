"""What the interpreter cannot show: the same kernels, compiled, with the shapes of real models."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracle import TOLERANCE, Decodes
from test_kernel_copy import copy, gather, scatter
from test_kernel_write import write

from minipaged.course.testing import expect


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_on_a_gpu_tokens_are_in_their_slots(parts, lab, rng, dtype):
    for kv_heads, head_dim in ((40, 128), (8, 80)):
        slots = [*rng.permutation(60 * 16)[:500].tolist(), -1, -1]
        sizes = {"kv_heads": kv_heads, "head_dim": head_dim, "num_blocks": 60, "block_size": 16}
        write(parts, lab, rng, slots, dtype=dtype, **sizes)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_on_a_gpu_blocks_are_copied(parts, lab, rng, dtype):
    pool = rng.integers(-99, 99, size=(3, 2, 24, 8, 16, 128)).astype(float)  # no type rounds these
    blocks = rng.permutation(24).tolist()
    copy(parts, lab, pool, list(zip(blocks[:12], blocks[12:])), dtype=dtype)
    gather(parts, lab, pool, blocks[:9], dtype=dtype)
    scatter(parts, lab, rng, pool, blocks[5:14], dtype=dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_on_a_gpu_decode_is_right(parts, lab, rng, dtype):
    for heads, kv_heads, head_dim in ((40, 40, 128), (32, 8, 128), (9, 3, 64), (4, 2, 80)):
        lengths = [1, 15, 16, 17, 83, *rng.integers(1, 700, 3).tolist(), 0]
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 16}
        batch = Decodes.random(lab, rng, lengths, dtype=dtype, **sizes)
        batch.check(parts, outside=np.nan)


def test_on_a_gpu_copies_move_at_a_third_of_its_bandwidth(parts, lab):
    """Of what the card's own copy of one large tensor reaches, reading and writing counted."""
    layers, num_blocks, shape = 8, 512, (8, 16, 128)
    pool = lab.tensor(np.zeros((layers, 2, num_blocks, *shape), np.float16))
    half = num_blocks // 2
    pairs = lab.tensor(np.stack([np.arange(half), np.arange(half)[::-1] + half], 1).copy())
    moved = 2 * 2 * layers * 2 * half * int(np.prod(shape))
    seconds = 1e-3 * lab.milliseconds(parts.copy_blocks_in_pool, pool, pairs)
    reached = moved / seconds / lab.copy_bandwidth()
    expect(reached >= 1 / 3, True, f"block copy reaches {reached:.0%} of the copy bandwidth")
