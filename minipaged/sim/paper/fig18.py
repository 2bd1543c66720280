"""Figure 18: what paging costs the attention kernel, and what size blocks should have.

Without a GPU the kernel cannot be timed: what stands beside the paper's microseconds is the time
below which no kernel gets. ``minipaged kernels bench`` times ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.capacity import find_gpu, find_model
from minipaged.kernels.traffic import AttentionShape, decode_traffic, floor_seconds
from minipaged.sim.paper.block_sizes import LATENCY, claims, draw_block_sizes, latencies
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.published import points
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.style import OTHERS, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Figure 18. The attention kernel, and the size of blocks"

KERNEL = "attention kernel (us)"
#: Seconds from the call of a kernel to its start.
_LAUNCH = 5e-6
_KERNELS = {"vLLM bs8": 8, "FT bs8": 8, "vLLM bs32": 32, "FT bs32": 32}
_DATASETS = {"ShareGPT": True, "Alpaca": False}


def compute(study: Study) -> list[Row]:
    """18a from the traffic of a kernel, 18b simulated."""
    rows = _kernel()
    for dataset, fitted in _DATASETS.items():
        curve = latencies(study, dataset)
        rows += claims("fig18", dataset, curve, fitted)
        rows += [
            Row("fig18", LATENCY, dataset, point.x, point.value, curve.get(int(point.x or 0)),
                detail=True)
            for point in points("fig18b", "norm_latency_s_per_tok_vs_block_size", dataset)
        ]  # fmt: skip
    return rows


def _kernel() -> list[Row]:
    model, gpu = find_model("opt-13b"), find_gpu("a100-40gb")
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, 16, 2)
    rows = []
    for series, batch in _KERNELS.items():
        for point in points("fig18a", "attn_kernel_us", series):
            traffic = decode_traffic([int(point.x or 0)] * batch, shape)
            floor = floor_seconds(traffic, gpu.hbm_bytes_per_s) + _LAUNCH
            rows.append(
                Row("fig18", KERNEL, series, point.x, point.value, 1e6 * floor,
                    note="kernel: no GPU here. Ours is the floor: the bytes that decoding must "
                    "move, at the bandwidth of the card's data sheet, and 5 us for the launch")
            )  # fmt: skip
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """The kernel on the left, block sizes on the right."""
    with figure(path, 15, 5, TITLE) as page:
        kernel, *others = page.subplots(1, 3)
        _draw_kernel(kernel, [row for row in rows if row.quantity == KERNEL])
        for axes, dataset in zip(others, _DATASETS):
            draw_block_sizes(axes, f"b. {dataset}", {dataset: OTHERS[0]}, rows)
        page.supxlabel("lines: ours    hollow markers: the paper's", fontsize=12)


def _draw_kernel(axes: Axes, rows: list[Row]) -> None:
    for at, (name, look) in enumerate(zip(_KERNELS, (OTHERS[0], OTHERS[1]) * 2)):
        curve = [row for row in rows if row.series == name]
        x = [row.x or 0.0 for row in curve]
        axes.plot(x, [row.paper or 0.0 for row in curve], color=look.color, ls=":", lw=1.2,
                  marker="s" if at > 1 else "o", mfc="white", mew=1.9, label=name)  # fmt: skip
        if name.startswith("vLLM"):
            batch = _KERNELS[name]
            axes.plot(x, [row.ours or 0.0 for row in curve], color="0.35",
                      ls="-" if at > 1 else "--", label=f"floor bs{batch}")  # fmt: skip
    axes.set(title="a. Attention kernel", xlabel="context (tokens)", ylabel=KERNEL, ylim=0)
    axes.legend(fontsize=10)
