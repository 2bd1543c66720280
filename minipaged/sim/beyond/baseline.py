"""How the verdict against Orca changes with what one assumes of it.

Orca was not public, so the paper's authors wrote their own (section 6.1), and so did we. Each
choice of a reimplementation moves the baseline: how regions are rounded, how well lengths are
known, how fast the rest of it is. Here the Oracle, the strongest baseline, is changed in one
respect at a time, and vLLM's advantage is read at the latency at which the paper's curves are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from minipaged.executor.cost_model import PAPER_2023
from minipaged.kvcache.contiguous import ContiguousKVManager
from minipaged.parts import Parts
from minipaged.sim.beyond.experiment import Experiment, Findings, Lab, Numbers, Trial
from minipaged.sim.beyond.first_fit import FirstFitAllocator
from minipaged.sim.paper.knees import search
from minipaged.sim.paper.published import LATENCY_LEVEL, rate_at
from minipaged.sim.paper.style import INK, LOOKS, OTHERS, figure
from minipaged.sim.simulate import Deployment
from minipaged.sim.systems import SYSTEMS
from minipaged.sim.workloads import Workload, paper

if TYPE_CHECKING:
    from minipaged.kvcache.buddy import BuddyAllocator
    from minipaged.sequence import SequenceGroup

#: What is known of the length of an output, over what it is.
OVERESTIMATE = 1.2
#: Requests a second at which requests are drawn, and up to which rates are looked for.
TOP_RATE = 6.0
#: Of a host that does twice as much for each sequence, and of one of today (s/sequence).
_SLOW, _MODERN = 2 * PAPER_2023.sequence_seconds, 0.05e-3

RATE = f"rate at {LATENCY_LEVEL:g} s/token (req/s)"
RATIO = "vLLM's rate / the baseline's"


class OverestimatingKVManager(ContiguousKVManager):
    """Reservation by an oracle that says 1.2 times the truth."""

    def requested_tokens(self, group: SequenceGroup) -> int:
        """Slots that each sequence of the group asks for."""
        true = super().requested_tokens(group)
        prompt = group.live[0].num_prompt_tokens
        return min(prompt + math.ceil(OVERESTIMATE * (true - prompt)), self.max_model_len)


def without_rounding(parts: Parts) -> Parts:
    """Regions as long as they are asked for."""
    # It has the methods of a buddy allocator, and is none.
    allocator = cast("Callable[..., BuddyAllocator]", FirstFitAllocator)
    return replace(parts, BuddyAllocator=allocator)


def overestimating(parts: Parts) -> Parts:
    """Lengths are known, times 1.2."""
    return replace(parts, ContiguousKVManager=OverestimatingKVManager)


def _host(sequence_seconds: float) -> Deployment:
    return Deployment(efficiency=replace(PAPER_2023, sequence_seconds=sequence_seconds))


def arriving(rate: float, duration: float, seed: int) -> Workload:
    """ShareGPT's requests at a rate, drawn at :data:`TOP_RATE` and spread out in time: two rates
    have the same requests in the same order, with the same gaps but for one factor."""
    drawn = paper("sharegpt", TOP_RATE, duration, seed).scaled(rate / TOP_RATE)
    kept = tuple(request for request in drawn.requests if request.arrival_time < duration)
    return replace(drawn, requests=kept)


@dataclass(frozen=True)
class KneeTrial:
    """The search for the rate at which a system reaches the level.

    Attributes:
        trial: all but its workload.
        guess: requests a second.
        duration: seconds of arrivals.
    """

    trial: Trial
    guess: float
    duration: float
    seed: int

    def run(self, parts: Parts | None = None) -> Numbers:
        """Simulate at several rates; ``rate`` is where the level is."""
        looking = search(self.guess, TOP_RATE)
        rate = next(looking)
        while True:
            workload = partial(arriving, rate, self.duration, self.seed)
            numbers = replace(self.trial, workload=workload).run(parts)
            try:
                rate = looking.send(numbers["normalized_latency_s_per_token"])
            except StopIteration as end:
                return {"rate": math.nan if end.value is None else end.value}


def _trials() -> dict[str, Trial]:
    vllm = Trial(partial(arriving, 1.0, 60.0, 0), "vllm")
    oracle = replace(vllm, system="orca-oracle")
    budgeted = replace(SYSTEMS["orca-oracle"], token_budget=True)
    return {
        VLLM: vllm,
        ORACLE: oracle,
        EXACT: replace(oracle, exchange=without_rounding),
        "lengths known times 1.2": replace(oracle, exchange=overestimating),
        "lengths known to a power of 2": replace(oracle, system="orca-pow2"),
        "vLLM's token budget": replace(oracle, system=budgeted),
        SLOW: replace(oracle, deployment=_host(_SLOW)),
        MODERN_VLLM: replace(vllm, deployment=_host(_MODERN)),
        MODERN: replace(oracle, deployment=_host(_MODERN)),
    }


VLLM, MODERN_VLLM = "vLLM", "vLLM, modern host"
ORACLE, EXACT, SLOW = "Oracle as in the paper", "no rounding of regions", "a host twice as slow"
MODERN = "both on a modern host"
#: By name. Workloads are those of the search.
TRIALS: Mapping[str, Trial] = MappingProxyType(_trials())
_QUICK = (VLLM, ORACLE, EXACT)


def measure(lab: Lab) -> Findings:
    """The rate of each, and vLLM's over it."""
    names, duration = lab.choose(tuple(TRIALS), _QUICK), lab.choose(600.0, 100.0)
    trials = [
        KneeTrial(TRIALS[name], 1.6 if name in (VLLM, MODERN_VLLM) else 1.0, duration, lab.seed)
        for name in names
    ]
    rates = dict(zip(names, (n["rate"] for n in lab.run(trials, "baseline"))))
    found = Findings()
    for name, rate in rates.items():
        found.add(RATE, name, rate)
        if name not in (VLLM, MODERN_VLLM):
            best = rates[MODERN_VLLM if name == MODERN else VLLM]
            found.add(RATIO, name, best / rate)
    return found


