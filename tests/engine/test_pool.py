"""The pool's bytes: swapped, copied, poisoned; and what it says when memory is short."""

import math
import random

import pytest
import torch

from minipaged.config import ModelConfig
from minipaged.errors import MinipagedError
from minipaged.kvcache import pool as pool_module
from minipaged.kvcache.pool import (
    KVPool,
    PoolMemoryError,
    available_memory,
    default_num_blocks,
)

CONFIG = ModelConfig("llama", vocab_size=10, hidden_size=32, intermediate_size=8, num_layers=3,
                     num_heads=4, num_kv_heads=2, head_dim=8, max_model_len=64)  # fmt: skip
BLOCK_BYTES = 3 * 2 * 4 * 2 * 8 * 4


def numbered_pool(gpu=6, cpu=5, **options):
    """Each device block is filled with its own number, plus a tenth of its layer, and V with
    its negative."""
    pool = KVPool(CONFIG, 4, gpu, cpu, **options)
    for layer, (k, v) in enumerate(zip(pool.k_cache, pool.v_cache)):
        for block in range(gpu):
            k[block] = block + layer / 10
            v[block] = -(block + layer / 10)
    return pool


def held(pool):
    """What each device block holds: one number if all its layers, K and V agree on it."""
    numbers = []
    for block in range(pool.num_gpu_blocks):
        found = set()
        for layer, (k, v) in enumerate(zip(pool.k_cache, pool.v_cache)):
            found |= {round(x - layer / 10, 3) for x in k[block].flatten().tolist()}
            found |= {round(-x - layer / 10, 3) for x in v[block].flatten().tolist()}
        numbers.append(found.pop() if len(found) == 1 else found)
    return numbers


def test_layout():
    pool = KVPool(CONFIG, 4, 6, 5, dtype=torch.float16)
    assert len(pool.k_cache) == len(pool.v_cache) == 3
    for cache in (*pool.k_cache, *pool.v_cache):
        assert cache.shape == (6, 2, 4, 8)
        assert cache.dtype == torch.float16
        assert cache.is_contiguous()
    assert pool.gpu_bytes == 6 * BLOCK_BYTES // 2
    assert pool.cpu_bytes == 5 * BLOCK_BYTES // 2


def test_swapped_blocks_come_back_bit_for_bit_wherever_they_land():
    pool = numbered_pool()
    pool.swap_out([(4, 0), (1, 3)])
    pool.poison([4, 1])
    pool.swap_in([(0, 2), (3, 5)])
    numbers = held(pool)
    assert [numbers[i] for i in (0, 2, 3, 5)] == [0, 4, 3, 1]


def test_more_blocks_than_are_moved_at_once(monkeypatch):
    monkeypatch.setattr(pool_module, "STAGING_BYTES", 4 * BLOCK_BYTES + 100)
    count = 3 * 4 + 1
    pool = numbered_pool(count, count)
    assert len(pool._mover._staging) == 4
    order = random.Random(0).sample(range(count), count)
    pool.swap_out(list(zip(range(count), order)))
    pool.poison(range(count))
    pool.swap_in([(host, order[host]) for host in range(count)])
    assert held(pool) == [order.index(order.index(block)) for block in range(count)]


def test_copies_are_all_read_before_one_is_written():
    pool = numbered_pool()
    pool.copy([(2, 5), (2, 4), (1, 0)])
    assert held(pool) == [1, 1, 2, 3, 2, 2]


def test_the_byte_copy_is_a_part_that_can_be_replaced():
    calls = []
    pool = numbered_pool(copy=lambda cache, pairs: calls.append((len(cache), pairs)))
    pool.copy([])
    pool.copy([(1, 2)])
    assert calls == [(6, [(1, 2)])]
    assert held(pool)[2] == 2


def test_nothing_to_do_is_nothing_done():
    pool = numbered_pool(cpu=0)
    for move in (pool.swap_in, pool.swap_out, pool.copy):
        move([])
    assert held(pool) == [0, 1, 2, 3, 4, 5]


def test_poison_reaches_every_layer_and_no_other_block():
    pool = numbered_pool()
    pool.poison([0, 3])
    for cache in (*pool.k_cache, *pool.v_cache):
        assert cache.isnan().flatten(1).all(1).tolist() == [True, False, False, True, False, False]
        assert cache.isnan().flatten(1).any(1).tolist() == [True, False, False, True, False, False]
    pool.swap_out([(1, 0), (2, 1)])
    pool.poison([], [1])
    pool.swap_in([(0, 4), (1, 5)])
    assert held(pool)[4] == 1
    assert all(math.isnan(x) for x in pool.k_cache[2][5].flatten())


# --------------------------------------------------------------------------- memory
@pytest.mark.parametrize(("gpu", "cpu", "what"), [(10**9, 0, "KV cache"), (1, 10**9, "swap space")])
def test_a_pool_that_does_not_fit_says_what_was_asked_and_what_there_is(gpu, cpu, what):
    with pytest.raises(PoolMemoryError) as error:
        KVPool(CONFIG, 4, gpu, cpu)
    assert isinstance(error.value, MinipagedError)
    message = str(error.value)
    assert what in message
    assert "1000000000 blocks" in message
    assert f"{BLOCK_BYTES * 10**9 / 2**20:,.1f} MiB" in message
    assert "are free on cpu" in message


def test_both_sides_share_the_memory_of_a_cpu(monkeypatch):
    monkeypatch.setattr(pool_module, "_machine_memory_left", lambda: 10 * BLOCK_BYTES)
    monkeypatch.setattr(pool_module, "_container_memory_left", lambda: None)
    KVPool(CONFIG, 4, 6, 4)
    with pytest.raises(PoolMemoryError, match="swap space of 5 blocks"):
        KVPool(CONFIG, 4, 6, 5)


def test_an_allocation_that_fails_is_told_in_the_same_words(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nat 0x1")

    monkeypatch.setattr(pool_module.torch, "empty", refuse)
    with pytest.raises(PoolMemoryError, match=r"6 blocks .* DefaultCPUAllocator.*memory$"):
        KVPool(CONFIG, 4, 6, 5)


def test_the_default_pool_is_a_quarter_of_what_is_free_and_at_most_4_gib(monkeypatch):
    def blocks(free):
        monkeypatch.setattr(pool_module, "_machine_memory_left", lambda: free)
        monkeypatch.setattr(pool_module, "_container_memory_left", lambda: None)
        return default_num_blocks(CONFIG, 4, dtype=torch.float32)

    assert blocks(400 * BLOCK_BYTES) == 100
    assert blocks(100 << 30) == (4 << 30) // BLOCK_BYTES
    with pytest.raises(PoolMemoryError, match="smaller model"):
        blocks(3 * BLOCK_BYTES)


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    assert pool_module._container_memory_left(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert pool_module._container_memory_left(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert pool_module._container_memory_left(tmp_path) == 400

    monkeypatch.setattr(pool_module, "_machine_memory_left", lambda: 5000)
    monkeypatch.setattr(pool_module, "_container_memory_left", lambda: 400)
    assert available_memory() == 400


def test_the_limit_of_an_old_container_counts(tmp_path):
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("900\n")
    (folder / "memory.stat").write_text("total_inactive_file 100\n")
    assert pool_module._container_memory_left(tmp_path) == 200


def test_available_memory_is_plausible():
    assert 1 << 20 < available_memory() < 1 << 50
