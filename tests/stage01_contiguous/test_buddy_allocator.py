"""Task 1.2: regions of consecutive blocks, cut out of chunks and put together again."""

from __future__ import annotations

import pytest
from contiguous_oracle import BuddyModel, Twins, power_of_two_from

from minipaged.course.testing import expect, expect_error
from minipaged.errors import DoubleFree, OutOfBlocks


def full_pool(parts, count, length, max_chunk=None):
    """A pool in which so many regions of one length are held, whatever the order they came in."""
    pool = parts.BuddyAllocator(count * length, max_chunk or count * length)
    starts = sorted(pool.allocate(length) for _ in range(count))
    expect(starts, list(range(0, count * length, length)), f"{count} regions of {length}, sorted")
    return pool, starts


@pytest.mark.parametrize("case", range(2))
def test_a_chunk_is_halved_until_it_is_just_long_enough(parts, rng, case):
    size = 1 << int(rng.integers(4, 6))
    for num_blocks in (1, 3, int(rng.integers(5, size // 2)), size // 2, size):
        twins = Twins(parts, size, size)
        twins.allocate(num_blocks)
        largest = size // 2 if num_blocks <= size // 2 else 0
        expect(twins.pool.largest_free(), largest, f"largest_free() after allocate({num_blocks})")


@pytest.mark.parametrize("case", range(2))
def test_the_shortest_chunk_that_fits_is_cut(parts, rng, case):
    chunk = 1 << int(rng.integers(3, 6))
    # Root chunks of a whole, a half and a quarter of that length, one behind the other.
    sizes = [chunk, chunk // 2, chunk // 4]
    starts = [0, chunk, chunk + chunk // 2]
    for which in rng.permutation(3).tolist():
        pool = parts.BuddyAllocator(sum(sizes), chunk)
        why = f"allocate({sizes[which]}) when chunks of {sizes} are free"
        expect(pool.allocate(sizes[which]), starts[which], why)
        pool = parts.BuddyAllocator(sum(sizes), chunk)
        small = int(rng.integers(1, chunk // 8 + 1))
        why = f"allocate({small}) when chunks of {sizes} are free"
        expect(pool.allocate(small) >= starts[2], True, f"{why}: is it in the last one?")


@pytest.mark.parametrize("case", range(2))
def test_of_equal_chunks_the_lowest_is_taken(parts, rng, case):
    length = 1 << int(rng.integers(0, 3))
    pool, starts = full_pool(parts, 16, length)
    # Of some pairs of buddies one each: nothing merges.
    free = [starts[2 * pair + int(rng.integers(2))] for pair in rng.permutation(8)[:4].tolist()]
    for start in free:
        pool.free(start)
    free.sort()
    while free:
        why = f"allocate({length}) when chunks of {length} are free at {free}"
        expect(pool.allocate(length), free.pop(0), why)


@pytest.mark.parametrize("case", range(2))
def test_scattered_blocks_are_no_region(parts, rng, case):
    size = int(rng.integers(5, 10)) * 2
    pool, _ = full_pool(parts, size, 1, max_chunk=8)
    with expect_error(OutOfBlocks, why="allocate(1) when all blocks are held"):
        pool.allocate(1)
    free = list(range(int(rng.integers(2)), size, 2))
    for start in rng.permutation(free).tolist():
        pool.free(start)
    for num_blocks in (2, int(rng.integers(3, 5)), 9):
        length = power_of_two_from(num_blocks)
        why = f"allocate({num_blocks}) when every second block of {size} is free"
        with expect_error(OutOfBlocks, str(length), str(size // 2), why=why):
            pool.allocate(num_blocks)
        state = pool.free_chunks(), pool.free_blocks
        want = [(start, 1) for start in free], size // 2
        expect(state, want, f"after {why} was refused: free chunks, free_blocks")


@pytest.mark.parametrize("case", range(2))
def test_two_buddies_make_one_chunk(parts, rng, case):
    length = 1 << int(rng.integers(0, 3))
    pool, starts = full_pool(parts, 8, length)
    pair = 2 * int(rng.integers(4))
    order = [starts[pair + i] for i in rng.permutation(2)]
    pool.free(order[0])
    expect(pool.free_chunks(), [(order[0], length)], f"the free chunks after free({order[0]})")
    pool.free(order[1])
    why = f"the free chunks after free({order[0]}) and free({order[1]})"
    expect(pool.free_chunks(), [(starts[pair], 2 * length)], why)
    expect(pool.free_blocks, 2 * length, "free_blocks then")


@pytest.mark.parametrize("backward", [False, True])
def test_merging_goes_on_up_to_the_root(parts, rng, backward):
    for length in (1 << int(rng.integers(0, 3)), 64):
        pool, starts = full_pool(parts, 8, length)
        freed = []
        for start in reversed(starts) if backward else starts:
            pool.free(start)
            freed.append(start)
            expect(pool.free_blocks, len(freed) * length, f"free_blocks after {freed} were freed")
            if len(freed) in (4, 8):
                want = [(min(freed), len(freed) * length)]
                expect(pool.free_chunks(), want, f"the free chunks after {freed} were freed")


@pytest.mark.parametrize("case", range(2))
def test_neighbors_that_are_no_buddies_stay_apart(parts, rng, case):
    length = 1 << int(rng.integers(0, 3))
    pool, starts = full_pool(parts, 8, length)
    left = 2 * int(rng.integers(3)) + 1
    order = [starts[left + i] for i in rng.permutation(2)]
    for start in order:
        pool.free(start)
    why = f"the free chunks after free({order[0]}) and free({order[1]}), regions of {length}"
    expect(pool.free_chunks(), [(start, length) for start in sorted(order)], why)


@pytest.mark.parametrize("case", range(3))
def test_a_long_life_keeps_every_block(parts, rng, case):
    twins = Twins(parts, int(rng.integers(20, 50)), 1 << int(rng.integers(2, 5)))
    for _ in range(40):
        room, held = twins.model.largest_free(), list(twins.model.held)
        if room and (not held or rng.random() < 0.6):
            twins.allocate(int(rng.integers(1, room + 1)))
        else:
            twins.free(int(rng.choice(held)))
    for start in rng.permutation(list(twins.model.held)).tolist():
        twins.free(start)
    expect(twins.pool.free_chunks(), twins.model.roots, "the free chunks, with nothing held")


# --------------------------------------------------------------------------- robustness
def test_a_region_is_freed_once_by_its_first_block(parts, rng):
    pool, starts = full_pool(parts, 4, 4)
    start = starts[int(rng.integers(1, 4))]
    for block in rng.permutation([start + 1, start + 2, 16, -start, -1]).tolist():
        why = f"free({block}), where no held region starts"
        with expect_error(DoubleFree, str(block), why=why):
            pool.free(block)
        state = pool.free_chunks(), pool.free_blocks
        expect(state, ([], 0), f"after {why} was refused: free chunks, free_blocks")
    pool.free(start)
    with expect_error(DoubleFree, str(start), why=f"free({start}) for the second time"):
        pool.free(start)
    state = pool.free_chunks(), pool.free_blocks
    want = [(start, 4)], 4
    expect(state, want, f"after free({start}), called twice: free chunks, free_blocks")


def test_root_chunks_never_merge(parts, rng):
    small, count = 1 << int(rng.integers(1, 4)), int(rng.integers(2, 5))
    for chunk, blocks in (
        (small, count * small),
        (small, count * small + small // 2),
        (small, 2 * small - 1),
        (512, 1024),
    ):
        roots = BuddyModel(blocks, chunk).roots
        pool = parts.BuddyAllocator(blocks, chunk)
        starts = sorted(pool.allocate(size) for _, size in roots)
        expect(starts, [start for start, _ in roots], f"the root chunks of {blocks}, sorted")
        for start in rng.permutation(starts).tolist():
            pool.free(start)
        why = f"{blocks} blocks with max_chunk {chunk}, when all is free: the free chunks"
        expect(pool.free_chunks(), roots, why)
        with expect_error(OutOfBlocks, why=f"allocate({chunk + 1}) with max_chunk {chunk}"):
            pool.allocate(chunk + 1)
