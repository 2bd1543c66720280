"""Tails and first tokens where the mean normalized latency looks fine.

The paper's curves are means of (end - arrival) / output length. A mean hides its tail, and dividing
by the length of the output hides how long a request waited for its first token: ten seconds in the
queue are 0.01 s/token of an output of 1,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from minipaged.sim.beyond.drawing import plain_log_scale
from minipaged.sim.beyond.experiment import Experiment, Findings, Lab, Trial, mean_of
from minipaged.sim.paper.published import LATENCY_LEVEL
from minipaged.sim.paper.style import INK, LOOKS, figure
from minipaged.sim.systems import SYSTEMS
from minipaged.sim.workloads import paper

Rates = Mapping[str, tuple[float, ...]]

SYSTEM, BASELINE = "vllm", "orca-oracle"
RATES: Rates = {SYSTEM: (0.4, 0.8, 1.2, 1.5, 1.7, 1.9), BASELINE: (0.4, 0.6, 0.8, 0.9, 1.0, 1.1)}
_QUICK: Rates = {SYSTEM: (0.8, 1.8), BASELINE: (0.4, 0.9)}
KEYS = {
    "mean normalized latency (s/token)": ("normalized_latency_s_per_token", 1.0),
    "normalized latency p99 (s/token)": ("p99_normalized_latency_s_per_token", 1.0),
    "TTFT p50 (s)": ("p50_ttft_ms", 1e-3),
    "TTFT p99 (s)": ("p99_ttft_ms", 1e-3),
}
MEAN, TAIL, TTFT_MEDIAN, TTFT_TAIL = KEYS


def measure(lab: Lab) -> Findings:
    """Two systems over the request rate."""
    duration, rates = lab.choose(1200.0, 300.0), lab.choose(RATES, _QUICK)
    cases = [(system, rate) for system in rates for rate in rates[system]]
    seeds = lab.seeds(2)
    trials = [
        Trial(partial(paper, "sharegpt", rate, duration, seed), system)
        for system, rate in cases
        for seed in seeds
    ]
    numbers = lab.run(trials, "tails")
    found = Findings()
    for at, (system, rate) in enumerate(cases):
        several = numbers[at * len(seeds) : (at + 1) * len(seeds)]
        for quantity, (key, unit) in KEYS.items():
            found.add(quantity, SYSTEMS[system].title, unit * mean_of(several, key), rate)
    return found


def conclude(found: Findings) -> list[str]:
    """The highest rate whose mean is fine, and what its tail is like."""
    sentences = []
    for title in found.series(MEAN):
        fine = [rate for rate, mean in found.curve(MEAN, title) if mean <= LATENCY_LEVEL / 2]
        if not fine:
            continue
        rate = fine[-1]
        mean, tail, median, worst = (found.get(quantity, title, rate) for quantity in KEYS)
        sentences.append(
            f"{title} at {rate:g} req/s: the mean normalized latency is {mean:.3f} s/token, less "
            f"than half of the {LATENCY_LEVEL:g} that the curves are read at. Of a hundred "
            f"requests one has more than {tail:.2f} s/token, {tail / mean:.1f} times the mean, and "
            f"one waits {worst:.1f} s for its first token, where the median is {median:.2f} s."
        )
    return sentences


def draw(found: Findings, path: Path) -> None:
    """Mean and tail of normalized latency; first tokens."""
    with figure(path, 12.5, 5.2, EXPERIMENT.title) as page:
        latency, ttft = page.subplots(1, 2)
        for title in found.series(MEAN):
            color = LOOKS[title].color
            lines = {
                MEAN: (latency, "-", f"{title}, mean (a), median (b)"),
                TAIL: (latency, ":", f"{title}, p99"),
                TTFT_MEDIAN: (ttft, "-", ""),
                TTFT_TAIL: (ttft, ":", ""),
            }
            for quantity, (axes, line, label) in lines.items():
                axes.plot(
                    *zip(*found.curve(quantity, title)),
                    color=color, ls=line, marker="o", ms=5, label=label or None,
                )  # fmt: skip
        latency.axhline(LATENCY_LEVEL, color=INK, lw=0.9, ls=":")
        latency.set(title="a. Normalized latency", ylabel="s/token")
        plain_log_scale(latency)
        ttft.set(title="b. Time to first token", ylabel="TTFT (s)")
        plain_log_scale(ttft)
        for axes in (latency, ttft):
            axes.set(xlabel="request rate (req/s)", xlim=0)
        page.legend(loc="outside lower center", ncols=4)


EXPERIMENT = Experiment(
    "Tails: ShareGPT, OPT-13B",
    "Who suffers where the mean normalized latency looks fine?",
    measure,
    conclude,
    draw,
)
