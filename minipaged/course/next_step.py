"""What a student does next: where to read, which lines to write, and what to run then."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minipaged.course.catalog import Checkpoint, Course, Stage, Task
from minipaged.course.counterexample import is_started
from minipaged.course.files import place
from minipaged.course.progress import ScoreRecord
from minipaged.course.scores import CheckScore, StageScore
from minipaged.course.submission import (
    Definitions,
    PartFile,
    Submission,
    parse,
    read_submission,
    trace_path,
)


@dataclass(frozen=True)
class NextStep:
    """A heading, and rows of what to do and with what."""

    heading: str
    rows: tuple[tuple[str, str], ...]


def program() -> str:
    """``minipaged`` as it can be typed here: with its path where the shell does not find it."""
    if shutil.which("minipaged"):
        return "minipaged"
    path = Path(sys.argv[0])
    return place(path) if path.name == "minipaged" and path.is_file() else "minipaged"


# --------------------------------------------------------------------------- after grading
def after_grading(course: Course, score: StageScore) -> NextStep:
    """The first task that is not whole, else robustness, else the counterexample; else what a
    student who has them all can do."""
    stage, submission = score.stage, score.submission
    waiting = next((check.waits_for for check in score.checks if check.waits_for), None)
    if isinstance(stage, Checkpoint):
        if waiting is not None:
            return _write_other(course, submission, waiting)
        failed = next((check for check in score.checks if check.status != "passed"), None)
        return _checkpoint(course, stage, submission, failed.check.title if failed else "")
    for task in score.tasks:
        if task.state == "broken":
            return _mend(stage, submission.files[task.task.part])
        left = [check for check in task.checks if check.status not in ("passed", "waiting")]
        if task.state != "taken" and left:
            return _write(course, stage, submission, task.task, task.checks)
    for check in score.robustness:
        if check.status in ("failed", "not run"):
            parent = next(task for task in score.tasks if task.task.id == check.check.parent)
            return _write(course, stage, submission, parent.task, [check])
    if waiting is not None:
        return _write_other(course, submission, waiting)
    counterexample = score.counterexample
    if counterexample is not None and not _is_settled(course, submission, counterexample):
        return _find_trace(course, stage, submission)
    return _done(course, stage, whole=score.whole)


def _is_settled(course: Course, submission: Submission, counterexample: CheckScore) -> bool:
    if counterexample.status != "sent in":
        return counterexample.status == "passed"
    trace = trace_path(course, submission)
    return trace is not None and is_started(trace)


def _write_other(course: Course, submission: Submission, task_id: str) -> NextStep:
    """A task of another stage, on which this one stands."""
    stage, task = course.task(task_id)
    return _write(course, stage, read_submission(course, stage, submission.name), task, ())


def from_record(
    course: Course, stage: Stage, submission: Submission, record: ScoreRecord | None
) -> NextStep:
    """The same without grading: from the student's files and the last score."""
    if isinstance(stage, Checkpoint):
        whole = record is not None and record.points == record.total
        return _checkpoint(course, stage, submission, "" if whole else stage.title)
    tasks = dict(record.tasks) if record else {}
    for task in stage.tasks:
        state = submission.task_state(task)
        if state == "broken":
            return _mend(stage, submission.files[task.part])
        if state == "not started":
            return _write(course, stage, submission, task, ())
    ready = [task for task in stage.tasks if submission.task_state(task) == "ready"]
    for task in ready:
        if record is not None and tasks.get(task.id, 0) < task.points:
            return _write(course, stage, submission, task, ())
    if ready and tasks.get("robustness", 0) < _robustness_of(stage, ready):
        rows = (("read", _lesson(course, stage)), ("run", _grade(stage, submission)))
        return NextStep(f"Next: grade stage {stage.key}, {stage.title}", rows)
    asked = None if stage.trace_is_sent_in else stage.counterexample
    if asked is not None and tasks.get("counterexample") != asked.points:
        return _find_trace(course, stage, submission)
    return _done(course, stage, whole=record is not None and record.points == record.total)


def is_done(stage: Stage, submission: Submission, record: ScoreRecord | None) -> bool:
    """Is there nothing left that this stage can earn? What was taken earns nothing."""
    if record is None:
        return False
    if record.points == record.total == stage.points:
        return True
    ready = [task for task in stage.tasks if submission.task_state(task) == "ready"]
    taken = [task for task in stage.tasks if submission.task_state(task) == "taken"]
    lost = stage.points - record.points
    gone = sum(task.points for task in taken)
    gone += sum(check.points for check in stage.robustness) - _robustness_of(stage, ready)
    return bool(taken) and len(taken) + len(ready) == len(stage.tasks) and lost == gone


def _robustness_of(stage: Stage, tasks: Sequence[Task]) -> int:
    """Points of robustness that can be had with these tasks."""
    ids = [task.id for task in tasks]
    return sum(check.points for check in stage.robustness if check.parent in ids)


# --------------------------------------------------------------------------- the steps
def _write(
    course: Course,
    stage: Stage,
    submission: Submission,
    task: Task,
    checks: Sequence[CheckScore],
) -> NextStep:
    failed = next((check for check in checks if check.status in ("failed", "not run")), None)
    file = submission.files[task.part]
    symbol, line = _where(task, file, failed)
    verb = "look at" if failed else "write"
    rows = [
        ("read", _lesson(course, stage, task.id)),
        (verb, f"{place(file.path, line)}  {symbol}".rstrip() if file.source else _no_file(file)),
        ("stuck", f"{program()} hint {task.id}"),
        ("then", _grade(stage, submission)),
    ]
    points = f"{task.points} points"
    what = f"robustness of task {task.id}" if failed and failed.check.parent else f"task {task.id}"
    told = f": {failed.check.title}" if failed else f", {task.title} ({points})"
    return NextStep(f"Next: {what}{told}", tuple(rows))


