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


REASONS: tuple[Reason, ...] = (
    Reason(
        "fig12",
        "FasterTransformer",
        "",
        None,
        "How requests were batched for FasterTransformer is published as one sentence; a few dozen "
        "requests make its curve, and how long the longest of a batch is decides.",
    ),
    Reason(
        "fig12",
        "12b",
        "",
        True,
        "At the lowest load the paper's Orca and vLLM take 17 ms a token longer than "
        "FasterTransformer on four cards, and 6 on one: a cost of each card that our host has not.",
    ),
    Reason(
        "fig12",
        "12c",
        "",
        True,
        "At the lowest load the paper's Orca and vLLM take 30 ms a token longer than "
        "FasterTransformer on eight cards, and 6 on one: a cost of each card that our host has "
        "not.",
    ),
    Reason(
        "fig12",
        "12e",
        "",
        True,
        "As in 12b: a cost of each card that our host has not.",
    ),
    Reason(
        "fig12",
        "12f",
        "",
        True,
        "As in 12c: a cost of each card that our host has not.",
    ),
    Reason(
        "fig13",
        "vLLM",
        "",
        None,
        "The load is at what vLLM can do, so that a few percent of a step's time decide whether "
        "the pool fills up, and with it how large the batch grows.",
    ),
    Reason(
        "fig14",
        "Orca (Max)",
        "",
        None,
        "Room is for one request at a time, or two; a few long outputs decide, and the paper's "
        "curve is a straight line between points that are a factor of two apart.",
    ),
    Reason(
        "fig14",
        "Orca",
        "",
        True,
        "Orca's beams copy their whole tables when they fork. What that cost in the authors' "
        "reimplementation is not published; here blocks are copied as fast as the memory allows.",
    ),
    Reason(
        "fig14",
        "",
        "rate",
        False,
        "Here the host's time goes by sequences. From basic sampling to six samples the paper's "
        "sequences a second rise by a quarter for Orca (Oracle) and by half for vLLM, as they "
        "would if part of that time went by requests.",
    ),
    Reason(
        "fig14",
        "vLLM",
        "times",
        False,
        "Groups of siblings are swapped when memory is short. Here a step waits for the blocks on "
        "their way; where they move beside the model's work, swapping costs less.",
    ),
    Reason(
        "fig15",
        "parallel",
        "",
        None,
        "Alpaca's prompts are about a block long: how many share a whole block, or two, hangs on "
        "the tail of their lengths.",
    ),
    Reason(
        "fig16",
        "",
        "",
        None,
        "The lengths of the sentences are not published, and ours are assumed.",
    ),
    Reason(
        "fig18",
        "",
        "blocks",
        None,
        "How much slower a kernel reads small blocks is one number here, half_block of the cost "
        "model, and the paper's curve has a step between 8 and 16 that no such number gives.",
    ),
    Reason(
        "fig18",
        "",
        "smallest",
        None,
        "On Alpaca keys and values are a small part of a step, so that reading them slowly costs "
        "little here.",
    ),
)

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
