"""How long the steps of this engine take on this machine, as a cost model for simulations.

Requests of known lengths are served, and every step of them is timed: in the executor, and in what
the host does around it. The same requests come again in each round, so a step is the median of its
rounds, and what disturbed one of them does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from minipaged.bench.load import WatchedExecutor, watched
from minipaged.contracts import StepPlan
from minipaged.executor.cost_model import CostModel
from minipaged.executor.simulated import load_of
from minipaged.sampling_params import SamplingParams
from minipaged.sim.calibration import Calibration, StepSample, fit_cost_model

if TYPE_CHECKING:
    from minipaged.contracts import Clock
    from minipaged.engine import Engine
    from minipaged.llm import LLM

#: Requests that are served together, and tokens of their prompts. Batches and contexts vary
#: independently, so that their terms can be told apart.
_BATCHES = (
    (1, 16), (1, 192), (2, 64), (4, 16), (4, 96), (8, 24), (8, 64), (16, 16), (16, 32), (32, 8),
    (32, 32),
)  # fmt: skip
_OUTPUT_LEN = 6
_MOVED = (1, 4, 16, 64)


def calibrate(llm: LLM, rounds: int = 3, clock: Clock = time.perf_counter) -> Calibration:
    """Measure steps on a model's engine, and fit the terms of a cost model to them.

    Args:
        rounds: repetitions, of which the medians count.
        clock: seconds; ``time.process_time`` where other processes keep this one waiting.

    Raises:
        ConfigError: the pool or the model is too small for enough of the requests.
    """
    config = llm.engine.scheduler.config
    cache = replace(llm.cache_config, num_cpu_blocks=max(_MOVED))
    engine = llm.make_engine(cache, config)
    engine.clock = clock
    cost, error = fit_cost_model(
        measure_steps(engine, llm.config.vocab_size, rounds), measure_moves(engine, rounds)
    )
    return Calibration(
        model=llm.name,
        device=str(llm.device),
        dtype=str(llm.dtype).removeprefix("torch."),
        block_size=cache.block_size,
        num_gpu_blocks=llm.cache_config.num_gpu_blocks or 0,
        num_cpu_blocks=llm.cache_config.num_cpu_blocks or 0,
        max_model_len=llm.max_model_len,
        cost=cost,
        mean_error=error,
    )


def measure_steps(engine: Engine, vocab_size: int, rounds: int = 3) -> list[StepSample]:
    """Serve batches of requests, each ``rounds`` times, and time their steps. A few come before
    that, and warm up."""
    batches = [(n, tokens) for n, tokens in _BATCHES if _fits(engine, n, tokens + _OUTPUT_LEN)]
    served: list[list[list[StepSample]]] = [[] for _ in batches]
    with watched(engine) as watch:
        for count, tokens in batches[:2]:
            _serve(engine, watch, count, tokens, vocab_size)
        for _ in range(rounds):
            for (count, tokens), times in zip(batches, served):
                times.append(_serve(engine, watch, count, tokens, vocab_size))
    return [_median(samples) for times in served for samples in zip(*times)]


def _fits(engine: Engine, count: int, tokens: int) -> bool:
    config, kv = engine.scheduler.config, engine.kv
    blocks = count * -(-tokens // kv.block_size)
    room = kv.num_gpu_blocks - engine.scheduler.admission.watermark_blocks
    return tokens <= config.max_model_len and count <= config.max_num_seqs and blocks <= room


def _serve(
    engine: Engine, watch: WatchedExecutor, count: int, tokens: int, vocab_size: int
) -> list[StepSample]:
    params = SamplingParams(temperature=0, max_tokens=_OUTPUT_LEN, ignore_eos=True)
    for i in range(count):
        prompt = [(7919 * (i + 1) + 31 * j) % vocab_size for j in range(tokens)]
        engine.add_request(str(i), prompt, params)
    steps = []
    while engine.has_unfinished():
        start = engine.clock()
        engine.step()
        elapsed = engine.clock() - start
        load = load_of(engine.last_plan)
        steps.append(StepSample(load, watch.seconds, elapsed - watch.seconds))
    return steps


def measure_moves(engine: Engine, rounds: int = 3) -> list[StepSample]:
    """Copy blocks on the device, and move them to the host and back. The engine must be idle:
    whatever its blocks hold is lost."""
    plans = list(_moves(engine))
    times: list[list[StepSample]] = [[] for _ in plans]
    with watched(engine) as watch:
        for _ in range(rounds + 1):
            for plan, samples in zip(plans, times):
                watch.execute(plan)
                samples.append(StepSample(load_of(plan), watch.seconds, 0.0))
    return [_median(samples[1:]) for samples in times]


def _moves(engine: Engine) -> Iterable[StepPlan]:
    kv = engine.kv
    for count in _MOVED:
        if 2 * count <= kv.num_gpu_blocks:
            yield StepPlan(copies=[(i, count + i) for i in range(count)])
        if count <= min(kv.num_gpu_blocks, kv.num_cpu_blocks):
            pairs = [(i, i) for i in range(count)]
            yield StepPlan(swap_out=pairs)
            yield StepPlan(swap_in=pairs)


def _median(samples: Iterable[StepSample]) -> StepSample:
    """The same step, measured several times."""
    samples = list(samples)
    return StepSample(
        samples[0].load,
        median(sample.model_seconds for sample in samples),
        median(sample.host_seconds for sample in samples),
    )


def describe(cost: CostModel) -> str:
    """The terms as lines of text."""
    rows = (
        ("a step in the executor, whatever is in it", cost.weights, 1e3, "ms"),
        ("a step on the host", cost.step, 1e3, "ms"),
        ("a sequence, on the host and for its logits", cost.per_sequence, 1e6, "us"),
        ("a token", cost.per_token, 1e6, "us"),
        ("a token of context", cost.per_context_token, 1e6, "us"),
        ("a (query, key) pair of a prompt", cost.per_pair, 1e6, "us"),
        ("a block copied on the device", cost.per_copied_block, 1e6, "us"),
        ("a block swapped out", cost.per_block_out, 1e6, "us"),
        ("a block swapped in", cost.per_block_in, 1e6, "us"),
    )
    return "\n".join(
        f"  {what:44} {seconds * factor:10.3f} {unit}" for what, seconds, factor, unit in rows
    )
