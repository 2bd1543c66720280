"""The score card on a terminal: points first, then what failed, then what to do next.

In a pipe the same lines come without color, 100 columns wide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from minipaged.course.catalog import Checkpoint, Course, Stage
from minipaged.course.next_step import NextStep, program
from minipaged.course.progress import ScoreRecord
from minipaged.course.scores import CheckScore, StageScore, points_on_gpu

WIDTH = 100
#: Failures that are shown with the calls that led there; the rest are told in their message alone.
IN_FULL = 3

_MARKS = {"passed": ("✓", "green"), "failed": ("✗", "red"), "not run": ("✗", "red")}
_STATES = {"broken": "cannot be read", "taken": "taken, 0", "ready": ""}


def make_console(file: IO[str] | None = None) -> Console:
    """A console for the card: the terminal's width, but no more than can be read with ease."""
    console = Console(file=file or sys.stdout, highlight=False, markup=False, emoji=False)
    width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    return Console(file=file or sys.stdout, highlight=False, markup=False, emoji=False, width=width)


def put(console: Console, *lines: RenderableType, wrap: bool = True) -> None:
    """Print; in a pipe without the blanks that fill a line up."""
    if console.is_terminal:
        console.print(*lines, sep="\n", soft_wrap=not wrap)
        return
    with console.capture() as capture:
        console.print(*lines, sep="\n", soft_wrap=not wrap)
    for line in capture.get().splitlines():
        console.file.write(line.rstrip() + "\n")


# --------------------------------------------------------------------------- one stage
def show_stage(console: Console, score: StageScore, record: ScoreRecord | None = None) -> None:
    """A stage's points and failures.

    Args:
        record: the stage's last scores, this one included: a drop is told.
    """
    put(console, _heading(console, score, record))
    put(console, _points(score))
    put(console, Padding(_sums(score), (1, 0, 0, 2)))
    if score.gpu:
        put(console, _on_gpu(score))
    for number, checks in enumerate(_alike(score)):
        put(console, _failure(score, checks, in_full=number < IN_FULL))
    broken = dict.fromkeys(c.message for c in score.checks if c.status == "broken")
    for message in broken:
        put(console, Padding(Text(message, "red"), (1, 0, 0, 2)))
    if score.diagnosis:
        text = Text.assemble(("This looks like a known misconception: ", "bold"), score.diagnosis)
        put(console, Padding(text, (1, 0, 0, 2)))
    put(console, Text())


def show_foundations(console: Console, course: Course, stage: Stage) -> None:
    """In a copy for a class: what a stage was graded on, where there is no reference."""
    whole = isinstance(stage, Checkpoint)
    below = [s.key for s in course.stages if s.closed and (whole or s.number < stage.number)]
    if below:
        what = f"stages {', '.join(below)}" if len(below) > 1 else f"stage {below[0]}"
        text = f"This copy has no reference of {what}: your own files stand in its place."
        put(console, Padding(Text(text, "dim"), (0, 0, 1, 2)))


def show_void(console: Console, score: StageScore) -> None:
    """A stage that could not be graded, for no fault of the student's."""
    stage = score.stage
    put(
        console,
        Text.assemble(_name(stage), f"  {stage.title}  ", ("not graded", "bold")),
        Padding(Text(score.note, "yellow"), (0, 0, 0, 2)),
        Text(),
    )


def _heading(console: Console, score: StageScore, record: ScoreRecord | None) -> RenderableType:
    stage = score.stage
    left = Text.assemble(_name(stage), f"  {stage.title}")
    if record is not None and record.dropped:
        right = Text(f"was {record.best}, now {score.points} of {score.total} points", "yellow")
    else:
        right = Text(f"{score.points} of {score.total} points", "green" if score.whole else "bold")
    line = Table.grid(expand=True, padding=(0, 0, 0, 2))
    line.add_column()
    line.add_column(justify="right")
    line.add_column()
    line.add_row(left, right, Text(score.gpu_points, "dim"))
    return Group(line, Text("─" * console.width, "dim"))


def _name(stage: Stage) -> tuple[str, str]:
    return stage.heading, "bold"


def _rows(score: StageScore) -> Table:
    longest = max(len(each) for each in ("0.0", *(task.task.id for task in score.tasks)))
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(width=2 + longest)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(justify="right", width=7)
    return table


