"""The benchmarks run, and write the keys that others read."""

from __future__ import annotations

import json

import pytest

from minipaged.cli import main
from minipaged.sampling_params import SamplingParams
from minipaged.sim.calibration import Calibration

OPT = ["--model", "opt-stories", "--threads", "1"]


def bench(tmp_path, *arguments):
    path = tmp_path / "bench.json"
    assert main(["bench", *arguments, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_throughput_against_transformers_with_the_same_tokens(tmp_path, capsys):
    report = bench(tmp_path, "throughput", *OPT, "--requests", "6", "--rounds", "1")
    engines = report["engines"]
    assert set(engines) == {
        "minipaged", "transformers_static_8", "transformers_static_16",
        "transformers_static_32", "transformers_continuous",
    }  # fmt: skip
    for name in ("minipaged", "transformers_static_8"):
        assert engines[name]["output_throughput"] > 0
        assert engines[name]["same_outputs"] == 6
    assert "minipaged is" in capsys.readouterr().out


def test_paging_holds_no_block_beyond_need_and_batches_more(tmp_path):
    report = bench(tmp_path, "memory", *OPT, "--requests", "48")
    assert report["kv_held_over_need"] >= 0.99
    batch = {name: row["mean_batch"] for name, row in report["waste"].items()}
    assert batch["paged"] > batch["oracle"] >= batch["pow2"] >= batch["max"] > 0
    for row in report["waste"].values():
        shares = [row[k] for k in ("token_states", "reserved", "internal", "external")]
        assert sum(shares) == pytest.approx(100)


def test_planning_is_measured_beside_a_loop(tmp_path):
    report = bench(tmp_path, "scheduler", "--threads", "1")
    assert report["scheduler_over_loop"] > 1
    assert report["scheduler_long_over_short"] > 0


def test_an_unknown_part_is_named(capsys):
    assert main(["bench", "speed"]) == 1
    assert "there is no benchmark 'speed'" in capsys.readouterr().err


def test_a_load_has_the_numbers_of_a_simulated_run(tmp_path):
    real = bench(tmp_path, "load", *OPT, "--requests", "8", "--slo", "ttft:60000 tpot:60000")
    path = tmp_path / "sim.json"
    load = ("--requests", "8", "--rate", "inf", "--slo", "ttft:60000")
    assert main(["sim", *load, "--json", str(path)]) == 0
    simulated = json.loads(path.read_text())
    # But for what each runs on, and where the time went.
    ours = {"system", "target", "efficiency", "attribution", "limited_by"}
    theirs = {"model", "threads", "requests", "python", "torch"}
    assert set(simulated) - ours == set(real) - theirs
    assert ours <= set(simulated)
    assert real["completed"] == real["num_prompts"] == real["max_concurrent_requests"] == 8
    assert real["request_rate"] == "inf"
    assert real["total_output_tokens"] / real["duration"] == pytest.approx(
        real["output_throughput"]
    )
    assert real["request_goodput"] == real["request_throughput"] > 0
    assert 0 < real["mean_ttft_ms"] < real["mean_e2el_ms"] <= 1e3 * real["duration"]
    assert 1 < real["mean_batch"] <= 8
    assert real["num_steps"] <= 96


def test_requests_of_a_load_arrive_when_their_time_has_come(monkeypatch):
    """On a clock that stands still but for sleeping, and a millisecond a look."""
    from minipaged.bench import load as module
    from minipaged.bench.workload import as_load, make_workload
    from minipaged.config import CacheConfig, SchedulerConfig
    from minipaged.llm import LLM

    now, slept = [100.0], []

    def clock():
        now[0] += 1e-3
        return now[0]

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(module.time, "sleep", sleep)
    llm = LLM("opt-stories", device="cpu", cache=CacheConfig(num_gpu_blocks=16, num_cpu_blocks=16),
              scheduler=SchedulerConfig(preemption="swap"))  # fmt: skip
    llm.engine.clock = clock
    jobs = make_workload(llm.tokenizer, 8, seed=2)
    load = as_load(jobs, rate=20.0, seed=4)
    run = module.serve_load(llm.engine, load, [job.prompt_token_ids for job in jobs])
    assert slept
    assert run.duration > load.duration
    assert len(run.records) == 8
    for record, request in zip(run.records, load.requests):
        assert record.completed
        assert record.arrival_time == request.arrival_time
        assert record.output_len == len(record.token_times) == request.output_len
        assert request.arrival_time < record.token_times[0]
        assert record.token_times == sorted(set(record.token_times))
        assert record.finish_time == record.token_times[-1] <= run.duration
    assert sum(run.preemptions.values()) == sum(r.num_preemptions for r in run.records) > 0
    assert run.swapped_blocks > 0
    assert sum(run.busy) < run.duration


def test_a_load_takes_one_rate_and_prompts_of_the_lengths_that_it_says(capsys):
    from minipaged.bench.load import serve_load
    from minipaged.errors import RequestError
    from minipaged.llm import LLM
    from minipaged.sim.workloads import Request, Workload

    assert main(["bench", "load", "--rate", "1,2"]) == 1
    assert "--rate 1,2: one load is served" in capsys.readouterr().err
    llm = LLM("opt-stories", device="cpu")
    with pytest.raises(RequestError, match="prompt 0 has 2 tokens, its request 3"):
        serve_load(llm.engine, Workload("w", (Request(0.0, 3, 4),)), [[5, 6]])
    llm.add("busy", SamplingParams(max_tokens=3))
    with pytest.raises(RequestError, match="the engine is busy"):
        serve_load(llm.engine, Workload("w", (Request(0.0, 2, 4),)), [[5, 6]])


def test_a_calibration_is_written_and_simulated_with(tmp_path, capsys):
    cost = tmp_path / "cost.json"
    assert main(["bench", "--calibrate", str(cost), *OPT, "--rounds", "1"]) == 0
    assert "a step in the executor" in capsys.readouterr().out
    calibration = Calibration.load(cost)
    assert (calibration.model, calibration.device) == ("opt-stories", "cpu")
    assert (calibration.num_gpu_blocks, calibration.max_model_len) == (1024, 512)
    assert calibration.cost.weights > 0
    assert calibration.cost.per_block_out > 0
    assert calibration.cost.per_block_in > 0
    assert 0 < calibration.mean_error < 0.5
    record = tmp_path / "sim.json"
    assert main(["sim", "--cost", str(cost), "--requests", "4", "--json", str(record)]) == 0
    assert json.loads(record.read_text())["target"] == "opt-stories on cpu, as measured"
