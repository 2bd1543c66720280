"""Graded tests draw their cases at random: a right answer passes them whatever is drawn."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from minipaged.course.catalog import load_course

COURSE = load_course()
#: Tried of a stage without torch, and of one with it: where time is short, and where it is not.
SEEDS = ((2, 1), (12, 3))

# One process for all seeds: pytest and torch are loaded once.
RUN = """
import sys
import pytest

folder, seeds = sys.argv[1], int(sys.argv[2])
for seed in range(1, seeds + 1):
    code = pytest.main([folder, "-q", "--no-header", "-pno:cacheprovider", f"--seed={seed}"])
    if code:
        sys.exit(f"seed {seed}: pytest ends with {code!r}")
"""


@pytest.mark.parametrize("key", [stage.key for stage in COURSE.stages])
def test_the_reference_passes_with_every_seed(key, exhaustive):
    stage = COURSE.stage(key)
    folder = COURSE.root / "tests" / stage.folder
    seeds = SEEDS[exhaustive][stage.torch]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), str(seeds)],
        cwd=COURSE.root,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