def _points(score: StageScore) -> Table:
    table = _rows(score)
    for task in score.tasks:
        state = _STATES.get(task.state, task.state)
        _add_title(table, task.task.id, task.task.title, state, task.points, task.total)
        if task.state == "ready":
            for check in task.checks:
                _add_check(table, check)
    if score.robustness:
        _add_title(table, "", "Robustness", "", *_sum(score.robustness))
        for check in score.robustness:
            _add_check(table, check)
    if score.counterexample is not None:
        check = score.counterexample
        word = "" if check.status in ("passed", "failed") else _in_words(check)
        _add_title(table, "", "Counterexample", word, check.points, check.total)
        if check.status in ("passed", "sent in") and check.message:
            table.add_row("", Text(check.message, "dim"))
    return table


def _on_gpu(score: StageScore) -> RenderableType:
    """The GPU checks, which stand apart: none of their points is in the stage's total."""
    pending = all(check.status == "pending" for check in score.gpu)
    said = (
        "pending: they count once they have run on a GPU"
        if pending
        else "on this machine's GPU, in a plain process of your own"
    )
    table = _rows(score)
    table.add_row("", Text.assemble(("GPU", "bold"), (f"  {said}", "dim")))
    for check in score.gpu:
        _add_check(table, check)
    told = [
        _failure(score, [check], in_full=True)
        for check in score.gpu
        if check.status in ("failed", "not run")
    ]
    return Padding(Group(table, *told), (1, 0, 0, 0))


def _add_title(table: Table, number: str, title: str, word: str, points: int, total: int) -> None:
    table.add_row(
        Text(f"  {number}", "bold"),
        Text.assemble((title, "bold"), (f"  {word}", "dim")),
        Text(f"{points} / {total}", "green" if points == total else ""),
    )


def _add_check(table: Table, check: CheckScore) -> None:
    mark, style = _MARKS.get(check.status, ("·", "dim"))
    word = "" if check.status in ("passed", "failed") else _in_words(check)
    title = Text.assemble((f"{mark} ", style), (check.check.title, "dim" if mark == "·" else ""))
    title.append(f"  {word}", "dim")
    table.add_row("", title, Text(f"{check.points} / {check.total}", "dim"))


def _in_words(check: CheckScore) -> str:
    if check.status == "parent failed":
        return f"counts once {check.check.parent} is whole"
    if check.status == "parent taken":
        return f"{check.check.parent} was taken"
    if check.status == "waiting":
        return f"waits for your task {check.waits_for}"
    if check.status == "sent in":
        return f"{check.check.points} points, graded by your instructor"
    return check.status


def _sum(checks: Sequence[CheckScore]) -> tuple[int, int]:
    return sum(check.points for check in checks), sum(check.total for check in checks)


def _sums(score: StageScore) -> Text:
    """Functionality and robustness apart; and what it takes to see the same again."""
    kinds = {
        "functionality": [check for task in score.tasks for check in task.checks],
        "robustness": list(score.robustness),
        "counterexample": [score.counterexample] if score.counterexample else [],
    }
    words = []
    for name, checks in kinds.items():
        if _sum(checks)[1]:
            words.append("{} {} of {}".format(name, *_sum(checks)))
    sums = "   ".join(words)
    if score.seeds:
        sums += f"\nseed {' and '.join(map(str, score.seeds))}, {score.seconds:.1f} s"
    return Text(sums, "dim")


# --------------------------------------------------------------------------- one failure
def show_check(console: Console, check: CheckScore) -> None:
    """One check by itself, with everything that is known of it."""
    mark, style = _MARKS.get(check.status, ("·", "dim"))
    line = Text.assemble((f"{mark} ", style), (check.check.title, "bold"))
    line.append(f"  {_in_words(check)}  {check.points} / {check.total}", "dim")
    put(console, line)
    if check.message:
        put(console, Group(*_told(check, in_full=True)))


def _alike(score: StageScore) -> list[list[CheckScore]]:
    """The failures, those together that begin with the same line: they have one cause."""
    groups: dict[str, list[CheckScore]] = {}
    for check in score.checks:
        if check.status in ("failed", "not run"):
            groups.setdefault(check.message.partition("\n")[0], []).append(check)
    return list(groups.values())


