"""Task 1.1: a cache with two arrays for each sequence, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from contiguous_oracle import expect_stored, tokens

from minipaged.course.testing import expect, expect_error

TYPES = ("float16", "float32", "float64")
MODES = pytest.mark.parametrize("reserve", [False, True], ids=["grown", "reserved"])


def some_cache(parts, rng, max_model_len=None):
    """A cache of random shape and type, that shape, and the bytes of a token."""
    heads, dim, dtype = int(rng.integers(1, 4)), int(rng.integers(2, 5)), str(rng.choice(TYPES))
    cache = parts.NaiveKVCache(heads, dim, dtype, max_model_len)
    return cache, (heads, dim), dtype, 2 * heads * dim * np.dtype(dtype).itemsize


@MODES
def test_gather_returns_what_was_appended(parts, rng, reserve):
    cache, shape, dtype, _ = some_cache(parts, rng, int(rng.integers(40, 50)) if reserve else None)
    ids = [int(i) for i in rng.permutation(20)[:3]]
    k, v = ({i: np.zeros((0, *shape)) for i in ids} for _ in range(2))
    for step in range(9):
        seq_id = ids[step % 3]
        count = int(rng.integers(2, 7)) if step < 3 else int(rng.choice([0, 1, 1, 3]))
        new_k, new_v = tokens(rng, count, *shape)
        cache.append(seq_id, new_k, new_v)
        k[seq_id] = np.concatenate([k[seq_id], new_k])
        v[seq_id] = np.concatenate([v[seq_id], new_v])
        why = f"after {count} tokens more, {len(k[seq_id])} in all"
        expect(cache.num_tokens(seq_id), len(k[seq_id]), f"num_tokens({seq_id}) {why}")
        expect_stored(cache, seq_id, k[seq_id].astype(dtype), v[seq_id].astype(dtype), why)
    for seq_id in ids:
        why = "when all three sequences have grown"
        expect_stored(cache, seq_id, k[seq_id].astype(dtype), v[seq_id].astype(dtype), why)


@pytest.mark.parametrize("case", range(2))
def test_growth_moves_all_that_was_there(parts, rng, case):
    cache, shape, _, token = some_cache(parts, rng)
    length, moved = {3: 0, 8: 0}, 0
    for seq_id, count in ((3, 5), (3, 1), (8, 2), (3, 1), (8, int(rng.integers(2, 9))), (3, 1)):
        cache.append(seq_id, *tokens(rng, count, *shape))
        moved += length[seq_id] * token
        length[seq_id] += count
        total = sum(length.values()) * token
        when = f"after append({seq_id}, …) of {count} tokens, at {token} bytes a token"
        expect(cache.bytes_copied, moved, f"bytes_copied {when}")
        expect(cache.bytes_used, total, f"bytes_used {when}")
        expect(cache.bytes_reserved, total, f"bytes_reserved {when}, with no max_model_len")


@pytest.mark.parametrize("case", range(2))
def test_a_reservation_is_paid_at_once(parts, rng, case):
    limit = int(rng.integers(12, 20))
    cache, shape, _, token = some_cache(parts, rng, limit)
    expect(cache.bytes_reserved, 0, "bytes_reserved of a new cache")
    length = {}
    first = int(rng.integers(2, 6))
    for seq_id, count in ((1, first), (4, 1), (4, 2), (1, 1), (6, limit), (1, limit - first - 1)):
        cache.append(seq_id, *tokens(rng, count, *shape))
        length[seq_id] = length.get(seq_id, 0) + count
        when = f"with sequences of {list(length.values())} tokens, {token} bytes each, in {limit}"
        expect(cache.bytes_used, sum(length.values()) * token, f"bytes_used {when}")
        expect(cache.bytes_reserved, len(length) * limit * token, f"bytes_reserved {when}")
        expect(cache.bytes_copied, 0, f"bytes_copied {when}")


@MODES
def test_free_gives_the_memory_back(parts, rng, reserve):
    limit = int(rng.integers(20, 30)) if reserve else None
    cache, shape, dtype, token = some_cache(parts, rng, limit)
    length = {seq_id: int(rng.integers(2, 9)) for seq_id in (2, 5, 9)}
    for seq_id, count in length.items():
        cache.append(seq_id, *tokens(rng, count, *shape))
    for seq_id in [int(i) for i in rng.permutation(list(length))[:2]]:
        cache.free(seq_id)
        del length[seq_id]
        when = f"after free({seq_id}), with sequences of {list(length.values())} tokens left"
        expect(cache.num_tokens(seq_id), 0, f"num_tokens({seq_id}) {when}")
        expect(cache.bytes_used, sum(length.values()) * token, f"bytes_used {when}")
        slots = sum(limit or count for count in length.values())
        expect(cache.bytes_reserved, slots * token, f"bytes_reserved {when}")
    again = int(rng.integers(1, 5))
    k, v = tokens(rng, again, *shape)
    cache.append(seq_id, k, v)
    expect_stored(cache, seq_id, k.astype(dtype), v.astype(dtype), "in its second life")
    expect(cache.bytes_copied, 0, "bytes_copied when no sequence has ever grown")


# --------------------------------------------------------------------------- robustness
@MODES
def test_a_refused_append_changes_nothing(parts, rng, reserve):
    limit = int(rng.integers(8, 12)) if reserve else None
    cache, (heads, dim), dtype, token = some_cache(parts, rng, limit)
    k, v = tokens(rng, 5, heads, dim)
    cache.append(3, k, v)
    more_k, more_v = tokens(rng, 2, heads, dim)
    wide_k, wide_v = tokens(rng, 2, heads + 1, dim)
    long_k, long_v = tokens(rng, 2, heads, dim + 1)
    refused = [
        ("v with one token less than k", more_k, more_v[:1]),
        ("k with one token less than v", more_k[:1], more_v),
        ("a head too many in k", wide_k, more_v),
        ("a head too many in v", more_k, wide_v),
        ("numbers too many in a head of k", long_k, more_v),
        ("numbers too many in a head of v", more_k, long_v),
    ]
    if limit is not None:
        refused.append((f"more than {limit} tokens", *tokens(rng, limit - 4, heads, dim)))
        refused.append((f"far more than {limit}", *tokens(rng, limit + 9, heads, dim)))
    for what, bad_k, bad_v in refused:
        for seq_id in (3, 4):
            if what.startswith("more") and seq_id == 4:
                continue  # a new sequence has room for as many
            with expect_error(ValueError, why=f"append({seq_id}, …) with {what}"):
                cache.append(seq_id, bad_k, bad_v)
            when = f"after append({seq_id}, …) with {what} was refused"
            state = cache.num_tokens(3), cache.num_tokens(4), cache.bytes_used
            expect(state, (5, 0, 5 * token), f"{when}: tokens of 3 and 4, bytes_used")
            memory = cache.bytes_reserved, cache.bytes_copied
            expect(memory, ((limit or 5) * token, 0), f"{when}: bytes_reserved, bytes_copied")
    expect_stored(cache, 3, k.astype(dtype), v.astype(dtype), "after all these errors")


@MODES
def test_the_cache_keeps_its_own_copy(parts, lab, rng, reserve):
    # In the cache's own type: no conversion makes the copy.
    cache = parts.NaiveKVCache(2, 3, "float64", 20 if reserve else None)
    k, v = tokens(rng, int(rng.integers(3, 8)), 2, 3)
    lab.overwrite(cache, "append", 6, k, v)
    expect_stored(cache, 6, k, v, "after the arrays that were appended were changed")
    lab.overwrite(cache, "gather", 6)
    expect_stored(cache, 6, k, v, "after the arrays that gather returned were changed")


@MODES
def test_an_unknown_sequence_is_an_error(parts, rng, reserve):
    cache, shape, _, token = some_cache(parts, rng, 20 if reserve else None)
    cache.append(1, *tokens(rng, 3, *shape))
    cache.append(2, *tokens(rng, 2, *shape))
    cache.free(1)
    for seq_id, what in ((1, "freed before"), (7, "never there"), (-1, "never there")):
        for method in ("gather", "free"):
            with expect_error(KeyError, why=f"{method}({seq_id}), {what}"):
                getattr(cache, method)(seq_id)
    expect(cache.bytes_used, 2 * token, "bytes_used with one sequence of 2 tokens")
