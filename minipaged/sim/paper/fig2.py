"""Figure 2: where the KV memory goes. The mean over the time in which requests wait, of the case
that figure 13a is of: ShareGPT at 2 requests a second."""

from __future__ import annotations

from pathlib import Path

from minipaged.sim.paper import saturated
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.published import value
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.style import figure
from minipaged.sim.systems import SYSTEMS

TITLE = "Figure 2. Where the KV cache goes, percent"

#: our class -> (the paper's, in the data), (name, color, hatch) in the figure
CLASSES = {
    "token_states": ("token_states", "token states", "#009E73", ""),
    "reserved": ("reservation", "reserved", "#E69F00", "//"),
    "internal": ("internal_frag", "internal fragmentation", "#CC79A7", "\\\\"),
    "external": ("external_frag_other", "external fragmentation and other", "#C8CDD2", ".."),
}
_TOLERANCE = 3.0
_LABEL = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}


def compute(study: Study) -> list[Row]:
    """Four shares of four systems."""
    rows = []
    for system, outcome in saturated.sharegpt(study).items():
        title = SYSTEMS[system].title
        for ours, (theirs, name, _, _) in CLASSES.items():
            rows.append(
                Row(
                    "fig2",
                    f"{name} (% of the KV cache)",
                    title,
                    paper=value("fig2", f"pct_of_kv_memory:{theirs}", title),
                    ours=outcome.memory.get(ours),
                    tolerance=_TOLERANCE,
                    in_points=True,
                )
            )
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Stacked bars: the paper's pale, ours beside it."""
    systems = list(dict.fromkeys(row.series for row in rows))
    looks = {
        f"{name} (% of the KV cache)": (name, color, hatch)
        for _, name, color, hatch in CLASSES.values()
    }
    with figure(path, 10.5, 6.2, TITLE) as page:
        axes = page.subplots()
        for at, system in enumerate(systems):
            for shift, kind in ((-0.2, "paper"), (0.2, "ours")):
                bottom = 0.0
                for row in (row for row in rows if row.series == system):
                    name, color, hatch = looks[row.quantity]
                    height = getattr(row, kind) or 0.0
                    bars = axes.bar(
                        at + shift, height, 0.37, bottom, color=color, hatch=hatch,
                        edgecolor="white", alpha=0.55 if kind == "paper" else 1.0,
                        label=name if not at and kind == "ours" else None,
                    )  # fmt: skip
                    if height >= 4:
                        axes.bar_label(bars, [f"{height:.1f}"], label_type="center", bbox=_LABEL)
                    bottom += height
                axes.text(at + shift, 101, kind, ha="center", va="bottom", fontsize=12)
        axes.set_xticks(range(len(systems)), systems, fontsize=14)
        axes.set(ylim=(0, 107), ylabel="share of the KV cache (%)")
        axes.grid(visible=False)
        page.legend(loc="outside lower center", ncols=2)
