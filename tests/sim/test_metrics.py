"""The report of a run. What its numbers are made of is graded in tests/stage10_evaluation."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from minipaged.errors import ConfigError, RequestError
from minipaged.sim import metrics
from minipaged.sim.metrics import definition, summarize
from minipaged.sim.records import RequestRecord

#: What `vllm bench serve` writes of a run, and the reader of its files looks for.
VLLM_KEYS = [
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_concurrent_requests",
    *(
        f"{statistic}_{metric}_ms"
        for metric in ("ttft", "tpot", "itl", "e2el")
        for statistic in ("mean", "median", "std", "p99")
    ),
]


def request(arrival, *times, **others):
    fields = {"prompt_len": 3, "output_len": len(times), "finish_time": times[-1]}
    return RequestRecord(arrival, list(times), **{**fields, **others})


def test_a_report_has_the_keys_of_vllm():
    report = summarize([request(0.0, 1.0, 2.0)], 4.0, slo={"ttft": 100.0})
    assert [key for key in VLLM_KEYS if key not in report] == []
    assert "request_goodput" not in summarize([request(0.0, 1.0)], 4.0)


def test_every_number_has_a_definition():
    report = summarize([request(0.0, 1.0, 2.0)], 4.0, slo={}, percentiles=(50, 99.9))
    for key in report:
        assert len(definition(key)) > 10
    assert definition("p99.9_ttft_ms").startswith("p99.9 of: time to first token")
    with pytest.raises(KeyError):
        definition("mean_speed")


def test_a_latency_without_a_value_is_no_number():
    report = summarize([request(0.0, 1.0)], 4.0)
    assert report["mean_ttft_ms"] == 1000.0
    assert math.isnan(report["mean_tpot_ms"])
    assert math.isnan(report["p99_itl_ms"])
    nothing = summarize([], 4.0)
    assert nothing["completed"] == nothing["request_throughput"] == 0
    assert math.isnan(nothing["normalized_latency_s_per_token"])


def test_who_ends_when_another_arrives_is_not_beside_it():
    one, two, three = request(0.0, 2.0), request(2.0, 5.0), request(3.0, 4.0)
    assert summarize([one, two], 5.0)["max_concurrent_requests"] == 1
    assert summarize([three, one, two], 5.0)["max_concurrent_requests"] == 2


def test_each_output_of_a_request_counts_in_tokens():
    report = summarize([request(0.0, 1.0, 2.0, num_sequences=3, num_preemptions=2)], 2.0)
    assert report["total_input_tokens"] == 3
    assert report["total_output_tokens"] == 6
    assert report["total_token_throughput"] == 4.5
    assert report["preemption_count"] == 2


def test_a_run_that_has_not_drained_has_no_report():
    waiting = RequestRecord(1.0, [], None, 3, 5)
    with pytest.raises(RequestError, match="1 of 2 requests"):
        summarize([request(0.0, 1.0), waiting], 2.0)
    with pytest.raises(ConfigError, match="duration"):
        summarize([request(0.0, 1.0)], 0.0)


def test_percentiles_are_numpys():
    rng = np.random.default_rng(0)
    for count in (1, 2, 99, 1000):
        values = rng.exponential(3, count)
        for q in (0, 1, 50, 90, 99, 99.9, 100):
            assert metrics.percentile(values, q) == pytest.approx(np.percentile(values, q))


def test_figure_12_is_read_as_the_paper_compares():
    """Points of figure 12a (OPT-13B, ShareGPT) that lie around 0.2 s per token."""
    vllm = [(1.5, 0.0424), (1.5, 0.0487), (1.75, 0.1126), (1.8, 0.1309), (1.9, 0.2397), (2.0, 1.12)]
    oracle = [(0.75, 0.0412), (0.9, 0.0849), (1.0, 0.1923), (1.1, 0.5016)]
    rates = [metrics.sustained_rate(curve, 0.2) for curve in (vllm, oracle)]
    assert rates == pytest.approx([1.864, 1.002], abs=1e-3)
    assert metrics.sustained_rate(vllm, 0.045) == 1.5  # two runs at one rate


def test_gaps_are_one_pool_however_many():
    times = np.arange(1.0, 1001.0).tolist()
    report = summarize([request(0.0, *times), request(0.0, 1.0, 11.0)], 1000.0)
    assert report["mean_itl_ms"] == 1009.0
    assert report["total_output_tokens"] == 1002


def test_the_simulators_parts_need_no_torch():
    code = (
        "import sys; from minipaged.sim import admission_study, arrivals, metrics; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
