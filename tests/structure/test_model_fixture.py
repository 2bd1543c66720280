"""Tests that need the fetched model are skipped without it, but never in continuous integration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("require", "status", "told"), [("", 0, "1 skipped"), ("1", 1, "`make model` gets it")]
)
def test_a_missing_model_skips_or_fails(tmp_path, require, status, told):
    (tmp_path / "test_it.py").write_text("def test_it(smollm2_path): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
            "MINIPAGED_CACHE": str(tmp_path / "empty"),
            "MINIPAGED_REQUIRE_MODEL": require,
            "PYTEST_ADDOPTS": "",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout
    assert told in done.stdout
