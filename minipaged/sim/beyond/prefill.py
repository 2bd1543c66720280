"""What a prompt does to those who are being answered: three ways to fit prompts between decodes.

* ``prefill first``: a step that holds prompts holds nothing else (vLLM 0.1 and 0.2);
* ``mixed``: prompts and decodes share a step (the paper's experiments);
* ``chunked``: so do they, but no step has more than 512 tokens, and a long prompt takes several
  (Sarathi-Serve).

The requests have long prompts (about 2,600 tokens) and short outputs, so that it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from minipaged.config import SchedulerConfig
from minipaged.sim.beyond.drawing import plain_log_scale
from minipaged.sim.beyond.experiment import (
    PERCENTILES,
    Experiment,
    Findings,
    Lab,
    Trial,
    mean_of,
)
from minipaged.sim.paper.style import OTHERS, figure
from minipaged.sim.simulate import Deployment
from minipaged.sim.workloads import long_context

RATE, MAX_MODEL_LEN = 0.7, 4096
BUDGET, CHUNK = 8192, 512
DEPLOYMENT = Deployment("llama-13b", "a100-80gb")

#: Ways to schedule prompts.
POLICIES: Mapping[str, SchedulerConfig] = MappingProxyType(
    {
        "prefill first": SchedulerConfig(max_num_batched_tokens=BUDGET, prefill_first=True),
        "mixed": SchedulerConfig(max_num_batched_tokens=BUDGET),
        "chunked": SchedulerConfig(max_num_batched_tokens=CHUNK, chunked_prefill=True),
    }
)
ITL, TTFT = "ITL percentile (ms)", "TTFT percentile (ms)"
THROUGHPUT = "output throughput (tokens/s)"


def measure(lab: Lab) -> Findings:
    """The same requests under each policy."""
    duration, seeds = lab.choose(900.0, 150.0), lab.seeds(3)
    trials = [
        Trial(
            partial(long_context, RATE, duration, seed, MAX_MODEL_LEN),
            deployment=DEPLOYMENT,
            scheduler=policy,
        )
        for policy in POLICIES.values()
        for seed in seeds
    ]
    numbers = lab.run(trials, "prefill")
    found = Findings()
    for at, name in enumerate(POLICIES):
        several = numbers[at * len(seeds) : (at + 1) * len(seeds)]
        for q in PERCENTILES:
            found.add(ITL, name, mean_of(several, f"p{q:g}_itl_ms"), q)
            found.add(TTFT, name, mean_of(several, f"p{q:g}_ttft_ms"), q)
        found.add(THROUGHPUT, name, mean_of(several, "output_throughput"))
    return found


def conclude(found: Findings) -> list[str]:
    """Gaps, first tokens, and what is traded for what."""
    gaps = {name: found.get(ITL, name, 99.0) for name in POLICIES}
    typical = {name: found.get(ITL, name, 50.0) for name in POLICIES}
    first = {name: found.get(TTFT, name, 50.0) for name in POLICIES}
    listed = ", ".join(f"{ms:.0f} ms ({name})" for name, ms in gaps.items())
    return [
        f"One gap between tokens in a hundred is longer than {listed}; the median gap is "
        f"{typical['mixed']:.0f} ms with whole prompts in mixed steps and "
        f"{typical['chunked']:.0f} ms with chunks.",
        f"Chunks of {CHUNK} tokens make the long gaps {gaps['mixed'] / gaps['chunked']:.1f} times "
        "shorter than whole prompts do: no step is longer than its chunk. With prefill first one "
        f"gap in a thousand is longer than {found.get(ITL, 'prefill first', 99.9):.0f} ms, against "
        f"{found.get(ITL, 'mixed', 99.9):.0f} ms (mixed).",
        f"They are paid for with the first token, whose median is {first['chunked']:.0f} ms "
        f"instead of {first['mixed']:.0f} ms (mixed) and {first['prefill first']:.0f} ms (prefill "
        "first).",
    ]


def draw(found: Findings, path: Path) -> None:
    """Percentiles of gaps, and of first tokens."""
    with figure(path, 12.5, 5.2, EXPERIMENT.title) as page:
        for axes, quantity, title in zip(
            page.subplots(1, 2), (ITL, TTFT), ("a. Gaps between tokens", "b. First tokens")
        ):
            for name, look in zip(POLICIES, OTHERS):
                curve = [ms for _, ms in found.curve(quantity, name)]
                axes.plot(range(len(curve)), curve, color=look.color, ls=look.line,
                          marker=look.marker, label=name)  # fmt: skip
            axes.set_xticks(range(len(PERCENTILES)), [f"p{q:g}" for q in PERCENTILES])
            axes.set(title=title, ylabel=quantity.replace(" percentile", ""))
            plain_log_scale(axes)
            axes.legend()


EXPERIMENT = Experiment(
    f"Prompts between decodes: long prompts at {RATE:g} req/s, LLaMA-13B",
    "What does a long prompt do to those who are being answered?",
    measure,
    conclude,
    draw,
)
