"""What a simulation is to serve: requests of a dataset or a trace, and when they arrive."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from minipaged.config import ConfigError
from minipaged.sim.lengths import DATASETS
from minipaged.sim.traces import FORMATS, read_trace
from minipaged.sim.workloads import Workload, paper
from minipaged.sim.workloads.checks import require_at_least, require_positive

if TYPE_CHECKING:
    from minipaged.sim.traces.texts import Encoder

_DURATION = 600.0


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the requests and their arrivals."""
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--dataset", choices=DATASETS, help="lengths of the paper's datasets (default: sharegpt)"
    )
    group.add_argument("--trace-file", metavar="FILE", help="requests of a trace instead")
    group.add_argument("--trace-format", choices=("auto", *FORMATS), default="auto")
    group.add_argument(
        "--tokenizer", metavar="MODEL", help="counts the tokens of a trace of texts, as opt-stories"
    )
    group.add_argument(
        "--too-long", choices=("drop", "clip"), default="drop",
        help="what becomes of a trace's requests past --max-model-len (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--rate", metavar="R,…",
        help="requests a second (default: 1, or the trace's own times); inf: all at once; several "
        "rates are several runs",
    )  # fmt: skip
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="SHAPE",
        help="of gamma arrivals; 1: Poisson, below 1 they come in bursts (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--duration", type=float, metavar="S",
        help=f"seconds of arrivals (default: {_DURATION:g}, or what --requests takes)",
    )  # fmt: skip
    group.add_argument("--requests", type=int, metavar="N", help="at most so many")
    group.add_argument(
        "-n", type=int, metavar="N", help="parallel outputs of each request, or the beam width"
    )
    group.add_argument("--beam", action="store_true", help="by beam search of width -n")
    group.add_argument("--seed", type=int, default=0)


def build_workload(args: argparse.Namespace, max_model_len: int, rate: float | None) -> Workload:
    """The requests that :func:`add_workload_arguments` describes.

    Args:
        max_model_len: positions of the model; requests of a trace that are longer are dropped or
            clipped. (Those of a dataset are the engine's to refuse.)
        rate: requests a second; None: the trace's own times, or 1.

    Raises:
        ConfigError, RequestError, TraceFormatError: a value is out of its range, two contradict
            each other, or the file is wrong.
    """
    require_at_least(1, n=args.n, requests=args.requests)
    if args.beam and (args.n or 1) < 2:
        raise ConfigError("--beam: -n must say how many beams, 2 or more")
    if args.trace_file:
        workload = _from_trace(args, max_model_len, rate)
    else:
        workload = _from_dataset(args, 1.0 if rate is None else rate)
    requests = workload.requests
    if args.n is not None:
        requests = tuple(replace(r, num_sequences=args.n, beam=args.beam) for r in requests)
    if rate != math.inf:
        return replace(workload, requests=requests)
    requests = tuple(replace(request, arrival_time=0.0) for request in requests)
    return replace(workload, requests=requests, name=f"{workload.name.split(' at ')[0]} at once")


def _from_dataset(args: argparse.Namespace, rate: float) -> Workload:
    for option, default in (("trace_format", "auto"), ("tokenizer", None), ("too_long", "drop")):
        if getattr(args, option) != default:
            raise ConfigError(f"--{option.replace('_', '-')} says how to read a --trace-file")
    if rate == math.inf:
        if args.requests is None:
            raise ConfigError("--rate inf: --requests must say how many there are")
        rate = 1.0  # they are drawn at some rate, and come at once
    count, duration = args.requests, args.duration
    if duration is None:
        duration = _DURATION if count is None else (2 * count + 32) / rate
    dataset: Literal["sharegpt", "alpaca"] = args.dataset or "sharegpt"
    workload = paper(dataset, rate, duration, args.seed, burstiness=args.burstiness)
    while args.duration is None and count is not None and workload.num_requests < count:
        duration *= 2  # bursty arrivals may need longer
        workload = paper(dataset, rate, duration, args.seed, burstiness=args.burstiness)
    return replace(workload, requests=workload.requests[:count])


def _from_trace(args: argparse.Namespace, max_model_len: int, rate: float | None) -> Workload:
    if args.dataset is not None:
        raise ConfigError(
            f"--dataset {args.dataset} and --trace-file {args.trace_file} exclude each other"
        )
    workload = read_trace(
        args.trace_file,
        args.trace_format,
        _tokenizer(args.tokenizer),
        args.requests,
        max_model_len=max_model_len,
        too_long=args.too_long,
        rate=1.0 if rate == math.inf else rate,
        burstiness=args.burstiness,
        seed=args.seed,
    )
    if args.duration is None:
        return workload
    require_positive(duration=args.duration)
    kept = tuple(r for r in workload.requests if r.arrival_time < args.duration)
    return replace(workload, requests=kept)


def _tokenizer(model: str | None) -> Encoder | None:
    if model is None:
        return None
    from minipaged.models.locate import locate_model
    from minipaged.tokenizer import HFTokenizer

    return HFTokenizer.from_folder(locate_model(model))
