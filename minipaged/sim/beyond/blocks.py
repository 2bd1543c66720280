"""Block size 1 to 256: what it costs beyond the latencies of figure 18b.

Two things pull in opposite directions. A large block is partly empty at the end of a sequence,
which is memory that no other request gets; a small one makes many transfers out of one swap, and
many entries out of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from minipaged.capacity import find_model
from minipaged.config import PAPER_2023_CACHE
from minipaged.scheduling.transfer_cost import A100_2023, swap_seconds
from minipaged.sim.beyond.experiment import Experiment, Findings, Lab, Trial
from minipaged.sim.paper.style import OTHERS, figure, plot_ours
from minipaged.sim.workloads import paper

if TYPE_CHECKING:
    from minipaged.contracts import StepPlan
    from minipaged.engine import Engine
    from minipaged.sim.beyond.experiment import Numbers

Dataset = Literal["sharegpt", "alpaca"]

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_QUICK = (1, 16, 256)
#: dataset -> a rate past what the system sustains, so that memory is what limits it (req/s)
LOADS: Mapping[Dataset, float] = {"sharegpt": 4.0, "alpaca": 60.0}
TITLES: Mapping[Dataset, str] = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}

UNUSED = "slots of allocated blocks without a token (%)"
BATCH = "requests in a batch"
SWAP, TABLE = "swap out and in, 256 tokens (ms)", "block table of 2,048 tokens (entries)"
MODEL = "OPT-13B"


class SlackObserver:
    """Slots of allocated blocks that hold no token, and requests in the batch, while some wait."""

    def __init__(self) -> None:
        self._seconds = self._unused = self._batch = 0.0

    def observe(self, engine: Engine, plan: StepPlan, seconds: float) -> None:
        """See :class:`minipaged.sim.simulate.Observer`."""
        scheduler, kv = engine.scheduler, engine.kv
        if not scheduler.running or not (scheduler.waiting or scheduler.swapped):
            return
        live = [seq for group in scheduler.running for seq in group.live]
        slots = kv.block_size * sum(len(kv.block_table(seq.seq_id)) for seq in live)
        if slots:
            tokens = sum(seq.num_computed for seq in live)
            self._unused += seconds * (slots - tokens) / slots
            self._batch += seconds * len(scheduler.running)
            self._seconds += seconds

    def numbers(self) -> Numbers:
        """Means over time."""
        seconds = self._seconds or 1.0
        return {"unused": 100 * self._unused / seconds, "waiting_batch": self._batch / seconds}


def measure(lab: Lab) -> Findings:
    """Both datasets with blocks of each size; what a swap takes, in closed form."""
    sizes = lab.choose(BLOCK_SIZES, _QUICK)
    durations: Mapping[Dataset, float] = {
        "sharegpt": lab.choose(300.0, 60.0),
        "alpaca": lab.choose(40.0, 10.0),
    }
    cases = [(dataset, size) for dataset in LOADS for size in sizes]
    trials = [
        Trial(
            partial(paper, dataset, LOADS[dataset], durations[dataset], lab.seed),
            cache=replace(PAPER_2023_CACHE, block_size=size),
            observer=SlackObserver,
        )
        for dataset, size in cases
    ]
    found = Findings()
    for (dataset, size), numbers in zip(cases, lab.run(trials, "blocks")):
        found.add(UNUSED, TITLES[dataset], numbers["unused"], size)
        found.add(BATCH, TITLES[dataset], numbers["waiting_batch"], size)
    for size in BLOCK_SIZES:
        found.add(SWAP, MODEL, 1e3 * _swap(size), size)
        found.add(TABLE, MODEL, 2048 / size, size)
    return found


def _swap(size: int) -> float:
    """Seconds for a sequence of 256 tokens of OPT-13B, on the paper's machine."""
    blocks = 256 // size
    return sum(
        swap_seconds(find_model("opt-13b"), 2, blocks, size, link)
        for link in (A100_2023.swap_out, A100_2023.swap_in)
    )


def conclude(found: Findings) -> list[str]:
    """What the ends of the range cost."""
    sentences = []
    for title in found.series(UNUSED):
        unused = {size: found.get(UNUSED, title, size) for size in (1, 16, 256)}
        batch = {size: found.get(BATCH, title, size) for size in (1, 16, 256)}
        sentences.append(
            f"{title}: of the slots in allocated blocks {unused[16]:.1f} % hold no token with "
            f"blocks of 16, and {unused[256]:.0f} % with blocks of 256, which leaves "
            f"{batch[256]:.0f} requests in a batch instead of {batch[16]:.0f}. With blocks "
            f"of 1 it has {batch[1]:.0f}."
        )
    swap = {size: found.get(SWAP, MODEL, size) for size in (1, 16, 256)}
    sentences.append(
        f"Small blocks cost elsewhere: to swap 256 tokens out and in takes {swap[1]:.0f} ms with "
        f"blocks of 1, {swap[16]:.0f} ms with 16 and {swap[256]:.0f} ms with 256."
    )
    return sentences


def draw(found: Findings, path: Path) -> None:
    """Waste, batch, swap."""
    panels = (
        ("a. Waste inside blocks", UNUSED),
        ("b. Requests in a batch", BATCH),
        ("c. A swap", SWAP),
    )
    with figure(path, 15, 5.2, EXPERIMENT.title) as page:
        for axes, (title, quantity) in zip(page.subplots(1, 3), panels):
            for name, look in zip(found.series(quantity), OTHERS):
                plot_ours(axes, found.curve(quantity, name), look, name)
            axes.set_xscale("log", base=2)
            axes.set_xticks(BLOCK_SIZES, [str(size) for size in BLOCK_SIZES])
            axes.set(title=title, xlabel="block size (tokens)", ylabel=quantity.partition(",")[0])
            axes.legend()
            axes.set_ylim(0)
        axes.set_ylabel(SWAP)


EXPERIMENT = Experiment(
    "Block size: waste, batches, swaps",
    "What does the size of blocks cost, at either end?",
    measure,
    conclude,
    draw,
)
