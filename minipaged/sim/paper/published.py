"""What the paper's figures show: points read off its vector graphics, exact to plot precision.

The files are in ``minipaged/sim/data``, with a README.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minipaged.errors import ConfigError
from minipaged.sim.metrics import sustained_rate

_DATA = Path(__file__).parents[1] / "data"

#: Seconds per token at which rates are compared. Higher up a curve goes on nearly straight up and
#: depends on how long a trace is; lower down systems do not differ yet.
LATENCY_LEVEL = 0.2


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve, or a bar.

    Attributes:
        x: None for a bar without a number of its own.
    """

    x: float | None
    value: float


@cache
def curve(panel: str, system: str, clipped: bool = True) -> tuple[tuple[float, float], ...]:
    """A latency curve of figure 12, 14, 16 or 17.

    Args:
        panel: as ``12a``.
        system: as in the legend: ``Orca (Max)``.
        clipped: with the point in which the curve leaves the plot.

    Returns:
        (requests a second, normalized latency in s/token), in the order of their rates.

    Raises:
        ConfigError: the paper has no such curve.
    """
    points = sorted(
        (float(row["request_rate_req_per_s"]), float(row["normalized_latency_s_per_token"]))
        for row in _rows("latency_curves.csv")
        if row["panel"].split()[0] == panel
        and row["system"] == system
        and (clipped or row["kind"] == "point")
    )
    if not points:
        raise ConfigError(f"the paper has no curve of {system!r} in panel {panel!r}")
    return tuple(points)


def rate_at(panel: str, system: str, level: float = LATENCY_LEVEL) -> float:
    """The request rate up to which a system's published curve stays below a latency: on the
    straight line between two plotted points.

    Raises:
        ConfigError: the paper has no such curve.
        RequestError: the curve does not cross the level.
    """
    return sustained_rate(curve(panel, system), level)


@cache
def points(figure: str, quantity: str, series: str) -> tuple[Point, ...]:
    """What another figure shows.

    Args:
        figure: as ``fig13a``.
        quantity: that the name of the quantity begins with.
        series: as in the legend.

    Raises:
        ConfigError: the paper has no such series.
    """
    found = tuple(
        Point(float(row["x"]) if row["x"] else None, float(row["value"]))
        for row in _rows("other_figures.csv")
        if row["figure"] == figure
        and row["quantity"].startswith(quantity)
        and row["series"] == series
    )
    if not found:
        raise ConfigError(f"the paper has no {quantity!r} of {series!r} in {figure!r}")
    return found


def value(figure: str, quantity: str, series: str) -> float:
    """A bar: the one point of a series."""
    (point,) = points(figure, quantity, series)
    return point.value


def _rows(file: str) -> Iterator[dict[str, str]]:
    with (_DATA / file).open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)
