"""Task 10.2: what one request says, and how many of them make one pool."""

from __future__ import annotations

import pytest
from run_oracle import (
    Served,
    expect_number,
    expect_numbers,
    line_through,
    listed,
    records_of,
)

from minipaged.course.testing import expect, expect_error
from minipaged.errors import ConfigError, RequestError


@pytest.mark.parametrize("case", range(2))
def test_a_latency_begins_with_the_arrival(parts, lab, rng, case):
    for request in (Served.draw(rng), Served.draw(rng, tokens=1), Served.draw(rng, tokens=30)):
        record = request.record(lab)
        expect_number(parts.ttft(record), request.first, f"ttft(): {request.told()}")
        expect_number(parts.e2el(record), request.latency, f"e2el(): {request.told()}")


@pytest.mark.parametrize("case", range(2))
def test_gaps_are_between_tokens(parts, lab, rng, case):
    waiting = Served.draw(rng, tokens=0)
    for request in (Served.draw(rng), Served.draw(rng, tokens=1), waiting):
        got = parts.inter_token_latencies(request.record(lab))
        expect_numbers(got, request.gaps, f"inter_token_latencies(): {request.told()}")


@pytest.mark.parametrize("case", range(2))
def test_time_per_output_token_leaves_the_first_out(parts, lab, rng, case):
    for tokens in (2, None, 20):
        request = Served.draw(rng, tokens)
        got = parts.tpot(request.record(lab))
        expect_number(got, request.per_token, f"tpot(): {request.told()}")


@pytest.mark.parametrize("case", range(2))
def test_normalized_latency_is_over_tokens_of_the_output(parts, lab, rng, case):
    for tokens in (1, None, 20):
        request = Served.draw(rng, tokens)
        got = parts.normalized_latency(request.record(lab))
        why = f"normalized_latency(): {request.told()}, {request.prompt} tokens of prompt"
        expect_number(got, request.latency / len(request.tokens), why)


@pytest.mark.parametrize("case", range(2))
def test_all_gaps_go_into_one_pool(parts, lab, rng, case):
    requests = [Served.draw(rng, tokens=n) for n in rng.permutation([1, 2, 3, 12]).tolist()]
    records = records_of(lab, requests)
    why = "of requests with " + ", ".join(str(len(r.tokens)) for r in requests) + " tokens"
    gaps = [gap for request in requests for gap in request.gaps]
    expect_numbers(parts.pooled(records, "itl"), gaps, f"pooled('itl') {why}")
    for metric, want in (
        ("ttft", [request.first for request in requests]),
        ("e2el", [request.latency for request in requests]),
        ("tpot", [request.per_token for request in requests if len(request.tokens) > 1]),
    ):
        expect_numbers(parts.pooled(records, metric), want, f"pooled({metric!r}) {why}")
    expect_numbers(parts.pooled([], "ttft"), [], "pooled('ttft') of no request")


@pytest.mark.parametrize("case", range(2))
def test_every_output_has_its_normalized_latency(parts, lab, rng, case):
    counts = rng.permutation([1, 2, 4, int(rng.integers(3, 7))]).tolist()
    requests = [Served.draw(rng, sequences=n) for n in counts]
    want = [
        request.latency / len(request.tokens)
        for request in requests
        for _ in range(request.sequences)
    ]
    why = f"pooled('normalized_latency') of requests with {listed(counts)} outputs"
    expect_numbers(parts.pooled(records_of(lab, requests), "normalized_latency"), want, why)
    got = parts.pooled(records_of(lab, requests), "ttft")
    expect(len(got), len(requests), f"pooled('ttft') of requests with {listed(counts)} outputs")


@pytest.mark.parametrize("case", range(2))
def test_a_percentile_lies_on_a_straight_line(parts, rng, case):
    for count in (1, 2, 4, int(rng.integers(5, 40))):
        values = rng.integers(1, 1000, count).astype(float).tolist()
        for q in (50, 0, 100, 99, 90, round(float(rng.uniform(0, 100)), 1)):
            why = f"percentile {q:g} of {listed(values)}"
            expect_number(parts.percentile(values, q), line_through(values, q), why)


# --------------------------------------------------------------------------- robustness
def test_a_run_that_has_not_drained_is_refused(parts, lab, rng):
    for left in (1, int(rng.integers(2, 6))):
        requests = [Served.draw(rng) for _ in range(6)]
        requests += [Served.draw(rng, ended=False) for _ in range(left - 1)]
        requests.append(Served.draw(rng, tokens=0))  # it still waits
        requests = [requests[i] for i in rng.permutation(len(requests))]
        records = records_of(lab, requests)
        why = f"of {len(requests)} requests {left} have not finished, and none has failed"
        with expect_error(RequestError, str(left), why=f"served(): {why}"):
            parts.served(records)
        for metric in ("ttft", "itl", "normalized_latency"):
            with expect_error(RequestError, str(left), why=f"pooled({metric!r}): {why}"):
                parts.pooled(records, metric)


def test_who_failed_has_no_latency(parts, lab, rng):
    served = [Served.draw(rng) for _ in range(3)]
    failed = [
        Served.draw(rng, tokens=0, error="it is too long"),
        Served.draw(rng, ended=False, error="no room left"),
        Served.draw(rng, error="the client has gone"),
    ]
    requests = [served[0], failed[0], failed[1], served[1], failed[2], served[2]]
    records = records_of(lab, requests)
    got = [record.arrival_time for record in parts.served(records)]
    want = [request.arrival for request in served]
    expect_numbers(got, want, "served() of 6 requests, 3 of which failed: arrivals")
    why = "of 6 requests, 3 of which failed"
    for metric, values in (
        ("e2el", [request.latency for request in served]),
        ("itl", [gap for request in served for gap in request.gaps]),
    ):
        expect_numbers(parts.pooled(records, metric), values, f"pooled({metric!r}) {why}")


def test_what_is_not_there_is_told(parts, lab, rng):
    running = Served.draw(rng, ended=False)
    waiting, single = Served.draw(rng, tokens=0), Served.draw(rng, tokens=1)
    for name, request, what in (
        ("ttft", waiting, "a request without a token"),
        ("e2el", running, "a request that has not finished"),
        ("tpot", running, "a request that has not finished"),
        ("tpot", single, "a request with one token"),
        ("normalized_latency", waiting, "a request without a token"),
        ("normalized_latency", running, "a request that has not finished"),
    ):
        told = f"{request.arrival:g}"
        with expect_error(RequestError, told, why=f"{name}() of {what}, arrived at {told} s"):
            getattr(parts, name)(request.record(lab))
    with expect_error(ConfigError, "speed", why="pooled() of a metric that there is not"):
        parts.pooled([single.record(lab)], "speed")
    for q in (-1, 101, round(float(rng.uniform(100.1, 200)), 1)):
        with expect_error(ConfigError, f"{q:g}", why=f"percentile {q:g}"):
            parts.percentile([1.0, 2.0], q)
    with expect_error(RequestError, why="percentile 50 of nothing"):
        parts.percentile([], 50)
