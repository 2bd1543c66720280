"""``minipaged sim``: what it prints and writes, and what it says of bad values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from minipaged.cli import main
from minipaged.executor.cost_model import CostModel
from minipaged.kvcache import sizing
from minipaged.sim import metrics
from minipaged.sim.calibration import Calibration
from minipaged.sim.metrics import DEFINITIONS
from minipaged.sim.systems import SYSTEMS
from minipaged.sim.wishes import parse_percentiles, parse_rates, parse_slo

SHORT = ("--dataset", "alpaca", "--requests", "12", "--rate", "4")


def sim(*arguments: str) -> int:
    return main(["sim", *arguments])


def record_of(tmp_path, *arguments):
    path = tmp_path / "run.json"
    assert sim(*arguments, "--json", str(path)) == 0
    return json.loads(path.read_text())


def test_every_number_is_printed_with_its_definition(capsys):
    assert sim(*SHORT, "--slo", "ttft:200 tpot:50") == 0
    out = capsys.readouterr().out
    for key, sentence in DEFINITIONS.items():
        assert any(key in line and sentence in line for line in out.splitlines()), key
    assert "Where the time went" in out
    assert "What limits it: memory bandwidth" in out


def test_the_file_has_the_keys_of_vllm_and_what_is_ours(tmp_path):
    record = record_of(tmp_path, *SHORT, "--slo", "ttft:200", "--percentiles", "50,99.9")
    keys = {f"{s}_{m}_ms" for s in ("mean", "median", "std", "p50", "p99.9")
            for m in ("ttft", "tpot", "itl", "e2el")}  # fmt: skip
    keys |= {
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "max_concurrent_requests", "request_rate", "burstiness", "num_prompts",
        "normalized_latency_s_per_token", "preemption_count", "attribution", "limited_by",
    }  # fmt: skip
    assert keys <= set(record)
    assert "p99_ttft_ms" not in record
    assert record["completed"] == record["num_prompts"] == 12
    assert record["request_rate"] == 4
    machine = record["attribution"]["machine_s"]
    assert sum(machine.values()) == pytest.approx(record["duration"])


def test_details_have_an_entry_for_each_request(tmp_path):
    record = record_of(tmp_path, *SHORT, "--save-detailed")
    for key in ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors"):
        assert len(record[key]) == 12
    assert [len(gaps) + 1 for gaps in record["itls"]] == record["output_lens"]
    assert sum(record["output_lens"]) == record["total_output_tokens"]


def test_several_rates_are_several_runs_and_one_plot(tmp_path, capsys):
    plot = tmp_path / "time.png"
    records = record_of(tmp_path, "--requests", "10", "--rate", "0.5,2,inf", "--plot", str(plot))
    assert [record["request_rate"] for record in records] == [0.5, 2, "inf"]
    assert records[0]["duration"] > records[1]["duration"] > records[2]["duration"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "sharegpt at once, 10 requests" in capsys.readouterr().out


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_runs(system, tmp_path):
    record = record_of(tmp_path, *SHORT, "--system", system, "--check")
    assert record["system"] == system
    assert record["completed"] == 12


def test_a_trace_has_a_line_for_each_step(tmp_path):
    trace = tmp_path / "steps.jsonl"
    record = record_of(tmp_path, *SHORT, "--num-gpu-blocks", "12", "--trace", str(trace),
                       "-n", "3", "--num-cpu-blocks", "40")  # fmt: skip
    steps = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(steps) == record["num_steps"]
    assert sum(step["seconds"] for step in steps) == pytest.approx(
        sum(s for t, s in record["attribution"]["machine_s"].items() if t != "idle")
    )
    modes = [mode for step in steps for _, mode in step["preempted"]]
    assert modes.count("swap") == record["swap_preemptions"] > 0
    assert modes.count("recompute") == record["recompute_preemptions"]
    assert len(modes) == record["preemption_count"]


def test_beams_and_samples_ask_for_more_sequences(tmp_path):
    one, samples, beams = (
        record_of(tmp_path, *SHORT, *more) for more in ([], ["-n", "4"], ["-n", "4", "--beam"])
    )
    assert samples["total_output_tokens"] == 4 * one["total_output_tokens"]
    assert beams["total_output_tokens"] == samples["total_output_tokens"]
    assert beams["duration"] != samples["duration"]


def test_settings_reach_the_engine(tmp_path):
    base = ["--dataset", "sharegpt", "--requests", "40", "--rate", "inf"]
    plain = record_of(tmp_path, *base)
    for more in (
        ["--prefill-first"],
        ["--chunked-prefill", "--max-num-batched-tokens", "256"],
        ["--max-num-seqs", "8"],
        ["--num-gpu-blocks", "200"],
        ["--block-size", "64", "--num-gpu-blocks", "50"],
        ["--model", "opt-66b"],
        ["--gpu", "h100-80gb"],
        ["--efficiency", "roofline"],
        ["--seed", "1"],
    ):
        assert record_of(tmp_path, *base, *more)["duration"] != plain["duration"], more
    assert record_of(tmp_path, *base) == plain


def test_a_trace_file_runs_at_its_own_times(tmp_path):
    trace = tmp_path / "service.csv"
    rows = [f"{0.5 * i},{100 + i},{5 + i}" for i in range(8)]
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows) + "\n")
    record = record_of(tmp_path, "--trace-file", str(trace), "--save-detailed")
    assert record["start_times"] == [0.5 * i for i in range(8)]
    assert record["input_lens"] == [100 + i for i in range(8)]
    assert record["request_rate"] == pytest.approx(2)
    record = record_of(tmp_path, "--trace-file", str(trace), "--requests", "3", "--rate", "100")
    assert record["num_prompts"] == 3
    assert record["request_rate"] == 100


def test_a_trace_of_texts_is_counted_by_a_tokenizer(tmp_path, capsys):
    texts = tmp_path / "texts.json"
    entries = [{"instruction": "Tell a story.", "input": "", "output": "Once upon a time."}] * 4
    texts.write_text(json.dumps(entries))
    given = ("--trace-file", str(texts), "--rate", "2")
    record = record_of(tmp_path, *given, "--tokenizer", "opt-stories")
    assert record["completed"] == 4
    assert record["total_output_tokens"] > 4 * 4
    assert sim(*given) == 1
    assert "a tokenizer is needed" in capsys.readouterr().err


def test_a_measured_cost_model_takes_the_place_of_a_card(tmp_path, capsys):
    cost = CostModel(0.02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, overlap=False)
    path = tmp_path / "cost.json"
    Calibration("tiny", "cpu", "float32", 8, 64, 0, 256, cost, 0.0).save(path)
    record = record_of(tmp_path, *SHORT, "--cost", str(path))
    assert record["target"] == "tiny on cpu, as measured"
    assert record["block_size"] == 8
    assert record["attribution"]["machine_s"]["weights"] == pytest.approx(
        0.02 * record["num_steps"]
    )
    for option, value in (("--gpu", "t4"), ("--model", "opt-13b"), ("--block-size", "16")):
        assert sim(*SHORT, "--cost", str(path), option, value) == 1
        assert f"{option} {value}: {path} was measured with" in capsys.readouterr().err


def test_requests_that_are_refused_are_failed(tmp_path):
    record = record_of(tmp_path, "--requests", "60", "--rate", "4", "--max-model-len", "300")
    assert 0 < record["failed"] < 60
    assert record["completed"] + record["failed"] == 60


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rate", "0"], "--rate 0: it must be a number of requests a second above 0"),
        (["--rate", "1,,2"], "--rate (nothing)"),
        (["--rate", "nan"], "--rate nan"),
        (["--rate", "inf"], "--requests must say how many"),
        (["--burstiness", "-1"], "burstiness must be a finite number above 0, not -1"),
        (["--duration", "0"], "duration must be a finite number above 0, not 0"),
        (["--requests", "0"], "requests must be at least 1, not 0"),
        (["-n", "0"], "n must be at least 1, not 0"),
        (["--beam"], "-n must say how many beams"),
        (["--slo", "ttft"], "--slo ttft: it must be NAME:MILLISECONDS"),
        (["--slo", "itl:3"], "there is no itl, but ttft, tpot, e2el"),
        (["--slo", "ttft:1", "ttft:2"], "ttft is given twice"),
        (["--slo", "ttft:fast"], "--slo ttft: fast"),
        (["--percentiles", "50,101"], "--percentiles 101"),
        (["--model", "opt-14b"], "unknown model 'opt-14b'"),
        (["--gpu", "a1000"], "unknown GPU 'a1000'"),
        (["--model", "opt-66b", "-tp", "1"], "does not fit"),
        (["-tp", "0"], "tensor_parallel must be at least 1, not 0"),
        (["--block-size", "0"], "block_size must be at least 1, not 0"),
        (
            ["--max-model-len", "4096"],
            "--max-model-len 4096: it must be from 2 to the model's 2048",
        ),
        (["--prefill-first", "--chunked-prefill"], "exclude each other"),
        (["--trace-format", "azure"], "--trace-format says how to read a --trace-file"),
        (["--trace-file", "none.csv"], "none.csv"),
        (["--trace-file", "x", "--dataset", "alpaca"], "exclude each other"),
        (["--cost", "none.json"], "cannot read none.json"),
        (["--rate", "1,2", "--trace", "t"], "--trace is of one run"),
        (["--requests", "2", "--json", "no/folder.json"], "cannot write no/folder.json"),
        (["--requests", "2", "--plot", "no/folder.png"], "cannot draw no/folder.png"),
        (["--requests", "2", "--plot", "time.what"], "cannot draw time.what"),
        (["--requests", "2", "--trace", "no/folder.jsonl"], "cannot write the trace"),
    ],
)
def test_a_bad_value_is_told_in_a_sentence(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sim(*arguments) == 1
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


def test_wishes_are_read_as_vllm_reads_them():
    assert parse_slo(["ttft:200 tpot:50.5"]) == parse_slo(["ttft:200", "tpot:50.5"])
    assert parse_slo(["ttft:200,e2el:9"]) == {"ttft": 200.0, "e2el": 9.0}
    assert parse_rates("0.5, 2,inf") == [0.5, 2.0, math.inf]
    assert parse_percentiles("0,50,99.9,100") == [0.0, 50.0, 99.9, 100.0]


def test_texts_of_a_trace_are_shared_if_asked(tmp_path):
    trace = tmp_path / "mooncake.jsonl"
    lengths = {"input_length": 1100, "output_length": 8}
    rows = [{"timestamp": 1000 * i, **lengths, "hash_ids": [1, 2, 9 + i]} for i in range(6)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--trace-file", str(trace))
    alone, shared = record_of(tmp_path, *given), record_of(tmp_path, *given, "--prefix-caching")
    assert shared["mean_ttft_ms"] < 0.5 * alone["mean_ttft_ms"]
    assert shared["completed"] == alone["completed"] == 6


def test_a_student_part_is_in_the_simulated_engine(tmp_path, capsys):
    given = (*SHORT, "--num-gpu-blocks", "40", "--rate", "50")
    whole = record_of(tmp_path, *given)
    folder = tmp_path / "exercises" / "stage00_sizing"
    folder.mkdir(parents=True)
    source = Path(sizing.__file__).read_text()
    assert source.count("return int(num_blocks * watermark)") == 1
    half = source.replace("return int(num_blocks * watermark)", "return num_blocks // 2")
    (folder / "sizing.py").write_text(half)
    theirs = record_of(tmp_path, *given, "--parts", str(folder.parent))
    assert "sizing" in capsys.readouterr().err
    assert theirs["mean_batch"] < whole["mean_batch"]
    assert sim(*SHORT, "--parts", str(tmp_path / "nobody")) == 1
    assert "nobody" in capsys.readouterr().err


def test_a_students_metrics_measure_the_run(tmp_path):
    """A TTFT that is counted from the first token is 0, and shows in the report."""
    folder = tmp_path / "theirs" / "stage10_evaluation"
    folder.mkdir(parents=True)
    source = Path(metrics.__file__).read_text(encoding="utf-8")
    right = "return record.token_times[0] - record.arrival_time"
    assert source.count(right) == 1
    (folder / "metrics.py").write_text(source.replace(right, "return 0.0"))
    theirs = record_of(tmp_path, *SHORT, "--parts", str(folder.parent))
    assert theirs["mean_ttft_ms"] == 0
    assert record_of(tmp_path, *SHORT)["mean_ttft_ms"] > 0
