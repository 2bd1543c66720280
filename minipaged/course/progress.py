"""The last score of every stage, kept in the checkout: ``.minipaged/scores.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minipaged.course.scores import StageScore
    from minipaged.course.submission import Submission

FILE = Path(".minipaged", "scores.json")


@dataclass(frozen=True)
class ScoreRecord:
    """What a stage earned when it was last graded.

    Attributes:
        best: the most that it has earned so far.
        tasks: points of each task by its id; those of ``"robustness"`` and ``"counterexample"``.
        digest: of what was graded, as :func:`digest_of` gives it.
        gpu: points of the checks that take a GPU; None where they are pending.
    """

    points: int
    total: int
    date: date
    best: int
    tasks: Mapping[str, int]
    digest: str = ""
    gpu: int | None = None

    @property
    def dropped(self) -> bool:
        """Has it been better?"""
        return self.points < self.best


def digest_of(submission: Submission) -> str:
    """Of a submission's parts: does a score still speak of what stands in the files?"""
    texts = [file.source or "" for _, file in sorted(submission.files.items())]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def last_scores(root: Path) -> dict[str, ScoreRecord]:
    """Number of a stage -> its last score. What cannot be read counts as never graded."""
    try:
        rows = json.loads((root / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    records = {}
    for number, row in rows.items() if isinstance(rows, dict) else ():
        record = _record(row)
        if record is not None:
            records[number] = record
    return records


def _record(row: Any) -> ScoreRecord | None:
    try:
        record = ScoreRecord(**{**row, "date": date.fromisoformat(row["date"])})
        numbers = [record.points, record.total, record.best, *record.tasks.values()]
        numbers += [] if record.gpu is None else [record.gpu]
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    return record if all(type(number) is int for number in numbers) else None


def record_score(root: Path, score: StageScore, today: date) -> ScoreRecord:
    """Keep a score. Where the folder cannot be written it is not kept, and that is no error.

    Returns:
        The record, which knows if the stage has been better.
    """
    records = last_scores(root)
    before = records.get(score.stage.number)
    tasks = {task.task.id: task.points for task in score.tasks}
    tasks["robustness"] = sum(check.points for check in score.robustness)
    if score.counterexample is not None:
        tasks["counterexample"] = score.counterexample.points
    best = max(score.points, before.best if before else 0)
    digest = digest_of(score.submission)
    gpu = score.gpu_earned if score.gpu_earned is not None else before.gpu if before else None
    record = ScoreRecord(score.points, score.total, today, best, tasks, digest, gpu)
    records[score.stage.number] = record
    rows = {n: {**asdict(r), "date": r.date.isoformat()} for n, r in sorted(records.items())}
    path = root / FILE
    try:
        path.parent.mkdir(exist_ok=True)
        # Whoever reads it meanwhile sees the old file or the new one.
        new = path.with_suffix(".new")
        new.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError:
        pass
    return record
