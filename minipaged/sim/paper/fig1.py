"""Figure 1: what is on the card, and what more requests in a batch bring and cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from minipaged.capacity import find_gpu, find_model, make_plan
from minipaged.config import PAPER_2023_CACHE
from minipaged.executor.cost_model import StepLoad
from minipaged.sim.lengths import MAX_MODEL_LEN, load_lengths
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.published import points
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.style import OTHERS, figure, plot_ours, plot_paper
from minipaged.sim.simulate import PAPER_DEPLOYMENTS

TITLE = "Figure 1. OPT-13B on an A100 with 40 GB"

THROUGHPUT, MEMORY = "throughput (tokens/s)", "memory (GB)"
EXISTING, VLLM = "existing systems", "vLLM"
#: Tokens in the cache of each request of the figure, by its own memory: at 40 requests, which are
#: as many as vLLM shows, 12.35 GB are filled beside the weights.
CONTEXT = 377
#: As the paper counts: 26 GB of parameters are 65 %.
_CARD_BYTES = 40e9


def compute(study: Study) -> list[Row]:
    """The card on the left; memory and throughput over the batch on the right."""
    return [*_card(), *_throughput(), *_memory()]


def _card() -> list[Row]:
    place = PAPER_DEPLOYMENTS["opt-13b"]
    plan = make_plan(find_model(place.model), find_gpu(place.gpu), cache=PAPER_2023_CACHE)
    return [
        Row("fig1", "parameters (% of the card)", "left", paper=65.0,
            ours=100 * plan.weight_bytes / _CARD_BYTES, in_points=True),
        Row("fig1", "KV cache (% of the card)", "left", paper=30.0,
            ours=100 * plan.kv_bytes / _CARD_BYTES, in_points=True,
            note='KV cache: the paper says "more than 30 %"'),
    ]  # fmt: skip


def _throughput() -> list[Row]:
    cost = PAPER_DEPLOYMENTS["opt-13b"].cost_model()
    rows = []
    for point in points("fig1_right", "throughput_tok_per_s_vs_batch", "vLLM/any"):
        batch = int(point.x or 0)
        seconds = sum(cost.seconds(StepLoad(batch, batch, batch * CONTEXT)))
        rows.append(
            Row("fig1", THROUGHPUT, "any system", batch, point.value, batch / seconds, fitted=True,
                note=f"throughput: {CONTEXT} tokens of context each; the cost model was fitted to "
                "these points")
        )  # fmt: skip
    return rows


def _memory() -> list[Row]:
    plan = make_plan(find_model("opt-13b"), find_gpu("a100-40gb"), cache=PAPER_2023_CACHE)
    weights, token = plan.weight_bytes / 1e9, plan.kv_bytes_per_token / 1e9
    tokens = {EXISTING: float(MAX_MODEL_LEN), VLLM: resident_tokens("sharegpt")}
    notes = {
        EXISTING: f"existing systems: {MAX_MODEL_LEN:,} slots a request",
        VLLM: f"vLLM: {tokens[VLLM]:.0f} slots a request, the mean of ShareGPT's over the time "
        "that they are there",
    }
    return [
        Row("fig1", MEMORY, series, point.x, point.value,
            weights + (point.x or 0.0) * tokens[series] * token, note=notes[series],
            detail=0 < (point.x or 0.0) < most)
        for series, name, most in ((EXISTING, "existing", 8), (VLLM, "vLLM", 38))
        for point in points("fig1_right", "memory_GB_vs_batch", name)
    ]  # fmt: skip


def resident_tokens(dataset: str, block_size: int = PAPER_2023_CACHE.block_size) -> float:
    """Slots that a running request holds, on average over time: long ones stay longer, and count
    more. A prompt of p tokens and an output of o hold p + o / 2 for o steps, and half a block."""
    pairs = load_lengths(dataset).sample(20_000, np.random.default_rng(0))
    prompts, outputs = np.array(pairs, dtype=np.float64).T
    held = outputs * (prompts + outputs / 2)
    return float(held.sum() / outputs.sum()) + (block_size - 1) / 2


def draw(rows: list[Row], path: Path) -> None:
    """Memory and throughput over the batch."""
    with figure(path, 12, 4.8, TITLE) as page:
        memory, speed = page.subplots(1, 2)
        for axes, quantity in ((memory, MEMORY), (speed, THROUGHPUT)):
            shown = [row for row in rows if row.quantity == quantity]
            for series, look in zip(dict.fromkeys(row.series for row in shown), OTHERS):
                curve = [row for row in shown if row.series == series and row.x is not None]
                plot_ours(axes, [(r.x or 0.0, r.ours or 0.0) for r in curve], look, series)
                plot_paper(axes, [(r.x or 0.0, r.paper or 0.0) for r in curve], look)
            axes.set(title=quantity, xlabel="requests in a batch")
            axes.legend()
        memory.axhline(40, color="0.4", lw=1, ls=":")
        memory.set(ylim=(20, 42), yticks=range(20, 41, 5))
        speed.set_ylim(0)
        page.supxlabel("lines: ours    hollow markers: the paper's", fontsize=12)
