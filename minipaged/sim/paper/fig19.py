"""Figure 19: swap or recompute, by the size of blocks."""

from __future__ import annotations

from pathlib import Path

from minipaged.capacity import find_model
from minipaged.scheduling.transfer_cost import A100_2023, recompute_seconds, swap_seconds
from minipaged.sim.paper.block_sizes import DEFAULT, LATENCY, draw_block_sizes, latencies
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.published import points
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.style import OTHERS, figure, plot_ours, plot_paper

TITLE = "Figure 19. Swapping against recomputation"

COST = "cost of one preemption (ms)"
WAYS = ("Recompute", "Swap in", "Swap out", "Swap in+out")
#: Tokens of the sequence: the only power of two that fits the figure (see transfer_cost).
_TOKENS = 256
#: Block sizes that the link is fitted at, and percent by which those between them may be off.
_FITTED, _TOLERANCE = (16, 256), 5.0


def compute(study: Study) -> list[Row]:
    """19a from a closed form, 19b simulated."""
    rows = [
        Row("fig19", COST, way, point.x, point.value, 1e3 * preemption_seconds(way, int(point.x)),
            tolerance=_TOLERANCE if _FITTED[0] < point.x < _FITTED[1] else None,
            fitted=point.x in _FITTED and (way != "Recompute" or point.x == _FITTED[0]),
            note="costs: the link was fitted at blocks of 16 and 256, recomputation at 16; those "
            "between are judged")
        for way in WAYS
        for point in points("fig19a", "ms_vs_block_size", way)
        if point.x is not None
    ]  # fmt: skip
    return rows + _latencies(study)


def preemption_seconds(way: str, block_size: int) -> float:
    """One of :data:`WAYS`, for a sequence of 256 tokens of OPT-13B on the paper's machine."""
    model, machine = find_model("opt-13b"), A100_2023
    if way == "Recompute":
        return recompute_seconds(model, 2, _TOKENS, machine)
    blocks = -(-_TOKENS // block_size)
    swap_in = swap_seconds(model, 2, blocks, block_size, machine.swap_in)
    swap_out = swap_seconds(model, 2, blocks, block_size, machine.swap_out)
    return {"Swap in": swap_in, "Swap out": swap_out, "Swap in+out": swap_in + swap_out}[way]


def _latencies(study: Study) -> list[Row]:
    curves = {
        "Recompute": latencies(study, "ShareGPT"),
        "Swap": latencies(study, "ShareGPT", "swap"),
    }
    published = {
        name: points("fig19b", "norm_latency_s_per_tok_vs_block_size", name) for name in curves
    }
    (paper,) = (
        swap.value / again.value
        for swap, again in zip(published["Swap"], published["Recompute"])
        if swap.x == DEFAULT
    )
    ours = curves["Swap"][DEFAULT] / curves["Recompute"][DEFAULT]
    ratio = Row("fig19", "latency, swap / recompute", "ShareGPT", DEFAULT, paper, ours,
                note="latencies: at the rate of figure 18b")  # fmt: skip
    return [ratio] + [
        Row("fig19", LATENCY, name, point.x, point.value, curves[name].get(int(point.x or 0)),
            detail=True)
        for name, curve in published.items()
        for point in curve
    ]  # fmt: skip


def draw(rows: list[Row], path: Path) -> None:
    """The cost of one preemption on the left, what comes of it on the right."""
    with figure(path, 12, 5, TITLE) as page:
        cost, latency = page.subplots(1, 2)
        for way, look in zip(WAYS, OTHERS):
            curve = [row for row in rows if row.quantity == COST and row.series == way]
            plot_paper(cost, [(r.x or 0.0, r.paper or 0.0) for r in curve], look)
            plot_ours(cost, [(r.x or 0.0, r.ours or 0.0) for r in curve], look, way)
        cost.set_xscale("log", base=2)
        cost.set_xticks([row.x for row in rows if row.series == WAYS[0] and row.quantity == COST])
        cost.xaxis.set_major_formatter("{x:.0f}")
        cost.set(title="a. One preemption", xlabel="block size (tokens)", ylabel=COST, ylim=0)
        cost.legend()
        draw_block_sizes(latency, "b. ShareGPT", {"Recompute": OTHERS[0], "Swap": OTHERS[1]}, rows)
        page.supxlabel("lines: ours    hollow markers: the paper's", fontsize=12)
