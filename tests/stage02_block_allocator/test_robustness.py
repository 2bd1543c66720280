"""What a pool does with calls that should not have been made, and with unusual sizes."""

from __future__ import annotations

from contextlib import suppress

from pool_model import NAMES

from minipaged.course.testing import expect, expect_error, state_of
from minipaged.errors import DoubleFree, OutOfBlocks


def test_a_double_free_is_an_error_that_names_the_block(parts, rng):
    size, name = int(rng.integers(4, 9)), str(rng.choice(NAMES))
    pool = parts.BlockAllocator(size, name)
    block = int(rng.choice(pool.allocate_many(3)))
    expect(pool.free(block), True, f"free({block}), which has one holder")
    with expect_error(DoubleFree, name, str(block), why=f"free({block}) for the second time"):
        pool.free(block)
    other, third = (held for held in range(3) if held != block)
    with expect_error(DoubleFree, name, str(other), why=f"free_many([{other}, {other}])"):
        pool.free_many([other, other])
    expect(pool.ref_count(other), 0, f"ref_count({other}) after it was freed")
    with expect_error(DoubleFree, name, str(block), why=f"free_many([{third}, {block}])"):
        pool.free_many([third, block])
    expect(pool.ref_count(third), 0, f"ref_count({third}), which stood before the one refused")
    never = size - 1
    with expect_error(DoubleFree, name, str(never), why=f"free({never}), never handed out"):
        pool.free(never)


def test_a_free_block_cannot_be_shared(parts, rng):
    size, name = int(rng.integers(4, 9)), str(rng.choice(NAMES))
    pool = parts.BlockAllocator(size, name)
    block = int(rng.choice(pool.allocate_many(3)))
    pool.share(block)
    expect(pool.ref_count(block), 2, f"ref_count({block}) after share({block})")
    pool.free(block)
    pool.free(block)
    for free in (block, size - 1):
        with expect_error(DoubleFree, name, str(free), why=f"share({free}), which is free"):
            pool.share(free)


def test_a_block_that_does_not_exist_is_an_error(parts, rng):
    size, name = int(rng.integers(2, 7)), str(rng.choice(NAMES))
    pool = parts.BlockAllocator(size, name)
    block = pool.allocate_many(size)[-1]
    pool.share(block)
    expect(pool.ref_count(block), 2, f"ref_count({block}) of the last block, shared")
    for wrong in (-1, -size, size, size + int(rng.integers(1, 99))):
        for method in ("ref_count", "share", "free"):
            why = f"{method}({wrong}) in a pool of {size}"
            with expect_error(ValueError, name, str(wrong), why=why):
                getattr(pool, method)(wrong)


def test_a_refused_call_changes_nothing(parts, rng):
    size = int(rng.integers(4, 8))
    pool = parts.BlockAllocator(size)
    shared, freed, last = pool.allocate(), pool.allocate(), pool.allocate_many(size - 2)[-1]
    pool.share(shared)
    pool.free(freed)
    held = " ".join(f"{b}:{2 if b == shared else 1}" for b in range(size) if b != freed)
    want = f"free:{{{freed}}} refs{{{held}}}"
    expect(state_of(pool), want, "before any refused call, the pool")
    refused = [
        ("free", freed),
        ("share", freed),
        ("free", last - size),
        ("share", -1),
        ("allocate_many", 2),
    ]
    for i in rng.permutation(len(refused)):
        method, argument = refused[i]
        # Whether it is refused, and how, is asked by other checks.
        with suppress(DoubleFree, OutOfBlocks, ValueError):
            getattr(pool, method)(argument)
        expect(state_of(pool), want, f"after {method}({argument}), the pool")
    expect(pool.allocate(), freed, "allocate() after all the refused calls")


def test_two_pools_do_not_know_each_other(parts, rng):
    sizes = [int(size) for size in rng.permutation(range(3, 8))[:2]]
    gpu, cpu = parts.BlockAllocator(sizes[0], "GPU"), parts.BlockAllocator(sizes[1], "CPU")
    gpu.share(gpu.allocate())
    expect(state_of(cpu), _all_free(sizes[1]), "the CPU pool after the GPU pool was used")
    cpu.allocate_many(2)
    gpu.free(0)
    expect(cpu.free(0), True, "free(0) in the CPU pool")
    expect(gpu.ref_count(0), 1, "ref_count(0) in the GPU pool, of which one holder is left")
    expect(cpu.ref_count(1), 1, "ref_count(1) in the CPU pool")


def _all_free(size: int) -> str:
    return f"free:{{{' '.join(map(str, range(size)))}}}"


def test_a_pool_may_have_no_block_or_one(parts, rng):
    name = str(rng.choice(NAMES))
    for size in (0, 1):
        pool = parts.BlockAllocator(size, name)
        expect(pool.num_free, size, f"num_free of a pool of {size}")
        expect(pool.free_blocks, list(range(size)), f"free_blocks of a pool of {size}")
        expect(pool.allocate_many(0), [], f"allocate_many(0) of a pool of {size}")
        expect(pool.allocate_many(size), list(range(size)), f"allocate_many({size}) of {size}")
        for take in (pool.allocate, lambda pool=pool: pool.allocate_many(1)):
            with expect_error(OutOfBlocks, name, why=f"a block more from a pool of {size}"):
                take()
