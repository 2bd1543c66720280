"""Task 2.1: blocks are handed out until there are none. Nothing here gives a block back."""

from __future__ import annotations

import pytest
from pool_model import NAMES

from minipaged.course.testing import expect, expect_error
from minipaged.errors import OutOfBlocks


@pytest.mark.parametrize("case", range(2))
def test_a_new_pool_hands_out_block_0_then_1_then_2(parts, rng, case):
    size = int(rng.integers(3, 12))
    pool = parts.BlockAllocator(size)
    expect(pool.num_blocks, size, "num_blocks of a new pool")
    for block in range(size):
        expect(pool.allocate(), block, f"allocate() number {block + 1} of a new pool of {size}")


def test_num_free_counts_the_blocks_that_nobody_holds(parts, rng):
    size = int(rng.integers(16, 24))  # more than five rounds of three can take
    pool = parts.BlockAllocator(size)
    free = size
    expect(pool.num_free, free, f"num_free of a new pool of {size}")
    for count in rng.integers(0, 3, size=5).tolist():
        pool.allocate()
        pool.allocate_many(count)
        free -= 1 + count
        expect(pool.num_free, free, f"num_free when {size - free} of {size} blocks are held")


def test_free_blocks_ends_with_the_next_block(parts, lab, rng):
    size = int(rng.integers(5, 12))
    pool = parts.BlockAllocator(size)
    expect(sorted(pool.free_blocks), list(range(size)), f"free_blocks of a new pool of {size}")
    for _ in range(size):
        free = pool.free_blocks
        expect(pool.allocate(), free[-1], f"allocate() when free_blocks is {free}")
        expect(pool.free_blocks, free[:-1], f"free_blocks after {free[-1]} was handed out")
    other = parts.BlockAllocator(size)
    lab.empty(other, "free_blocks")
    expect(other.num_free, size, "num_free after somebody emptied the list that free_blocks gave")


@pytest.mark.parametrize("case", range(2))
def test_an_exhausted_pool_is_an_error_that_names_it(parts, rng, case):
    size, name = int(rng.integers(2, 9)), str(rng.choice(NAMES))
    pool = parts.BlockAllocator(size, name)
    blocks = [pool.allocate() for _ in range(size)]
    expect(sorted(blocks), list(range(size)), f"the blocks of a pool of {size}")
    for _ in range(2):
        why = f"allocate() when all {size} blocks are held"
        with expect_error(OutOfBlocks, name, str(size), why=why):
            pool.allocate()
        expect(pool.num_free, 0, f"num_free after {why} was refused")


@pytest.mark.parametrize("case", range(2))
def test_allocate_many_takes_all_or_nothing(parts, rng, case):
    size, name = int(rng.integers(6, 12)), str(rng.choice(NAMES))
    first = int(rng.integers(2, 4))
    left = size - first
    pool = parts.BlockAllocator(size, name)
    expect(pool.allocate_many(first), list(range(first)), f"allocate_many({first}) of {size}")
    expect(pool.allocate_many(0), [], "allocate_many(0)")
    for count in (left + 1, left + int(rng.integers(2, 9))):
        why = f"allocate_many({count}) when {left} blocks are free"
        with expect_error(OutOfBlocks, name, str(count), why=why):
            pool.allocate_many(count)
        expect(pool.num_free, left, f"num_free after {why} was refused")
    rest = list(range(first, size))
    expect(pool.allocate_many(left), rest, f"allocate_many({left}), just what is left")
    expect(pool.num_free, 0, "num_free after the last block was taken")
