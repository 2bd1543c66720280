"""Whom to preempt: the last that came, as the paper has it, or another.

The paper preempts the request that came last, so that nobody is overtaken (section 4.5). What is
taken from it has to be computed again. The fewer of its tokens are in the cache, the less is lost,
and the less memory is won.

The scheduler gives blocks to running requests in the order in which they came, and offers as
victims the one that lacks room and those behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from minipaged.parts import Parts
from minipaged.scheduling.preemption import Preemption
from minipaged.sim.beyond.experiment import Experiment, Findings, Lab, Trial, mean_of
from minipaged.sim.paper.style import OTHERS, figure
from minipaged.sim.workloads import paper

if TYPE_CHECKING:
    from minipaged.config import PreemptionMode
    from minipaged.contracts import KVManager, StepPlan
    from minipaged.sequence import SequenceGroup

Choice = Callable[["Sequence[SequenceGroup]"], "SequenceGroup"]

RATE = 1.8
AGAIN = "tokens computed again (% of prompts and outputs)"
COUNT = "preemptions (per request)"
LATENCY = "mean normalized latency (s/token)"
TAIL = "normalized latency p99 (s/token)"


class ChosenVictim(Preemption):
    """Preemption of a victim that somebody chooses; everything else is the reference's.

    Args:
        choose: one of the groups that may be preempted.
    """

    def __init__(self, kv: KVManager, mode: PreemptionMode, choose: Choice) -> None:
        super().__init__(kv, mode)
        self.choose_victim = choose

    def evict(self, candidates: Sequence[SequenceGroup], plan: StepPlan) -> SequenceGroup:
        """Preempt the chosen one of ``candidates``."""
        return super().evict([self.choose_victim(candidates)], plan)


def computed_tokens(group: SequenceGroup) -> int:
    """Tokens of a group that are in the cache: what would be lost."""
    return sum(seq.num_computed for seq in group.live)


def last(candidates: Sequence[SequenceGroup]) -> SequenceGroup:
    return candidates[-1]


def first(candidates: Sequence[SequenceGroup]) -> SequenceGroup:
    return candidates[0]


def largest(candidates: Sequence[SequenceGroup]) -> SequenceGroup:
    """The most is won, and lost. Of equals, the last that came."""
    return max(reversed(candidates), key=computed_tokens)


def least_computed(candidates: Sequence[SequenceGroup]) -> SequenceGroup:
    """The least is lost, and won. Of equals, the last that came."""
    return min(reversed(candidates), key=computed_tokens)


CHOICES: Mapping[str, Choice] = MappingProxyType(
    {
        "last (the paper)": last,
        "least computed": least_computed,
        "largest": largest,
        "first": first,
    }
)
PAPER = next(iter(CHOICES))


def with_victim(choose: Choice, parts: Parts) -> Parts:
    """The parts, but for who is preempted."""
    return replace(parts, Preemption=partial(ChosenVictim, choose=choose))


def measure(lab: Lab) -> Findings:
    """The same requests under each choice."""
    duration, seeds = lab.choose(900.0, 300.0), lab.seeds(3)
    trials = [
        Trial(
            partial(paper, "sharegpt", RATE, duration, seed),
            exchange=partial(with_victim, choose),
        )
        for choose in CHOICES.values()
        for seed in seeds
    ]
    numbers = lab.run(trials, "victims")
    found = Findings()
    for at, name in enumerate(CHOICES):
        several = numbers[at * len(seeds) : (at + 1) * len(seeds)]
        asked = mean_of(several, "total_input_tokens") + mean_of(several, "total_output_tokens")
        requests = mean_of(several, "completed")
        found.add(AGAIN, name, 100 * (mean_of(several, "computed_tokens") / asked - 1))
        found.add(COUNT, name, mean_of(several, "preemption_count") / requests)
        found.add(LATENCY, name, mean_of(several, "normalized_latency_s_per_token"))
        found.add(TAIL, name, mean_of(several, "p99_normalized_latency_s_per_token"))
    return found


def conclude(found: Findings) -> list[str]:
    """What each choice costs."""
    again = {name: found.get(AGAIN, name) for name in CHOICES}
    count = {name: found.get(COUNT, name) for name in CHOICES}
    latency = {name: found.get(LATENCY, name) for name in CHOICES}
    listed = ", ".join(f"{again[name]:.1f} % ({name})" for name in CHOICES)
    best = min(CHOICES, key=lambda name: latency[name])
    worst = max(CHOICES, key=lambda name: latency[name])
    return [
        f"At {RATE:g} req/s so many tokens are computed a second time: {listed}.",
        f"There are {count[PAPER]:.2f} preemptions a request with the paper's choice, and "
        f"{count['least computed']:.2f} with the least computed: each wins less memory and loses "
        f"less work. With the largest there are {count['largest']:.2f}.",
        f"The mean normalized latency is lowest with {best} ({latency[best]:.3f} s/token) and "
        f"highest with {worst} ({latency[worst]:.3f}).",
    ]


def draw(found: Findings, path: Path) -> None:
    """A diagram a number."""
    panels = (
        ("a. Work done twice", AGAIN, "tokens (%)"),
        ("b. Preemptions", COUNT, "per request"),
        ("c. Latency", LATENCY, "mean, s/token"),
        ("d. Its tail", TAIL, "p99, s/token"),
    )
    with figure(path, 16, 5.0, EXPERIMENT.title) as page:
        for axes, (title, quantity, unit) in zip(page.subplots(1, 4), panels):
            values = [found.get(quantity, name) for name in CHOICES]
            bars = axes.bar(range(len(values)), values, 0.65, color=[o.color for o in OTHERS])
            axes.bar_label(bars, fmt="%.3g", fontsize=12, padding=2)
            axes.set_xticks(range(len(values)), [n.replace(" ", "\n", 1) for n in CHOICES])
            axes.tick_params(axis="x", labelsize=10.5)
            axes.set(title=title, ylabel=unit)
            axes.margins(y=0.12)
            axes.grid(axis="x", visible=False)


EXPERIMENT = Experiment(
    f"Victims: ShareGPT at {RATE:g} req/s, OPT-13B, recomputation",
    "Whom to preempt: the last that came, or another?",
    measure,
    conclude,
    draw,
)
