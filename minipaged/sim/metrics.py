"""What a run is judged by: the numbers of the paper, and those that are reported today.

Tools mean different things by one name, TPOT above all. What is meant here is what
``vllm bench serve`` means, key by key. :data:`DEFINITIONS` has a sentence for each, to be printed
beside the numbers.

Functions of one request return seconds. The keys of :func:`summarize` and the bounds of
:func:`goodput` that end in ``_ms``, or have no unit in their name, are milliseconds, as in vLLM.

Who counts
----------

* A request that *failed* (it has an ``error``) has no latency. It is counted as failed, and is in
  no other number.
* A request that has *not finished* has a latency that nobody knows yet, and it is a long one: it is
  the requests in trouble that are still there at the end. To leave it out would make a system look
  good that has stopped serving. So a run must have drained: all numbers over many requests refuse
  one that has not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from minipaged.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from minipaged.sim.records import RequestRecord

Metric = Literal["ttft", "tpot", "itl", "e2el", "normalized_latency"]
Values = Sequence[float] | npt.NDArray[np.float64]

#: Bounds that :func:`goodput` knows.
SLO_METRICS = ("ttft", "tpot", "e2el")


# --------------------------------------------------------------------------- one request
def ttft(record: RequestRecord) -> float:
    """Time to first token: from the arrival to the first token of the output, queueing included.

    Raises:
        RequestError: it has no token; the message names its arrival time.
    """
    if not record.token_times:
        raise RequestError(f"{_who(record)} has no token")
    return record.token_times[0] - record.arrival_time


def inter_token_latencies(record: RequestRecord) -> list[float]:
    """ITL: the gaps between one token and the next, in order.

    The time to the first token is none of them, so that there is one fewer than tokens, and none
    at all for a request with one token or without any.

    Example: tokens at 2, 3 and 5 s have the gaps ``[1.0, 2.0]``.
    """
    return [after - before for before, after in pairwise(record.token_times)]


def e2el(record: RequestRecord) -> float:
    """End-to-end latency: from the arrival to the end.

    Raises:
        RequestError: it has not finished; the message names its arrival time.
    """
    if record.finish_time is None:
        raise RequestError(
            f"the request that arrived at {record.arrival_time:g} s has not finished"
        )
    return record.finish_time - record.arrival_time


def tpot(record: RequestRecord) -> float:
    """Time per output token, of those after the first.

    The word means different things. GuideLLM divides the whole latency by all tokens; AIPerf calls
    it inter-token latency. Here it is vLLM's: the end-to-end latency without the time to the first
    token, over the ``output_len`` tokens but the first.

    Raises:
        RequestError: the output has no second token, or the request has not finished; the message
            names its arrival time.

    Example: it arrives at 1 s, and its three tokens come at 2, 3 and 5 s: (4 - 1) / 2 = 1.5 s.
    """
    if record.output_len < 2:
        raise RequestError(f"{_who(record)} has {record.output_len} tokens: there is no second one")
    return (e2el(record) - ttft(record)) / (record.output_len - 1)


def normalized_latency(record: RequestRecord) -> float:
    """The paper's measure (section 6.1): the end-to-end latency over the length of the output, in
    seconds per token. Tokens of the prompt do not count.

    Raises:
        RequestError: it has no output, or has not finished; the message names its arrival time.

    Example: it arrives at 1 s, and ends with its fourth token at 3 s: 0.5 s per token.
    """
    if record.output_len < 1:
        raise RequestError(f"{_who(record)} has no output")
    return e2el(record) / record.output_len


def _who(record: RequestRecord) -> str:
    return f"the request that arrived at {record.arrival_time:g} s"


# --------------------------------------------------------------------------- many requests
def served(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests that numbers are made of: those that were served to their end, in order. Those
    that failed are left out.

    Raises:
        RequestError: some have neither finished nor failed: the run has not drained. The message
            names how many there are.
    """
    ended = [record for record in records if not record.error]
    unfinished = sum(record.finish_time is None for record in ended)
    if unfinished:
        raise RequestError(
            f"{unfinished} of {len(ended)} requests have not finished: a run must drain before "
            "it is judged"
        )
    return ended


