"""How each mutant fails, on record; and which of them a submission fails like.

``tests/mutants/signatures.json`` holds, for every mutant, what the graded tests say to it with
seed 0. A submission that fails in just the same way is told what it seems to believe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.course.catalog import Course, Stage
from minipaged.course.mutants import FOLDER, Mutant, load_mutants

if TYPE_CHECKING:
    from minipaged.course.judge.run import Judged

FILE = FOLDER / "signatures.json"


def graded_checks(stage: Stage) -> list[str]:
    """The checks that say something about code, and that all of the course have: not the
    counterexample, and not an instructor's own."""
    return [
        check.name
        for check in stage.checks()
        if check.name != "counterexample" and not check.hidden
    ]


@dataclass(frozen=True)
class Signature:
    """How the graded tests reject a mutant, with seed 0.

    Attributes:
        failed: failed check -> its first wrong value, in the order of the score card. The first
            is the mutant's recorded killer.
    """

    failed: Mapping[str, str]

    @property
    def first(self) -> tuple[str, str]:
        return next(iter(self.failed.items()))


def signature_of(stage: Stage, judged: Judged) -> Signature:
    """What a round of grading looks like from outside."""
    return Signature(
        {
            name: first_wrong_value(judged.checks[name].message)
            for name in graded_checks(stage)
            if name in judged.checks and judged.checks[name].status == "failed"
        }
    )


def first_wrong_value(message: str) -> str:
    """The first line of a failure, without the place in the file where it came up."""
    line = message.strip().partition("\n")[0]
    line = re.sub(r"(by program \([^()]*\) of \w+), line \d+", r"\1", line)
    return re.sub(r" \([^()]*\.py, line \d+[^()]*\)$", "", line)


def load_signatures(course: Course, stage: Stage) -> dict[str, Signature]:
    """Mutant -> its signature, as on record."""
    path = course.root / FILE
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8")).get(stage.number, {})
    return {name: Signature(failed) for name, failed in rows.items()}


def save_signatures(course: Course, found: Mapping[str, Mapping[str, Signature]]) -> Path:
    """Put signatures on record.

    Args:
        found: number of a stage -> mutant -> signature. Other stages stay as they are.
    """
    path = course.root / FILE
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for number, signatures in found.items():
        rows[number] = {name: dict(signature.failed) for name, signature in signatures.items()}
    text = json.dumps(dict(sorted(rows.items())), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def diagnose(course: Course, stage: Stage, judged: Judged) -> Mutant | None:
    """The mutant that fails as this submission does, if it is exactly one.

    The same checks must have failed, among those that ran, and the first of them with the same
    first wrong value. The round must be one of seed 0.
    """
    if judged.seed != 0:
        return None
    ran = {n for n, check in judged.checks.items() if check.status in ("passed", "failed")}
    mine = signature_of(stage, judged)
    if not mine.failed:
        return None
    signatures = load_signatures(course, stage)
    matches = []
    for mutant in load_mutants(course, stage):
        known = signatures.get(mutant.name, Signature({}))
        theirs = Signature({n: v for n, v in known.failed.items() if n in ran})
        if set(theirs.failed) == set(mine.failed) and theirs.first == mine.first:
            matches.append(mutant)
    return matches[0] if len(matches) == 1 else None
