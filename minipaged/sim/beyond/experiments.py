"""All experiments beyond the paper, by name, and how one is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from minipaged.sim.beyond import (
    baseline,
    blocks,
    bursts,
    long_context,
    prefill,
    prefix_chat,
    tails,
    transfer,
    victims,
)
from minipaged.sim.beyond.experiment import Experiment, Lab
from minipaged.sim.paper.comparison import write_csv

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "bursts": bursts.EXPERIMENT,
        "tails": tails.EXPERIMENT,
        "prefill": prefill.EXPERIMENT,
        "transfer": transfer.EXPERIMENT,
        "blocks": blocks.EXPERIMENT,
        "long-context": long_context.EXPERIMENT,
        "prefix-chat": prefix_chat.EXPERIMENT,
        "victims": victims.EXPERIMENT,
        "baseline": baseline.EXPERIMENT,
    }
)


def make(name: str, lab: Lab, out: Path) -> list[str]:
    """Make an experiment: a PNG and a CSV file in a folder.

    Returns:
        What it says, as lines to print.

    Raises:
        ConfigError, PlanError, RequestError, TraceFormatError: as its simulations.
    """
    experiment = EXPERIMENTS[name]
    found = experiment.measure(lab)
    out.mkdir(parents=True, exist_ok=True)
    csv, png = out / f"{name}.csv", out / f"{name}.png"
    write_csv(found.rows(name), csv)
    experiment.draw(found, png)
    sentences = [f"* {sentence}" for sentence in experiment.conclude(found)]
    return [experiment.title, "", experiment.question, *sentences, f"{csv}, {png}"]
