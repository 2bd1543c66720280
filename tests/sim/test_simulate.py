"""What the simulator promises: it is the engine, on a clock of its own."""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from sim_driver import described

from minipaged.config import CacheConfig, ConfigError, SchedulerConfig
from minipaged.executor.cost_model import PAPER_2023
from minipaged.parts import Parts
from minipaged.scheduling.scheduler import Scheduler
from minipaged.sim.metrics import e2el, summarize
from minipaged.sim.simulate import Deployment, simulate
from minipaged.sim.systems import SYSTEMS
from minipaged.sim.workloads import Request, Workload, paper

SMALL = CacheConfig(num_gpu_blocks=220, num_cpu_blocks=220)


@pytest.fixture(scope="module")
def sharegpt():
    return paper("sharegpt", rate=1.5, duration=40)


@pytest.fixture(scope="module")
def beams():
    return paper("alpaca", rate=3, duration=20, num_sequences=6, beam=True)


class PlanLog:
    """An observer that keeps what every step did, and how long it took."""

    def __init__(self):
        self.steps = []

    def observe(self, engine, plan, seconds):
        self.steps.append((described(plan), seconds))

    @property
    def plans(self):
        return [plan for plan, _ in self.steps]


# --------------------------------------------------------------------------- determinism
@pytest.mark.parametrize("kind", ["sharegpt", "beams"])
def test_one_seed_replays_a_run_to_the_last_byte(kind, request):
    workload = request.getfixturevalue(kind)
    first, again = PlanLog(), PlanLog()
    cache = SMALL if kind == "sharegpt" else CacheConfig(num_gpu_blocks=110, num_cpu_blocks=110)
    runs = [simulate(workload, cache=cache, observers=[log], seed=5) for log in (first, again)]
    assert sum(runs[0].preemptions.values()) > 0
    texts = [json.dumps(asdict(run)).encode() for run in runs]
    assert texts[0] == texts[1]
    assert repr(first.steps).encode() == repr(again.steps).encode()


def test_another_seed_has_another_family_tree(beams):
    logs = [PlanLog(), PlanLog()]
    for seed, log in enumerate(logs):
        simulate(beams, cache=SMALL, observers=[log], seed=seed)
    assert logs[0].plans != logs[1].plans


def test_no_clock_is_read_but_its_own(monkeypatch, sharegpt):
    def refuse(*_):
        raise AssertionError("the simulator has read a clock on the wall")

    for name in (
        "time", "monotonic", "perf_counter", "process_time", "thread_time", "sleep", "time_ns",
        "monotonic_ns", "perf_counter_ns", "process_time_ns",
    ):  # fmt: skip
        monkeypatch.setattr(time, name, refuse)
    run = simulate(sharegpt)
    monkeypatch.undo()
    assert run.duration > 40


def test_twice_the_time_everywhere_is_the_same_run(sharegpt):
    # A factor of 2 is exact in floating point, so that every comparison of times comes out alike.
    slow = replace(
        PAPER_2023,
        **{
            name: getattr(PAPER_2023, name) / 2
            for name in ("weights_bandwidth", "kv_bandwidth", "matrix_flops", "attention_flops",
                         "reduce_bandwidth")
        },
        link_bandwidth=tuple(share / 2 for share in PAPER_2023.link_bandwidth),
        step_seconds=2 * PAPER_2023.step_seconds,
        layer_seconds=2 * PAPER_2023.layer_seconds,
        sequence_seconds=2 * PAPER_2023.sequence_seconds,
        transfer_seconds=tuple(2 * s for s in PAPER_2023.transfer_seconds),
        reduce_seconds=2 * PAPER_2023.reduce_seconds,
    )  # fmt: skip
    logs = [PlanLog(), PlanLog()]
    swapping = SchedulerConfig.paper_2023(preemption="swap")
    plain = simulate(sharegpt, cache=SMALL, scheduler=swapping, observers=[logs[0]])
    scaled = simulate(
        sharegpt.scaled(0.5),
        deployment=Deployment(efficiency=slow),
        cache=SMALL,
        scheduler=swapping,
        observers=[logs[1]],
    )
    assert plain.swapped_blocks > 0
    assert logs[0].plans == logs[1].plans
    assert scaled.duration == 2 * plain.duration
    assert [e2el(r) for r in scaled.records] == [2 * e2el(r) for r in plain.records]


# --------------------------------------------------------------------------- it is the engine
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_step_is_a_call_of_schedule_and_every_request_ends_once(system):
    workload = paper("sharegpt", rate=1.5, duration=12)
    calls, log = [], PlanLog()

    class CountingScheduler(Scheduler):
        def schedule(self):
            plan = super().schedule()
            calls.append(plan.num_tokens)
            return plan

    run = simulate(
        workload, system, parts=Parts(Scheduler=CountingScheduler), observers=[log], check=True
    )
    assert len(calls) == run.num_steps
    assert sum(calls) >= sum(r.prompt_len + r.output_len - 1 for r in workload.requests)
    # No token comes but from a step: every request was in as many as it has tokens.
    assert run.num_steps >= max(r.output_len for r in workload.requests)
    assert len(run.records) == workload.num_requests
    for record, request in zip(run.records, workload.requests):
        assert record.completed
        assert record.arrival_time == request.arrival_time
        assert len(record.token_times) == record.output_len == request.output_len
        assert record.token_times == sorted(set(record.token_times))
        assert record.token_times[0] > record.arrival_time
        assert record.finish_time == record.token_times[-1]
    assert run.duration == max(record.finish_time for record in run.records)
    assert run.duration >= sum(run.busy)
    assert sum(seconds for _, seconds in log.steps) == pytest.approx(sum(run.busy))


