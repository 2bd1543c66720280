"""The buddy allocator: worked states, errors, and properties under random use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.errors import DoubleFree, MinipagedError, OutOfBlocks
from minipaged.kvcache.buddy import BuddyAllocator, next_power_of_two


def roots_of(num_blocks, max_chunk):
    """Root chunks by definition: the largest that fits, from block 0."""
    roots, start = [], 0
    while start < num_blocks:
        size = max_chunk
        while start + size > num_blocks:
            size //= 2
        roots.append((start, size))
        start += size
    return roots


def test_next_power_of_two():
    assert [next_power_of_two(n) for n in (1, 2, 3, 4, 5, 127, 128, 129)] == [
        1, 2, 4, 4, 8, 128, 128, 256,
    ]  # fmt: skip


def test_pool_is_carved_largest_first():
    assert BuddyAllocator(11, max_chunk=4).free_chunks() == [(0, 4), (4, 4), (8, 2), (10, 1)]
    papers = BuddyAllocator(983)
    assert papers.free_chunks() == roots_of(983, 128)
    assert [size for _, size in papers.free_chunks()] == [128] * 7 + [64, 16, 4, 2, 1]


def test_worked_example():
    pool = BuddyAllocator(8, max_chunk=8)
    assert pool.allocate(3) == 0
    assert pool.regions() == [(0, 4)]
    assert pool.allocate(1) == 4
    assert pool.free_chunks() == [(5, 1), (6, 2)]
    pool.free(0)
    assert pool.free_chunks() == [(0, 4), (5, 1), (6, 2)]
    pool.free(4)
    assert pool.free_chunks() == [(0, 8)]


def test_shortest_chunk_that_fits_then_lowest_address():
    pool = BuddyAllocator(16, max_chunk=8)
    a, b = pool.allocate(8), pool.allocate(2)
    assert (a, b) == (0, 8)
    pool.free(a)
    # [0..7] is free and lower, but [10..11] is shorter.
    assert pool.allocate(2) == 10
    assert pool.allocate(2) == 12
    assert pool.allocate(8) == 0


def test_order_of_frees_does_not_matter_for_where_the_next_goes():
    for order in ((0, 2), (2, 0)):
        pool = BuddyAllocator(4, max_chunk=1)
        for _ in range(4):
            pool.allocate(1)
        for start in order:
            pool.free(start)
        assert [pool.allocate(1), pool.allocate(1)] == [0, 2]


def test_neighbors_that_are_not_buddies_stay_apart():
    pool = BuddyAllocator(8, max_chunk=8)
    starts = [pool.allocate(2) for _ in range(4)]
    assert starts == [0, 2, 4, 6]
    pool.free(2)
    pool.free(4)
    assert pool.free_chunks() == [(2, 2), (4, 2)]
    assert pool.largest_free() == 2
    with pytest.raises(OutOfBlocks):
        pool.allocate(3)


def test_root_chunks_never_merge():
    pool = BuddyAllocator(4, max_chunk=2)
    pool.free(pool.allocate(2))
    assert pool.free_chunks() == [(0, 2), (2, 2)]
    pool = BuddyAllocator(3, max_chunk=4)
    starts = [pool.allocate(1) for _ in range(3)]
    for start in starts:
        pool.free(start)
    assert pool.free_chunks() == [(0, 2), (2, 1)]


def test_exhaustion_names_the_pool_and_changes_nothing():
    pool = BuddyAllocator(6, max_chunk=4)
    last = pool.allocate(2)
    pool.allocate(1)
    pool.free(last)
    before = pool.free_chunks()
    with pytest.raises(OutOfBlocks, match=r"buddy pool.*4 blocks \(for 3\).*5 of 6.*2"):
        pool.allocate(3)
    assert pool.free_chunks() == before
    with pytest.raises(OutOfBlocks, match="8 blocks"):
        BuddyAllocator(64, max_chunk=4).allocate(5)


def test_double_free_is_an_error():
    pool = BuddyAllocator(8, max_chunk=8)
    start = pool.allocate(4)
    for wrong in (1, 4, 8, -1):
        with pytest.raises(DoubleFree, match=str(wrong)):
            pool.free(wrong)
    pool.free(start)
    with pytest.raises(DoubleFree):
        pool.free(start)
    assert pool.free_blocks == 8
    assert issubclass(DoubleFree, MinipagedError)


@pytest.mark.parametrize("n", [0, -1])
def test_a_region_has_at_least_one_block(n):
    with pytest.raises(ValueError, match=str(n)):
        BuddyAllocator(8).allocate(n)
    with pytest.raises(ValueError, match="num_blocks"):
        BuddyAllocator(n)


@pytest.mark.parametrize("max_chunk", [0, 3, 96])
def test_max_chunk_is_a_power_of_two(max_chunk):
    with pytest.raises(ValueError, match="power of two"):
        BuddyAllocator(8, max_chunk)


def test_numbers_of_a_full_pool():
    pool = BuddyAllocator(1)
    assert (pool.free_blocks, pool.largest_free()) == (1, 1)
    pool.allocate(1)
    assert (pool.free_blocks, pool.largest_free(), pool.available(1)) == (0, 0, 0)
    assert pool.capacity(1) == 1


def check(pool, roots):
    chunks = sorted([*pool.free_chunks(), *pool.regions()])
    # Conservation, and no overlap: the chunks tile the pool.
    end = 0
    for start, size in chunks:
        assert start == end
        end = start + size
    assert end == pool.num_blocks
    assert pool.free_blocks == sum(size for _, size in pool.free_chunks())
    assert pool.largest_free() == max((size for _, size in pool.free_chunks()), default=0)
    for start, size in chunks:
        root, length = next((r, n) for r, n in roots if r <= start < r + n)
        assert size & (size - 1) == 0
        assert start + size <= root + length
        assert (start - root) % size == 0
    # Free buddies are merged.
    free = set(pool.free_chunks())
    for start, size in free:
        root, length = next((r, n) for r, n in roots if r <= start < r + n)
        if size < length:
            assert (root + ((start - root) ^ size), size) not in free


@settings(max_examples=80, deadline=None)
@given(
    num_blocks=st.integers(1, 70),
    max_order=st.integers(0, 5),
    data=st.data(),
)
def test_random_use(num_blocks, max_order, data):
    pool = BuddyAllocator(num_blocks, 1 << max_order)
    roots = roots_of(num_blocks, 1 << max_order)
    held = {}
    for _ in range(data.draw(st.integers(1, 40))):
        if held and data.draw(st.booleans()):
            start = data.draw(st.sampled_from(sorted(held)))
            pool.free(start)
            del held[start]
        else:
            n = data.draw(st.integers(1, 1 << max_order))
            fits = pool.largest_free() >= n
            assert (pool.available(n) > 0) == fits
            if fits:
                start = pool.allocate(n)
                held[start] = next_power_of_two(n)
            else:
                with pytest.raises(OutOfBlocks):
                    pool.allocate(n)
        assert pool.regions() == sorted(held.items())
        check(pool, roots)
    for start in held:
        pool.free(start)
    assert pool.free_chunks() == roots


@settings(max_examples=60, deadline=None)
@given(
    num_blocks=st.integers(1, 70),
    before=st.lists(st.integers(1, 8), max_size=8),
    n=st.integers(1, 16),
)
def test_available_and_capacity_are_exact(num_blocks, before, n):
    pool = BuddyAllocator(num_blocks, 16)
    empty = BuddyAllocator(num_blocks, 16)
    assert pool.capacity(n) == empty.available(n)
    for size in before:
        if pool.largest_free() >= size:
            pool.allocate(size)
    assert pool.capacity(n) == empty.capacity(n)
    for _ in range(pool.available(n)):
        pool.allocate(n)
    assert pool.available(n) == 0
    with pytest.raises(OutOfBlocks):
        pool.allocate(n)
