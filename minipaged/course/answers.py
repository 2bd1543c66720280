"""What the reference answers to the requests of a checkpoint: asked, or read from a record.

A copy for a class has no reference to ask. It has a record of the answers for a few seeds.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minipaged.course.catalog import Course, Stage
from minipaged.errors import CourseError

#: In the folder of a checkpoint's tests.
FILE = "answers.jsonl"

#: The seeds that a class gets answers for: that of the first round, and those of the second.
SEEDS = (0, 1, 2)


class ReferenceAnswers:
    """Serves requests on the reference's parts, as ``serve`` does on the submission's."""

    def __init__(self, known: Path, record: Path | None = None, seed: int = 0) -> None:
        """
        Args:
            known: the record; where there is none the reference is asked.
            record: where to write down what it answers.
            seed: of the tests that ask.
        """
        self.known, self.record, self.seed = known, record, seed

    def __call__(self, requests: Sequence[Mapping[str, Any]], **engine: Any) -> dict[str, Any]:
        """``outputs``, as :func:`minipaged.course.judge.serving.serve` gives them.

        Raises:
            CourseError: the record does not have these requests.
        """
        key = hashlib.sha256(json.dumps([requests, engine], sort_keys=True).encode()).hexdigest()
        if self.known.is_file():
            for row in _rows(self.known):
                if row["key"] == key:
                    return {"outputs": row["outputs"]}
            seeds = ", ".join(map(str, _seeds(self.known)))
            raise CourseError(f"this copy knows the answers for seed {seeds} alone")
        from minipaged.course.judge.lab import Lab

        # Whatever computes the submission's attention, the answers are those of the reference.
        engine.pop("attention", None)
        outputs = Lab().serve(requests, parts={}, **engine)["outputs"]
        if self.record is not None:
            row = {"seed": self.seed, "key": key, "outputs": outputs}
            with self.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return {"outputs": outputs}


def known_seeds(course: Course, stage: Stage) -> list[int]:
    """The seeds that a unit can be graded with here; empty where every seed will do."""
    file = course.root / "tests" / stage.folder / FILE
    return _seeds(file) if file.is_file() else []


def recorded(course: Course, stage: Stage, seeds: Sequence[int]) -> str:
    """The record of a checkpoint's answers.

    Raises:
        CourseError: the reference does not pass the checkpoint.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, FILE)
        for seed in seeds:
            command = [sys.executable, "-m", "pytest", f"tests/{stage.folder}", "-q"]
            command += ["-pno:cacheprovider", f"--seed={seed}", f"--record-answers={record}"]
            done = subprocess.run(
                command,
                cwd=course.root,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
                raise CourseError(f"{stage.label} with seed {seed}: {''.join(last)}")
        return record.read_text(encoding="utf-8")


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _seeds(file: Path) -> list[int]:
    return sorted({row["seed"] for row in _rows(file)})
