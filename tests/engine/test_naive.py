"""The contiguous cache that later stages are compared with."""

import numpy as np
import pytest

from minipaged.kvcache.naive import NaiveKVCache

HEADS, DIM = 2, 4
TOKEN = 2 * HEADS * DIM * 4


def tokens(n, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((n, HEADS, DIM)).astype(np.float32) for _ in range(2))


@pytest.fixture(params=[None, 32], ids=["grown", "reserved"])
def cache(request):
    return NaiveKVCache(HEADS, DIM, max_model_len=request.param)


def test_gather_gives_back_what_was_appended_in_order(cache):
    k, v = tokens(11)
    for start, stop in ((0, 6), (6, 7), (7, 7), (7, 11)):
        cache.append(5, k[start:stop], v[start:stop])
        assert cache.num_tokens(5) == stop
    got_k, got_v = cache.gather(5)
    np.testing.assert_array_equal(got_k, k)
    np.testing.assert_array_equal(got_v, v)


def test_sequences_do_not_touch_each_other(cache):
    one, two = tokens(5, seed=1), tokens(5, seed=2)
    for t in range(5):
        cache.append(1, one[0][t : t + 1], one[1][t : t + 1])
        cache.append(2, two[0][t : t + 1], two[1][t : t + 1])
    cache.free(1)
    assert cache.num_tokens(1) == 0
    np.testing.assert_array_equal(cache.gather(2)[0], two[0])
    np.testing.assert_array_equal(cache.gather(2)[1], two[1])


def test_what_gather_returns_is_a_copy(cache):
    k, v = tokens(3)
    cache.append(0, k, v)
    for got in cache.gather(0):
        got[:] = 0
    np.testing.assert_array_equal(cache.gather(0)[0], k)
    np.testing.assert_array_equal(cache.gather(0)[1], v)


def test_what_was_appended_may_be_changed_afterwards(cache):
    k, v = tokens(3)
    cache.append(0, k, v)
    expected = k.copy()
    k[:] = 0
    np.testing.assert_array_equal(cache.gather(0)[0], expected)


def test_growing_copies_the_whole_sequence_for_each_token():
    cache = NaiveKVCache(HEADS, DIM)
    cache.append(0, *tokens(10))
    assert (cache.bytes_copied, cache.bytes_used) == (0, 10 * TOKEN)
    for _ in range(5):
        cache.append(0, *tokens(1))
    assert cache.bytes_copied == (10 + 11 + 12 + 13 + 14) * TOKEN
    assert cache.bytes_used == cache.bytes_reserved == 15 * TOKEN


def test_reserving_copies_nothing_and_holds_the_maximum():
    cache = NaiveKVCache(HEADS, DIM, max_model_len=32)
    for seq_id in range(3):
        for _ in range(4):
            cache.append(seq_id, *tokens(1))
    assert cache.bytes_copied == 0
    assert cache.bytes_used == 3 * 4 * TOKEN
    assert cache.bytes_reserved == 3 * 32 * TOKEN


def test_free_gives_everything_back(cache):
    cache.append(1, *tokens(3))
    cache.append(2, *tokens(4))
    cache.free(1)
    assert cache.bytes_used == 4 * TOKEN
    cache.free(2)
    assert cache.bytes_used == cache.bytes_reserved == 0
    cache.append(1, *tokens(2))
    assert cache.num_tokens(1) == 2


def test_unknown_sequences_are_errors(cache):
    with pytest.raises(KeyError, match="7"):
        cache.gather(7)
    with pytest.raises(KeyError, match="7"):
        cache.free(7)
    cache.append(7, *tokens(1))
    cache.free(7)
    with pytest.raises(KeyError, match="7"):
        cache.free(7)


def test_too_long_is_refused_and_changes_nothing():
    cache = NaiveKVCache(HEADS, DIM, max_model_len=4)
    k, v = tokens(3)
    cache.append(0, k, v)
    with pytest.raises(ValueError, match=r"5 tokens.*4"):
        cache.append(0, *tokens(2))
    np.testing.assert_array_equal(cache.gather(0)[0], k)
    with pytest.raises(ValueError, match="max_model_len"):
        cache.append(1, *tokens(5))
    assert cache.num_tokens(1) == 0
    assert cache.bytes_reserved == 4 * TOKEN
    cache.append(0, *tokens(1))
    assert cache.num_tokens(0) == 4


def test_wrong_shapes_are_refused():
    cache = NaiveKVCache(HEADS, DIM)
    k, v = tokens(3)
    with pytest.raises(ValueError, match="v has shape"):
        cache.append(0, k, v[:2])
    with pytest.raises(ValueError, match="k has shape"):
        cache.append(0, k[:, :1], v)
    assert cache.bytes_reserved == 0


def test_half_precision_takes_half_the_bytes():
    cache = NaiveKVCache(HEADS, DIM, dtype=np.float16)
    cache.append(0, *tokens(3))
    assert cache.bytes_used == 3 * TOKEN // 2
    assert cache.gather(0)[0].dtype == np.float16
