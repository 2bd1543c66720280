"""The check of a machine with a GPU, without one: its parts on a tiny model, the script around
them with a stand-in for Python, and what the report says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minipaged.bench import device_check
from minipaged.bench.device_check import Setting, graphs, pressure
from minipaged.executor.decode_graphs import DecodeGraphs
from minipaged.models.catalog import CATALOG

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = Setting("cpu", quick=True)


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch):
    monkeypatch.setattr(Setting, "bandwidth", lambda self: 1e9)


def failed(report):
    return [check.name for check in report.checks if not check.ok]


def test_graphs_are_compared_with_single_launches():
    report = graphs(TINY)
    assert failed(report) == []
    assert len(report.checks) == 6
    assert [step["batch"] for step in report.figures["steps"]] == [1, 3, 8]
    one, three, _ = (step["floor_s"] * 1e9 for step in report.figures["steps"])
    token = 2 * 2 * 64 * 4  # K and V, layers, width, bytes
    assert three - one == pytest.approx(2 * 48 * token)


def test_a_graph_that_gives_something_else_is_found(monkeypatch):
    run = DecodeGraphs.run
    monkeypatch.setattr(DecodeGraphs, "run", lambda self, inputs: run(self, inputs).flip(-1))
    assert len(failed(graphs(TINY))) >= 4


def test_an_engine_under_pressure_preempts_both_ways():
    report = pressure(TINY)
    assert failed(report) == []
    runs = report.figures["runs"]
    assert list(runs) == ["undisturbed", "swap", "recompute"]
    assert runs["swap"]["blocks_swapped"] > 0 == runs["recompute"]["blocks_swapped"]
    assert all(run["decode_step_over_floor"] > 0 for run in runs.values())


def test_lost_blocks_are_found(monkeypatch):
    monkeypatch.setattr(device_check.KVPool, "swap_in", lambda self, pairs: None)
    assert failed(pressure(TINY)) == ["swap: tokens of an undisturbed run"]


@pytest.mark.parametrize(
    ("gib", "name"), [(141, "opt-13b"), (40, "opt-13b"), (24, "opt-6.7b"), (6, "opt-1.3b")]
)
def test_the_largest_model_that_leaves_room_for_a_pool(monkeypatch, gib, name):
    made = []
    monkeypatch.setattr(device_check, "available_memory", lambda device: gib << 30)
    monkeypatch.setattr(
        device_check, "random_model", lambda config, **kw: made.append((config, kw))
    )
    Setting("cuda", quick=False).model()
    assert made == [(CATALOG[name], {"dtype": torch.float16, "device": "cuda"})]


# --------------------------------------------------------------------------- the script
FAKE_PYTHON = """#!/bin/sh
case "$*" in
    scripts/device_report.py*) exec '{python}' "$@" ;;
    *"device_check about"*) echo '{{"figures": {{"arch": "sm_90", "device": "cuda",
        "name": "Some GPU", "copy_bytes_per_s": 2e12, "torch": "2.11"}}}}' >"$5" ;;
    *"device_check graphs"*) echo "the graphs are broken"; exit 3 ;;
    *"kernels audit"*) echo "$*" >&2; echo '{{"arch": "sm_90", "kernels": [{{"faults": []}}]}}' ;;
    *"kernels bench"*) exec sleep 60 ;;
    *test_rotary.py) echo "rotary is broken"; exit {rotary} ;;
    *pytest*) echo "$*" ;;
