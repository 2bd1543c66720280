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

Stage 10, the evaluation::

    read    lessons/10-evaluation.md
    write   10.2  Metrics              14 points
            10.3  Latency and goodput   8 points
    also    robustness 10 points
    check   minipaged grade 10
    stuck   minipaged hint 10.2
    use it  minipaged sim --parts mine
    next    admission_study.py, beside this file
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
    raise NotImplementedError("stage 10, task 10.2: see lessons/10-evaluation.md")


def inter_token_latencies(record: RequestRecord) -> list[float]:
    """ITL: the gaps between one token and the next, in order.

    The time to the first token is none of them, so that there is one fewer than tokens, and none
    at all for a request with one token or without any.

    Example: tokens at 2, 3 and 5 s have the gaps ``[1.0, 2.0]``.
    """
    raise NotImplementedError("stage 10, task 10.2: see lessons/10-evaluation.md")


def e2el(record: RequestRecord) -> float:
    """End-to-end latency: from the arrival to the end.

    Raises:
        RequestError: it has not finished; the message names its arrival time.
    """
    raise NotImplementedError("stage 10, task 10.2: see lessons/10-evaluation.md")


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
    raise NotImplementedError("stage 10, task 10.2: see lessons/10-evaluation.md")


def normalized_latency(record: RequestRecord) -> float:
    """The paper's measure (section 6.1): the end-to-end latency over the length of the output, in
    seconds per token. Tokens of the prompt do not count.

    Raises:
        RequestError: it has no output, or has not finished; the message names its arrival time.

    Example: it arrives at 1 s, and ends with its fourth token at 3 s: 0.5 s per token.
    """
    raise NotImplementedError("stage 10, task 10.2: see lessons/10-evaluation.md")


# --------------------------------------------------------------------------- many requests
def served(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests that numbers are made of: those that were served to their end, in order. Those
    that failed are left out.

    Raises:
        RequestError: some have neither finished nor failed: the run has not drained. The message
            names how many there are.
    """
    raise NotImplementedError("stage 10, task 10.2: see lessons/10-evaluation.md")


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
    raise NotImplementedError("stage 10, task 10.2: see lessons/10-evaluation.md")


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
    raise NotImplementedError("stage 10, task 10.2: see lessons/10-evaluation.md")


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
    raise NotImplementedError("stage 10, task 10.3: see lessons/10-evaluation.md")


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
    raise NotImplementedError("stage 10, task 10.3: see lessons/10-evaluation.md")


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
    raise NotImplementedError("stage 10, task 10.3: see lessons/10-evaluation.md")


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
