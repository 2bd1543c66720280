"""Swap or recompute, by link, block size, grouped KV heads and GPU: a closed form, no simulation.

Figure 19 compares the two on one machine. What decides is the time to recompute a token, which is
FLOPs, over the time to move its keys and values out and in, which is bytes: on another machine, or
with another model, it is another answer. The ratio is 1 on the crossover line; above it swapping
is the cheaper.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.capacity import find_gpu, find_model
from minipaged.config import ModelConfig
from minipaged.scheduling.machines import machine_of
from minipaged.scheduling.transfer_cost import (
    A100_2023,
    Machine,
    recompute_seconds,
    swap_seconds,
)
from minipaged.sim.beyond.drawing import plain_log_scale
from minipaged.sim.beyond.experiment import Experiment, Findings, Lab
from minipaged.sim.paper.style import INK, OTHERS, figure, plot_ours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MODEL, TOKENS, DTYPE_BYTES, BLOCK = "opt-13b", 256, 2, 16
LINKS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Query heads that share a KV head.
GROUPS = (1, 2, 4, 8)
#: Card -> its name in the figure, oldest first.
CARDS = {
    "v100-32gb": "V100",
    "t4": "T4",
    "a100-40gb": "A100",
    "l4": "L4",
    "rtx-4090": "RTX 4090",
    "h100-80gb": "H100",
    "h200": "H200",
}
LINES = ("v100-32gb", "a100-40gb", "h100-80gb")

BY_LINK, BY_BLOCK, BY_CARD = (
    f"recompute / swap by {what}" for what in ("link (GB/s)", "block size", "card")
)
CROSSOVER = "link at the crossover (GB/s)"
PAPER_MACHINE = "the paper's machine"
_CASES = {group: f"{group} query heads a KV head" if group > 1 else "MHA" for group in GROUPS}


def measure(lab: Lab) -> Findings:
    """Three slices through one formula."""
    found, model = Findings(), find_model(MODEL)
    for card in LINES:
        for link in LINKS:
            machine = machine_of(find_gpu(card), link * 1e9)
            found.add(BY_LINK, CARDS[card], ratio(model, machine, BLOCK), link)
        found.add(CROSSOVER, CARDS[card], crossover_link(model, card, BLOCK))
    for group, name in _CASES.items():
        for size in BLOCK_SIZES:
            found.add(BY_BLOCK, name, ratio(grouped(group), A100_2023, size), size)
    for place, card in enumerate(CARDS):
        for group in (GROUPS[0], GROUPS[-1]):
            value = ratio(grouped(group), machine_of(find_gpu(card)), BLOCK)
            found.add(BY_CARD, _CASES[group], value, place)
    return found


def grouped(group: int) -> ModelConfig:
    """The model, were ``group`` query heads to share each of its KV heads."""
    model = find_model(MODEL)
    return replace(model, num_kv_heads=model.num_heads // group)


def ratio(model: ModelConfig, machine: Machine, block_size: int, tokens: int = TOKENS) -> float:
    """Seconds to recompute a sequence over seconds to swap it out and in."""
    blocks = -(-tokens // block_size)
    out = swap_seconds(model, DTYPE_BYTES, blocks, block_size, machine.swap_out)
    back = swap_seconds(model, DTYPE_BYTES, blocks, block_size, machine.swap_in)
    return recompute_seconds(model, DTYPE_BYTES, tokens, machine) / (out + back)


def crossover_link(model: ModelConfig, card: str, block_size: int) -> float:
    """GB/s of a link, the same both ways, over which swapping takes as long as recomputing.

    What transfers cost however fast the link is, is taken off first; if recomputing is faster than
    that, no link makes swapping the cheaper, and the answer is infinite.
    """
    gpu = find_gpu(card)
    blocks = -(-TOKENS // block_size)
    recompute = recompute_seconds(model, DTYPE_BYTES, TOKENS, machine_of(gpu))
    at_1, at_inf = (
        2 * swap_seconds(model, DTYPE_BYTES, blocks, block_size, machine_of(gpu, link).swap_in)
        for link in (1e9, float("inf"))
    )
    return (at_1 - at_inf) / (recompute - at_inf) if recompute > at_inf else float("inf")


def conclude(found: Findings) -> list[str]:
    """Where the crossover is, and what moves it."""
    links = ", ".join(
        f"{found.get(CROSSOVER, name):.0f} GB/s ({name})" for name in found.series(CROSSOVER)
    )
    mha, gqa = _CASES[GROUPS[0]], _CASES[GROUPS[-1]]
    wins = {
        name: [size for size, value in found.curve(BY_BLOCK, name) if value > 1]
        for name in (mha, gqa)
    }
    first = {name: f"{sizes[0]:.0f}" if sizes else "none" for name, sizes in wins.items()}
    cards = list(CARDS.values())
    by_card = {name: found.curve(BY_CARD, name) for name in (mha, gqa)}
    swaps = [cards[int(at)] for at, value in by_card[mha] if value > 1]
    least = min(value for _, value in by_card[gqa])
    with_groups = f"by a factor of {least:.1f} or more" if least > 1 else "not everywhere"
    return [
        f"OPT-13B, {TOKENS} tokens in blocks of {BLOCK}: swapping takes as long as recomputing "
        f"over a link of {links}; over a faster one it takes less.",
        f"On {PAPER_MACHINE} blocks have to be at least {first[mha]} for swapping to win; were 8 "
        f"query heads to share a KV head, {first[gqa]}.",
        f"With the cards' own links swapping wins on {', '.join(swaps) or 'none'} with a KV head "
        f"for each query head; with grouped ones on all {len(cards)} cards, {with_groups}.",
    ]


def draw(found: Findings, path: Path) -> None:
    """By link, by block size, by card; the crossover line in each."""
    with figure(path, 16, 5.4, EXPERIMENT.title) as page:
        links, blocks, cards = page.subplots(1, 3)
        for name, look in zip(found.series(BY_LINK), OTHERS):
            plot_ours(links, found.curve(BY_LINK, name), look, name)
        for name, look in zip(found.series(BY_BLOCK), OTHERS):
            plot_ours(blocks, found.curve(BY_BLOCK, name), look, name)
        for shift, name, look in zip((-0.2, 0.2), found.series(BY_CARD), OTHERS):
            places = [at + shift for at, _ in found.curve(BY_CARD, name)]
            heights = [value for _, value in found.curve(BY_CARD, name)]
            cards.bar(places, heights, 0.38, color=look.color, label=name)
        for axes, ticks in ((links, LINKS), (blocks, BLOCK_SIZES)):
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        cards.set_xticks(range(len(CARDS)), CARDS.values(), rotation=30)
        links.set(title=f"a. Blocks of {BLOCK}, by link", xlabel="link (GB/s each way)")
        blocks.set(title=f"b. {PAPER_MACHINE[0].upper()}{PAPER_MACHINE[1:]}",
                   xlabel="block size (tokens)")  # fmt: skip
        cards.set(title="c. Cards with their own links")
        links.set_ylabel("recompute / swap (above 1 swap is cheaper)")
        for axes in (links, blocks, cards):
            _crossover_line(axes)


def _crossover_line(axes: Axes) -> None:
    axes.axhline(1.0, color=INK, lw=1.4, ls="--")
    plain_log_scale(axes)
    axes.legend(fontsize=11)


EXPERIMENT = Experiment(
    f"Swap or recompute: OPT-13B, {TOKENS} tokens",
    "On which machines, and for which models, is swapping cheaper than recomputing?",
    measure,
    conclude,
    draw,
)
