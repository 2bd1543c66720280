"""A step that fails in the middle: nothing is lost, and going on gives the same tokens."""

from __future__ import annotations

import random

import pytest

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.engine import Engine
from minipaged.executor.hash_executor import HashExecutor
from minipaged.sampling.decide import TorchSampling
from minipaged.sampling_params import SamplingParams

PARAMS = (
    SamplingParams(temperature=0, max_tokens=14),
    SamplingParams(n=3, seed=5, max_tokens=12),
    SamplingParams(n=1, best_of=3, use_beam_search=True, max_tokens=10),
    SamplingParams(seed=8, max_tokens=16),
)


class Failing(HashExecutor):
    """Fails in some steps: before it does anything, or when all of it is done."""

    failures = 0

    def __init__(self, *args, chance=0.0):
        super().__init__(*args)
        self.chance = chance
        self.dice = random.Random(3)

    def execute(self, plan):
        fail = self.dice.random() < self.chance
        if fail and self.dice.random() < 0.5:
            self.fail()
        logits = super().execute(plan)
        if fail:
            self.fail()
        return logits

    def fail(self):
        self.failures += 1
        raise RuntimeError("the device is gone")


def run(gpu, cpu, chance, reservation="paged", **options):
    executor = Failing(gpu, cpu, 4, chance=chance)
    engine = Engine(
        SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=32, max_model_len=40, **options),
        CacheConfig(block_size=4, num_gpu_blocks=gpu, num_cpu_blocks=cpu, reservation=reservation),
        executor,
        TorchSampling(40, vocab_size=64, eos_token_ids=(2,)),
        check=True,
    )
    dice = random.Random(1)
    for i in range(8):
        prompt = [dice.randrange(3, 64) for _ in range(dice.randint(1, 15))]
        engine.add_request(str(i), prompt, PARAMS[i % 4], priority=i % 2)
    ended = {}
    for _ in range(800):
        if not engine.has_unfinished():
            break
        try:
            outputs = engine.step()
        except RuntimeError:
            continue
        ended |= {o.request_id: o for o in outputs if o.finished}
    assert len(ended) == 8
    kv = engine.kv
    assert (kv.num_free_gpu_blocks, kv.num_free_cpu_blocks) == (gpu, kv.num_cpu_blocks)
    tokens = {k: [(c.token_ids, c.finish_reason) for c in o.outputs] for k, o in ended.items()}
    return tokens, executor.failures


@pytest.mark.parametrize("options", [{}, {"preemption": "swap"}, {"chunked_prefill": True}])
@pytest.mark.parametrize(("gpu", "cpu"), [(200, 200), (20, 20), (20, 2)])
def test_going_on_after_a_failure_gives_the_same_tokens(options, gpu, cpu):
    expected, _ = run(400, 400, chance=0.0)
    tokens, failures = run(gpu, cpu, chance=0.2, **options)
    assert failures >= 2
    assert tokens == expected


def test_a_contiguous_engine_ends_what_it_cannot_compute_again():
    tokens, failures = run(64, 0, chance=0.1, reservation="oracle")
    assert failures >= 1
    reasons = [reason for outputs in tokens.values() for _, reason in outputs]
    assert "error" in reasons