esac
"""


@pytest.fixture
def run_script(tmp_path):
    """The script itself, with a Python that only pretends, and two seconds for each step."""

    def run(*options, rotary=0):
        for name, text in (
            ("python", FAKE_PYTHON.format(python=sys.executable, rotary=rotary)),
            ("timeout", f'#!/usr/bin/env bash\nshift 2\nexec {shutil.which("timeout")} 2 "$@"\n'),
        ):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        return subprocess.run(
            [SCRIPTS / "device_check.sh", *options],
            env={
                **os.environ,
                "PYTHON": str(tmp_path / "python"),
                "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
        )

    return run


def test_a_step_that_fails_or_hangs_does_not_stop_the_others(run_script, tmp_path):
    out = tmp_path / "out"
    done = run_script(out)
    assert done.returncode == 1, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert {step["name"]: step["status"] for step in summary["steps"]} == {
        "about": 0,
        "kernel_tests": 0,
        "engine_tests": 0,
        "graphs": 3,
        "pressure": 0,
        "audit": 0,
        "bench": 124,
    }
    assert summary["failed"] == ["graphs", "bench"]
    assert "the graphs are broken" in done.stdout
    text = (out / "summary.txt").read_text()
    assert "failed (3)" in text
    assert "out of time" in text
    assert "Some GPU: copies at 2,000 GB/s; torch 2.11" in text
    assert "sm_90: 1 kernels compiled, 0 with faults" in text
    for step, number in {"kernel_tests": 6, "engine_tests": 2}.items():  # rotary's says else
        tests = set(re.findall(r"tests/\S+\.py", (out / f"{step}.log").read_text()))
        assert len(tests) == number
        assert all((SCRIPTS.parent / file).is_file() for file in tests)
    assert "-k not (v0 or v1 or v2) tests" in (out / "kernel_tests.log").read_text()
    assert "--arch sm_90" in (out / "audit.log").read_text()
    limits = [step["limit"] for step in summary["steps"]]
    assert sum(limits) < 360


def test_tests_that_hang_leave_what_they_have_printed(run_script, tmp_path):
    run_script(tmp_path / "out", rotary="$(sleep 9)")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["failed"] == ["kernel_tests", "graphs", "bench"]
    assert summary["steps"][1]["status"] == 124
    assert "rotary is broken" in (tmp_path / "out" / "kernel_tests.log").read_text()


def test_one_file_of_tests_that_fails_fails_the_step(run_script, tmp_path):
    run_script(tmp_path / "out", rotary=1)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["failed"] == ["kernel_tests", "graphs", "bench"]
    assert "rotary is broken" in (tmp_path / "out" / "kernel_tests.log").read_text()


@pytest.mark.parametrize("options", [[], ["--quick"], ["{out}", "--wrong"]])
def test_wrong_options_are_told(run_script, tmp_path, options):
    done = run_script(*(option.format(out=tmp_path / "out") for option in options))
    assert done.returncode == 2
    assert done.stderr


# --------------------------------------------------------------------------- the report
def report(folder):
    return subprocess.run(
        [sys.executable, SCRIPTS / "device_report.py", folder], capture_output=True, text=True
    )


def test_figures_stand_beside_their_targets(tmp_path):
    (tmp_path / "steps.tsv").write_text("bench\t0\t3\t50\ngraphs\t0\t4\t50\n")
    entry = {"heads": "40x128", "batch": 32, "context": 1024, "implementation": "paged_v2",
             "bytes": 1 << 30, "seconds": 2e-4, "why_not": ""}  # fmt: skip
    wrong = {"seconds": None, "of_copy": None, "why_not": "its result is wrong"}
    (tmp_path / "bench.json").write_text(json.dumps({
        "device": "Some GPU",
        "measured": [
            entry | {"of_copy": 0.5},
            entry | {"of_copy": 0.75},
            entry | wrong,
            entry | wrong,
            entry | {"of_copy": 0.9, "bytes": 1000, "batch": 1},  # it may lie in a cache
        ],
        "figure_18a": [{"paged_over_contiguous": 1.1}, {"paged_over_contiguous": 1.2}],
    }))  # fmt: skip
    step = {"batch": 32, "graph_s": 0.02, "single_launches_s": 0.03, "floor_s": 0.016,
            "over_floor": 1.25}  # fmt: skip
    figures = {"model": "opt-13b", "dtype": "float16", "context": 512, "steps": [step]}
    checks = [{"name": "batch 32: tokens", "ok": False, "found": "31 of 32"}]
    (tmp_path / "graphs.json").write_text(json.dumps({"checks": checks, "figures": figures}))
    done = report(tmp_path)
    assert done.returncode == 0
    for line in (
        "40x128 paged_v2: 50% to 75% of the copy bandwidth (target >= 0.7: met)",
        "40x128, context 1024, batch 32: paged_v2 200 us 50%, paged_v2 200 us 75%",
        "not measured (2): paged_v2: its result is wrong",
        "paged over contiguous (Figure 18a): 1.10 to 1.20 (target <= 1.15: NOT met)",
        "graph 20.00 ms, single launches 30.00 ms, floor 16.00 ms, 1.25x (target <= 1.4: met)",
        "FAILED: batch 32: tokens: 31 of 32",
        "all steps passed",
    ):
        assert line in done.stdout


def test_files_that_are_missing_or_broken_are_passed_over(tmp_path):
    (tmp_path / "steps.tsv").write_text("graphs\t124\t50\t50\n")
    (tmp_path / "graphs.json").write_text('{"figures": {"st')
    done = report(tmp_path)
    assert done.returncode == 1
    assert "failed: graphs" in done.stdout
    assert json.loads((tmp_path / "summary.json").read_text())["graphs"] == {}
