"""Why a number of ours is not the paper's, where it is not: one honest sentence each, as data.

The first entry that fits a row is its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minipaged.sim.paper.comparison import Row


class Reason(NamedTuple):
    """
    Attributes:
        figure: of the rows that it explains.
        series: that the row's series has in it; empty: any.
        quantity: that the row's quantity has in it; empty: any.
        above: does it explain numbers that are too high? None: either way.
        sentence: the reason.
    """

    figure: str
    series: str
    quantity: str
    above: bool | None
    sentence: str


REASONS: tuple[Reason, ...] = ()

UNKNOWN = "we do not know why."


def reason(row: Row) -> str:
    """The reason for a row that is outside its tolerance."""
    for entry in REASONS:
        if (
            entry.figure == row.figure
            and entry.series in row.series
            and entry.quantity in row.quantity
            and (entry.above is None or row.error is None or entry.above == (row.error > 0))
        ):
            return entry.sentence
    return UNKNOWN
