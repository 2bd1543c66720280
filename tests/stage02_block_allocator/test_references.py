"""Task 2.2: a block has as many references as it has holders, and is free without any."""

from __future__ import annotations

import pytest
from pool_model import Twins, random_step

from minipaged.course.testing import expect, state_of


def test_ref_count_tells_how_many_hold_a_block(parts, rng):
    size, holders = int(rng.integers(4, 9)), int(rng.integers(3, 6))
    pool = parts.BlockAllocator(size)
    expect([pool.ref_count(block) for block in range(size)], [0] * size, "ref_count in a new pool")
    block = pool.allocate()
    expect(pool.ref_count(block), 1, f"ref_count({block}) after allocate()")
    for holder in range(2, holders + 1):
        pool.share(block)
        expect(pool.ref_count(block), holder, f"ref_count({block}) with {holder} holders")
    for holder in range(holders - 1, -1, -1):
        pool.free(block)
        expect(pool.ref_count(block), holder, f"ref_count({block}) with {holder} holders left")
    expect(pool.allocate(), block, f"allocate() right after block {block} was freed")
    expect(pool.ref_count(block), 1, f"ref_count({block}) in its second life")


@pytest.mark.parametrize("case", range(2))
def test_a_shared_block_is_free_after_its_last_holder(parts, rng, case):
    size, holders = int(rng.integers(4, 9)), int(rng.integers(3, 6))
    pool = parts.BlockAllocator(size)
    blocks = pool.allocate_many(3)
    shared = int(rng.choice(blocks))
    for _ in range(holders - 1):
        pool.share(shared)
    expect(pool.num_free, size - 3, f"num_free with 3 of {size} blocks held, one of them shared")
    for left in range(holders - 1, 0, -1):
        expect(pool.free(shared), False, f"free({shared}) with {left} holders left")
        expect(shared in pool.free_blocks, False, f"is {shared} free with {left} holders left?")
    expect(pool.free(shared), True, f"free({shared}) by the last holder")
    expect(shared in pool.free_blocks, True, f"is {shared} free after its last holder?")
    expect(pool.num_free, size - 2, f"num_free with 2 of {size} blocks held")


@pytest.mark.parametrize("case", range(2))
def test_the_block_freed_last_is_handed_out_next(parts, rng, case):
    size = int(rng.integers(6, 12))
    pool = parts.BlockAllocator(size)
    held = pool.allocate_many(size - 1)
    # The block freed last is neither the lowest nor the highest of those that are free.
    order = [int(block) for block in rng.permutation(held)[:3]]
    order = [min(order), max(order), sorted(order)[1]]
    for block in order:
        expect(pool.free(block), True, f"free({block}), which has one holder")
    expect(pool.free_blocks, [size - 1, *order], f"free_blocks after {order} were freed")
    for block in reversed(order):
        expect(pool.allocate(), block, f"allocate() when {block} was freed last")


@pytest.mark.parametrize("case", range(2))
def test_free_many_drops_one_reference_of_each(parts, rng, case):
    size = int(rng.integers(7, 12))
    pool = parts.BlockAllocator(size)
    blocks = [int(block) for block in rng.permutation(pool.allocate_many(5))]
    shared, own = blocks[1], [*blocks[:1], *blocks[2:]]
    pool.share(shared)
    pool.free_many([])
    expect(pool.num_free, size - 5, "num_free after free_many([])")
    pool.free_many(blocks)
    why = f"after free_many({blocks}), {shared} having had two holders,"
    expect(pool.ref_count(shared), 1, f"{why} ref_count({shared})")
    expect(pool.num_free, size - 1, f"{why} num_free")
    expect(pool.free_blocks[-4:], own, f"{why} the end of free_blocks")
    pool.free_many((shared,))
    expect(pool.allocate(), shared, f"allocate() after free_many(({shared},))")


@pytest.mark.parametrize("case", range(2))
def test_block_tables_can_live_on_it(parts, lab, rng, case):
    _, first, second = (int(n) for n in rng.integers(2, 5, size=3))
    size = first + second + 2
    pool = parts.BlockAllocator(size)
    short, long = pool.allocate_many(first), pool.allocate_many(second)
    blocks = list(range(size))
    expect(short, blocks[:first], f"a table of {first} blocks")
    expect(long, blocks[first:-2], f"a second table, of {second} blocks")
    pool.free_many(lab.iterator(short[::-1]))
    why = f"once the first of two tables is freed, the {size} blocks"
    held = " ".join(f"{block}:1" for block in blocks[first:-2])
    free = " ".join(map(str, [*blocks[:first], *blocks[-2:]]))
    expect(state_of(pool), f"free:{{{free}}} refs{{{held}}}", why)
    again = pool.allocate_many(first + 1)
    why = f"a table of {first + 1} blocks, after blocks 0 to {first - 1} were freed, the last first"
    expect(again, [*blocks[:first], size - 2], why)


@pytest.mark.parametrize("case", range(3))
def test_a_long_life_loses_no_block(parts, rng, case):
    twins = Twins(parts, int(rng.integers(4, 8)))
    for _ in range(40):
        method, argument = random_step(rng, twins.model)
        twins.do(method, *([] if argument is None else [argument]))
    for block in twins.model.held:
        while twins.model.ref_count(block):
            twins.do("free", block)
    expect(twins.pool.num_free, twins.pool.num_blocks, "num_free when everything was given back")
