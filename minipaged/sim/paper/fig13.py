"""Figure 13: requests in a batch, on average over the whole run."""

from __future__ import annotations

from pathlib import Path

from minipaged.sim.paper import saturated
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.published import value
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.style import BARS, LOOKS, figure, label_pair
from minipaged.sim.systems import SYSTEMS

TITLE = "Figure 13. Requests in a batch"

_PANELS = {
    "13a": ("a. ShareGPT, 2 req/s", "avg_batched_requests_sharegpt_2rps"),
    "13b": ("b. Alpaca, 30 req/s", "avg_batched_requests_alpaca_30rps"),
}
#: Percent. How far vLLM's batch grows on Alpaca hangs on how near the load is to what it can do.
_TOLERANCE, _LOOSE = 8.0, {("13b", "vllm"): 15.0}


def compute(study: Study) -> list[Row]:
    """Two loads, four systems."""
    runs = {"13a": saturated.sharegpt(study), "13b": saturated.alpaca(study)}
    return [
        Row(
            "fig13",
            "requests in a batch",
            f"{panel} {SYSTEMS[system].title}",
            paper=value(f"fig{panel}", _PANELS[panel][1], SYSTEMS[system].title),
            ours=outcome.mean_batch,
            tolerance=_LOOSE.get((panel, system), _TOLERANCE),
        )
        for panel, outcomes in runs.items()
        for system, outcome in outcomes.items()
    ]


def draw(rows: list[Row], path: Path) -> None:
    """Bars are ours; the paper's heights are marked."""
    with figure(path, 12, 5, TITLE) as page:
        for axes, (panel, (title, _)) in zip(page.subplots(1, 2), _PANELS.items()):
            shown = [row for row in rows if row.series.startswith(panel)]
            names = [row.series.removeprefix(f"{panel} ") for row in shown]
            heights = [row.ours or 0.0 for row in shown]
            axes.bar(names, heights, 0.6, color=[LOOKS[name].color for name in names])
            highest = max(max(row.paper or 0.0, row.ours or 0.0) for row in shown)
            for at, row in enumerate(shown):
                label_pair(axes, at, row.paper, row.ours, highest)
            axes.set(title=title, ylabel="requests in a batch", ylim=(0, 1.15 * highest))
            axes.grid(axis="x", visible=False)
            axes.tick_params(axis="x", labelsize=11)
        page.supxlabel(BARS, fontsize=12)
