"""Longer contexts: what is left of paging's advantage when prompts grow and outputs do not.

A reservation for the true length of a request wastes the part that the output has not filled yet.
The longer the prompt, the smaller that part. A reservation for the longest request that there may
be wastes more and more. But a long prompt has to be computed, too, and that takes the same time
in every system. ShareGPT, whose prompts are shorter than its outputs, stands beside it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from minipaged.config import SchedulerConfig
from minipaged.sim.beyond.experiment import Experiment, Findings, Lab, Trial, mean_of
from minipaged.sim.paper.style import INK, LOOKS, figure, plot_ours
from minipaged.sim.simulate import Deployment
from minipaged.sim.systems import SYSTEMS
from minipaged.sim.workloads import Workload, long_context, paper

DEPLOYMENT = Deployment("llama-13b", "a100-80gb")
CONTEXTS = (2048, 4096, 8192, 16384)
_QUICK = (2048, 16384)
#: Where ShareGPT stands on the axis of contexts.
SHAREGPT = 1024
NAMES = ("orca-max", "orca-pow2", "orca-oracle", "vllm")
BATCH, THROUGHPUT = "requests in a batch", "output throughput (tokens/s)"
COMPUTE = "time spent on multiplying (%)"
GAIN = "vLLM's throughput / its throughput"


def measure(lab: Lab) -> Findings:
    """A backlog of requests, worked off as fast as each system can."""
    contexts, count, seeds = lab.choose(CONTEXTS, _QUICK), lab.choose(300, 60), lab.seeds(2)
    cases = [(context, system) for context in (SHAREGPT, *contexts) for system in NAMES]
    trials = [
        Trial(
            partial(backlog, count, context, seed),
            system,
            DEPLOYMENT,
            # A prompt fits into one step, however long it is.
            scheduler=replace(
                SchedulerConfig.paper_2023(), max_num_batched_tokens=max(2048, context)
            ),
        )
        for context, system in cases
        for seed in seeds
    ]
    numbers = lab.run(trials, "long context")
    found = Findings()
    for at, (context, system) in enumerate(cases):
        several = numbers[at * len(seeds) : (at + 1) * len(seeds)]
        title = SYSTEMS[system].title
        found.add(BATCH, title, mean_of(several, "mean_batch"), context)
        found.add(THROUGHPUT, title, mean_of(several, "output_throughput"), context)
        found.add(COMPUTE, title, 100 * mean_of(several, "busy_compute_share"), context)
    vllm = SYSTEMS["vllm"].title
    for context, system in cases:
        if system != "vllm":
            title = SYSTEMS[system].title
            best = found.get(THROUGHPUT, vllm, context)
            found.add(GAIN, title, best / found.get(THROUGHPUT, title, context), context)
    return found


def backlog(count: int, context: int, seed: int) -> Workload:
    """About so many requests that all arrive within a second; of ShareGPT, whose requests are
    small, four times as many."""
    if context == SHAREGPT:
        return paper("sharegpt", 4.0 * count, 1.0, seed)
    return long_context(float(count), 1.0, seed, context)


def conclude(found: Findings) -> list[str]:
    """vLLM's advantage with ShareGPT and at both ends, and why."""
    vllm = SYSTEMS["vllm"].title
    (_, _), (short, _), *_, (long, _) = found.curve(BATCH, vllm)
    places = (SHAREGPT, short, long)
    sentences = []
    for system in ("orca-max", "orca-oracle"):
        title = SYSTEMS[system].title
        chat, before, after = (found.get(GAIN, title, place) for place in places)
        sentences.append(
            f"vLLM's throughput is {chat:.2f} times that of {title} on ShareGPT, {before:.2f} "
            f"times with long prompts of contexts up to {short:,.0f} tokens and {after:.2f} times "
            f"with {long:,.0f}."
        )
    chat, before, after = (found.get(COMPUTE, vllm, place) for place in places)
    sentences.append(
        f"vLLM's machine spends {chat:.0f} % of its time on multiplying with ShareGPT, "
        f"{before:.0f} % and {after:.0f} % with long prompts. That part is the same in every "
        "system, and room for more requests does not make it shorter."
    )
    return sentences


def draw(found: Findings, path: Path) -> None:
    """Batches, throughput, and the ratio."""
    panels = (
        ("a. Batches", BATCH),
        ("b. Throughput", THROUGHPUT),
        ("c. vLLM against each", GAIN),
    )
    with figure(path, 15, 5.2, EXPERIMENT.title) as page:
        for axes, (title, quantity) in zip(page.subplots(1, 3), panels):
            for name in found.series(quantity):
                sharegpt, *others = found.curve(quantity, name)
                plot_ours(axes, others, LOOKS[name], name)
                axes.plot(*sharegpt, color=LOOKS[name].color, marker=LOOKS[name].marker)
            axes.set_xscale("log", base=2)
            labels = ["Share-\nGPT", *(f"{context // 1024}K" for context in CONTEXTS)]
            axes.set_xticks((SHAREGPT, *CONTEXTS), labels)
            axes.set(title=title, xlabel="longest request (tokens)", ylabel=quantity, ylim=0)
            axes.legend()
        axes.axhline(1.0, color=INK, lw=1.2, ls="--")


EXPERIMENT = Experiment(
    "Longer contexts: LLaMA-13B on an A100-80GB, long prompts, short outputs",
    "What is left of paging's advantage when prompts grow?",
    measure,
    conclude,
    draw,
)