def _failure(score: StageScore, checks: Sequence[CheckScore], in_full: bool) -> RenderableType:
    lines: list[RenderableType] = [Text()]
    for check in checks:
        title = Text.assemble(("✗ ", "red"), (check.check.title, "bold"))
        task = score.task_of(check)
        if task is not None:
            what = "robustness of task" if check.check.parent else "task"
            title.append(f"  {what} {task.task.id}", "dim")
        lines.append(Padding(title, (0, 0, 0, 2)))
    first = checks[0]
    lines += _told(first, in_full)
    if (first.transcript or first.output) and not in_full:
        command = f"{program()} grade {score.stage.key} --check {first.check.name}"
        lines.append(Padding(Text(f"the calls: {command}", "dim"), (0, 0, 0, 4)))
    return Group(*lines)


def _told(check: CheckScore, in_full: bool) -> Iterator[RenderableType]:
    first, _, rest = check.message.strip().partition("\n")
    yield Padding(Text(first, "red"), (0, 0, 0, 4))
    if rest:
        yield Padding(Text(rest), (0, 0, 0, 4))
    for title, text in (("calls", check.transcript), ("printed", check.output)):
        if text.strip() and in_full:
            yield Padding(Text(title, "dim"), (0, 0, 0, 4))
            yield Padding(Text(text.rstrip()), (0, 0, 0, 6))


# --------------------------------------------------------------------------- several stages
def show_total(console: Console, scores: Sequence[StageScore]) -> None:
    """All graded stages together, functionality and robustness apart."""
    checks = [check for score in scores for check in score.checks]
    earned, total = _sum(checks)
    robust, of = _sum([check for score in scores for check in score.robustness])
    text = Text.assemble(
        ("All stages  ", "bold"),
        (f"{earned} of {total} points", "green" if earned == total else "bold"),
        (f"   {robust} of {of} of them robustness", "dim"),
    )
    if apart := _gpu_total([score.gpu for score in scores]):
        text.append(f"   {apart}", "dim")
    put(console, text)
    put(console, Text())


def _gpu_total(stages: Sequence[Sequence[CheckScore]]) -> str:
    """``GPU: 7 of 10, 20 pending``."""
    checks = [check for stage in stages for check in stage]
    pending = sum(check.total for check in checks if check.status == "pending")
    earned, total = _sum([check for check in checks if check.status != "pending"])
    words = [f"{earned} of {total}"] * bool(total) + [f"{pending} pending"] * bool(pending)
    return f"GPU: {', '.join(words)}" if words else ""


def show_progress(console: Console, course: Course, records: dict[str, ScoreRecord]) -> None:
    """A line a stage: its points and when it was last graded."""
    put(console, Text(course.title, "bold"))
    table = Table.grid(padding=(0, 2))
    for column in range(6):
        table.add_column(justify="right" if column == 2 else "left")
    for stage in course.units:
        record = records.get(stage.number)
        points = f"{record.points if record else 0} of {stage.points}"
        word = "not graded yet"
        if record is None and course.is_given(stage):
            points, word = "", "given"
        if record is not None:
            word = f"{record.date:%d %b %Y}".lstrip("0")
        drop = f"was {record.best}, now {record.points}" if record and record.dropped else ""
        whole = record is not None and record.points == stage.points
        table.add_row(
            Text(f"  {stage.key}", "bold"),
            stage.title,
            Text(points, "green" if whole else ""),
            Text(word, "dim"),
            Text(points_on_gpu(stage.gpu_points, record.gpu if record else None), "dim"),
            Text(drop, "yellow"),
        )
    put(console, table)
    earned = sum(record.points for record in records.values())
    asked = [s for s in course.units if s.number in records or not course.is_given(s)]
    total = sum(stage.points for stage in asked)
    put(console, Padding(Text(f"{earned} of {total} points", "bold"), (1, 0, 1, 2)))


def show_next(console: Console, step: NextStep) -> None:
    """The last thing on the screen. A row is one line, however long: it is there to be copied."""
    put(console, Text(step.heading, "bold"))
    width = max(len(what) for what, _ in step.rows)
    for what, how in step.rows:
        put(console, Text.assemble((f"  {what:<{width}}  ", "dim"), how), wrap=False)
