"""The simulated and the real executor agree: the same decisions, step by step, and about the same
time."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from statistics import median

import pytest
import torch
from sim_driver import Arrival, drive, simulated_engine

from minipaged.bench.calibrate import calibrate
from minipaged.bench.load import serve_load
from minipaged.bench.workload import as_load, make_workload
from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.llm import LLM
from minipaged.models.loader import load_model
from minipaged.sampling_params import SamplingParams
from minipaged.sim.simulate import simulate

SMALL_POOL = CacheConfig(block_size=4, num_gpu_blocks=40, num_cpu_blocks=40)
SMALLER_POOL = replace(SMALL_POOL, num_gpu_blocks=20)


@pytest.fixture(scope="module")
def load(request):
    """Models by name, loaded once."""
    loaded = {}

    def get(name):
        if name not in loaded:
            if name == "smollm2-135m":
                request.getfixturevalue("smollm2_path")
            loaded[name] = load_model(name, dtype="float32", device="cpu")
        return loaded[name]

    return get


def llm_of(loaded, cache, scheduler=None, **options):
    return LLM(loaded, cache=cache, scheduler=scheduler, max_model_len=128, **options)


def arrivals(tokenizer, count, several, spread=5):
    """Real text, a few requests a step; some end by themselves, at a length that nobody knows
    beforehand."""
    made = []
    for i, job in enumerate(make_workload(tokenizer, count, seed=3)):
        n = 1 + i % 3 if several else 1
        params = SamplingParams(
            n=n,
            temperature=1.0 if i % 2 or n > 1 else 0.0,
            seed=i,
            max_tokens=6 + spread * (i % 7),
            stop_token_ids=(tokenizer.encode("the")[-1], tokenizer.encode(" a")[-1]),
        )
        made.append(Arrival(i, job.prompt_token_ids[: 10 + 3 * (i % 8)], params))
    return made


CONFIGS = {
    "recompute": SchedulerConfig(preemption="recompute"),
    "swap": SchedulerConfig(preemption="swap"),
    "groups": SchedulerConfig(preemption="auto"),
    "groups, recomputed": SchedulerConfig(preemption="recompute"),
    "paper 2023": SchedulerConfig.paper_2023(),
    "chunked": SchedulerConfig(chunked_prefill=True, max_num_batched_tokens=24, max_num_seqs=16),
    "prefill first": SchedulerConfig(prefill_first=True),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_simulated_engine_plans_what_the_real_one_plans(name, load):
    plans, outputs = assert_agreement(load("opt-stories"), SMALL_POOL, CONFIGS[name], 20, name)
    # What was compared has happened.
    modes = Counter(mode for plan in plans for _, mode in plan[5])
    if name in ("swap", "groups"):
        assert modes["swap"]
        assert any(plan[2] for plan in plans), "nothing was swapped in"
        assert any(plan[6] for plan in plans), "nobody came back"
    else:
        assert modes["recompute"]
    if name.startswith("groups"):
        assert any(plan[4] for plan in plans), "no copy-on-write"
        lengths = [{len(o.token_ids) for o in output.outputs} for output in outputs]
        assert any(len(several) > 1 for several in lengths), "all siblings ended together"
    reasons = {o.finish_reason for output in outputs for o in output.outputs}
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("name", ["groups", "recompute", "swap"])
def test_they_agree_on_a_model_that_chats(name, load, exhaustive):
    if name != "groups" and not exhaustive:
        pytest.skip("groups preempt in both ways; the other two come with --exhaustive")
    count = 14 if exhaustive else 7
    loaded = load("smollm2-135m")
    plans, _ = assert_agreement(loaded, SMALLER_POOL, CONFIGS[name], count, name, spread=2)
    modes = Counter(mode for plan in plans for _, mode in plan[5])
    assert modes["swap"] or name == "recompute"
    assert modes["recompute"] or name == "swap"


def assert_agreement(loaded, cache, scheduler, count, name, spread=5):
    """Run both engines on the same arrivals, and compare all that they decide.

    Returns:
        The plans, and the last outputs of the real one.
    """
    llm = llm_of(loaded, cache, scheduler)
    requests = arrivals(llm.tokenizer, count, several=name.startswith("groups"), spread=spread)
    plans, outputs = drive(llm.engine, requests)
    engine, sampling = simulated_engine(replace(scheduler, max_model_len=128), cache, check=True)

    def expect(index):
        lengths = [len(output.token_ids) for output in outputs[index].outputs]
        sampling.expect(engine.scheduler.waiting[-1], lengths, token=7)

    simulated, others = drive(engine, requests, expect)
    for ours, theirs in zip(simulated, plans):
        assert ours == theirs
    assert len(simulated) == len(plans)
    assert [facts(output) for output in others] == [facts(output) for output in outputs]
    return plans, outputs


def facts(output):
    return [len(o.token_ids) for o in output.outputs], output.metrics.num_preemptions


def test_a_length_that_is_wrong_by_one_is_seen(load):
    llm = llm_of(load("opt-stories"), SMALL_POOL)
    requests = arrivals(llm.tokenizer, 6, several=False)
    plans, outputs = drive(llm.engine, requests)
    engine, sampling = simulated_engine(SchedulerConfig(max_model_len=128), SMALL_POOL)
    drive_plans, _ = drive(
        engine,
        requests,
        lambda i: sampling.expect(
            engine.scheduler.waiting[-1], len(outputs[i].outputs[0].token_ids) + (i == 3), token=7
        ),
    )
    assert drive_plans != plans


@pytest.fixture
def one_thread():
    """So that the time of the processor is the time of the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ratio_of_throughputs(loaded, requests, pairs):
    """Simulated over real, in time of the processor.

    That time does not count while others have the processor, but they slow it down, and now more,
    now less. So calibrations and runs take turns: a run is compared with the calibrations right
    before and right after it, and the median of the pairs counts.
    """
    cache = CacheConfig(num_gpu_blocks=1024, num_cpu_blocks=0)
    llm = LLM(loaded, cache=cache, max_model_len=512)
    llm.engine.clock = time.process_time
    jobs = make_workload(llm.tokenizer, requests, seed=1)
    workload = as_load(jobs)

    def simulated():
        cost = calibrate(llm, rounds=1, clock=time.process_time).cost
        return simulate(workload, cost=cost, cache=llm.cache_config, scheduler=SchedulerConfig())

    before, ratios = simulated(), []
    for _ in range(pairs):
        real = serve_load(llm.engine, workload, [job.prompt_token_ids for job in jobs])
        after = simulated()
        assert after.num_steps == real.num_steps
        assert [r.output_len for r in after.records] == [r.output_len for r in real.records]
        ratios.append(2 * real.duration / (before.duration + after.duration))
        before = after
    return median(ratios)


def test_a_calibrated_cost_model_gives_the_throughput_of_this_machine(load, exhaustive, one_thread):
    if not exhaustive:
        assert ratio_of_throughputs(load("opt-stories"), 16, 1) == pytest.approx(1, abs=0.3)
        return
    assert ratio_of_throughputs(load("opt-stories"), 32, 5) == pytest.approx(1, abs=0.15)
    assert ratio_of_throughputs(load("smollm2-135m"), 16, 3) == pytest.approx(1, abs=0.15)
