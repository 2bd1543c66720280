"""Bursts and real timestamps against a Poisson process, at one request rate.

The paper draws its arrivals from a Poisson process: the gaps between them have a coefficient of
variation (CV) of 1. Gamma-distributed gaps keep the rate and set the CV: it is 1 over the root of
the distribution's shape, which ``vllm bench serve`` calls burstiness. With a trace, its own times
are stretched to the same rate. The requests are ShareGPT's in all cases.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from minipaged.errors import RequestError
from minipaged.sim.beyond.drawing import plain_log_scale
from minipaged.sim.beyond.experiment import Experiment, Findings, Lab, Trial, mean_of
from minipaged.sim.lengths import load_lengths
from minipaged.sim.paper.published import LATENCY_LEVEL
from minipaged.sim.paper.style import INK, OTHERS, figure
from minipaged.sim.traces import read_trace
from minipaged.sim.workloads import Request, Workload, paper

RATE = 1.4
CVS = (1.0, 2.0, 4.0)
GAMMA = "gamma"
MEAN = "mean normalized latency (s/token)"
DRIFT = "arrivals a minute: variance / mean"
#: percentile -> its name in the results
TTFT = {q: f"TTFT p{q} (s)" for q in (50, 90, 99)}


def measure(lab: Lab) -> Findings:
    """Gamma arrivals of three CVs, and the trace's if there is one."""
    duration = lab.choose(1200.0, 300.0)
    cvs = lab.choose(CVS, (CVS[0], CVS[-1]))
    seeds = lab.seeds(3)
    cases = [
        (GAMMA, cv, Trial(partial(paper, "sharegpt", RATE, duration, seed, burstiness=cv**-2)))
        for cv in cvs
        for seed in seeds
    ]
    found = Findings()
    if lab.trace is not None:
        times = trace_times(lab.trace, round(RATE * duration))
        cv = _variation(times)
        name = f"times of {lab.trace.name}"
        cases += [(name, cv, Trial(partial(_at_times, times, seed))) for seed in seeds]
        if (drift := dispersion(times)) is not None:
            found.add(DRIFT, name, drift, cv)
    numbers = lab.run([trial for _, _, trial in cases], "bursts")
    for series, cv in dict.fromkeys((series, cv) for series, cv, _ in cases):
        several = [n for n, (s, c, _) in zip(numbers, cases) if (s, c) == (series, cv)]
        found.add(MEAN, series, mean_of(several, "normalized_latency_s_per_token"), cv)
        for q, quantity in TTFT.items():
            found.add(quantity, series, mean_of(several, f"p{q}_ttft_ms") / 1e3, cv)
    return found


def trace_times(path: Path, count: int) -> list[float]:
    """The first arrival times of a trace, stretched so that :data:`RATE` come a second.

    Raises:
        TraceFormatError, ConfigError: as :func:`~minipaged.sim.traces.read_trace`.
        RequestError: fewer than two arrivals, or all at once.
    """
    workload = read_trace(path, limit=count)
    if not workload.request_rate:
        raise RequestError(f"{path} has {workload.num_requests} arrivals, all at one time")
    stretch = workload.request_rate / RATE
    return [request.arrival_time * stretch for request in workload.requests]


def _at_times(times: list[float], seed: int) -> Workload:
    """ShareGPT's requests at given times."""
    pairs = load_lengths("sharegpt").sample(len(times), np.random.default_rng(seed))
    requests = (Request(time, *pair) for time, pair in zip(times, pairs))
    return Workload("sharegpt at a trace's times", tuple(requests))


def _variation(times: list[float]) -> float:
    """Coefficient of variation of the gaps."""
    gaps = np.diff(times)
    return round(float(gaps.std() / gaps.mean()), 2)


def dispersion(times: list[float], window: float = 60.0) -> float | None:
    """Variance over mean of the number of arrivals in a window of so many seconds; None: there are
    not two whole windows."""
    windows = (np.asarray(times) // window).astype(np.int64)
    counts = np.bincount(windows)[: windows[-1]]  # the last one is cut off by the end
    return float(counts.var() / counts.mean()) if len(counts) > 1 else None


def conclude(found: Findings) -> list[str]:
    """How much worse the mean and the tail are than with Poisson arrivals."""
    sentences = []
    for series in found.series(MEAN):
        cv, mean = found.curve(MEAN, series)[-1]
        poisson = found.get(MEAN, GAMMA, 1.0), found.get(TTFT[99], GAMMA, 1.0)
        tail = found.get(TTFT[99], series, cv)
        sentences.append(
            f"At {RATE:g} req/s and a CV of {cv:g} ({series}) the mean normalized latency is "
            f"{mean:.3f} s/token, {mean / poisson[0]:.1f} times that of Poisson arrivals "
            f"({poisson[0]:.3f}); the slowest first token in a hundred comes after {tail:.1f} s "
            f"instead of {poisson[1]:.1f} s, {tail / poisson[1]:.1f} times as late."
        )
    for series in found.series(DRIFT):
        ((cv, drift),) = found.curve(DRIFT, series)
        sentences.append(
            f"{series}: the number of arrivals in a minute has a variance of {drift:.1f} times its "
            f"mean. It is 1 for a Poisson process, and would be about {cv**2:.1f} for independent "
            "gaps of this CV: what is more comes of a rate that drifts."
        )
    if all(value < LATENCY_LEVEL for s in found.series(MEAN) for _, value in found.curve(MEAN, s)):
        sentences.append(
            f"All means stay below the {LATENCY_LEVEL:g} s/token at which the paper's curves are "
            "read: the mean does not show what users of a bursty service see."
        )
    return sentences


def draw(found: Findings, path: Path) -> None:
    """The mean on the left, first tokens on the right."""
    with figure(path, 12.5, 5.2, EXPERIMENT.title) as page:
        mean, ttft = page.subplots(1, 2)
        lines = [(MEAN, mean, OTHERS[0])]
        lines += [(quantity, ttft, look) for quantity, look in zip(TTFT.values(), OTHERS)]
        for quantity, axes, look in lines:
            points = found.curve(quantity, GAMMA)
            label = "gamma" if axes is mean else quantity.split()[1]
            axes.plot(
                *zip(*points), color=look.color, ls=look.line, marker=look.marker, label=label
            )
            for series in found.series(quantity)[1:]:
                points = found.curve(quantity, series)
                axes.plot(*zip(*points), ls="", marker="*", ms=17, color=look.color,
                          label=series if axes is mean else None)  # fmt: skip
        mean.axhline(LATENCY_LEVEL, color=INK, lw=0.9, ls=":")
        mean.set(title="a. What the paper plots", ylim=0, ylabel=MEAN)
        ttft.set(title="b. When the first token comes", ylabel="TTFT (s)")
        plain_log_scale(ttft)
        for axes in (mean, ttft):
            axes.set_xlabel("CV of the gaps between arrivals (1: Poisson)")
            axes.legend()


EXPERIMENT = Experiment(
    f"Bursts: ShareGPT at {RATE:g} req/s, OPT-13B",
    "What do bursts and real timestamps do that Poisson arrivals do not?",
    measure,
    conclude,
    draw,
)
