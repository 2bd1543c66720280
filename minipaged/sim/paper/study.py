"""How a reproduction is run: how thoroughly, and on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.sweep import Sweep


@dataclass
class Study:
    """What figures are computed with.

    Attributes:
        sweep: runs their simulations.
        quick: shorter traces and fewer points: to see that it works, and about what comes out.
        seeds: with how many seeds the request rate at a latency is looked for.
    """

    sweep: Sweep = field(default_factory=Sweep)
    quick: bool = False
    seeds: int = 1

    def duration(self, seconds: float, quick: float) -> float:
        """Seconds in which requests arrive.

        Args:
            seconds: as in the paper's experiments.
            quick: for a quick study.
        """
        return quick if self.quick else seconds


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Attributes:
        title: in words.
        compute: our numbers beside the paper's, and those without one that the figure is drawn
            from.
        draw: from these, a PNG; None: it is a table.
    """

    title: str
    compute: Callable[[Study], list[Row]]
    draw: Callable[[list[Row], Path], None] | None
