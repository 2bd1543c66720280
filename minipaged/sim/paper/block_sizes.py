"""Latency over the size of blocks (figures 18b and 19b).

The paper does not say at which request rates. Ours are those at which our latency with blocks of
16, the paper's default, is the paper's (0.0848 s/token on ShareGPT), or 0.2 s/token where that is
less (the paper's 0.594 on Alpaca is past the knee). So nothing is compared there. Nor are
latencies at other sizes, most of which are past the knee: what is judged is which sizes lose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from minipaged.config import PreemptionMode
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.jobs import Job
from minipaged.sim.paper.knees import find_knees
from minipaged.sim.paper.published import LATENCY_LEVEL, points, rate_at
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.style import Look, plot_ours, plot_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LATENCY = "normalized latency (s/token)"
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_QUICK = (1, 8, 16, 32, 256)
DEFAULT = 16
#: Sizes that the paper calls good, and by how much others are worse, at least.
_BEST, _LOSES = (8, 32), 2.0
#: dataset -> (panel of figure 12 with the same case, seconds of arrivals, the same if quick)
_CASES = {"ShareGPT": ("12a", 1200.0, 300.0), "Alpaca": ("12d", 600.0, 60.0)}

#: Block size -> latency.
Curve = dict[int, float]


def latencies(study: Study, dataset: str, preemption: PreemptionMode = "auto") -> Curve:
    """Our latencies with blocks of each size."""
    panel, *durations = _CASES[dataset]
    (published,) = (
        point.value
        for point in points("fig18b", "norm_latency_s_per_tok_vs_block_size", dataset)
        if point.x == DEFAULT
    )
    level = min(published, LATENCY_LEVEL)
    guess = rate_at(panel, "vLLM", level)
    job = Job(dataset.lower(), "vllm", "opt-13b", guess, study.duration(*durations), 1.6 * guess)
    label = f"block sizes, {dataset}"
    knee = find_knees(study.sweep, {dataset: job}, label=label, level=level)
    rate = knee[dataset].rate or guess
    sizes = _QUICK if study.quick else BLOCK_SIZES
    jobs = [replace(job, rate=rate, block_size=size, preemption=preemption) for size in sizes]
    outcomes = study.sweep.run(jobs, label)
    return {size: outcome.latency for size, outcome in zip(sizes, outcomes)}


def claims(figure: str, dataset: str, curve: Mapping[int, float], fitted: bool) -> list[Row]:
    """Which sizes lose, as rows whose numbers are 1 (true) and 0.

    Args:
        fitted: was the cost of small blocks fitted on this curve?
    """
    best = min(curve, key=lambda size: curve[size])
    found = {
        f"blocks of {_BEST[0]} to {_BEST[1]} are the best": _BEST[0] <= best <= _BEST[1],
        f"the smallest are {_LOSES:g} times worse": curve[1] >= _LOSES * curve[best],
        f"the largest are {_LOSES:g} times worse": curve[256] >= _LOSES * curve[best],
    }
    note = (
        "block sizes: 1 is true. The paper does not state the rates; ours are those at which our "
        "latency with blocks of 16 is the paper's, or 0.2 s/token where that is less"
    )
    return [
        Row(figure, claim, dataset, paper=1.0, ours=float(holds), tolerance=0.0, in_points=True,
            fitted=fitted, note=note)
        for claim, holds in found.items()
    ]  # fmt: skip


def draw_block_sizes(axes: Axes, title: str, series: Mapping[str, Look], rows: list[Row]) -> None:
    """Latency over the size of blocks, both in logarithmic scales."""
    for name, look in series.items():
        shown = [r for r in rows if r.quantity == LATENCY and r.series == name and r.x is not None]
        plot_paper(axes, [(r.x or 0.0, r.paper) for r in shown if r.paper is not None], look)
        plot_ours(axes, [(r.x or 0.0, r.ours) for r in shown if r.ours is not None], look, name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(BLOCK_SIZES, [str(size) for size in BLOCK_SIZES])
    axes.set(title=title, xlabel="block size (tokens)", ylabel=LATENCY, yscale="log")
    axes.legend()
