"""The prefix cache by itself, and the pool that gives up cached blocks last, each against a model
that does the same slowly."""

from __future__ import annotations

import random

import pytest

from minipaged.errors import DoubleFree, OutOfBlocks
from minipaged.kvcache.block_allocator import BlockAllocator
from minipaged.kvcache.prefix_cache import PrefixCache
from minipaged.kvcache.prefix_manager import CachingPool

B = 4


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(B)


def insert(cache: PrefixCache, tokens: list[int], blocks: list[int], salt: str = "") -> list[bool]:
    """Put the full blocks of a sequence into the cache."""
    digests = cache.digests(tokens, salt)
    return [
        cache.insert(digest, tokens[i * B : (i + 1) * B], block)
        for i, (digest, block) in enumerate(zip(digests, blocks))
    ]


def match(cache: PrefixCache, tokens: list[int], salt: str = "") -> list[int]:
    return cache.match(tokens, cache.digests(tokens, salt))


# --------------------------------------------------------------------------- digests
@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (11, 2)])
def test_full_blocks_have_a_digest_and_partial_ones_have_none(cache, tokens, blocks):
    assert len(cache.digests(list(range(tokens)))) == blocks


@pytest.mark.parametrize("at", range(12))
def test_digests_are_equal_up_to_the_block_that_differs_and_not_after_it(cache, at):
    tokens = list(range(12))
    other = [*tokens[:at], 99, *tokens[at + 1 :]]
    same = [a == b for a, b in zip(cache.digests(tokens), cache.digests(other))]
    assert same == [i < at // B for i in range(3)]


def test_equal_blocks_behind_different_ones_have_different_digests(cache):
    tail = [7, 7, 7, 7]
    digests = {cache.digests([*head, *tail])[1] for head in ([1] * 4, [2] * 4, tail)}
    assert len({*digests, *cache.digests(tail)}) == 4


def test_tokens_are_not_confused_with_their_digits(cache):
    blocks = ([1, 2, 0, 0], [12, 0, 0, 0], [0x0201, 0, 0, 0], [1, 0x02_00_00, 0, 0], [-1, 0, 0, 0])
    assert len({cache.digests(block)[0] for block in blocks}) == len(blocks)


def test_a_salt_sets_all_digests_apart(cache):
    tokens = list(range(8))
    plain, mine, yours = (cache.digests(tokens, salt) for salt in ("", "mine", "yours"))
    assert len({*plain, *mine, *yours}) == 6
    assert mine == cache.digests(tokens, "mine")


@pytest.mark.parametrize("known", range(4))
def test_known_digests_are_gone_on_from(cache, known):
    tokens = list(range(14))
    digests = cache.digests(tokens, "s")
    before = digests[:known]
    assert cache.digests(tokens, "s", known=before) == digests
    assert before == digests[:known]
    # They are taken at their word: their tokens are not looked at again.
    changed = [token if i >= known * B else 0 for i, token in enumerate(tokens)]
    assert cache.digests(changed, "s", known=before) == digests


# --------------------------------------------------------------------------- finding
def test_the_longest_beginning_is_found(cache):
    insert(cache, list(range(12)), [5, 6, 7])
    assert match(cache, [*range(12), 0]) == [5, 6, 7]
    assert match(cache, [*range(9), 0, 0, 0, 0]) == [5, 6]
    assert match(cache, [0, 1, 2, 9, *range(4, 13)]) == []
    assert len(cache) == 3
    assert [block in cache for block in (5, 7, 8)] == [True, True, False]


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2)])
def test_b12_the_last_token_is_never_found(cache, tokens, blocks):
    insert(cache, list(range(12)), [5, 6, 7])
    assert match(cache, list(range(tokens))) == [5, 6, 7][:blocks]


def test_a_gap_ends_the_beginning(cache):
    insert(cache, list(range(12)), [5, 6, 7])
    cache.release(6)
    assert cache.evict() == 6
    assert match(cache, [*range(12), 0]) == [5]
    # Once it is computed again the blocks behind it count again.
    cache.insert(cache.digests(list(range(8)))[1], list(range(4, 8)), 9)
    assert match(cache, [*range(12), 0]) == [5, 9, 7]


def test_a_digest_without_its_tokens_is_no_hit(cache):
    insert(cache, [1, 2, 3, 4], [5])
    stolen = cache.digests([1, 2, 3, 4])
    assert cache.match([1, 2, 3, 4, 0], stolen) == [5]
    assert cache.match([1, 2, 3, 9, 0], stolen) == []


def test_who_came_first_stays(cache):
    assert insert(cache, list(range(8)), [5, 6]) == [True, True]
    assert insert(cache, [*range(8), 3], [7, 8]) == [False, False]
    assert match(cache, [*range(8), 3]) == [5, 6]
    assert 7 not in cache
    assert [cache.block_of(digest) for digest in cache.digests(list(range(8)))] == [5, 6]
    assert cache.block_of(cache.digests([9] * 4)[0]) is None


# --------------------------------------------------------------------------- leaving
def test_the_block_that_has_been_idle_longest_goes_first(cache):
    insert(cache, list(range(16)), [4, 5, 6, 7])
    for block in (6, 4, 5, 7):
        cache.release(block)
    cache.acquire(4)
    cache.acquire(6)
    cache.release(6)
    assert cache.idle_blocks == [5, 7, 6]
    assert cache.num_idle == 3
    assert [cache.is_idle(block) for block in (4, 5, 9)] == [False, True, False]
    assert [cache.evict() for _ in range(3)] == [5, 7, 6]
    assert len(cache) == 1


