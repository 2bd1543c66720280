"""NumPy's own statistics, over tables of all that a run has."""

from __future__ import annotations

import math

import numpy as np

from minipaged.errors import ConfigError, RequestError


def told(record, what):
    return RequestError(f"arrival {record.arrival_time:g}: {what}")


def ttft(record):
    for time in record.token_times:
        return time - record.arrival_time
    raise told(record, "no token")


def inter_token_latencies(record):
    return np.diff(record.token_times).tolist()


def e2el(record):
    if record.finish_time is None:
        raise told(record, "not finished")
    return record.finish_time - record.arrival_time


def tpot(record):
    if record.output_len < 2 or record.finish_time is None:
        raise told(record, "there is no TPOT")
    return (record.finish_time - record.token_times[0]) / (record.output_len - 1)


def normalized_latency(record):
    if not record.output_len:
        raise told(record, "no output")
    return e2el(record) / record.output_len


def served(records):
    kinds = {"failed": [], "open": [], "done": []}
    for record in records:
        kind = "failed" if record.error else "done" if record.completed else "open"
        kinds[kind].append(record)
    if kinds["open"]:
        raise RequestError(f"{len(kinds['open'])} are open")
    return kinds["done"]


def pooled(records, metric):
    of_one = {
        "ttft": lambda r: [ttft(r)],
        "e2el": lambda r: [e2el(r)],
        "tpot": lambda r: [tpot(r)] if r.output_len > 1 else [],
        "itl": inter_token_latencies,
        "normalized_latency": lambda r: [normalized_latency(r)] * r.num_sequences,
    }
    if metric not in of_one:
        raise ConfigError(f"{metric}?")
    values = []
    for record in served(records):
        values.extend(of_one[metric](record))
    return values


def percentile(values, q):
    if q < 0 or q > 100:
        raise ConfigError(f"percentile {q}")
    if len(values) == 0:
        raise RequestError("no values")
    return float(np.percentile(values, q))


def summary_statistics(values, percentiles=(50, 90, 99)):
    table = {"mean": np.mean, "median": np.median, "std": np.std}
    for q in percentiles:
        table[f"p{q:g}"] = lambda v, q=q: np.percentile(v, q)
    empty = len(values) == 0
    return {name: math.nan if empty else float(take(values)) for name, take in table.items()}


def goodput(records, slo, duration):
    if not duration > 0:
        raise ConfigError(f"duration {duration}")
    if unknown := set(slo) - {"ttft", "tpot", "e2el"}:
        raise ConfigError(f"unknown: {unknown}")
    rate = 0.0
    for record in served(records):
        late = "ttft" in slo and 1000 * ttft(record) > slo["ttft"]
        late |= "e2el" in slo and 1000 * e2el(record) > slo["e2el"]
        if "tpot" in slo and record.output_len > 1:
            late |= 1000 * tpot(record) > slo["tpot"]
        rate += 0 if late else 1 / duration
    return rate


def sustained_rate(points, level):
    before = None
    for rate, latency in sorted(points):
        if latency > level:
            if before is None:
                raise RequestError(f"all above {level:g}")
            (x0, y0), x1, y1 = before, rate, latency
            return float(np.interp(level, [y0, y1], [x0, x1]))
        before = rate, latency
    raise RequestError(f"never above {level:g}")


def summarize(records, duration, *, slo=None, percentiles=(50, 90, 99)):
    done = served(records)
    prompts = sum(r.prompt_len for r in done)
    outputs = sum(r.output_len * r.num_sequences for r in done)
    report = {
        "duration": duration,
        "completed": len(done),
        "failed": len([r for r in records if r.error]),
        "total_input_tokens": prompts,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (prompts + outputs) / duration,
        "preemption_count": sum(r.num_preemptions for r in records),
    }
    if slo is not None:
        report["request_goodput"] = goodput(records, slo, duration)
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for name, value in summary_statistics(pooled(done, metric), percentiles).items():
            report[f"{name}_{metric}_ms"] = 1000 * value
    normalized = summary_statistics(pooled(done, "normalized_latency"), percentiles)
    report["normalized_latency_s_per_token"] = normalized["mean"]
    return report