def _checkpoint(
    course: Course, checkpoint: Checkpoint, submission: Submission, failed: str
) -> NextStep:
    """A part that is missing is written first; what fails with all of them there is sought in the
    lesson.

    Args:
        failed: what is not right yet; empty if all is.
    """
    for name, file in submission.files.items():
        home, _ = course.parts[name]
        if file.error:
            return _mend(home, file)
        if not file.written:
            there = read_submission(course, home, submission.name)
            task = next(t for t in home.tasks_of(file.part) if there.task_state(t) == "not started")
            return _write(course, home, there, task, ())
    if not failed:
        return _done(course, checkpoint, whole=True)
    stages = dict.fromkeys(course.parts[name][0].key for name in submission.files)
    rows = (
        ("read", _lesson(course, checkpoint)),
        ("apart", f"{program()} grade {' '.join(stages)}"),
        ("then", _grade(checkpoint, submission)),
    )
    return NextStep(f"Next: {checkpoint.label}: {failed}", rows)


def _no_file(file: PartFile) -> str:
    return f"{place(file.path)} is not there; `{program()} sync` writes it"


def _mend(stage: Stage, file: PartFile) -> NextStep:
    line = re.match(r"line (\d+): ", file.error)
    where = place(file.path, int(line[1]) if line else None)
    error = file.error[line.end() :] if line else file.error
    return NextStep(
        f"Next: {file.path.name} cannot be read as Python",
        (("mend", where), ("it says", error), ("then", f"{program()} grade {stage.key}")),
    )


def _find_trace(course: Course, stage: Stage, submission: Submission) -> NextStep:
    asked = stage.counterexample_check
    rows = [("read", _lesson(course, stage, "counterexample"))]
    path = trace_path(course, submission)
    if path is not None:
        rows.append(("look at" if is_started(path) else "write", place(path)))
    rows.append(("stuck", f"{program()} hint {stage.key}.counterexample"))
    rows.append(("then", _grade(stage, submission)))
    return NextStep(f"Next: the counterexample ({asked.points} points)", tuple(rows))


def _done(course: Course, stage: Stage, whole: bool) -> NextStep:
    heading = f"{stage.heading} is {'whole' if whole else 'done'}."
    uses = dict.fromkeys((stage.use, "minipaged demo --parts mine"))
    titles = ["use it", *[""] * (len(uses) - 1)]
    rows = [(t, use.replace("minipaged", program(), 1)) for t, use in zip(titles, uses)]
    if (course.root / stage.notebook).is_file():
        rows.append(("notebook", place(course.root / stage.notebook)))
    later = course.units[[unit.number for unit in course.units].index(stage.number) + 1 :]
    if later:
        what = "next" if isinstance(later[0], Checkpoint) else "next stage"
        rows.append((what, f"{_lesson(course, later[0])}  {later[0].title}"))
    return NextStep(heading, tuple(rows))


def _grade(stage: Stage, submission: Submission) -> str:
    impl = "" if submission.name == "mine" else f" --impl {submission.name}"
    return f"{program()} grade {stage.key}{impl}"


# --------------------------------------------------------------------------- places
def _lesson(course: Course, stage: Stage, section: str | None = None) -> str:
    """The lesson, and the line of the heading that names a task or the counterexample."""
    path = course.root / stage.lesson
    if section is None or not path.is_file():
        return place(path)
    heading = re.compile(rf"#+ .*\b{re.escape(section)}\b", re.IGNORECASE)
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if heading.match(text):
            return f"{place(path, number)}  {text.lstrip('# ')}"
    return place(path)


def _where(task: Task, file: PartFile, failed: CheckScore | None) -> tuple[str, int | None]:
    """The symbol to work on, and its line."""
    lines = _lines(file)
    if failed is not None:
        symbol = _suspect(task, failed)
        found = re.search(rf"{re.escape(file.path.name)}, line (\d+)", failed.message)
        return symbol, int(found[1]) if found else lines.get(symbol)
    symbol = next((s for s in task.symbols if s in file.stubs | file.missing), task.symbols[0])
    return symbol, lines.get(symbol)


def _suspect(task: Task, failed: CheckScore) -> str:
    """The task's symbol that a failure points at: the call that its message names, else the last
    one that was made, else a name in the message; empty where nothing points anywhere."""
    message = failed.message.partition("\n")[0]
    for text in (message, *reversed(failed.transcript.splitlines())):
        for symbol in task.symbols:
            owner, _, name = symbol.rpartition(".")
            before = rf"\b{_as_variable(owner)}(?:_\d+)?\." if owner and text != message else r"\b"
            if re.search(rf"{before}{name}\(", text):
                return symbol
    names = {symbol.rpartition(".")[2]: symbol for symbol in task.symbols}
    return next((names[word] for word in re.findall(r"\w+(?!\w*:)", message) if word in names), "")


def _as_variable(name: str) -> str:
    """``BlockAllocator`` as a transcript calls one of them: ``block_allocator``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _lines(file: PartFile) -> dict[str, int]:
    if file.source is None or file.error:
        return {}
    return {s: node.lineno for s, node in Definitions(parse(file.source)).functions.items()}
