"""Chat in which almost every prompt begins with known text, with and without sharing it.

The paper's chatbot computes the whole history again in every turn (section 6.5), and its shared
prefixes are registered beforehand (section 4.4). Automatic prefix caching keeps the blocks of what
was computed, as long as nobody needs their memory, and finds them again by their contents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from minipaged.config import PAPER_2023_CACHE
from minipaged.sim.beyond.drawing import plain_log_scale
from minipaged.sim.beyond.experiment import Experiment, Findings, Lab, Trial, mean_of
from minipaged.sim.paper.style import OTHERS, figure, plot_ours
from minipaged.sim.workloads import prefix_chat

RATES = (0.25, 0.5, 0.75, 1.0)
_QUICK = (0.25, 0.75)
SHARING = {"without sharing": False, "with sharing": True}
WITHOUT, WITH = SHARING
MEDIAN, TAIL = "TTFT p50 (s)", "TTFT p99 (s)"
LATENCY = "mean normalized latency (s/token)"
COMPUTED = "tokens computed (% of prompts and outputs)"


def measure(lab: Lab) -> Findings:
    """The same conversations, twice at each rate."""
    duration, rates, seeds = lab.choose(1200.0, 300.0), lab.choose(RATES, _QUICK), lab.seeds(2)
    cases = [(name, rate) for name in SHARING for rate in rates]
    trials = [
        Trial(
            partial(prefix_chat, rate, duration, seed),
            cache=replace(PAPER_2023_CACHE, prefix_caching=SHARING[name]),
        )
        for name, rate in cases
        for seed in seeds
    ]
    numbers = lab.run(trials, "prefix chat")
    found = Findings()
    for at, (name, rate) in enumerate(cases):
        several = numbers[at * len(seeds) : (at + 1) * len(seeds)]
        asked = mean_of(several, "total_input_tokens") + mean_of(several, "total_output_tokens")
        found.add(MEDIAN, name, mean_of(several, "p50_ttft_ms") / 1e3, rate)
        found.add(TAIL, name, mean_of(several, "p99_ttft_ms") / 1e3, rate)
        found.add(LATENCY, name, mean_of(several, "normalized_latency_s_per_token"), rate)
        found.add(COMPUTED, name, 100 * mean_of(several, "computed_tokens") / asked, rate)
    return found


def conclude(found: Findings) -> list[str]:
    """At the lowest rate, and where it is tight."""
    (low, _), *_, (high, _) = found.curve(MEDIAN, WITH)
    computed = {rate: found.get(COMPUTED, WITH, rate) for rate in (low, high)}
    median = {name: found.get(MEDIAN, name, low) for name in SHARING}
    latency = {name: found.get(LATENCY, name, high) for name in SHARING}
    return [
        f"With sharing {computed[low]:.0f} % of all tokens are computed at {low:g} req/s, and the "
        f"median first token comes after {1e3 * median[WITH]:.0f} ms instead of "
        f"{1e3 * median[WITHOUT]:.0f} ms.",
        f"At {high:g} req/s memory is tight and cached blocks are taken for those that run: "
        f"{computed[high]:.0f} % are computed. The mean normalized latency is "
        f"{latency[WITH]:.3f} s/token with sharing and {latency[WITHOUT]:.3f} without.",
    ]


def draw(found: Findings, path: Path) -> None:
    """First tokens, latency, work."""
    with figure(path, 15, 5.2, EXPERIMENT.title) as page:
        ttft, latency, computed = page.subplots(1, 3)
        for name, look in zip(SHARING, OTHERS):
            for quantity, line in ((MEDIAN, "-"), (TAIL, ":")):
                label = f"{name}, {'median' if quantity == MEDIAN else 'p99'}"
                ttft.plot(*zip(*found.curve(quantity, name)), color=look.color, ls=line,
                          marker=look.marker, ms=6, label=label)  # fmt: skip
            plot_ours(latency, found.curve(LATENCY, name), look, name)
            plot_ours(computed, found.curve(COMPUTED, name), look, name)
        ttft.set(title="a. Time to first token", ylabel="TTFT (s)")
        latency.set(title="b. Normalized latency", ylabel=LATENCY)
        for axes in (ttft, latency):
            plain_log_scale(axes)
        computed.set(title="c. Work", ylim=0, ylabel="tokens computed (%)")
        for axes in (ttft, latency, computed):
            axes.set(xlabel="request rate (req/s)", xlim=0)
            axes.legend()


EXPERIMENT = Experiment(
    "Prefix-heavy chat, OPT-13B, with and without prefix sharing",
    "What is it worth to share what prompts begin with?",
    measure,
    conclude,
    draw,
)