def test_what_is_held_is_not_evicted(cache):
    insert(cache, list(range(8)), [4, 5])
    with pytest.raises(OutOfBlocks, match="none of the 2 cached blocks is idle"):
        cache.evict()
    assert match(cache, [*range(8), 0]) == [4, 5]


def test_clear_gives_back_every_block(cache):
    insert(cache, list(range(12)), [4, 5, 6])
    cache.release(5)
    assert sorted(cache.clear()) == [4, 5, 6]
    assert (len(cache), cache.num_idle, match(cache, [*range(12), 0])) == (0, 0, [])
    assert insert(cache, list(range(4)), [5]) == [True]


class SlowCache:
    """The same by whole texts, and with a list for a line."""

    def __init__(self) -> None:
        self.block_of: dict[tuple, int] = {}
        self.line: list[int] = []

    def insert(self, text: tuple, block: int) -> None:
        self.block_of.setdefault(text, block)

    def match(self, salt: str, tokens: list[int]) -> list[int]:
        found = []
        for end in range(B, len(tokens), B):
            if (salt, *tokens[:end]) not in self.block_of:
                break
            found.append(self.block_of[salt, *tokens[:end]])
        return found

    def evict(self) -> int:
        block = self.line.pop(0)
        self.block_of = {text: other for text, other in self.block_of.items() if other != block}
        return block


@pytest.mark.parametrize("seed", range(10))
def test_random_lives_equal_those_of_a_slow_cache(seed):
    dice, cache, slow = random.Random(seed), PrefixCache(B), SlowCache()
    blocks = list(range(200))
    for _ in range(300):
        salt = dice.choice(["", "s"])
        tokens = [dice.randrange(2) for _ in range(dice.randint(1, 14))]
        held = [b for b in slow.block_of.values() if b not in slow.line]
        action = dice.random()
        if action < 0.4:
            found = match(cache, tokens, salt)
            digests = cache.digests(tokens, salt)
            for i in range(len(found), len(digests)):
                block = blocks.pop()
                cache.insert(digests[i], tokens[i * B : (i + 1) * B], block)
                slow.insert((salt, *tokens[: (i + 1) * B]), block)
        elif action < 0.6 and held:
            block = dice.choice(held)
            cache.release(block)
            slow.line.append(block)
        elif action < 0.7 and slow.line:
            block = slow.line.pop(dice.randrange(len(slow.line)))
            cache.acquire(block)
        elif action < 0.8 and slow.line:
            assert cache.evict() == slow.evict()
        assert match(cache, tokens, salt) == slow.match(salt, tokens)
        assert cache.idle_blocks == slow.line
        assert len(cache) == len(slow.block_of)


# --------------------------------------------------------------------------- the pool
@pytest.fixture
def pool(cache) -> CachingPool:
    return CachingPool(BlockAllocator(4), cache)


def show(pool: CachingPool, cache: PrefixCache, tokens: list[int], blocks: list[int]) -> None:
    for i, (digest, block) in enumerate(zip(cache.digests(tokens), blocks)):
        pool.show(digest, tokens[i * B : (i + 1) * B], block)


def test_a_cached_block_that_nobody_holds_is_free_and_goes_last(pool, cache):
    first, second = pool.allocate_many(2)
    show(pool, cache, list(range(4)), [first])
    assert (pool.num_free, pool.ref_count(first)) == (2, 1)
    assert pool.free(first) is True
    assert pool.free(second) is True
    assert (pool.num_free, pool.ref_count(first)) == (4, 0)
    assert pool.free_blocks[0] == first
    assert first not in pool.allocate_many(3)
    assert first in cache
    assert pool.allocate() == first
    assert first not in cache


def test_the_free_list_is_in_the_order_in_which_blocks_are_handed_out(pool, cache):
    blocks = pool.allocate_many(3)
    show(pool, cache, list(range(12)), blocks)
    for block in (blocks[1], blocks[2], blocks[0]):
        pool.free(block)
    order = pool.free_blocks[::-1]
    assert [pool.allocate() for _ in range(4)] == order
    assert order[1:] == [blocks[1], blocks[2], blocks[0]]


def test_a_cached_block_that_is_taken_again_is_not_free(pool, cache):
    block = pool.allocate()
    show(pool, cache, list(range(4)), [block])
    pool.free(block)
    pool.share(block)
    assert (pool.num_free, pool.ref_count(block)) == (3, 1)
    assert block not in pool.allocate_many(3)
    with pytest.raises(OutOfBlocks, match=r"GPU pool is exhausted: 1 blocks .* 0 of 4 are free"):
        pool.allocate()


def test_the_reference_of_the_cache_cannot_be_taken_away(pool, cache):
    block = pool.allocate()
    show(pool, cache, list(range(4)), [block])
    pool.free(block)
    with pytest.raises(DoubleFree, match=f"double free: block {block} of the GPU pool is free"):
        pool.free(block)
    assert block in cache
    with pytest.raises(DoubleFree):
        pool.share(next(b for b in range(4) if b != block))


def test_too_many_are_asked_for_and_nothing_changes(pool, cache):
    block = pool.allocate()
    show(pool, cache, list(range(4)), [block])
    pool.free(block)
    with pytest.raises(OutOfBlocks, match="5 blocks were asked for, 4 of 4 are free"):
        pool.allocate_many(5)
    assert (pool.num_free, block in cache) == (4, True)


def test_what_is_forgotten_is_free_and_what_is_held_stays(pool, cache):
    blocks = pool.allocate_many(2)
    show(pool, cache, list(range(8)), blocks)
    pool.free(blocks[0])
    pool.forget()
    assert len(cache) == 0
    assert (pool.num_free, pool.ref_count(blocks[1])) == (3, 1)
    assert pool.free(blocks[1]) is True
    assert sorted(pool.allocate_many(4)) == [0, 1, 2, 3]