def pooled(records: Iterable[RequestRecord], metric: Metric) -> list[float]:
    """All values of a metric in a run, in seconds: what means and percentiles are taken of.

    Values go into one pool, each of them once, in the order of the requests. Nothing is averaged
    on the way: a request with 1,000 gaps has 1,000 of them in the pool, and one with 10 has 10.

    ====================== ==================================================================
    ``ttft``, ``e2el``     a value a request
    ``tpot``               a value a request, of those whose output has more than one token
    ``itl``                all gaps of all requests
    ``normalized_latency`` a value an output: the value of a request with n sequences is there
                           n times, as the paper's mean is one over sequences
    ====================== ==================================================================

    Only requests that were :func:`served` are in it.

    Raises:
        RequestError: as :func:`served`.
        ConfigError: there is no such metric; the message names it.
    """
    counted = served(records)
    match metric:
        case "ttft":
            return [ttft(record) for record in counted]
        case "e2el":
            return [e2el(record) for record in counted]
        case "tpot":
            return [tpot(record) for record in counted if record.output_len > 1]
        case "itl":
            return [gap for record in counted for gap in inter_token_latencies(record)]
        case "normalized_latency":
            return [normalized_latency(r) for r in counted for _ in range(r.num_sequences)]
    raise ConfigError(f"there is no metric {metric!r}")


def percentile(values: Values, q: float) -> float:
    """The value below which ``q`` percent of all values lie.

    With the values in order, the lowest is the 0th percentile, the highest the 100th, and the
    others lie at even distances between them. A percentile between two of them lies on the
    straight line from the one to the other.

    Args:
        values: in any order. They stay as they are.
        q: from 0 to 100.

    Raises:
        ConfigError: q is below 0 or above 100; the message names it.
        RequestError: there is no value.

    Example: of 10, 20, 30 and 40 the 50th is 25, and the 90th 37.
    """
    if not 0 <= q <= 100:
        raise ConfigError(f"a percentile is from 0 to 100, not {q}")
    if not len(values):
        raise RequestError(f"there is no value to take the percentile {q:g} of")
    ordered = np.sort(values)
    place = q / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = float(ordered[below]), float(ordered[above])
    return low + (high - low) * (place - below)


def summary_statistics(
    values: Values, percentiles: Sequence[float] = (50, 90, 99)
) -> dict[str, float]:
    """What is reported of a pool of values.

    Args:
        values: in any order, in any unit.
        percentiles: those that are wanted.

    Returns:
        ``mean``; ``median``, the 50th percentile; ``std``, the standard deviation of all values
        there are, whose squared distances are divided by their number; and the percentiles, each
        under its name, ``p99`` or ``p99.9``. Of an empty pool they are all ``nan``, never 0: 0
        would be a good latency.

    Raises:
        ConfigError: as :func:`percentile`.

    Example: 1, 2, 3 and 6 have the mean 3, the median 2.5, and the standard deviation 1.87.
    """
    names = {f"p{q:g}": q for q in percentiles}
    if not len(values):
        return dict.fromkeys(("mean", "median", "std", *names), math.nan)
    ordered = np.sort(np.asarray(values, dtype=np.float64))  # once, not for each percentile
    return {
        "mean": float(ordered.mean()),
        "median": percentile(ordered, 50),
        "std": float(ordered.std()),
        **{name: percentile(ordered, q) for name, q in names.items()},
    }


def goodput(records: Iterable[RequestRecord], slo: Mapping[str, float], duration: float) -> float:
    """Requests a second that were served well: within *all* bounds of a service level objective.

    A value that is equal to its bound is within it. The time per output token of a request with
    one token counts as 0. A request that failed was not served well.

    Args:
        slo: bounds in milliseconds, of ``ttft``, ``tpot`` and ``e2el``, or some of these. With no
            bound every request that was served counts.
        duration: of the run, in seconds.

    Raises:
        ConfigError: a bound on something else, or a duration that is not positive; the message
            names it.
        RequestError: as :func:`served`.

    Example: 10 requests in 4 s, of which 8 have their first token within 200 ms, 7 end within
    5,000 ms, and 6 do both: 1.5 requests a second.
    """
    _check_duration(duration)
    for name in slo:
        if name not in SLO_METRICS:
            raise ConfigError(f"no bound on {name!r}: there are {', '.join(SLO_METRICS)}")
    good = sum(_is_within(record, slo) for record in served(records))
    return good / duration


def sustained_rate(points: Iterable[tuple[float, float]], level: float) -> float:
    """The request rate up to which a system keeps its latency at or below a level: how figure 12
    of the paper is read.

    The curve is made of straight lines between the points, in the order of their rates. It is read
    where it rises above the level for the first time: past that the system is overloaded, and a
    point that is lower again is luck.

    Args:
        points: (request rate, latency) of some runs, in any order. Of two runs at one rate the
            lower latency comes first.
        level: a latency, in the unit of the points.

    Raises:
        RequestError: the curve never rises above the level, it is above it from its first point
            on, or there is no point: the runs do not show the rate that is asked for. The message
            names the level.

    Example: 0.05 s per token at 1 request a second and 0.45 at 2 are 0.2 at 1.375.
    """
    curve = sorted(points)
    above = next((i for i, (_, latency) in enumerate(curve) if latency > level), None)
    if above is None:
        raise RequestError(f"the latency is above {level:g} at none of {len(curve)} rates")
    if above == 0:
        raise RequestError(f"the latency is above {level:g} at the lowest rate, {curve[0][0]:g}")
    (rate, latency), (next_rate, next_latency) = curve[above - 1 : above + 1]
    return rate + (next_rate - rate) * (level - latency) / (next_latency - latency)


