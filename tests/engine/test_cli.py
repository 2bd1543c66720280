"""The command line as its users meet it: what is printed, and what the exit status says."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from minipaged.cli import COMMANDS, main

OPT = ["--model", "opt-stories", "--device", "cpu"]


def run(capsys, *arguments):
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_generate_streams_one_answer(capsys):
    status, out, err = run(
        capsys, "generate", "Once upon a time", *OPT, "--max-tokens", "8", "--num-gpu-blocks", "64"
    )
    assert status == 0
    assert len(out.split()) >= 3
    assert "float" in err


def test_generate_serves_several_prompts_together(capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    status, out, _ = run(
        capsys, "generate", "Once upon", "One day", *OPT, "--max-tokens", "5", "--json",
        "--num-gpu-blocks", "64", "--trace", str(trace), "--check",
    )  # fmt: skip
    assert status == 0
    outputs = [json.loads(line) for line in out.splitlines()]
    assert [o["prompt"] for o in outputs] == ["Once upon", "One day"]
    assert all(len(o["outputs"][0]["token_ids"]) == 5 for o in outputs)
    assert len(trace.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "no-such-model-at-all"], "no-such-model-at-all"),
        ([*OPT, "--temperature", "-1"], r"temperature must be in \[0, 100\], not -1.0"),
        ([*OPT, "--block-size", "0"], "block_size must be at least 1, not 0"),
        ([*OPT, "-n", "3"], "temperature must be above 0 for 3 sequences"),
        ([*OPT, "--max-num-batched-tokens", "3"], r"must be at least max_num_seqs \(256\)"),
        ([*OPT, "--trace", "/no/such/folder/t.jsonl"], "/no/such/folder/t.jsonl"),
    ],
)
def test_a_bad_value_is_one_sentence(capsys, arguments, says):
    status, out, err = run(capsys, "generate", "Hello", *arguments)
    assert status == 1
    assert out == ""
    last = err.strip().splitlines()[-1]
    assert last.startswith("minipaged: error: ")
    assert re.search(says, last)
    assert "Traceback" not in err


def test_an_unknown_command_or_option_names_itself(capsys):
    for arguments in (["serf"], ["generate", "--no-such-option"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_every_command_has_help(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        assert "usage: minipaged" in capsys.readouterr().out


def test_the_demo_in_a_pipe_prints_plain_lines(capsys):
    status, out, _ = run(capsys, "demo", *OPT, "--check", "--max-model-len", "512")
    assert status == 0
    assert "\x1b[" not in out
    assert re.search(r"step 0: \d+ running", out)
    assert len(re.findall(r"^[A-P] .*\(", out, re.M)) == 16
    assert re.search(r"16 requests, \d+ prompt and \d+ output tokens", out)
    assert "the pool is full, preempted: " in out
    assert re.search(r"(\d+) of \1 blocks are free again", out)


def test_ctrl_c_is_a_sentence_and_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "minipaged.cli", "generate", "Once", *OPT, "--raw",
         "--ignore-eos", "--max-tokens", "480", "--num-gpu-blocks", "64"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout.read(1), "it began to print"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err


def test_a_closed_pipe_is_no_traceback():
    command = f"{shlex.quote(sys.executable)} -m minipaged.cli plan | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert len(result.stdout.splitlines()) == 1
    assert "Traceback" not in result.stderr
