"""Checks that take a GPU, on the GPU of whoever runs them.

The judge's walls do not fit a GPU: a worker that has given up its user's rights and most of its
memory cannot open one. So these checks run in a plain process, with the submission in it, as
``pytest --impl mine`` would run them. That is for one's own files alone. Their points stand apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from minipaged.course.catalog import Course, Stage, load_course
from minipaged.course.judge import isolated
from minipaged.course.judge.results import CheckResult, Judged

#: Seconds for the checks of one stage.
SECONDS = 180.0


def judge_on_device(course: Course, stage: Stage, impl: str, seed: int = 0) -> Judged:
    """Run a stage's GPU checks, each in the same process.

    Args:
        impl: ``mine``, ``solutions``, ``ref``, or a folder laid out as ``exercises/``: of files
            that the user trusts.
    """
    request = {"root": str(course.root), "stage": stage.number, "impl": impl, "seed": seed}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment.pop("TRITON_INTERPRET", None)
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        done = subprocess.run(
            isolated.command("minipaged.course.judge.on_device"),
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            timeout=SECONDS,
            check=False,
        )
        rows = json.loads(done.stdout) if done.returncode == 0 else []
        note = "" if rows else _why_ended(done)
    except subprocess.TimeoutExpired:
        rows, note = [], f"the GPU checks took more than {SECONDS:g} s"
    found = {row["name"]: CheckResult(**row) for row in rows}
    lost = {check.name: CheckResult(check.name, "not run", note) for check in stage.gpu}
    return Judged(stage.number, seed, lost | found, note)


def _why_ended(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"the process of the GPU checks was ended by signal {-done.returncode}"
    last = done.stderr.strip().splitlines()[-1:]
    return f"the GPU checks could not run: {''.join(last) or f'exit status {done.returncode}'}"


def _run(course: Course, stage: Stage, impl: str, seed: int) -> list[CheckResult]:
    from minipaged.course.judge.examiner import Examiner

    checks = [check.name for check in stage.gpu]
    with tempfile.TemporaryDirectory(prefix="minipaged-judge-") as compiled:
        examiner = Examiner(None, {}, None, checks, time.monotonic() + SECONDS, compiled, {})
        examiner.run(course, stage, f"--impl={impl}", f"--seed={seed}")
    return examiner.results()


def main() -> None:
    """Answer one request. What a test or a kernel prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        os.dup2(2, 1)
        request = json.load(sys.stdin)
        course = load_course(Path(request["root"]))
        stage = course.unit(request["stage"])
        found: Sequence[CheckResult] = _run(course, stage, request["impl"], request["seed"])
        json.dump([asdict(result) for result in found], results)


if __name__ == "__main__":
    main()