def test_a_request_that_cannot_be_served_is_a_record_with_its_reason():
    workload = Workload(
        "one too long", tuple(Request(i * 0.1, 20 + 80 * (i == 2), 10) for i in range(5))
    )
    run = simulate(workload, max_model_len=64, cache=SMALL)
    assert [r.completed for r in run.records] == [True, True, False, True, True]
    refused = run.records[2]
    assert "100 tokens" in refused.error
    assert "64 (max_model_len)" in refused.error
    assert refused.token_times == []
    numbers = summarize(run.records, run.duration)
    assert (numbers["completed"], numbers["failed"]) == (4, 1)
    assert numbers["total_input_tokens"] == 80


def test_a_prompt_larger_than_the_pool_is_refused_by_its_blocks():
    workload = Workload("one large", (Request(0.0, 400, 4), Request(0.0, 40, 4)))
    run = simulate(workload, cache=CacheConfig(num_gpu_blocks=20, num_cpu_blocks=0))
    assert "needs 25 blocks of 16, the whole pool has 20" in run.records[0].error
    assert run.records[1].completed


def test_an_output_ends_where_the_model_has_no_position_left():
    workload = Workload("long", (Request(0.0, 20, 100), Request(0.0, 20, 44)))
    run = simulate(workload, max_model_len=64, cache=SMALL)
    assert [r.output_len for r in run.records] == [44, 44]
    assert all(record.completed for record in run.records)


def test_a_batch_of_fastertransformer_runs_to_completion():
    lengths = (5, 30, 5, 12, 7)
    workload = Workload(
        "late ones", tuple(Request(0.01 * i, 16, length) for i, length in enumerate(lengths))
    )
    log = PlanLog()
    run = simulate(
        workload, "fastertransformer", cache=CacheConfig(num_gpu_blocks=256), observers=[log]
    )
    # The first is alone, for nobody joins a batch; the others, there by then, are the second.
    admitted = [plan[7] for plan in log.plans if plan[7]]
    assert admitted == [["0"], ["1", "2"], ["3", "4"]]
    ends = [record.finish_time for record in run.records]
    starts = [record.token_times[0] for record in run.records]
    assert starts[1] == starts[2] > ends[0]
    assert starts[3] == starts[4] > max(ends[1:3])
    assert run.waiting["batch"] > 0


def test_more_parallel_outputs_of_unequal_lengths_are_all_served():
    workload = Workload("samples", tuple(Request(0.0, 33, 20, num_sequences=n) for n in (1, 3, 6)))
    run = simulate(workload, cache=SMALL, check=True)
    assert [record.num_sequences for record in run.records] == [1, 3, 6]
    assert summarize(run.records, run.duration)["total_output_tokens"] == 200
    assert run.copied_blocks == 2 + 5  # each sibling but the last writes to a copy of block 3


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"scheduler": SchedulerConfig.paper_2023(max_num_seqs=4)}, "sequence limit"),
        (
            {"scheduler": SchedulerConfig.paper_2023(max_num_seqs=40, max_num_batched_tokens=40)},
            "token budget",
        ),
        ({"cache": CacheConfig(num_gpu_blocks=60, num_cpu_blocks=60)}, "memory"),
    ],
)
def test_a_run_says_what_requests_waited_for(settings, cause):
    workload = Workload("burst", tuple(Request(0.0, 32, 40) for _ in range(40)))
    run = simulate(workload, **settings)
    assert max(run.waiting, key=run.waiting.get) == cause


def test_an_efficiency_that_does_not_exist_is_named(sharegpt):
    with pytest.raises(ConfigError, match=r"'fast'.*roofline, paper_2023"):
        simulate(sharegpt, deployment=Deployment(efficiency="fast"))


# --------------------------------------------------------------------------- speed
def test_it_is_as_fast_as_python_allows_about(sharegpt):
    """A simulated token costs so many times what a loop costs that appends a tuple a token."""
    workload = paper("sharegpt", rate=2, duration=120)
    tokens = sum(request.output_len for request in workload.requests)

    def loop():
        rows = []
        for number in range(tokens):
            rows.append((number, number + 1, number + 2))
        return rows

    times = {"loop": [], "run": []}
    gc.collect()
    for _ in range(3):
        for name, work in (("loop", loop), ("run", lambda: simulate(workload))):
            start = time.process_time()
            work()
            times[name].append(time.process_time() - start)
    assert min(times["run"]) / min(times["loop"]) < 60


def test_the_cost_is_linear_in_the_tokens():
    """Four times the trace, four times the time: nothing is searched from the beginning."""
    times = {}
    for duration in (60, 240):
        workload = paper("alpaca", rate=8, duration=duration)
        best = []
        for _ in range(2):
            start = time.process_time()
            run = simulate(workload)
            best.append(time.process_time() - start)
        times[duration] = min(best) / run.computed_tokens
    assert times[240] / times[60] < 1.5


def test_a_simulation_starts_within_a_second_and_without_torch():
    code = (
        "import sys\nfrom minipaged.cli import main\n"
        "status = main(['sim', '--requests', '2', '--dataset', 'alpaca'])\n"
        "assert status == 0\n"
        "loaded = {'torch', 'matplotlib', 'joblib', 'transformers'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # Time of the processor: on a quiet machine the time that one waits.
    assert min(spent) < 1.0, spent
