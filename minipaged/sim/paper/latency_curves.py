"""Figures 12, 14, 16 and 17: normalized latency over the request rate.

What is compared is the rate at 0.2 s per token, and how many times that of each baseline vLLM's is.
The curves around it are drawn over the paper's points.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.knees import CURVE_SHARES, QUICK_SHARES, Knee, find_knees
from minipaged.sim.paper.panels import Panel
from minipaged.sim.paper.published import LATENCY_LEVEL, curve
from minipaged.sim.paper.study import Figure, Study
from minipaged.sim.paper.style import INK, LOOKS, figure, legend_of_kinds, plot_ours, plot_paper
from minipaged.sim.systems import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Points = list[tuple[float, float]]

RATE = f"rate at {LATENCY_LEVEL:g} s/token (req/s)"
RATIO = f"times its rate at {LATENCY_LEVEL:g} s/token"
LATENCY = "normalized latency (s/token)"

#: Percent, of rates and of ratios. FasterTransformer's batches depend on rules that the paper does
#: not state.
_TOLERANCE, _TOLERANCES = (25.0, 20.0), {"fastertransformer": (40.0, 40.0)}
_COLUMNS = 3
_LEAST_REQUESTS = 400
#: Curves that the cost model of the paper's machine was fitted to (scripts/fit_paper_2023.py).
_FITTED = {("12a", system) for system in ("orca-max", "orca-pow2", "orca-oracle")}


def latency_figure(name: str, title: str, panels: tuple[Panel, ...], note: str = "") -> Figure:
    """A figure of latency curves; the arguments are :class:`LatencyCurves`'."""
    curves = LatencyCurves(name, title, panels, note)
    return Figure(title, curves.compute, curves.draw)


@dataclass(frozen=True)
class LatencyCurves:
    """A figure of several panels.

    Attributes:
        name: as ``fig12``.
        title: in words.
        note: what to know about the workload.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    note: str = ""

    def compute(self, study: Study) -> list[Row]:
        """The rates, the ratios, and the points of our curves."""
        panels = [panel for panel in self.panels if panel.quick or not study.quick]
        curves = {key: job for panel in panels for key, job in panel.jobs(study.quick).items()}
        knees = find_knees(
            study.sweep,
            curves,
            study.seeds,
            self.name,
            QUICK_SHARES if study.quick else CURVE_SHARES,
            least_requests=0 if study.quick else _LEAST_REQUESTS,
        )
        rows = [row for panel in panels for row in self._compare(panel, study.quick, knees)]
        return rows + [row for panel in panels for row in self._curves(panel, knees)]

    def _compare(self, panel: Panel, quick: bool, knees: dict[tuple[str, str], Knee]) -> list[Row]:
        published = panel.curves
        rows, ratios = [], []
        ours = {system: knees[panel.name, system] for system in panel.systems}
        best = ours["vllm"].rate
        for system, paper in published.items():
            knee, title = ours[system], SYSTEMS[system].title
            judged = panel.is_judged(system, quick)
            rate_tolerance, ratio_tolerance = _TOLERANCES.get(system, _TOLERANCE)
            rows.append(
                Row(
                    self.name,
                    RATE,
                    f"{panel.name} {title}",
                    paper=paper,
                    ours=knee.rate,
                    tolerance=rate_tolerance if judged else None,
                    fitted=(panel.name, system) in _FITTED,
                    spread=knee.spread,
                    note=self.note,
                )
            )
            if system != "vllm":
                ratios.append(
                    Row(
                        self.name,
                        RATIO,
                        f"{panel.name} vLLM / {title}",
                        paper=published["vllm"] / paper,
                        ours=best / knee.rate if best and knee.rate else None,
                        tolerance=ratio_tolerance if judged else None,
                    )
                )
        return rows + ratios

    def _curves(self, panel: Panel, knees: dict[tuple[str, str], Knee]) -> list[Row]:
        return [
            Row(self.name, LATENCY, f"{panel.name} {SYSTEMS[system].title}", x=rate, ours=latency)
            for system in panel.systems
            for rate, latency in knees[panel.name, system].points
        ]

    def draw(self, rows: Sequence[Row], path: Path) -> None:
        """Our curves as lines over the paper's points."""
        ours: defaultdict[str, Points] = defaultdict(list)
        for row in rows:
            if row.quantity == LATENCY and row.x is not None and row.ours is not None:
                ours[row.series].append((row.x, row.ours))
        panels = [p for p in self.panels if any(name.split()[0] == p.name for name in ours)]
        columns = min(_COLUMNS, len(panels))
        lines = math.ceil(len(panels) / columns)
        with figure(path, 5.0 * columns + 0.4, 3.7 * lines + 1.2, self.title) as page:
            grid = page.subplots(lines, columns, squeeze=False)
            for at, panel in enumerate(panels):
                self._draw_panel(grid[at // columns][at % columns], panel, ours)
            for axes in grid.flat[len(panels) :]:
                axes.axis("off")
            for axes in grid[:, 0]:
                axes.set_ylabel(LATENCY)
            systems = {SYSTEMS[s].title: s for panel in panels for s in panel.systems}
            legend_of_kinds(page, 4 if columns > 1 else 2, [_handle(t) for t in systems])

    @staticmethod
    def _draw_panel(axes: Axes, panel: Panel, ours: Mapping[str, Points]) -> None:
        top = 1.2 * max(rate for s in panel.systems for rate, _ in _shown(panel, s))
        for system in panel.systems:
            title = SYSTEMS[system].title
            plot_paper(axes, _shown(panel, system), LOOKS[title])
            plot_ours(axes, ours[f"{panel.name} {title}"], LOOKS[title])
        axes.axhline(LATENCY_LEVEL, color=INK, lw=0.9, ls=":", zorder=1)
        axes.set(title=panel.title, xlabel="request rate (req/s)", xlim=(0, top), ylim=(0, 1.0))


def _shown(panel: Panel, system: str) -> Points:
    return list(curve(panel.name, SYSTEMS[system].title, clipped=False))


def _handle(title: str) -> Artist:
    from matplotlib.lines import Line2D

    look = LOOKS[title]
    return Line2D([], [], color=look.color, ls=look.line, marker=look.marker, mfc="white", mew=1.9,
                  label=title)  # fmt: skip
