"""The paper's number and ours side by side, with a verdict where one can be given.

A row is *judged* if it has a tolerance and nothing of ours was fitted to it. What was fitted to the
very number that it stands beside is marked, and proves nothing.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minipaged.sim.paper.reasons import reason
from minipaged.text_table import align

Verdict = Literal["", "fitted", "inside", "outside", "far outside"]

CSV_HEAD = ("quantity", "series", "x", "paper", "ours", "error")
#: Beyond so many times its tolerance a number is not a near miss any more.
FAR = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """One number of the paper's, and ours.

    Attributes:
        figure: as ``fig12``.
        quantity: what is compared, with its unit.
        series: of what: a system, or a panel and a system.
        x: where on the axis; None: there is none.
        paper: None: the paper does not say.
        ours: None: we could not find it.
        tolerance: in the unit of :attr:`error`; None: it is shown, and not judged.
        in_points: the error is a difference (of percentages, say), and not relative.
        fitted: a constant of ours was fitted to this number.
        spread: the lowest and the highest of ours over seeds, if there were several.
        note: what to know about it.
        detail: a point of a curve: for the picture and the file, not for the table.
    """

    figure: str
    quantity: str
    series: str
    x: float | None = None
    paper: float | None = None
    ours: float | None = None
    tolerance: float | None = None
    in_points: bool = False
    fitted: bool = False
    spread: tuple[float, float] | None = None
    note: str = ""
    detail: bool = False

    @property
    def error(self) -> float | None:
        """Ours against the paper's: percent of the paper's, or with ``in_points`` the plain
        difference. None: one of them is missing, or the paper's is 0."""
        if self.paper is None or self.ours is None:
            return None
        if self.in_points:
            return self.ours - self.paper
        return 100 * (self.ours - self.paper) / self.paper if self.paper else None

    @property
    def judged(self) -> bool:
        return self.tolerance is not None and self.paper is not None and not self.fitted

    @property
    def verdict(self) -> Verdict:
        """``far outside`` is beyond twice the tolerance, or a number that we could not find."""
        if self.fitted:
            return "fitted"
        if not self.judged or self.tolerance is None:
            return ""
        if self.error is None or abs(self.error) > FAR * self.tolerance:
            return "far outside"
        return "inside" if abs(self.error) <= self.tolerance else "outside"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many judged rows are inside their tolerance."""

    inside: int
    judged: int

    def __str__(self) -> str:
        return f"{self.inside} of {self.judged}"


def tally(rows: Iterable[Row]) -> Tally:
    """Count the rows that are judged."""
    verdicts = [row.verdict for row in rows if row.judged]
    return Tally(verdicts.count("inside"), len(verdicts))


def shortcomings(rows: Sequence[Row]) -> list[str]:
    """What a reproduction has to fulfil, and this one does not.

    All shares of figure 2 must be inside their tolerance, all bars of figure 13 but one, and four
    fifths of everything else; and nothing may be beyond twice its tolerance.

    Returns:
        A sentence each.
    """
    by_figure: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_figure[row.figure if row.figure in ("fig2", "fig13") else "the others"].append(row)
    found = []
    for figure, share in (("fig2", 1.0), ("fig13", 7 / 8), ("the others", 0.8)):
        count = tally(by_figure[figure])
        if count.inside < share * count.judged:
            found.append(f"{figure}: {count} inside the tolerance, and {share:.1%} must be")
    found += [
        f"{row.figure}: {row.quantity}, {row.series}"
        + ("" if row.x is None else f" at {row.x:g}")
        + f": {_number(row.ours)} against {_number(row.paper)} is beyond twice the tolerance"
        for row in rows
        if row.verdict == "far outside"
    ]
    return found


# --------------------------------------------------------------------------- files and text
def write_csv(rows: Iterable[Row], path: Path) -> None:
    """All rows, judged or not. ``error`` is in percent, or in percentage points where the
    quantity is a share."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_HEAD)
        for row in rows:
            numbers = [_cell(number) for number in (row.x, row.paper, row.ours, row.error)]
            writer.writerow([row.quantity, row.series, *numbers])


def render(title: str, rows: Sequence[Row]) -> str:
    """The rows that have a number of the paper's, but for details, as a table of plain text; under
    it the notes, and each miss with its reason."""
    shown = [row for row in rows if row.paper is not None and not row.detail]
    spread = any(row.spread for row in shown)
    head = ["quantity", "series", "x", "paper", "ours", "error", *["over seeds"][:spread], ""]
    table = [head, *(_line(row, spread) for row in shown)]
    lines = [title, "", *align(table, right=range(2, len(head) - 1)), ""]
    notes = dict.fromkeys(row.note for row in rows if row.note)
    lines += [f"* {note}" for note in notes]
    for row in shown:
        if row.verdict in ("outside", "far outside"):
            lines.append(f"! {row.quantity}, {row.series}: {reason(row)}")
    if any(row.judged for row in shown):
        lines.append(f"{tally(shown)} judged numbers are inside their tolerance.")
    return "\n".join(lines).rstrip()


def _line(row: Row, spread: bool) -> list[str]:
    unit = " pt" if row.in_points else " %"
    error = "" if row.error is None else f"{row.error:+.1f}{unit}"
    line = [
        row.quantity,
        row.series,
        "" if row.x is None else f"{row.x:g}",
        _number(row.paper),
        _number(row.ours),
        error,
    ]
    if spread:
        line.append("" if row.spread is None else " to ".join(map(_number, row.spread)))
    allowed = f" ({row.tolerance:g}{unit})" if row.judged else ""
    return [*line, f"{row.verdict}{allowed}"]


def _number(number: float | None) -> str:
    """Three digits at least, and no more than help."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _cell(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"
