"""A pool sized by measuring: the arithmetic, and that the steps are the largest that there are."""

import gc
import weakref

import pytest
import torch
from tiny_models import hf_model, ours

from minipaged.attention.reference import ReferenceAttention
from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.executor.profile_run import GRAPH_BYTES, profiled_num_blocks
from minipaged.kvcache import pool as pool_module
from minipaged.kvcache.pool import PoolMemoryError

BLOCK_BYTES = 2 * 2 * 2 * 4 * 16 * 4  # layers, K and V, KV heads, slots, head_dim, float32
MIB = 1 << 20
OWN = 16 * BLOCK_BYTES  # the pool of the run: 64 tokens


class ScriptedMeter:
    """Says what it is told; ``peaks`` are those of the measured steps, in order."""

    def __init__(self, total, used, peaks):
        self.total = total
        self._used, self._peaks = used, list(peaks)
        self.resets = 0

    def reset(self):
        self.resets += 1

    def used(self):
        return self._used

    def peak(self):
        return self._peaks.pop(0)


@pytest.fixture(scope="module")
def model():
    return ours(hf_model("llama-gqa"))


def measure(model, meter, *, num_graphs=0, cache=None, **scheduler):
    return profiled_num_blocks(
        model,
        ReferenceAttention(),
        cache or CacheConfig(block_size=4, num_cpu_blocks=0),
        SchedulerConfig(**{"max_model_len": 64, "max_num_seqs": 4, **scheduler}),
        meter,
        num_graphs=num_graphs,
    )


def test_the_pool_is_what_the_largest_step_leaves(model):
    meter = ScriptedMeter(100 * MIB, 30 * MIB, [40 * MIB, 50 * MIB])
    assert measure(model, meter) == (90 * MIB - 50 * MIB + OWN) // BLOCK_BYTES
    assert meter.resets == 3  # before each step, and to give back what the last one took
    cache = CacheConfig(block_size=4, num_cpu_blocks=0, gpu_memory_utilization=0.75)
    meter = ScriptedMeter(100 * MIB, 30 * MIB, [65 * MIB, 50 * MIB])
    assert measure(model, meter, cache=cache) == (10 * MIB + OWN) // BLOCK_BYTES


def test_graphs_and_staging_have_their_share(model, monkeypatch):
    def blocks(num_graphs, **cache):
        meter = ScriptedMeter(1000 * MIB, 30 * MIB, [42 * MIB, 50 * MIB])
        cache = CacheConfig(block_size=4, **cache)
        return measure(model, meter, cache=cache, num_graphs=num_graphs)

    plain = blocks(0, num_cpu_blocks=0)
    assert plain - blocks(3, num_cpu_blocks=0) == (12 * MIB + 3 * GRAPH_BYTES) // BLOCK_BYTES
    monkeypatch.setattr(pool_module, "STAGING_BYTES", 7 * BLOCK_BYTES + 5)
    assert plain - blocks(0, num_cpu_blocks=100) == 7
    assert plain - blocks(0, num_cpu_blocks=2) == 2
    assert plain - blocks(0) == 7  # 4 GiB of swap space


def test_no_room_for_a_block_is_told_with_numbers(model):
    meter = ScriptedMeter(100 * MIB, 80 * MIB, [89 * MIB, 90 * MIB + OWN])
    with pytest.raises(PoolMemoryError, match=r"of 20\.0 MiB that are free .* may take 0\.0 MiB"):
        measure(model, meter)


@pytest.mark.parametrize(
    ("scheduler", "lengths"),
    [
        ({"max_num_batched_tokens": 150}, [64, 64, 22]),
        ({"max_num_batched_tokens": 40}, [64]),  # a prompt longer than the budget runs alone
        ({"max_num_batched_tokens": 40, "chunked_prefill": True}, [40]),
    ],
)
def test_the_steps_that_are_measured_are_the_largest(model, monkeypatch, scheduler, lengths):
    seen = []
    forward = type(model).forward

    def watch(self, tokens, positions, attend):
        seen.append((len(tokens), positions.max().item()))
        return forward(self, tokens, positions, attend)

    monkeypatch.setattr(type(model), "forward", watch)
    measure(model, ScriptedMeter(100 * MIB, 0, [MIB, MIB]), max_num_seqs=12, **scheduler)
    total = -(-sum(lengths) // 8) * 8
    # Once to warm up, then the two that are measured: decodes at the last position, and prompts.
    assert seen == [(16, 63), (16, 63), (total, max(lengths) - 1)]


def test_nothing_is_left_of_the_run(model):
    """The pool of the run is gone before the real pool is made."""
    pools = []
    init = pool_module.KVPool.__init__

    def watch(self, *args, **kwargs):
        init(self, *args, **kwargs)
        pools.append(weakref.ref(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module.KVPool, "__init__", watch)
        measure(model, ScriptedMeter(100 * MIB, 0, [MIB, MIB]))
    gc.collect()
    assert [ref() for ref in pools] == [None]


def test_blocks_of_half_the_size_are_twice_as_many():
    half = ours(hf_model("llama-gqa"), dtype=torch.bfloat16)
    meter = ScriptedMeter(100 * MIB, 30 * MIB, [40 * MIB, 50 * MIB])
    assert measure(half, meter) == (90 * MIB - 50 * MIB + OWN // 2) // (BLOCK_BYTES // 2)
