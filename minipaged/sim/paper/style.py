"""The look of all figures: readable from the last row, with any of the common color blindnesses,
and on paper without color. What the paper published are hollow markers, what is ours are lines and
filled bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Look:
    """Of a system, or of whatever a figure compares.

    Attributes:
        color: after Okabe and Ito.
        marker: of published points.
        line: of ours.
    """

    color: str
    marker: str
    line: Any = "-"


LOOKS = {
    "FasterTransformer": Look("#5F6670", "x", (0, (1, 1.2))),
    "Orca (Max)": Look("#D55E00", "s", "-."),
    "Orca (Pow2)": Look("#E69F00", "^", "--"),
    "Orca (Oracle)": Look("#009E73", "D", (0, (5, 1.5))),
    "vLLM": Look("#0072B2", "o", "-"),
}
#: For series that are no systems, in order.
OTHERS = (
    Look("#0072B2", "o", "-"),
    Look("#D55E00", "s", "--"),
    Look("#009E73", "D", "-."),
    Look("#CC79A7", "^", ":"),
)

INK, GRID = "#22272E", "#D9DEE3"

_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 13,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "lines.linewidth": 2.4,
    "lines.markersize": 8,
    "hatch.linewidth": 0.7,
    "savefig.dpi": 150,
}


@contextmanager
def figure(path: Path, width: float, height: float, title: str = "") -> Iterator[Figure]:
    """A figure to draw on, which is written when it is done.

    Args:
        width, height: inches.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        page = Figure(figsize=(width, height), layout="constrained")
        if title:
            page.suptitle(title, x=0.01, ha="left", fontsize=16, fontweight="bold")
        yield page
        path.parent.mkdir(parents=True, exist_ok=True)
        page.savefig(path)


def plot_ours(axes: Axes, points: list[tuple[float, float]], look: Look, label: str = "") -> None:
    """A line."""
    axes.plot(*zip(*sorted(points)), color=look.color, ls=look.line, label=label or None)


def plot_paper(axes: Axes, points: list[tuple[float, float]], look: Look, label: str = "") -> None:
    """Hollow markers."""
    axes.plot(
        *zip(*sorted(points)), color=look.color, ls="", marker=look.marker, mfc="white", mew=1.9,
        label=label or None, zorder=3,
    )  # fmt: skip


#: What bars and diamonds are.
BARS = "bars: ours    diamonds: the paper's"


def label_pair(
    axes: Axes, x: float, paper: float | None, ours: float | None, highest: float
) -> None:
    """A bar of ours gets the published height, a white diamond on a line across, and both numbers
    above it.

    Args:
        highest: number of the diagram.
    """
    text = "" if ours is None else f"{ours:.1f}"
    if paper is not None:
        axes.plot([x - 0.36, x + 0.36], [paper, paper], color=INK, lw=1.6, zorder=4)
        axes.plot([x], [paper], marker="D", ms=7, mfc="white", mec=INK, mew=1.6, ls="", zorder=5)
        text += f"\n({paper:.1f})"
    top = max(paper or 0.0, ours or 0.0)
    axes.text(x, top + 0.025 * highest, text, ha="center", va="bottom", fontsize=12, linespacing=1)


def legend_of_kinds(page: Figure, columns: int, handles: list[Any]) -> None:
    """One legend for a page: what the series are, and which are the paper's."""
    from matplotlib.lines import Line2D

    kinds = [
        Line2D([], [], color=INK, label="ours"),
        Line2D([], [], color=INK, ls="", marker="o", mfc="white", mew=1.9, label="the paper's"),
    ]
    page.legend(handles=[*handles, *kinds], loc="outside lower center", ncols=columns)
