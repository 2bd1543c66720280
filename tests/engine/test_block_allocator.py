"""The pool of blocks: references, the free list, and its errors."""

from __future__ import annotations

import random

import pytest

from minipaged.errors import DoubleFree, OutOfBlocks
from minipaged.kvcache.block_allocator import BlockAllocator


def test_hands_out_each_block_once_then_says_which_pool_is_empty():
    pool = BlockAllocator(3, "CPU")
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OutOfBlocks, match="CPU pool is exhausted: all 3 blocks"):
        pool.allocate()
    assert pool.num_free == 0


def test_the_block_freed_last_is_handed_out_next():
    pool = BlockAllocator(4)
    for _ in range(4):
        pool.allocate()
    pool.free(2)
    pool.free(0)
    assert pool.allocate() == 0
    assert pool.allocate() == 2


def test_a_shared_block_is_free_when_its_last_holder_lets_go():
    pool = BlockAllocator(2)
    block = pool.allocate()
    pool.share(block)
    assert pool.ref_count(block) == 2
    assert pool.free(block) is False
    assert pool.num_free == 1
    assert pool.free(block) is True
    assert pool.num_free == 2
    assert pool.ref_count(block) == 0


def test_double_free_is_an_error_and_changes_nothing():
    pool = BlockAllocator(2)
    block = pool.allocate()
    pool.free(block)
    with pytest.raises(DoubleFree, match=f"double free: block {block} of the GPU pool"):
        pool.free(block)
    with pytest.raises(DoubleFree):
        pool.share(block)
    assert sorted(pool.free_blocks) == [0, 1]


@pytest.mark.parametrize("block", [-1, 2])
def test_a_block_that_does_not_exist_is_named(block):
    pool = BlockAllocator(2)
    for use in (pool.free, pool.share, pool.ref_count):
        with pytest.raises(ValueError, match=f"blocks 0 to 1, not {block}"):
            use(block)


def test_allocate_many_is_all_or_nothing():
    pool = BlockAllocator(3)
    pool.allocate()
    with pytest.raises(OutOfBlocks, match="3 blocks were asked for, 2 of 3 are free"):
        pool.allocate_many(3)
    assert pool.num_free == 2
    assert len(set(pool.allocate_many(2))) == 2


def test_random_use_conserves_blocks():
    pool = BlockAllocator(16)
    dice = random.Random(0)
    held: list[int] = []
    for _ in range(5000):
        action = dice.choice(["allocate", "share", "free"])
        if action == "allocate" and pool.num_free:
            block = pool.allocate()
            assert block not in held
            held.append(block)
        elif action == "share" and held:
            block = dice.choice(held)
            pool.share(block)
            held.append(block)
        elif action == "free" and held:
            block = held.pop(dice.randrange(len(held)))
            assert pool.free(block) is (block not in held)
        assert pool.num_free + len(set(held)) == 16
        assert all(pool.ref_count(b) == held.count(b) for b in range(16))
