"""``minipaged bench``: speed and memory, as ratios against peers and floors in the same run."""

from __future__ import annotations

import argparse
import io
import json
import math
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minipaged.config import CacheConfig
from minipaged.course.student_parts import explained, load_parts
from minipaged.errors import RequestError
from minipaged.options import add_latency_arguments, add_parts_argument
from minipaged.sim.wishes import parse_percentiles, parse_rates, parse_slo
from minipaged.sim.workloads.checks import require_positive

if TYPE_CHECKING:
    from minipaged.bench.decode_step import DecodeStep
    from minipaged.bench.scheduling import SchedulingCost
    from minipaged.bench.throughput import Throughput
    from minipaged.bench.waste import Waste
    from minipaged.llm import LLM
    from minipaged.parts import Parts

BENCHMARKS = ("throughput", "decode", "scheduler", "memory", "load")
WASTE_BLOCKS = 128
MAX_MODEL_LEN = 512  # what the reservation "max" holds for each request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged bench``."""
    parser.add_argument(
        "benchmarks", nargs="*", metavar="BENCHMARK", help=f"of {', '.join(BENCHMARKS)}"
    )
    parser.add_argument("--model", default="smollm2-135m", help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=32, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="the median counts")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-peers", action="store_true", help="measure this engine alone")
    parser.add_argument("--json", metavar="FILE", help="write what was measured")
    group = parser.add_argument_group("load")
    group.add_argument(
        "--rate", default="inf", metavar="R", help="requests a second (default: inf, all at once)"
    )
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="SHAPE",
        help="of gamma arrivals; 1: Poisson, below 1 they come in bursts (default: %(default)g)",
    )  # fmt: skip
    add_latency_arguments(group)
    group.add_argument(
        "--calibrate", metavar="FILE",
        help="measure how long steps take, and write the terms for `minipaged sim --cost FILE`; "
        "benchmarks run only if they are named",
    )  # fmt: skip
    add_parts_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print a table for each benchmark, and write the JSON file."""
    names = args.benchmarks or ([] if args.calibrate else list(BENCHMARKS))
    for name in names:
        if name not in BENCHMARKS:
            raise RequestError(
                f"there is no benchmark {name!r}: choose from {', '.join(BENCHMARKS)}"
            )
    for name in ("requests", "rounds", "threads"):
        if getattr(args, name) < 1:
            raise RequestError(f"--{name} must be at least 1, not {getattr(args, name)}")
    wishes = _load_wishes(args)
    parts = load_parts(args.parts)
    for note in parts.notes:
        print(f"minipaged: {note}", file=sys.stderr)
    import torch

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # show each when it is done
    torch.set_num_threads(args.threads)
    report: dict[str, Any] = {
        "model": args.model,
        "parts": parts.spec,
        "threads": args.threads,
        "requests": args.requests,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    with explained(parts):
        llm = _load(args, parts) if args.calibrate or set(names) - {"scheduler"} else None
        if llm is not None and "throughput" in names:
            report["engines"] = _throughput(llm, args)
        if llm is not None and "decode" in names:
            report |= _decode(llm)
        if "scheduler" in names:
            report |= _scheduler(parts)
        if llm is not None and "memory" in names:
            report |= _memory(llm, args)
        if llm is not None and "load" in names:
            report |= _serve_load(llm, args, wishes)
        if llm is not None and args.calibrate:
            _calibrate(llm, args)
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"written to {args.json}", file=sys.stderr)
    return 0


class _LoadWishes(NamedTuple):
    """The options of the load, read before anything is measured."""

    rate: float
    slo: dict[str, float] | None
    percentiles: list[float]


def _load_wishes(args: argparse.Namespace) -> _LoadWishes:
    rates = parse_rates(args.rate)
    if len(rates) > 1:
        raise RequestError(f"--rate {args.rate}: one load is served, at one rate")
    require_positive(burstiness=args.burstiness)
    slo = parse_slo(args.slo) if args.slo else None
    return _LoadWishes(rates[0], slo, parse_percentiles(args.percentiles))


def _load(args: argparse.Namespace, parts: Parts) -> LLM:
    from minipaged.llm import LLM

    return LLM(
        args.model,
        dtype="float32",
        device="cpu",
        cache=CacheConfig(num_gpu_blocks=1024, num_cpu_blocks=0),
        max_model_len=MAX_MODEL_LEN,
        parts=parts,
    )


def _throughput(llm: LLM, args: argparse.Namespace) -> dict[str, Any]:
    from minipaged.bench.engines import TransformersModel, minipaged_engine
    from minipaged.bench.throughput import measure_throughput
    from minipaged.bench.workload import make_workload

    assert llm.tokenizer is not None
    jobs = make_workload(llm.tokenizer, args.requests, args.seed)
    engines = {"minipaged": minipaged_engine(llm)}
    if not args.no_peers:
        peer = TransformersModel(llm.path)
        for size in (8, 16, 32):
            engines[f"transformers_static_{size}"] = peer.static(size)
        engines["transformers_continuous"] = peer.continuous()
    results = measure_throughput(
        engines, jobs, args.rounds, lambda line: print(line, file=sys.stderr, flush=True)
    )
    _print_throughput(results)
    return {
        name: {
            "output_throughput": result.output_throughput,
            "seconds": result.seconds,
            "output_tokens": result.output_tokens,
            "same_outputs": result.same_outputs,
            "error": result.error,
        }
        for name, result in results.items()
    }


def _print_throughput(results: dict[str, Throughput]) -> None:
    ours = results["minipaged"]
    print(f"\nUseful output tokens/s, {ours.num_jobs} requests, {ours.output_tokens} tokens")
    for name, result in results.items():
        if result.error is not None:
            print(f"  {name:26} failed: {result.error}")
            continue
        ratio = ours.output_throughput / result.output_throughput
        print(
            f"  {name:26} {result.output_throughput:7.1f}   minipaged is {ratio:.2f}x   "
            f"same tokens: {result.same_outputs} of {result.num_jobs}"
        )


def _decode(llm: LLM) -> dict[str, Any]:
    from minipaged.bench.decode_step import measure_decode_step

    report: dict[str, Any] = {}
    print("\nOne decode step over the matrix products that it is made of (the faster kind)")
    for context in (128, 512):
        result: DecodeStep = measure_decode_step(
            llm.model, llm.parts, batch_size=32, context=context
        )
        print(f"  batch 32, context {context:4}   {result}")
        report[f"decode_step_over_floor_{context}"] = result.decode_step_over_floor
    report["decode_step_over_floor"] = report["decode_step_over_floor_128"]
    return report


def _scheduler(parts: Parts) -> dict[str, Any]:
    from minipaged.bench.scheduling import measure_scheduling

    costs: list[SchedulingCost] = measure_scheduling(parts=parts)
    print("\nSchedule + inputs + commit, over a loop that appends a tuple a sequence")
    for cost in costs:
        print(
            f"  {cost.num_seqs} sequences of {cost.length:4}   {cost.over_loop:5.1f}x   "
            f"({cost.schedule_ms:.3f} + {cost.inputs_ms:.3f} + {cost.commit_ms:.3f} ms "
            f"over {cost.loop_ms:.3f} ms)"
        )
    return {
        "scheduler_over_loop": max(cost.over_loop for cost in costs),
        "scheduler_long_over_short": costs[-1].total_ms / costs[0].total_ms,
    }


def _memory(llm: LLM, args: argparse.Namespace) -> dict[str, Any]:
    from minipaged.bench.waste import measure_waste
    from minipaged.bench.workload import make_workload

    assert llm.tokenizer is not None
    jobs = make_workload(llm.tokenizer, args.requests, args.seed)
    wastes: list[Waste] = measure_waste(llm, jobs, WASTE_BLOCKS)
    print(f"\nThe same requests in a pool of {WASTE_BLOCKS} blocks, while some wait (shares in %)")
    print("             batched   tokens  reserved  internal  external   need/held   steps")
    for waste in wastes:
        c = waste.classes
        print(
            f"  {waste.system:10} {waste.mean_batch:7.2f}  {c.token_states:7.1f}"
            f"  {c.reserved:8.1f}  {c.internal:8.1f}  {c.external:8.1f}"
            f"   {waste.held_over_need:9.3f}  {waste.steps:6}"
        )
    return {
        "kv_held_over_need": wastes[0].held_over_need,
        "waste": {
            waste.system: {
                "mean_batch": waste.mean_batch,
                "token_states": waste.classes.token_states,
                "reserved": waste.classes.reserved,
                "internal": waste.classes.internal,
                "external": waste.classes.external,
                "need_over_held": waste.held_over_need,
            }
            for waste in wastes
        },
    }


def _serve_load(llm: LLM, args: argparse.Namespace, wishes: _LoadWishes) -> dict[str, Any]:
    """The keys are those of ``minipaged sim --json``, but for where the time went."""
    from minipaged.bench.load import serve_load
    from minipaged.bench.workload import as_load, make_workload
    from minipaged.sim.report import measurements, render_measurements

    assert llm.tokenizer is not None
    jobs = make_workload(llm.tokenizer, args.requests, args.seed)
    load = as_load(jobs, wishes.rate, args.burstiness, args.seed)
    result = serve_load(llm.engine, load, [job.prompt_token_ids for job in jobs])
    numbers = measurements(result, wishes.slo, wishes.percentiles)
    print(f"\n{load.name}, {load.num_requests} requests\n\n{render_measurements(numbers)}")
    return {
        "workload": load.name,
        "num_prompts": load.num_requests,
        "request_rate": "inf" if wishes.rate == math.inf else wishes.rate,
        "burstiness": args.burstiness,
        "block_size": llm.cache_config.block_size,
        "seed": args.seed,
        **numbers,
    }


def _calibrate(llm: LLM, args: argparse.Namespace) -> None:
    from minipaged.bench.calibrate import calibrate, describe

    calibration = calibrate(llm, args.rounds)
    print(f"\nWhat steps of {calibration.model} take on {calibration.device}")
    print(describe(calibration.cost))
    print(f"  mean error of a step: {calibration.mean_error:.1%}")
    calibration.save(args.calibrate)
    print(f"written to {args.calibrate}", file=sys.stderr)
