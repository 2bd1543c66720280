"""A class's copy in which stage 10 is closed: what the simulator runs on there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minipaged.course.catalog import load_course
from minipaged.course.own_modules import own_modules
from minipaged.course.release import given_stages, release_contents
from minipaged.course.sync import write_exercises

ROOT = Path(__file__).parents[2]
COURSE = load_course(ROOT)
STAGE = "exercises/stage10_evaluation"
SIM = ("sim", "--requests", "4", "--rate", "2")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """Stages 0 to 8 are given; nothing of stage 10 is written."""
    folder = tmp_path_factory.mktemp("class") / "copy"
    for name, content in release_contents(COURSE, given_stages(COURSE, "8"), seeds=()).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.symlink_to(content.target)
    write_exercises(load_course(folder))
    return folder


@pytest.fixture
def desk(copy) -> Iterator[Path]:
    """The copy, whose exercises are as they were once the test is over."""
    files = {file: file.read_text() for file in (copy / STAGE).glob("*.py")}
    yield copy
    for file, text in files.items():
        file.write_text(text)


def write(desk: Path, part: str, *change: str) -> None:
    """The reference as a student's file, with some text in place of another."""
    text = (ROOT / f"minipaged/sim/{part}.py").read_text()
    if change:
        assert text.count(change[0]) == 1
        text = text.replace(*change)
    (desk / STAGE / f"{part}.py").write_text(text)


def minipaged(desk: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from minipaged.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=desk,
        env={**os.environ, "PYTHONPATH": str(desk), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr.partition("minipaged: error: ")[2].rstrip()


def missing(part: str, tasks: str) -> str:
    return (
        f"{part} is not written ({tasks}): stage 10, lessons/10-evaluation.md; write "
        f"{STAGE}/{part}.py, then `minipaged grade 10`"
    )


def test_what_is_not_written_is_named_with_its_file(desk, tmp_path):
    assert error_of(minipaged(desk, *SIM)) == missing("metrics", "tasks 10.2, 10.3")
    write(desk, "metrics")
    assert error_of(minipaged(desk, *SIM)) == missing("arrivals", "task 10.1")
    done = minipaged(desk, "paper", "fig13", "--quick", "--jobs", "1", "--out", str(tmp_path))
    assert error_of(done) == missing("arrivals", "task 10.1")


def test_the_simulator_runs_on_the_students_own(desk, tmp_path):
    """All arrive at the whole seconds, and each first token comes a minute late."""
    write(desk, "arrivals", "    return times[times < duration]", "    return np.arange(40.0)")
    write(desk, "metrics", "token_times[0] - record.arrival_time", "token_times[0] + 60")
    record = tmp_path / "record.json"
    done = minipaged(desk, *SIM, "--json", str(record), "--save-detailed")
    assert done.returncode == 0, done.stderr
    assert "parts: arrivals is yours" in done.stderr
    numbers = json.loads(record.read_text())
    assert numbers["start_times"] == [0.0, 1.0, 2.0, 3.0]
    assert numbers["mean_ttft_ms"] > 60_000


def test_what_is_wrong_in_them_is_told_with_the_line(desk):
    write(desk, "metrics")
    write(desk, "arrivals", "    scale = 1 / (rate * burstiness)", "    scale = 1 / 0")
    assert f"({STAGE}/arrivals.py); `minipaged grade 10` tests it" in error_of(
        minipaged(desk, *SIM)
    )
    write(desk, "arrivals", "import math\n", "import maths\n")
    assert error_of(minipaged(desk, *SIM)).startswith(f"{STAGE}/arrivals.py, line ")


def test_only_a_closed_copy_has_them(desk):
    write(desk, "arrivals")
    assert [file.part.name for file in own_modules(desk)] == ["arrivals"]
    assert own_modules(ROOT) == []