def conclude(found: Findings) -> list[str]:
    """How far the verdict moves."""
    ratios = {name: found.get(RATIO, name) for name in found.series(RATIO)}
    low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    published = rate_at("12a", SYSTEMS["vllm"].title) / rate_at("12a", SYSTEMS["orca-oracle"].title)
    return [
        f"Against the Oracle as the paper has it, vLLM sustains {ratios[ORACLE]:.2f} times the "
        f"rate at {LATENCY_LEVEL:g} s/token (the paper's curves: {published:.2f}).",
        f"One assumption moves that from {ratios[low]:.2f} ({low}) to {ratios[high]:.2f} ({high}).",
        f"Rounding regions up to powers of two is worth {ratios[ORACLE] / ratios[EXACT]:.2f}: "
        f"without it the Oracle loses by {ratios[EXACT]:.2f} only.",
    ]


def draw(found: Findings, path: Path) -> None:
    """A bar for each assumption."""
    names = found.series(RATIO)[::-1]
    with figure(path, 11, 1.8 + 0.62 * len(names), EXPERIMENT.title) as page:
        axes = page.subplots()
        values = [found.get(RATIO, name) for name in names]
        colors = [
            LOOKS["Orca (Oracle)"].color if name == ORACLE else OTHERS[0].color for name in names
        ]
        bars = axes.barh(names, values, 0.62, color=colors)
        axes.bar_label(bars, fmt="%.2f", padding=4, fontsize=13)
        axes.axvline(1.0, color=INK, lw=1.4, ls="--")
        axes.axvline(found.get(RATIO, ORACLE), color=LOOKS["Orca (Oracle)"].color, lw=1.2, ls=":")
        axes.set_xlabel(f"vLLM's rate over the baseline's, at {LATENCY_LEVEL:g} s/token")
        axes.set_xlim(0, 1.12 * max(values))
        axes.grid(axis="y", visible=False)


EXPERIMENT = Experiment(
    "What one assumes of the baseline: ShareGPT, OPT-13B",
    "How does the verdict against Orca change with what one assumes of it?",
    measure,
    conclude,
    draw,
)
