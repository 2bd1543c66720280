"""``minipaged sim``: serve a workload on a virtual clock, and say how it went and why.

One run, or one for each of several rates. Needs no GPU, no weights and no torch.
"""

from __future__ import annotations

import argparse
import math
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from minipaged.config import ConfigError
from minipaged.course.own_modules import own_modules
from minipaged.course.student_parts import explained, load_parts
from minipaged.options import add_latency_arguments, add_parts_argument
from minipaged.sim import metrics
from minipaged.sim.attribution import RULE, Attribution, attribute
from minipaged.sim.report import (
    attribution_record,
    details,
    measurements,
    render_attribution,
    render_measurements,
    write_json,
)
from minipaged.sim.simulate import Run, simulate
from minipaged.sim.systems import find_system
from minipaged.sim.wishes import parse_percentiles, parse_rates, parse_slo
from minipaged.simulation.target import Target, add_system_arguments, read_target
from minipaged.simulation.workload import add_workload_arguments, build_workload
from minipaged.trace import TraceWriter

if TYPE_CHECKING:
    from minipaged.course.student_parts import StudentParts
    from minipaged.sim.workloads import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged sim``."""
    parser.epilog = f"What limits a run: {RULE}".replace("%", "%%")
    add_workload_arguments(parser)
    add_system_arguments(parser)
    add_parts_argument(parser)
    group = parser.add_argument_group("report")
    add_latency_arguments(group)
    group.add_argument("--json", metavar="FILE", help="write the numbers, under vLLM's names")
    group.add_argument(
        "--save-detailed", action="store_true", help="with each request's times in the JSON file"
    )
    group.add_argument("--trace", metavar="FILE", help="write one JSON line a step")
    group.add_argument("--plot", metavar="FILE", help="draw where the time went")
    group.add_argument("--check", action="store_true", help="verify the invariants every step")


def run(args: argparse.Namespace) -> int:
    """Simulate, print what came of it, and write the files that were asked for."""
    slo = parse_slo(args.slo) if args.slo else None
    percentiles = parse_percentiles(args.percentiles)
    rates = parse_rates(args.rate) if args.rate else [None]
    if args.trace and len(rates) > 1:
        raise ConfigError(f"--trace is of one run: --rate {args.rate} asks for {len(rates)}")
    target = read_target(args)
    parts = load_parts(args.parts, also=("metrics", *(file.part.name for file in own_modules())))
    for note in parts.notes:
        print(f"minipaged: {note}", file=sys.stderr)
    arithmetic = parts.module(metrics.__name__)
    title = f"{find_system(args.system).title}, {target.name}"
    records: list[dict[str, Any]] = []
    attributions: dict[str, Attribution] = {}
    for rate in rates:
        with explained(parts):
            workload = build_workload(args, target.max_model_len, rate)
        result = _simulate(args, target, workload, parts)
        with explained(parts):
            numbers = measurements(result, slo, percentiles, arithmetic)
        attributions[_label(workload, rate)] = attribute(result)
        print(f"\n{title}: {workload.name}, {workload.num_requests:,} requests\n")
        print(render_measurements(numbers), render_attribution(attribute(result)), sep="\n\n")
        record = _settings(args, target, workload, rate) | numbers | attribution_record(result)
        records.append(record | details(result) if args.save_detailed else record)
    if args.json:
        write_json(args.json, records if len(records) > 1 else records[0])
        print(f"written to {args.json}", file=sys.stderr)
    if args.plot:
        _plot(args.plot, f"Where the time went: {title}", attributions)
    return 0


def _simulate(
    args: argparse.Namespace, target: Target, workload: Workload, parts: StudentParts
) -> Run:
    from tqdm import tqdm

    for note in workload.notes:
        print(f"minipaged: {note}", file=sys.stderr)
    with (
        explained(parts),
        TraceWriter(args.trace) if args.trace else nullcontext() as trace,
        tqdm(total=workload.num_requests, unit="req", leave=False) as bar,
    ):
        return simulate(
            workload,
            args.system,
            target.deployment,
            cache=target.cache,
            scheduler=target.scheduler,
            cost=target.cost,
            parts=parts,
            progress=bar.update,
            trace=trace,
            max_model_len=target.max_model_len,
            check=args.check,
            seed=args.seed,
        )


def _settings(
    args: argparse.Namespace, target: Target, workload: Workload, rate: float | None
) -> dict[str, Any]:
    """What a record says about how it was made. An infinite rate is a word, as vLLM writes it."""
    asked = workload.request_rate if rate is None else rate
    return {
        "system": args.system,
        "workload": workload.name,
        "num_prompts": workload.num_requests,
        "request_rate": "inf" if asked == math.inf else asked,
        "burstiness": args.burstiness,
        "target": target.name,
        "efficiency": args.efficiency if target.cost is None else args.cost,
        "block_size": target.cache.block_size,
        "parts": args.parts,
        "seed": args.seed,
    }


def _label(workload: Workload, rate: float | None) -> str:
    if rate == math.inf:
        return "at once"
    return f"{workload.request_rate if rate is None else rate:.3g} req/s"


def _plot(path: str, title: str, attributions: dict[str, Attribution]) -> None:
    from minipaged.sim.attribution_plot import plot_attribution

    try:
        plot_attribution(attributions, title).savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot draw {path}: {error}") from error
    print(f"written to {path}", file=sys.stderr)
