"""Task 10.3: a run in a few numbers, and the rate that a system sustains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from run_oracle import Served, expect_number, line_through, listed, records_of

from minipaged.course.testing import expect, expect_error
from minipaged.errors import ConfigError, RequestError


def expect_statistics(got, values, percentiles, why):
    deviations = [(value - sum(values) / len(values)) ** 2 for value in values]
    want = {
        "mean": sum(values) / len(values),
        "median": line_through(values, 50),
        "std": math.sqrt(sum(deviations) / len(values)),
        **{f"p{q:g}": line_through(values, q) for q in percentiles},
    }
    if not isinstance(got, dict):
        raise AssertionError(f"{why}: expected a dictionary, got {got!r}")
    expect(sorted(got), sorted(want), f"{why}: the names")
    for name, value in want.items():
        expect_number(got[name], value, f"{why}: {name}")


@pytest.mark.parametrize("case", range(2))
def test_statistics_are_of_the_whole_pool(parts, rng, case):
    for count in (1, 2, int(rng.integers(5, 30))):
        values = rng.integers(1, 2000, count).astype(float).tolist()
        why = f"summary_statistics() of {listed(values)}"
        expect_statistics(parts.summary_statistics(values), values, (50, 90, 99), why)
        wanted = [75, 99.9, int(rng.integers(1, 50))]
        got = parts.summary_statistics(values, wanted)
        expect_statistics(got, values, wanted, f"{why}, percentiles {listed(wanted)}")
        got = parts.summary_statistics(np.array(values), [])
        expect_statistics(got, values, [], f"{why} as an array, no percentile")


def bounds_of(request, met):
    """Milliseconds that a request keeps, or just does not keep."""
    values = {"ttft": request.first, "tpot": request.per_token, "e2el": request.latency}
    return {name: 1e3 * values[name] * (1.25 if keeps else 0.8) for name, keeps in met.items()}


def test_all_bounds_must_hold(parts, lab, rng):
    request, duration = Served.draw(rng, tokens=5), float(rng.integers(2, 20))
    records = [request.record(lab)]
    for met in (
        {"ttft": True, "tpot": True, "e2el": True},
        {"ttft": False, "tpot": True, "e2el": True},
        {"ttft": True, "tpot": False},
        {"tpot": True, "e2el": False},
        {"e2el": True},
        {"ttft": False},
    ):
        slo = bounds_of(request, met)
        got = parts.goodput(records, slo, duration)
        kept = ", ".join(f"{name} {'kept' if kept else 'broken'}" for name, kept in met.items())
        why = f"goodput() of one request in {duration:g} s, {kept}"
        expect_number(got, all(met.values()) / duration, why)
    early = Served(1.0, [1.5, 2.0, 2.5])
    slo = {"ttft": 500.0, "tpot": 500.0, "e2el": 1500.0}
    got = parts.goodput([early.record(lab)], slo, 2.0)
    expect_number(
        got, 0.5, "goodput() of one request in 2 s, all three values just at their bounds"
    )


def test_goodput_is_a_second(parts, lab, rng):
    for _ in range(3):
        requests = [Served.draw(rng) for _ in range(int(rng.integers(4, 12)))]
        requests.append(Served.draw(rng, error="no room left"))
        served, duration = len(requests) - 1, float(rng.integers(3, 50))
        why = f"goodput() without a bound, {served} requests served and 1 failed in {duration:g} s"
        got = parts.goodput(records_of(lab, requests), {}, duration)
        expect_number(got, served / duration, why)
    expect_number(parts.goodput([], {"ttft": 1.0}, 4.0), 0.0, "goodput() of no request")


def test_one_token_is_always_in_time_per_token(parts, lab, rng):
    for _ in range(2):
        single, other = Served.draw(rng, tokens=1), Served.draw(rng, tokens=3)
        records = records_of(lab, [single, other])
        for share, good in ((1.25, 2), (0.8, 1)):
            bound = 1e3 * other.per_token * share
            why = (
                f"goodput() in 1 s of a request with one token, and one with a TPOT of "
                f"{1e3 * other.per_token:.4g} ms, bound {bound:.4g} ms"
            )
            expect_number(parts.goodput(records, {"tpot": bound}, 1.0), float(good), why)


def test_between_two_points_the_curve_is_a_straight_line(parts, rng):
    for count in (2, 5, 9):
        rates = np.cumsum(rng.uniform(0.1, 1, count)).round(3).tolist()
        latencies = np.cumsum(rng.uniform(0.01, 0.3, count)).round(4).tolist()
        at, share = int(rng.integers(count - 1)), float(rng.uniform(0.05, 0.95))
        level = latencies[at] * (1 - share) + latencies[at + 1] * share
        want = rates[at] * (1 - share) + rates[at + 1] * share
        points = [(rates[i], latencies[i]) for i in rng.permutation(count)]
        why = f"sustained_rate() at {level:.4g}, latencies {listed(latencies)} at {listed(rates)}"
        expect_number(parts.sustained_rate(points, level), want, why)
        got = parts.sustained_rate(points, latencies[at])
        expect_number(got, rates[at], f"{why.replace(f'{level:.4g}', f'{latencies[at]:g}', 1)}")


def test_the_first_crossing_counts(parts, rng):
    for _ in range(3):
        rates = np.cumsum(rng.uniform(0.2, 1, 6)).round(3).tolist()
        level = round(float(rng.uniform(0.1, 0.4)), 3)
        high, low = (rng.uniform(*span, 3).round(4).tolist() for span in ((1.5, 4), (0.2, 0.9)))
        factors = [low[0], low[1], high[0], low[2], high[1], high[2]]
        points = [(rate, level * factor) for rate, factor in zip(rates, factors)]
        share = (1 - low[1]) / (high[0] - low[1])
        want = rates[1] + share * (rates[2] - rates[1])
        told = listed([latency for _, latency in points])
        why = f"sustained_rate() at {level:g}, latencies {told} at {listed(rates)}"
        expect_number(parts.sustained_rate(points, level), want, why)


# --------------------------------------------------------------------------- robustness
def test_a_report_has_all_numbers(parts, lab, rng):
    """summarize() is given, and stands on all that was written."""
    requests = [Served.draw(rng, sequences=int(rng.integers(1, 4))) for _ in range(8)]
    requests[3] = Served.draw(rng, tokens=1, preempted=2)
    failed = Served.draw(rng, tokens=0, error="it is too long", preempted=1)
    duration, slo = 7.5, {"e2el": 1e3 * requests[0].latency + 0.5, "ttft": 1400.0}
    got = parts.summarize(records_of(lab, [*requests, failed]), duration, slo=slo)
    why = "summarize() of 8 requests served and 1 failed"
    prompts = sum(request.prompt for request in requests)
    outputs = sum(len(request.tokens) * request.sequences for request in requests)
    good = [r for r in requests if r.latency <= slo["e2el"] / 1e3 and r.first <= 1.4]
    for key, want in (
        ("completed", 8),
        ("failed", 1),
        ("total_input_tokens", prompts),
        ("total_output_tokens", outputs),
        ("request_throughput", 8 / duration),
        ("output_throughput", outputs / duration),
        ("total_token_throughput", (prompts + outputs) / duration),
        ("request_goodput", len(good) / duration),
        ("preemption_count", 3),
    ):
        expect_number(got.get(key), want, f"{why}: {key}")
    pools = {
        "ttft": [request.first for request in requests],
        "tpot": [request.per_token for request in requests if len(request.tokens) > 1],
        "itl": [gap for request in requests for gap in request.gaps],
        "e2el": [request.latency for request in requests],
    }
    for metric, values in pools.items():
        names = [name for name in got if name.endswith(f"_{metric}_ms")]
        mine = {name.removesuffix(f"_{metric}_ms"): got[name] / 1e3 for name in names}
        expect_statistics(mine, values, (50, 90, 99), f"{why}: {metric}, in seconds")
    normalized = [r.latency / len(r.tokens) for r in requests for _ in range(r.sequences)]
    key = "normalized_latency_s_per_token"
    expect_number(got.get(key), sum(normalized) / len(normalized), f"{why}: {key}")


def test_what_cannot_be_read_is_told(parts, lab, rng):
    level = round(float(rng.uniform(0.1, 0.4)), 2)
    for points, what in (
        ([(1.0, level / 2), (2.0, level)], "never rises above it"),
        ([(1.0, level * 2), (2.0, level * 3)], "is above it from the first point on"),
        ([], "has no point"),
    ):
        why = f"sustained_rate() at {level:g} of a curve that {what}"
        with expect_error(RequestError, f"{level:g}", why=why):
            parts.sustained_rate(points, level)
    record = Served.draw(rng).record(lab)
    with expect_error(ConfigError, "latency", why="goodput() with a bound on 'latency'"):
        parts.goodput([record], {"latency": 5.0}, 1.0)
    for duration in (0.0, -2.0):
        with expect_error(ConfigError, f"{duration:g}", why=f"goodput() in {duration:g} s"):
            parts.goodput([record], {}, duration)
    with expect_error(RequestError, "1", why="goodput() of a request that has not finished"):
        parts.goodput([Served.draw(rng, ended=False).record(lab)], {}, 1.0)
    empty = parts.summary_statistics([], (90,))
    for name in ("mean", "median", "std", "p90"):
        is_nan = isinstance(empty.get(name), float) and math.isnan(empty[name])
        expect(is_nan, True, f"summary_statistics() of an empty pool: is {name} nan?")
