"""What ``run_autograder`` runs in Gradescope's container: one submission, from the folder that was
handed in to ``results.json``.

The results are written anew after each stage. Whatever ends this process, a student reads points
for what was graded, and whom to ask about the rest; what went wrong is on standard output, which
only instructors see.

Run as ``python -m minipaged.course.on_gradescope SUBMISSION RESULTS``, or with ``--self-test``, in
the folder that the autograder's zip was unpacked in.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minipaged.course.catalog import Course, Stage, load_course
from minipaged.course.collect import Collected, collect
from minipaged.course.files import write_text
from minipaged.course.grade import grade_stage
from minipaged.course.reports import gradescope
from minipaged.course.score_card import make_console, show_stage
from minipaged.course.scores import StageScore
from minipaged.course.submission import read_submission

ASSIGNMENT = "assignment.json"


@dataclass(frozen=True)
class Assignment:
    """What one autograder grades.

    Attributes:
        units: keys of stages and checkpoints.
        contact: whom a student asks where grading went wrong, as ``your instructor``.
    """

    units: tuple[str, ...]
    contact: str

    def of(self, course: Course) -> list[Stage]:
        return [course.unit(key) for key in self.units]

    def failure(self) -> dict[str, Any]:
        """The results where there are none."""
        return {
            "score": 0,
            "output": "Your submission could not be graded. This is no verdict on your work: "
            f"please tell {self.contact}, who can see what went wrong and have it graded again.",
            "output_format": "text",
            "stdout_visibility": "hidden",
        }


def load_assignment(folder: Path) -> Assignment:
    """What stands in an unpacked autograder."""
    data = json.loads((folder / ASSIGNMENT).read_text(encoding="utf-8"))
    return Assignment(tuple(data["units"]), data["contact"])


def grade_submission(source: Path, submission: Path, results: Path) -> list[StageScore]:
    """Grade what was handed in.

    Args:
        source: the unpacked autograder.
        submission: what was handed in.
        results: ``results.json``.
    """
    course, assignment = load_course(source), load_assignment(source)
    units = assignment.of(course)
    console = make_console()
    scores: list[StageScore] = []

    def write() -> None:
        report = _report(assignment, collected, scores, units[len(scores) :])
        write_text(results, json.dumps(report, indent=2, ensure_ascii=False) + "\n")

    with tempfile.TemporaryDirectory(prefix="minipaged-desk-") as folder:
        desk = Path(folder)
        collected = collect(course, units, submission, desk)
        for now, handed_in in collected.found.items():
            print(f"{now} <- {handed_in}")
        for unit in units:
            write()
            score = grade_stage(course, unit, read_submission(course, unit, str(desk)))
            scores.append(score)
            show_stage(console, score, None)
        write()
    return scores


def _report(
    assignment: Assignment,
    collected: Collected,
    scores: Sequence[StageScore],
    missing: Sequence[Stage],
) -> dict[str, Any]:
    report = gradescope(scores)
    told = list(collected.remarks)
    for score in scores:
        if score.note:
            told.append(
                f"{score.stage.heading} has no verdict, see below: please tell "
                f"{assignment.contact}."
            )
    for unit in missing:
        told.append(
            f"{unit.heading} was not graded: grading ended before it. An endless loop in your code "
            f"is the usual reason. If it is not that, please tell {assignment.contact}."
        )
    report["output"] = "\n\n".join(filter(None, ("\n".join(told), report["output"])))
    return report


def reference_fails(course: Course, units: Sequence[Stage]) -> list[str]:
    """The checks that the reference does not pass here, with why: none, where all is well."""
    failed = []
    for unit in units:
        score = grade_stage(course, unit, read_submission(course, unit, "ref"), seed=0)
        failed += [
            f"{unit.label}, {check.check.name}: {check.message or check.status}"
            for check in score.checks
            if check.status != "passed" and check is not score.counterexample
        ]
    return failed


def main(arguments: Sequence[str]) -> int:
    source = Path.cwd()
    if os.geteuid() != 0:
        print("This is not root: the submission runs as the user that grades it.", flush=True)
    if list(arguments) == ["--self-test"]:
        course = load_course(source)
        failed = reference_fails(course, load_assignment(source).of(course))
        print("\n".join(failed) or "The reference has all its points here.")
        return 1 if failed else 0
    submission, results = arguments
    grade_submission(source, Path(submission), Path(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
