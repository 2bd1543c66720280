"""The score for machines: Gradescope, JUnit XML and Classroom 50. No grading package is needed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from typing import Any

from minipaged.course.catalog import Check, Stage
from minipaged.course.scores import CheckScore, StageScore
from minipaged.errors import CourseError

#: Limits of Classroom 50.
MOST_TESTS = 100
LONGEST_NAME = 100


def gradescope(scores: Sequence[StageScore]) -> dict[str, Any]:
    """The object that Gradescope reads from ``/autograder/results/results.json``.

    One test a check, named after its task; ``score`` is the sum of their scores. What the
    autograder itself prints stays hidden from students, and so does all that would tell how an
    instructor's own checks went. GPU points stand apart, in ``extra_data`` and in the text.
    """
    return {
        "score": sum(score.points for score in scores),
        "output": "\n\n".join(_summary(score) for score in scores),
        "output_format": "text",
        "execution_time": round(sum(score.seconds for score in scores), 1),
        "stdout_visibility": "hidden",
        "extra_data": {"gpu": [_apart(score) for score in scores if score.gpu]},
        "tests": [
            {
                "name": name,
                "number": number,
                "score": check.points,
                "max_score": check.total,
                "status": "passed" if check.status == "passed" else "failed",
                "output": explain(check),
                "output_format": "text",
                "visibility": check.check.visibility,
            }
            for score in scores
            for number, name, check in _named(score)
        ],
    }


def junit(scores: Sequence[StageScore]) -> str:
    """JUnit XML: one suite a stage, one case a check.

    A check that failed is a failure; one that could not run is skipped, with the reason.
    """
    root = ET.Element("testsuites", name="minipaged")
    for score in scores:
        key = score.stage.key
        apart = [(f"{key}.gpu", f"{key} GPU: {check.check.title}", check) for check in score.gpu]
        cases = [*_named(score), *apart]
        failed = [check for _, _, check in cases if check.status in ("failed", "not run")]
        skipped = [c for _, _, c in cases if c.status != "passed" and c not in failed]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=score.stage.folder,
            tests=str(len(cases)),
            failures=str(len(failed)),
            errors="0",
            skipped=str(len(skipped)),
            time=f"{score.seconds:.3f}",
        )
        properties = ET.SubElement(suite, "properties")
        for key, value in (("points", score.points), ("total", score.total)):
            ET.SubElement(properties, "property", name=key, value=str(value))
        for number, name, check in cases:
            group = f"{score.stage.folder}.{number.replace('.', '_')}"
            case = ET.SubElement(suite, "testcase", classname=group, name=_xml(name), time="0")
            if check in failed:
                first = check.message.strip().partition("\n")[0]
                failure = ET.SubElement(case, "failure", message=_xml(first))
                failure.text = _xml(explain(check))
            elif check in skipped:
                ET.SubElement(case, "skipped", message=check.status)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def classroom50(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Declarative tests of Classroom 50, for ``gh teacher assignment add … --tests FILE``.

    The first makes the environment and has no points; then one for each check or, where that
    would be more than a hundred, for each task.

    Raises:
        CourseError: there are more than a hundred tasks.
    """
    setup = {
        "name": "setup",
        "type": "run",
        "run": "make setup TORCH=cpu",
        "timeout": 600,
        "points": 0,
    }
    rows = [
        _declared(f"{stage.key} {check.title}", stage, [check])
        for stage in stages
        for check in stage.checks()
    ]
    if len(rows) >= MOST_TESTS:
        rows = [_declared(name, stage, c) for stage in stages for name, c in _groups(stage)]
    if len(rows) >= MOST_TESTS:
        raise CourseError(
            f"Classroom 50 takes at most {MOST_TESTS} tests, and these are {len(rows) + 1}: name "
            "the stages of one assignment"
        )
    return [setup, *rows]


def _groups(stage: Stage) -> Iterator[tuple[str, list[Check]]]:
    for task in stage.tasks:
        yield f"{task.id} {task.title}", list(task.checks)
    if stage.robustness:
        yield f"{stage.key} robustness", list(stage.robustness)
    if stage.counterexample is not None:
        yield f"{stage.key} counterexample", [stage.counterexample_check]


def _apart(score: StageScore) -> dict[str, Any]:
    """A stage's GPU points: none of them is in its score, or in what that is out of."""
    return {
        "stage": score.stage.key,
        "points": score.gpu_earned or 0,
        "pending": sum(check.total for check in score.gpu if check.status == "pending"),
        "max_points": sum(check.total for check in score.gpu),
        "checks": {check.check.name: check.status for check in score.gpu},
    }


def _declared(name: str, stage: Stage, checks: Sequence[Check]) -> dict[str, Any]:
    # Each command starts in a shell of its own: no environment is active there.
    wanted = " ".join(f"--check {check.name}" for check in checks)
    return {
        "name": name.encode()[:LONGEST_NAME].decode(errors="ignore"),
        "type": "run",
        "run": f".venv/bin/minipaged grade {stage.key} {wanted}",
        "timeout": 120,
        "points": sum(check.points for check in checks),
    }


# --------------------------------------------------------------------------- text
def explain(check: CheckScore) -> str:
    """All that is known of a check, as plain text; empty if it passed."""
    if check.status == "passed":
        return ""
    told = [check.message.strip() or check.status]
    for title, text in (("calls", check.transcript), ("printed", check.output)):
        if text.strip():
            told.append(f"{title}:\n{text.rstrip()}")
    return "\n\n".join(told)


def _named(score: StageScore) -> Iterator[tuple[str, str, CheckScore]]:
    """(number, name, check) of every check of a stage."""
    for task in score.tasks:
        for check in task.checks:
            yield task.task.id, f"{task.task.id} {task.task.title}: {check.check.title}", check
    key = score.stage.key
    for check in score.robustness:
        kind = "hidden" if check.check.hidden else "robustness"
        yield f"{key}.{kind}", f"{key} {kind}: {check.check.title}", check
    if score.counterexample is not None:
        yield f"{key}.counterexample", f"{key} counterexample", score.counterexample


def _summary(score: StageScore) -> str:
    stage = score.stage
    shown = [check for check in score.checks if not check.check.hidden]
    points, total = sum(check.points for check in shown), sum(check.total for check in shown)
    lines = [f"{stage.heading}, {stage.title}: {points} of {total} points"]
    lines += [f"{t.task.id} {t.task.title}: {t.points} of {t.total}" for t in score.tasks]
    lines += [text for text in (score.gpu_points, score.note, score.diagnosis) if text]
    return "\n".join(lines)


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold, whatever a submission has printed."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
