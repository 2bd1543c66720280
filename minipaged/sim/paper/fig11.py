"""Figure 11: how long prompts and outputs are. What the simulator draws, beside what it draws from:
no result, but the ground that all others stand on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from minipaged.sim.lengths import DATASETS, LengthHistogram, load_lengths
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.style import OTHERS, figure

TITLE = "Figure 11. Lengths of prompts and outputs"

MEAN, SHARE = "mean length (tokens)", "share of the requests (%)"
_NAMES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}
#: Printed in the figure: dataset -> mean prompt, mean output.
PUBLISHED_MEANS = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}
_REQUESTS = 20_000
#: Right end of the diagrams; a request in a thousand is longer.
_LONGEST = {"ShareGPT": 2048, "Alpaca": 600}


def compute(study: Study) -> list[Row]:
    """Means, and the histograms."""
    means, shares = [], []
    for dataset in DATASETS:
        lengths = load_lengths(dataset)
        pairs = np.array(lengths.sample(_REQUESTS, np.random.default_rng(0)))
        for at, (field, histogram) in enumerate(
            (("prompts", lengths.prompt), ("outputs", lengths.output))
        ):
            series = f"{_NAMES[dataset]} {field}"
            means.append(
                Row("fig11", MEAN, series, paper=PUBLISHED_MEANS[dataset][at],
                    ours=float(pairs[:, at].mean()), fitted=True,
                    note=f"{_REQUESTS:,} requests are drawn from the histograms; those with 2,048 "
                    "tokens or more, prompt and output together, are left out as in the paper's "
                    "experiments, which costs ShareGPT's means some tokens")
            )  # fmt: skip
            shares += _shares(series, histogram, pairs[:, at])
    return means + shares


def _shares(series: str, histogram: LengthHistogram, drawn: np.ndarray) -> list[Row]:
    return [
        Row("fig11", SHARE, series, b.first, 100 * b.probability,
            100 * float(((drawn >= b.first) & (drawn <= b.last)).mean()), fitted=True, detail=True)
        for b in histogram.bins
    ]  # fmt: skip


def draw(rows: list[Row], path: Path) -> None:
    """Our draws as filled steps, the paper's histograms as outlines."""
    means = {row.series: row.ours or 0.0 for row in rows if row.quantity == MEAN}
    with figure(path, 12, 4.8, TITLE) as page:
        for axes, name in zip(page.subplots(1, 2), _NAMES.values()):
            for field, look in zip(("prompts", "outputs"), OTHERS):
                series = f"{name} {field}"
                bins = [row for row in rows if row.quantity == SHARE and row.series == series]
                x = [row.x or 0.0 for row in bins]
                axes.fill_between(x, [row.ours or 0.0 for row in bins], step="post", alpha=0.35,
                                  color=look.color, lw=0,
                                  label=f"{field}: mean {means[series]:.0f}")  # fmt: skip
                axes.step(x, [row.paper or 0.0 for row in bins], where="post", color=look.color,
                          lw=1.6)  # fmt: skip
            axes.set(title=name, xlabel="tokens", ylabel=SHARE, ylim=(0.01, 60), yscale="log",
                     xlim=(0, _LONGEST[name]))  # fmt: skip
            axes.legend()
        page.supxlabel("filled: ours    outlines: the paper's", fontsize=12)
