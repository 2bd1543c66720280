"""What the ordinary run leaves out: graded tests of kernels, where the judge runs the same ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GRADED = "tests/stage07_kernel/test_kernel_write.py"
JUDGED = "tests/course/test_grade.py::test_the_solutions_earn_all_points"


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        ([f"{JUDGED}[7]"], True),
        ([f"{JUDGED}[8]"], False),
        ([f"{JUDGED}[7]", "--exhaustive"], False),
    ],
)
def test_only_what_the_judge_runs_on_the_same_code_is_left_out(arguments, left_out):
    """No test runs here: it is set up, or skipped before that."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--setup-plan", "-pno:cacheprovider", GRADED, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": "", "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert ("SETUP    F parts" in done.stdout) != left_out, done.stdout + done.stderr
    assert (f"graded tests of kernels were left to {JUDGED}" in done.stdout) == left_out
