"""The request rate that a system sustains at a stated latency.

A latency curve is flat up to a knee and then rises almost straight up. A latency near the knee is
worth a factor of three from seed to seed; the *rate* at which it reaches a level is not. So rates
are compared, at a level that is stated.

All runs of one search have the same random numbers: only the rate differs, and it scales the times.
The curve that is searched is smooth then, as far as the luck of a trace goes.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import TypeVar

from minipaged.sim.paper.jobs import Job
from minipaged.sim.paper.published import LATENCY_LEVEL
from minipaged.sim.paper.sweep import Sweep

Key = TypeVar("Key")
Points = tuple[tuple[float, float], ...]

#: The bracket around a rate is closed up to this ratio of its ends.
PRECISION = 1.03
#: Steps away from the first guess, as ratios of rates: small at first, as guesses are good.
_STEPS = (1.08, 1.15, 1.3, 1.6, 2.0)
#: A rate inside a bracket is taken at most so near to either end, as a share of its width.
_MARGIN = 0.2
_MOST_SEEDS = 5
#: Parts of the rate that was found, at which the curve is looked at once more to be drawn.
CURVE_SHARES, QUICK_SHARES = (0.3, 0.6, 0.85), (0.5,)


@dataclass(frozen=True)
class Knee:
    """Where a curve reaches the level.

    Attributes:
        rate: requests a second, the median over seeds; None: it was not found up to the highest
            rate.
        lowest, highest: over seeds.
        points: of the first seed's curve: (requests a second, latency).
    """

    rate: float | None
    lowest: float
    highest: float
    points: Points

    @property
    def spread(self) -> tuple[float, float] | None:
        """Over seeds, if there were several."""
        return (self.lowest, self.highest) if self.lowest != self.highest else None


def search(
    guess: float, top: float = math.inf, level: float = LATENCY_LEVEL
) -> Generator[float, float, float | None]:
    """Find where a rising curve reaches a level: yields a rate, is sent the latency there, and
    returns the rate that was found.

    From the guess it steps outward until the level lies between two rates, and then closes in. In
    log-log scales, and never past ``top``, or a thousandth of the guess.

    Returns:
        None: the curve does not reach the level between these ends.
    """
    rate = min(guess, top)
    latency = yield rate
    up = latency <= level
    near = (rate, latency)
    steps = chain(_STEPS, iter(lambda: _STEPS[-1], None))
    while True:
        if (up and near[0] >= top) or (not up and near[0] < guess / 1000):
            return None
        step = next(steps)
        rate = min(near[0] * step, top) if up else near[0] / step
        latency = yield rate
        if (latency <= level) != up:
            break
        near = (rate, latency)
    low, high = (near, (rate, latency)) if up else ((rate, latency), near)
    while high[0] / low[0] > PRECISION:
        share = min(max(_crossing(low, high, level), _MARGIN), 1 - _MARGIN)
        rate = low[0] * (high[0] / low[0]) ** share
        latency = yield rate
        if latency <= level:
            low = (rate, latency)
        else:
            high = (rate, latency)
    return float(low[0] * (high[0] / low[0]) ** _crossing(low, high, level))


def _crossing(low: tuple[float, float], high: tuple[float, float], level: float) -> float:
    """How far from the lower to the higher point the level is, 0 to 1, on a straight line in
    log scales."""
    below, above = math.log(low[1]), math.log(high[1])
    return (math.log(level) - below) / (above - below)


def find_knees(
    sweep: Sweep,
    curves: Mapping[Key, Job],
    seeds: int = 1,
    label: str = "",
    shares: Sequence[float] = (),
    level: float = LATENCY_LEVEL,
    least_requests: float = 0.0,
) -> dict[Key, Knee]:
    """Search many curves at once: in each round, every search has one run.

    Args:
        curves: a job a curve, whose rate is the first guess, and whose ``top_rate`` is the highest
            one that is tried.
        seeds: after the first, the others begin where it ended.
        least_requests: a curve whose runs have fewer gets more seeds, up to five, until all its
            runs at one rate have as many: a trace of fifty requests is luck.
        shares: parts of the rate that was found, at which the first seed's curve gets more points.
    """
    first, points = _search_all(sweep, curves, level, f"{label} seed 0")
    found = {key: [rate] for key, rate in first.items()}
    wanted = {
        key: max(seeds, min(_MOST_SEEDS, math.ceil(least_requests / (job.rate * job.duration))))
        for key, job in curves.items()
    }
    for seed in range(1, max(wanted.values())):
        again = {
            key: replace(job, rate=first[key] or job.rate, seed=job.seed + seed)
            for key, job in curves.items()
            if seed < wanted[key]
        }
        for key, rate in _search_all(sweep, again, level, f"{label} seed {seed}")[0].items():
            found[key].append(rate)
    for key, more in _along(sweep, curves, first, shares, label).items():
        points[key] += more
    return {key: _knee(found[key], points[key]) for key in curves}


def _search_all(
    sweep: Sweep, curves: Mapping[Key, Job], level: float, label: str
) -> tuple[dict[Key, float | None], dict[Key, list[tuple[float, float]]]]:
    """The rates that were found, and the points on the way."""
    searches = {key: search(job.rate, job.top_rate, level) for key, job in curves.items()}
    asked = {key: next(one) for key, one in searches.items()}
    points: dict[Key, list[tuple[float, float]]] = {key: [] for key in curves}
    found: dict[Key, float | None] = {}
    rounds = 0
    while asked:
        rounds += 1
        jobs = [replace(curves[key], rate=rate) for key, rate in asked.items()]
        outcomes = sweep.run(jobs, f"{label}, round {rounds}")
        for (key, rate), outcome in zip(list(asked.items()), outcomes):
            points[key].append((rate, outcome.latency))
            try:
                asked[key] = searches[key].send(outcome.latency)
            except StopIteration as end:
                found[key] = end.value
                del asked[key]
    return found, points


def _along(
    sweep: Sweep,
    curves: Mapping[Key, Job],
    rates: Mapping[Key, float | None],
    shares: Sequence[float],
    label: str,
) -> dict[Key, list[tuple[float, float]]]:
    """More points on the first seed's curves, below the rates that were found."""
    wanted = [
        (key, replace(job, rate=share * rate))
        for key, job in curves.items()
        if (rate := rates[key]) is not None
        for share in shares
    ]
    outcomes = sweep.run([job for _, job in wanted], f"{label} curves")
    points: dict[Key, list[tuple[float, float]]] = {key: [] for key in curves}
    for (key, job), outcome in zip(wanted, outcomes):
        points[key].append((job.rate, outcome.latency))
    return points


def _knee(rates: Sequence[float | None], points: list[tuple[float, float]]) -> Knee:
    known = [rate for rate in rates if rate is not None]
    curve = tuple(sorted(points))
    if not known:
        return Knee(None, math.nan, math.nan, curve)
    return Knee(median(known), min(known), max(known), curve)
