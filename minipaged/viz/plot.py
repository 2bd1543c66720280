"""The pool and its memory classes as matplotlib figures, for notebooks and papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minipaged.viz.palette import color_of
from minipaged.viz.state import Fill, Pool, PoolState

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: field of a memory-classes record -> (the paper's name, color, hatch); figure 2's order
CLASSES = {
    "token_states": ("Token states", "#009E73", ""),
    "reserved": ("Reserved", "#E69F00", "//"),
    "internal": ("Internal fragmentation", "#CC79A7", "\\\\"),
    "external": ("External fragmentation and free", "#C8CDD2", ".."),
}


def plot_pool(state: PoolState, columns: int = 16, title: str = "") -> Figure:
    """A figure of both pools: a square a block, filled from the left as far as it holds tokens,
    hatched where it is shared; free blocks are outlines."""
    from matplotlib.figure import Figure

    pools = list(state.pools())
    rows = [max(1, -(-pool.num_blocks // columns)) for _, pool in pools]
    figure = Figure(figsize=(0.42 * columns + 0.4, 0.42 * sum(rows) + 0.5 * len(pools) + 0.3))
    grid = figure.add_gridspec(len(pools), 1, height_ratios=rows, hspace=0.9 / max(rows))
    for i, (name, pool) in enumerate(pools):
        axes = figure.add_subplot(grid[i])
        shared = f", {len(pool.shared)} shared" if pool.shared else ""
        axes.set_title(
            f"{title + ': ' if title else ''}{name} pool, {pool.num_used} of {pool.num_blocks} "
            f"blocks used{shared}",
            loc="left",
            fontsize=9,
        )
        _draw_pool(axes, state, pool, columns)
    return figure


def _draw_pool(axes: Axes, state: PoolState, pool: Pool, columns: int) -> None:
    holders = state.holders(pool)
    for block in range(pool.num_blocks):
        row, column = divmod(block, columns)
        _draw_block(axes, state, column, row, holders.get(block, []))
        axes.text(column + 0.45, row + 0.45, str(block), ha="center", va="center", fontsize=7,
                  alpha=1.0 if block in holders else 0.5)  # fmt: skip
    axes.set_xlim(-0.1, columns)
    axes.set_ylim(max(1, -(-pool.num_blocks // columns)), -0.1)
    axes.set_aspect("equal")
    axes.axis("off")


def _draw_block(axes: Axes, state: PoolState, x: int, y: int, held: list[Fill]) -> None:
    from matplotlib.patches import Rectangle

    if not held:
        axes.add_patch(Rectangle((x, y), 0.9, 0.9, fill=False, ec="0.7", ls=":", lw=0.8))
        return
    band = 0.9 / len(held)
    for i, (seq, _, tokens) in enumerate(held):
        width = 0.9 * tokens / state.block_size
        axes.add_patch(Rectangle((x, y + i * band), width, band, fc=color_of(seq), alpha=0.5))
    edge = color_of(held[0][0]) if len(held) == 1 else "0.2"
    hatch = "////" if len(held) > 1 else None
    axes.add_patch(
        Rectangle((x, y), 0.9, 0.9, fill=False, ec=edge, lw=1.2, hatch=hatch, hatch_linewidth=0.4)
    )


def plot_memory(systems: Mapping[str, Any], title: str = "KV cache memory") -> Figure:
    """Stacked bars of the four memory classes, in percent, a bar a system (the paper's
    figure 2).

    Args:
        systems: name -> a record with the numbers ``token_states``, ``reserved``, ``internal``
            and ``external``, in any one unit, such as
            :class:`minipaged.kvcache.accounting.MemoryClasses`.

    Raises:
        ValueError: a system whose classes add up to nothing.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 1.25 * len(systems), 3.8), layout="constrained")
    axes = figure.add_subplot()
    names = list(systems)
    bottom = [0.0] * len(names)
    for key, (label, color, hatch) in CLASSES.items():
        heights = [_percent(name, systems[name], key) for name in names]
        bars = axes.bar(names, heights, 0.62, bottom=bottom, label=label, color=color,
                        hatch=hatch, edgecolor="white", linewidth=0.5)  # fmt: skip
        # A number where the bar is tall enough to hold it.
        axes.bar_label(bars, [f"{h:.1f}" if h >= 4 else "" for h in heights],
                       label_type="center", fontsize=8,
                       bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
                       if hatch else None)  # fmt: skip
        bottom = [below + height for below, height in zip(bottom, heights)]
    axes.set_ylim(0, 100)
    axes.set_ylabel("share of the pool (%)")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _percent(name: str, record: Any, key: str) -> float:
    total = sum(float(getattr(record, field)) for field in CLASSES)
    if not total > 0:
        raise ValueError(f"the memory classes of {name!r} add up to {total:g}")
    return 100 * float(getattr(record, key)) / total