def _is_within(record: RequestRecord, slo: Mapping[str, float]) -> bool:
    values = {
        "ttft": ttft(record),
        "tpot": tpot(record) if record.output_len > 1 else 0.0,
        "e2el": e2el(record),
    }
    return all(1e3 * values[name] <= bound for name, bound in slo.items())


def _check_duration(duration: float) -> None:
    if not (duration > 0 and math.isfinite(duration)):
        raise ConfigError(f"duration must be a positive number of seconds, not {duration}")


# --------------------------------------------------------------------------- the report
#: What each number of :func:`summarize` is. A latency has one entry for all its statistics.
DEFINITIONS: Mapping[str, str] = {
    "duration": "seconds that the run took",
    "completed": "requests that were served to their end",
    "failed": "requests that were refused, or could not go on",
    "total_input_tokens": "tokens of the prompts of completed requests",
    "total_output_tokens": "tokens of all outputs of completed requests",
    "request_throughput": "completed requests a second",
    "request_goodput": "completed requests within all bounds of the objective, a second",
    "output_throughput": "tokens of output a second",
    "total_token_throughput": "tokens of prompts and outputs a second",
    "max_concurrent_requests": "most completed requests between arrival and end at one time",
    "ttft_ms": "time to first token: from the arrival to the first token, milliseconds",
    "tpot_ms": (
        "time per output token: (E2EL - TTFT) / (output tokens - 1) of a request with more than "
        "one, milliseconds"
    ),
    "itl_ms": "inter-token latency: every gap between two tokens, in one pool, milliseconds",
    "e2el_ms": "end-to-end latency: from the arrival to the end, milliseconds",
    "normalized_latency_s_per_token": (
        "the paper's: E2EL / output tokens, mean over sequences, seconds per token"
    ),
    "preemption_count": "how often a request's memory was taken away",
}


def definition(key: str) -> str:
    """What a number of :func:`summarize` is, as ``p99_ttft_ms``.

    Raises:
        KeyError: there is no such number.
    """
    if key in DEFINITIONS:
        return DEFINITIONS[key]
    statistic, _, latency = key.partition("_")
    return f"{statistic} of: {DEFINITIONS[latency]}"


def summarize(
    records: Sequence[RequestRecord],
    duration: float,
    *,
    slo: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = (50, 90, 99),
) -> dict[str, float]:
    """A run in numbers, under the names of vLLM's JSON files. :func:`definition` says what each is.

    Of each latency there are the :func:`summary_statistics`, as ``p99_ttft_ms``, of its whole pool.
    ``normalized_latency_s_per_token`` is the mean, and has percentiles beside it.

    Args:
        duration: of the run, in seconds.
        slo: bounds as :func:`goodput` takes them. Without them there is no ``request_goodput``.

    Raises:
        RequestError: as :func:`served`.
        ConfigError: as :func:`goodput` and :func:`percentile`.
    """
    _check_duration(duration)
    counted = served(records)
    prompts = sum(record.prompt_len for record in counted)
    outputs = sum(record.output_len * record.num_sequences for record in counted)
    summary: dict[str, float] = {
        "duration": duration,
        "completed": len(counted),
        "failed": sum(bool(record.error) for record in records),
        "total_input_tokens": prompts,
        "total_output_tokens": outputs,
        "request_throughput": len(counted) / duration,
    }
    if slo is not None:
        summary["request_goodput"] = goodput(records, slo, duration)
    summary |= {
        "output_throughput": outputs / duration,
        "total_token_throughput": (prompts + outputs) / duration,
        "max_concurrent_requests": _max_concurrent(counted),
    }
    for metric in ("ttft", "tpot", "itl", "e2el"):
        values = 1e3 * np.array(pooled(counted, metric))
        summary |= {
            f"{k}_{metric}_ms": v for k, v in summary_statistics(values, percentiles).items()
        }
    key = "normalized_latency_s_per_token"
    of_sequences = summary_statistics(pooled(counted, "normalized_latency"), percentiles)
    summary |= {key: of_sequences["mean"]}
    summary |= {f"{k}_{key}": v for k, v in of_sequences.items() if k.startswith("p")}
    return summary | {"preemption_count": sum(record.num_preemptions for record in records)}


def _max_concurrent(records: Sequence[RequestRecord]) -> int:
    """Who ends in the moment in which another arrives is gone by then."""
    changes = [(record.arrival_time, 1) for record in records]
    changes += [(record.finish_time or 0.0, -1) for record in records]
    present = most = 0
    for _, change in sorted(changes):
        present += change
        most = max(most, present)
    return most
