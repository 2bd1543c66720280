"""A run as a JSON record and as text, each number with its definition beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from minipaged.errors import ConfigError
from minipaged.sim import metrics
from minipaged.sim.attribution import Attribution, attribute, limit_of
from minipaged.sim.metrics import DEFINITIONS, inter_token_latencies

if TYPE_CHECKING:
    from minipaged.sim.simulate import Run

#: Latencies of which there are several statistics, as they are printed.
_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "normalized_latency_s_per_token")

#: What a record has beside the numbers of :func:`~minipaged.sim.metrics.summarize`.
_OTHERS = {
    "num_steps": "steps, each planned by the scheduler",
    "mean_batch": "requests in the batch, on average over the time that steps took",
    "recompute_preemptions": "how often what was taken away was computed again",
    "swap_preemptions": "how often it went to host memory, and came back",
}


def measurements(
    run: Run,
    slo: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = (50, 90, 99),
    arithmetic: ModuleType = metrics,
) -> dict[str, Any]:
    """A run in numbers, simulated or real: vLLM's keys, and a few of our own.

    Args:
        arithmetic: has the functions of :mod:`minipaged.sim.metrics`.

    Raises:
        ConfigError, RequestError: as :func:`~minipaged.sim.metrics.summarize`.
    """
    numbers = arithmetic.summarize(run.records, run.duration, slo=slo, percentiles=percentiles)
    return {
        **numbers,
        "num_steps": run.num_steps,
        "mean_batch": run.mean_batch,
        "recompute_preemptions": run.preemptions.get("recompute", 0),
        "swap_preemptions": run.preemptions.get("swap", 0),
    }


def details(run: Run) -> dict[str, Any]:
    """Each request by itself, in lists of equal length, under vLLM's names (seconds)."""
    records = run.records
    served = [record.token_times for record in records]
    return {
        "input_lens": [record.prompt_len for record in records],
        "output_lens": [record.output_len for record in records],
        "start_times": [record.arrival_time for record in records],
        "ttfts": [t[0] - r.arrival_time if t else None for r, t in zip(records, served)],
        "itls": [inter_token_latencies(record) for record in records],
        "errors": [record.error for record in records],
    }


def attribution_record(run: Run) -> dict[str, Any]:
    """Where the time went and what limits the run, for a JSON file (seconds)."""
    attribution = attribute(run)
    limit = limit_of(attribution)
    return {
        "attribution": {
            "machine_s": attribution.machine,
            "mean_request_s": attribution.request,
            "mean_request_waiting_s": attribution.waiting,
        },
        "limited_by": limit.name,
    }


def write_json(path: str | Path, record: Any) -> None:
    """Write a record. Numbers that JSON has no word for (the latencies of no request) are null.

    Raises:
        ConfigError: the file cannot be written; the message names it.
    """
    text = json.dumps(_finite(record), indent=2, allow_nan=False)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --------------------------------------------------------------------------- text
def render_measurements(numbers: Mapping[str, float]) -> str:
    """The numbers of :func:`measurements` as lines of text."""
    latencies = {key: _statistics(numbers, key) for key in _LATENCIES}
    taken = {f"{name}_{key}" for key, values in latencies.items() for name in values}
    lines = []
    for key, value in numbers.items():
        if key not in taken and key not in latencies:
            text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
            lines.append(f"  {key:24} {text:>12}   {(_OTHERS | dict(DEFINITIONS))[key]}")
    for key, values in latencies.items():
        lines += ["", f"  {key}: {DEFINITIONS[key]}"]
        digits = 1 if key.endswith("_ms") else 4
        lines.append("    " + "   ".join(f"{k} {v:,.{digits}f}" for k, v in values.items()))
    return "\n".join(lines)


def _statistics(numbers: Mapping[str, float], latency: str) -> dict[str, float]:
    """The statistics of one latency, by name."""
    found = {
        key.removesuffix(f"_{latency}"): value
        for key, value in numbers.items()
        if key.endswith(f"_{latency}")
    }
    return {"mean": numbers[latency]} | found if latency in numbers else found


def render_attribution(attribution: Attribution) -> str:
    """Where the time went, as a table, and what limits the run."""
    machine, request = attribution.machine, attribution.request
    lines = [f"  {'Where the time went':22} {'machine':>19} {'mean request':>23}"]
    for term in (*machine, "queueing"):
        cells = (_cell(machine, term), _cell(request, term))
        if any(cells):
            lines.append(f"  {term:22} {cells[0]:>19} {cells[1]:>23}".rstrip())
    totals = (sum(machine.values()), sum(request.values()))
    lines.append(f"  {'sum':22} {totals[0]:>9,.3f} s {totals[1]:>21,.3f} s")
    causes = [f"{cause} {s:,.3f} s" for cause, s in attribution.waiting.items()]
    if causes:
        lines.append(f"  The mean request queued for: {', '.join(causes)}")
    limit = limit_of(attribution)
    lines.append(f"  What limits it: {limit.name}. {limit.reason[0].upper()}{limit.reason[1:]}.")
    return "\n".join(lines)


def _cell(terms: Mapping[str, float], term: str) -> str:
    seconds = terms.get(term, 0.0)
    total = sum(terms.values())
    if not seconds or not total:
        return ""
    return f"{seconds:,.3f} s {100 * seconds / total:5.1f} %"
