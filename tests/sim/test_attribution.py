"""Where the time of a run went: the sums are those of the run, and what limits it is named."""

from __future__ import annotations

from statistics import fmean

import pytest

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.errors import RequestError
from minipaged.executor.cost_model import CostModel, StepSeconds
from minipaged.sim.attribution import (
    MACHINE_TERMS,
    REQUEST_TERMS,
    Attribution,
    attribute,
    limit_of,
)
from minipaged.sim.attribution_plot import plot_attribution
from minipaged.sim.metrics import e2el
from minipaged.sim.simulate import Run, simulate
from minipaged.sim.systems import SYSTEMS
from minipaged.sim.workloads import Request, Workload, paper


def cost(**terms: float) -> CostModel:
    """Steps of which only these terms take time."""
    names = (
        "weights per_token per_pair per_context_token per_copied_block step per_sequence reduce "
        "per_reduced_token per_block_out per_block_in"
    )
    return CostModel(**{name: terms.get(name, 0.0) for name in names.split()}, overlap=False)


def burst(count: int = 12, prompt: int = 40, output: int = 30, gap: float = 0.0) -> Workload:
    return Workload("burst", tuple(Request(gap * i, prompt, output) for i in range(count)))


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_terms_add_up_to_the_run_and_to_the_mean_request(system):
    workload = paper("sharegpt", rate=3, duration=8)
    cache = CacheConfig(num_gpu_blocks=256, num_cpu_blocks=256)
    swapping = SchedulerConfig.paper_2023(preemption="swap")
    run = simulate(workload, system, cache=cache, scheduler=swapping)
    found = attribute(run)
    assert tuple(found.machine) == MACHINE_TERMS
    assert tuple(found.request) == REQUEST_TERMS
    assert sum(found.machine.values()) == pytest.approx(run.duration, rel=1e-9)
    assert sum(found.request.values()) == pytest.approx(fmean(map(e2el, run.records)), rel=1e-9)
    assert sum(found.waiting.values()) == pytest.approx(found.request["queueing"], rel=1e-9)
    assert min(*found.machine.values(), *found.request.values(), *found.waiting.values()) >= 0
    if system == "vllm":
        assert run.swapped_blocks > 0
        assert found.machine["link"] > 0


def test_two_questions_have_two_answers():
    """One request in the batch at a time: the machine multiplies, and requests wait for room."""
    cache = CacheConfig(num_gpu_blocks=5, num_cpu_blocks=0)
    run = simulate(burst(), cache=cache, cost=cost(per_token=1e-3))
    found = attribute(run)
    assert found.machine["compute"] == pytest.approx(run.duration)
    # A request takes 69 tokens of time, and there are so many before it: on average 5.5 x 69.
    assert found.request["compute"] == pytest.approx(0.069)
    assert found.request["queueing"] == pytest.approx(5.5 * 0.069)
    assert found.waiting == {"memory": pytest.approx(5.5 * 0.069)}


CASES = {
    "memory capacity": {
        "workload": burst(),
        "cache": CacheConfig(num_gpu_blocks=10, num_cpu_blocks=0),
        "cost": cost(weights=0.01),
    },
    "scheduler": {
        "workload": burst(),
        "scheduler": SchedulerConfig(max_num_seqs=2),
        "cost": cost(weights=0.01),
    },
    "arrivals": {"workload": burst(gap=1.0), "cost": cost(weights=0.01)},
    "memory bandwidth": {"workload": burst(), "cost": cost(weights=0.01, step=0.005)},
    "compute": {"workload": burst(), "cost": cost(weights=1e-3, per_token=1e-3)},
    "host": {"workload": burst(), "cost": cost(weights=1e-3, per_sequence=1e-3)},
    "network": {"workload": burst(), "cost": cost(weights=1e-3, reduce=2e-3)},
    "link": {
        "workload": burst(count=2, output=50),
        "cache": CacheConfig(num_gpu_blocks=9, num_cpu_blocks=9),
        "scheduler": SchedulerConfig(preemption="swap"),
        "cost": cost(weights=1e-3, per_block_in=0.1),
    },
}


@pytest.mark.parametrize("name", CASES)
def test_what_limits_a_run_is_named(name):
    settings = dict(CASES[name])
    workload = settings.pop("workload")
    settings.setdefault("cache", CacheConfig(num_gpu_blocks=500, num_cpu_blocks=0))
    limit = limit_of(attribute(simulate(workload, **settings)))
    assert limit.name == name
    assert "%" in limit.reason


def test_faster_transformer_is_limited_by_how_it_batches():
    run = simulate(
        burst(40, gap=0.1), "fastertransformer", cache=CacheConfig(num_gpu_blocks=300),
        cost=cost(weights=0.05),
    )  # fmt: skip
    limit = limit_of(attribute(run))
    assert limit.name == "scheduler"
    assert "a batch that nobody joins" in limit.reason


def test_the_rule_at_its_edges():
    def made(queueing, idle):
        machine = dict.fromkeys(MACHINE_TERMS, 0.0) | {"host": 1.0, "idle": idle}
        request = dict.fromkeys(REQUEST_TERMS, 0.0) | {"host": 1.0, "queueing": queueing}
        return Attribution(machine, request, {"memory": queueing})

    assert limit_of(made(1.0, 0.0)).name == "memory capacity"
    assert limit_of(made(0.99, 0.0)).name == "host"
    assert limit_of(made(0.0, 1.0)).name == "arrivals"
    assert limit_of(made(0.0, 0.99)).name == "host"


def test_a_run_without_requests_is_refused():
    with pytest.raises(RequestError, match="vllm without requests"):
        attribute(Run("vllm", busy=StepSeconds()))


def test_the_plot_stacks_what_there_is():
    runs = {
        label: attribute(simulate(burst(gap=gap), cache=CacheConfig(num_gpu_blocks=40)))
        for label, gap in (("slow", 2.0), ("at once", 0.0))
    }
    figure = plot_attribution(runs, "a title")
    left, right = figure.axes
    for axes, part in ((left, "machine"), (right, "request")):
        heights = [0.0, 0.0]
        for container in axes.containers:
            for i, bar in enumerate(container):
                assert bar.get_y() == pytest.approx(heights[i])
                heights[i] += bar.get_height()
        totals = [sum(getattr(run, part).values()) for run in runs.values()]
        assert heights == pytest.approx([100, 100] if part == "machine" else totals)
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"weights", "idle", "queueing"} <= named
    assert not {"network", "link to the host"} & named
    with pytest.raises(ValueError, match="no run"):
        plot_attribution({})
