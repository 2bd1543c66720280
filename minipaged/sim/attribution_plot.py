"""Where the time went, as stacked bars: one of the machine and one of the mean request a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minipaged.sim.attribution import MACHINE_TERMS, REQUEST_TERMS, Attribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: term -> (in the legend, color, hatch); colors that the common color blindnesses tell apart.
_LOOK = {
    "weights": ("weights", "#0072B2", ""),
    "kv": ("keys and values", "#56B4E9", ""),
    "compute": ("compute", "#D55E00", ""),
    "host": ("host", "#E69F00", ""),
    "network": ("network", "#009E73", ""),
    "link": ("link to the host", "#882255", ""),
    "queueing": ("queueing", "#CC79A7", "//"),
    "idle": ("idle", "#E3E6E8", ".."),
}


def plot_attribution(runs: Mapping[str, Attribution], title: str = "") -> Figure:
    """A figure of two panels: on the left the machine's time in percent of the run, on the right
    the seconds of the mean request.

    Args:
        runs: label -> attribution, in the order of the bars.

    Raises:
        ValueError: there is no run.
    """
    from matplotlib.figure import Figure

    if not runs:
        raise ValueError("there is no run to plot")
    figure = Figure(figsize=(5.6 + 1.1 * len(runs), 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    totals = [sum(run.machine.values()) for run in runs.values()]
    percent = [
        {term: 100 * seconds / total for term, seconds in run.machine.items()}
        for run, total in zip(runs.values(), totals)
    ]
    _stack(left, list(runs), percent, MACHINE_TERMS)
    left.set(ylabel="time of the machine (% of the run)", ylim=(0, 100))
    _stack(right, list(runs), [run.request for run in runs.values()], REQUEST_TERMS)
    right.set(ylabel="time of the mean request (s)")
    handles = {
        label: handle
        for axes in (left, right)
        for handle, label in zip(*axes.get_legend_handles_labels())
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
    )
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _stack(
    axes: Axes, labels: list[str], bars: Sequence[Mapping[str, float]], terms: Sequence[str]
) -> None:
    """One bar a run. A term that no run has is left out of the legend too."""
    bottom = [0.0] * len(bars)
    for term in terms:
        heights = [bar[term] for bar in bars]
        if not any(heights):
            continue
        name, color, hatch = _LOOK[term]
        axes.bar(
            labels, heights, 0.66, bottom=bottom, label=name, color=color, hatch=hatch,
            edgecolor="white", linewidth=0.6,
        )  # fmt: skip
        bottom = [below + height for below, height in zip(bottom, heights)]
    axes.spines[["top", "right"]].set_visible(False)
