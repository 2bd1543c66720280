"""Figure 15: the memory that siblings save by sharing blocks."""

from __future__ import annotations

from pathlib import Path

from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.jobs import Job
from minipaged.sim.paper.panels import FIG14
from minipaged.sim.paper.published import points, rate_at
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.style import OTHERS, figure, label_pair

TITLE = "Figure 15. Blocks saved by sharing (%)"

SAVED = "blocks saved (%)"
WIDTHS = (2, 4, 6)
#: kind -> (the paper's series on Alpaca, the ends of its range on ShareGPT as the text has them,
#: tolerance in percentage points)
KINDS = {
    "parallel": (("fig15a", "memory_saving_pct_parallel_alpaca"), (16.2, 30.5), 2.0),
    "beam": (("fig15b", "memory_saving_pct_beam_alpaca"), (44.3, 66.3), 5.0),
}
#: Of the rate that vLLM sustains in the paper's figure 14.
_LOAD = 0.8
#: vLLM's load on ShareGPT, in sequences a second. The paper has no curve of such requests.
_SHAREGPT_SEQUENCES = 1.6


def compute(study: Study) -> list[Row]:
    """Alpaca as in the figure, ShareGPT as in the text."""
    jobs = [job for dataset in ("alpaca", "sharegpt") for job in _jobs(dataset, study)]
    saved = {
        (job.workload, job.beam, job.num_sequences): outcome.saved
        for job, outcome in zip(jobs, study.sweep.run(jobs, "fig15"))
    }
    return [*_alpaca(saved), *_sharegpt(saved)]


def _jobs(dataset: str, study: Study) -> list[Job]:
    duration = study.duration(300, 90) if dataset == "alpaca" else study.duration(1200, 200)
    jobs = []
    for panel in FIG14:
        rate = _SHAREGPT_SEQUENCES / panel.num_sequences
        if dataset == "alpaca":
            rate = _LOAD * rate_at(panel.name, "vLLM")
        jobs.append(
            Job(dataset, "vllm", "opt-13b", rate, duration, rate, panel.num_sequences, panel.beam,
                observe=("sharing",))
        )  # fmt: skip
    return jobs


Saved = dict[tuple[str, bool, int], float]


def _alpaca(saved: Saved) -> list[Row]:
    return [
        Row("fig15", SAVED, f"Alpaca, {kind}", point.x, point.value,
            saved["alpaca", kind == "beam", int(point.x or 0)], tolerance, in_points=True,
            fitted=kind == "beam" and point.x == 2,
            note=f"Alpaca: at {_LOAD:.0%} of the rate that vLLM sustains in figure 14")
        for kind, (name, _, tolerance) in KINDS.items()
        for point in points(*name, "vLLM")
    ]  # fmt: skip


def _sharegpt(saved: Saved) -> list[Row]:
    """The text has a range; it is taken to be that from width 2 to width 6."""
    return [
        Row("fig15", SAVED, f"ShareGPT, {kind}", width, dict(zip((2, 6), ends)).get(width),
            saved["sharegpt", kind == "beam", width], in_points=True,
            note="ShareGPT: the text has a range, which is shown at its ends and not judged; "
            f"{_SHAREGPT_SEQUENCES:g} sequences a second")
        for kind, (_, ends, _) in KINDS.items()
        for width in WIDTHS
    ]  # fmt: skip


def draw(rows: list[Row], path: Path) -> None:
    """A diagram for parallel sampling, and one for beam search."""
    with figure(path, 12, 5, TITLE) as page:
        for axes, kind in zip(page.subplots(1, 2), KINDS):
            shown = [row for row in rows if row.series.endswith(kind)]
            highest = max(max(row.paper or 0.0, row.ours or 0.0) for row in shown)
            for at, (dataset, look) in enumerate(zip(("Alpaca", "ShareGPT"), OTHERS)):
                bars = [row for row in shown if row.series.startswith(dataset)]
                x = [4 * at + place for place in range(len(bars))]
                axes.bar(x, [row.ours or 0.0 for row in bars], 0.7, color=look.color, label=dataset)
                for place, row in zip(x, bars):
                    label_pair(axes, place, row.paper, row.ours, highest)
            ticks = [0, 1, 2, 4, 5, 6]
            axes.set_xticks(ticks, [str(width) for width in (*WIDTHS, *WIDTHS)])
            title = "a. Parallel sampling" if kind == "parallel" else "b. Beam search"
            axes.set(title=title, xlabel="sequences a request", ylabel=SAVED,
                     ylim=(0, 1.18 * highest))  # fmt: skip
            axes.grid(axis="x", visible=False)
            axes.legend(loc="upper left")
        page.supxlabel("bars: ours    diamonds, and numbers in brackets: the paper's", fontsize=12)
