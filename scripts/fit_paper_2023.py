#!/usr/bin/env python3
"""Fit what ``PAPER_2023`` (minipaged/executor/cost_model.py) takes from the paper's curves.

Two numbers: the host's time for launching a layer, and the bandwidth at which keys and values are
read. They are fitted on

* figure 1: ten points of throughput over the number of batched requests;
* figure 12a: the rates at which the three Orca systems reach 0.2 s a token (OPT-13B, ShareGPT).

Both groups weigh the same, and errors are logarithms of ratios. All else that ``minipaged paper``
shows is judged with these numbers. A bandwidth above the data sheet's is not allowed.

    python scripts/fit_paper_2023.py

Prints each round, and at the end the fields to copy. The same numbers every time.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from statistics import fmean

import numpy as np
from joblib import Parallel, delayed

from minipaged.executor.cost_model import PAPER_2023, Efficiency, StepLoad
from minipaged.sim.metrics import pooled
from minipaged.sim.paper.jobs import Job, offered
from minipaged.sim.paper.knees import search
from minipaged.sim.paper.panels import FIG12, ORCA
from minipaged.sim.paper.published import points, rate_at
from minipaged.sim.simulate import PAPER_DEPLOYMENTS, simulate
from minipaged.sim.systems import SYSTEMS

PANEL = next(panel for panel in FIG12 if panel.name == "12a")
#: Tokens in the cache of each request of figure 1: its 40 requests fill 12.35 GB, less the weights.
CONTEXT = 377
FIELDS = ("layer_seconds", "kv_bandwidth")
#: Seconds of arrivals in each run.
DURATION = 1200.0
ROUNDS = 2


def residuals(efficiency: Efficiency) -> np.ndarray:
    """``[13]``: ln(ours / paper), divided by the square root of how many there are in the group."""
    jobs = PANEL.jobs(quick=False)
    rates = Parallel(n_jobs=2)(
        delayed(sustained)(replace(jobs[PANEL.name, system], duration=DURATION), efficiency)
        for system in ORCA
    )
    knees = [math.log(r / rate_at(PANEL.name, SYSTEMS[s].title)) for r, s in zip(rates, ORCA)]
    cost = replace(PAPER_DEPLOYMENTS["opt-13b"], efficiency=efficiency).cost_model()
    steps = []
    for point in points("fig1_right", "throughput_tok_per_s_vs_batch", "vLLM/any"):
        assert point.x is not None
        batch = int(point.x)
        ours = sum(cost.seconds(StepLoad(batch, batch, batch * CONTEXT)))
        steps.append(math.log(ours / (point.x / point.value)))
    print(f"  figure 1 {np.exp(steps).round(2)}   figure 12a {np.exp(knees).round(3)}", flush=True)
    return np.array(
        [step / math.sqrt(len(steps)) for step in steps]
        + [knee / math.sqrt(len(knees)) for knee in knees]
    )


def sustained(job: Job, efficiency: Efficiency) -> float:
    """The rate at which a system reaches the level."""
    deployment = replace(PAPER_DEPLOYMENTS[job.model], efficiency=efficiency)
    looking = search(job.rate, job.top_rate)
    rate = next(looking)
    while True:
        run = simulate(offered(replace(job, rate=rate)), job.system, deployment)
        try:
            rate = looking.send(fmean(pooled(run.records, "normalized_latency")))
        except StopIteration as end:
            if end.value is None:
                sys.exit(f"{job.system} never reaches the level: {efficiency}")
            return float(end.value)


def main() -> None:
    """Gauss-Newton on the logarithms of the numbers; one that meets its bound stays there."""
    efficiency = PAPER_2023
    for number in range(ROUNDS):
        print(f"round {number}: " + ", ".join(f"{f} {getattr(efficiency, f):.4g}" for f in FIELDS))
        now = residuals(efficiency)
        free = [f for f in FIELDS if f != "kv_bandwidth" or efficiency.kv_bandwidth < 1]
        slopes = []
        for field in free:
            moved = replace(efficiency, **{field: 1.1 * getattr(efficiency, field)})
            slopes.append((residuals(moved) - now) / math.log(1.1))
        step, *_ = np.linalg.lstsq(np.array(slopes).T, -now, rcond=None)
        new = {f: getattr(efficiency, f) * math.exp(s) for f, s in zip(free, step.clip(-0.7, 0.7))}
        new["kv_bandwidth"] = min(1.0, new.get("kv_bandwidth", 1.0))
        efficiency = replace(efficiency, **new)
    residuals(efficiency)
    print("\n".join(f"{field}={getattr(efficiency, field):.4g}," for field in FIELDS))


if __name__ == "__main__":
    main()
