"""``minipaged unstick 3.3``: the answer to one task, copied into the student's file.

The task scores nothing from then on; the others of the file stay the student's. The bodies come
from ``solutions/`` where that has some of its own, else from the reference, along with the private
helpers and imports that they need.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from minipaged.course import syntax
from minipaged.course.catalog import Course, Stage, Task, load_course
from minipaged.course.files import back_up, read_text, write_text
from minipaged.course.next_step import program
from minipaged.course.projection import project, prune_imports
from minipaged.course.skeleton import exercise_text
from minipaged.course.stubs import stub_message, taken_marker
from minipaged.course.submission import PartFile, part_path, read_part
from minipaged.course.syntax import names_defined
from minipaged.course.transplant import same_statement, transplant
from minipaged.errors import CourseError


@dataclass(frozen=True)
class Unstuck:
    """A student's file with the answer to one task in it.

    Attributes:
        text: the new file.
        helpers: functions and constants that came along.
        replaced: symbols whose body was the student's own.
        notes: what the answer stands on that the file does not have; sentences.
    """

    text: str
    helpers: tuple[str, ...]
    replaced: tuple[str, ...]
    notes: tuple[str, ...]


def unstick(course: Course, stage: Stage, task: Task, mine: str, force: bool = False) -> Unstuck:
    """Put the answer to ``task`` into the text of a student's file.

    Args:
        force: replace bodies that the student wrote, too.

    Raises:
        CourseError: the file is no Python, or lacks a symbol of the task; a body is not the stub
            and ``force`` is not set; a helper of the answer has the name of one of the student's;
            or this copy of the course has no answers.
    """
    part = stage.part(task.part)
    file = read_part(stage, part, Path(f"{part.name}.py"), mine)
    if file.error:
        raise CourseError(f"{part.name}.py, {file.error}: mend this first")
    if lacking := [symbol for symbol in task.symbols if symbol in file.missing]:
        raise CourseError(
            f"{part.name}.py has no {', no '.join(lacking)}: put its line `def …` back, as in "
            f"{part.source}"
        )
    if task.id in file.taken:
        raise CourseError(f"the answer to {task.id} is in {part.name}.py already")
    answer = _Answer(course, stage, task)
    written = tuple(symbol for symbol in task.symbols if symbol not in file.stubs)
    if written and not force:
        raise CourseError(
            f"you have written {', '.join(written)}: --force replaces that (the old file is kept)"
        )
    target = syntax.module(mine)
    if written:
        messages = {symbol: stub_message(stage, task) for symbol in written}
        target = project(mine, messages, keep=sorted(syntax.names_imported(target)))
    helpers = answer.helpers(target)
    notes = answer.notes(target, file, helpers)
    merged = transplant(target.code, answer.excerpt(helpers, target), "")
    notes += [f"Look at {conflict.symbol}: it {conflict.what}." for conflict in merged.conflicts]
    return Unstuck(merged.text, tuple(helpers), written, tuple(notes))


class _Answer:
    """The module that the answer to a task stands in."""

    def __init__(self, course: Course, stage: Stage, task: Task) -> None:
        self.stage, self.task = stage, task
        self.part = stage.part(task.part)
        self.file = self._find(course)
        self.module = syntax.module(read_text(self.file))
        self.found = syntax.definitions(self.module)
        skeleton = syntax.module(exercise_text(course, stage, self.part))
        self.given = syntax.definitions(skeleton).keys()

    def _find(self, course: Course) -> Path:
        """The worked answer if it has bodies of its own for the task, else the reference."""
        places = [
            part_path(course, self.stage, self.part, course.root / "solutions"),
            part_path(course, self.stage, self.part, None),
        ]
        for file in places:
            if not file.is_file():
                continue
            known = syntax.definitions(syntax.module(read_text(file)))
            if set(self.task.symbols) <= set(known):
                answers = read_part(self.stage, self.part, file, read_text(file))
                if not answers.stubs & set(self.task.symbols):
                    return file
        raise CourseError(f"this copy of the course has no answer to {self.task.id}")

    def helpers(self, target: cst.Module) -> list[str]:
        """What the bodies need of their module, directly or through each other, and the student's
        file lacks.

        Raises:
            CourseError: it has something else of that name.
        """
        there = syntax.definitions(target)
        needed: list[str] = []
        todo = list(self.task.symbols)
        while todo:
            for other in self.uses(todo.pop(0)):
                if other in needed or other in self.given:
                    continue
                if other not in there:
                    needed.append(other)
                    todo.append(other)
                elif not same_statement(there[other], self.found[other]):
                    raise CourseError(
                        f"the answer to {self.task.id} brings a {other}, and your file has another "
                        "one of that name: rename yours, and try again"
                    )
        return needed

    def uses(self, symbol: str) -> list[str]:
        """Other symbols of the module whose names are in a definition."""
        own = {symbol, symbol.rpartition(".")[0]}
        names = self._names(symbol)
        return [other for other in self.found if other in names - own]

    def _names(self, symbol: str) -> set[str]:
        """What a definition may refer to: names, and members of its class."""
        owner, dot, _ = symbol.rpartition(".")
        names, attributes = syntax.identifiers(self.found[symbol])
        return names | {f"{owner}.{name}" for name in attributes if dot}

    def notes(self, target: cst.Module, file: PartFile, helpers: list[str]) -> list[str]:
        """What the answer stands on and the student's file does not have."""
        notes = []
        used = {name for symbol in (*self.task.symbols, *helpers) for name in self._names(symbol)}
        for other in self.stage.tasks_of(self.part):
            if other == self.task:
                continue
            if unwritten := sorted(used & file.stubs & set(other.symbols)):
                notes.append(
                    f"It calls {', '.join(unwritten)}, which you have not written yet ({other.id})."
                )
            if other.id not in file.taken and (owner := self._state_of_another(target, other)):
                notes.append(
                    f"It assumes that {owner} keeps what the answer's __init__ sets up, and yours "
                    f"is another. Take that too: {program()} unstick {other.id}"
                )
        return notes

    def _state_of_another(self, target: cst.Module, other: Task) -> str:
        """The class of this task whose ``__init__`` is for another task to write, and was written
        in another way than the answer's; or nothing."""
        there = syntax.definitions(target)
        for symbol in other.symbols:
            owner, _, method = symbol.partition(".")
            ours, theirs = self.found.get(symbol), there.get(symbol)
            if method == "__init__" and ours is not None and theirs is not None:
                concerned = any(mine.startswith(f"{owner}.") for mine in self.task.symbols)
                if concerned and not same_statement(ours, theirs):
                    return owner
        return ""

    def excerpt(self, helpers: Iterable[str], target: cst.Module) -> str:
        """The module with nothing but the bodies, marked, and what they need."""
        body = self._only(self.module.body, "", {*self.task.symbols, *helpers})
        bare = self.module.with_changes(body=body, header=[], footer=[])
        unused = syntax.names_imported(bare) - syntax.names_used(bare)
        unused |= set(syntax.definitions(target))  # the student's own, imported from the reference
        return bare.with_changes(body=prune_imports(body, unused)).code

    def _only(
        self, body: Iterable[cst.BaseStatement], owner: str, wanted: set[str]
    ) -> list[cst.BaseStatement]:
        def change(statement: syntax.Statement) -> syntax.Statement | None:
            names = [owner + name for name in names_defined(statement)]
            if not names:
                other = not owner and (
                    syntax.is_import(statement) or syntax.is_type_checking(statement)
                )
                return statement if other else None
            if isinstance(statement, cst.FunctionDef) and names[0] in self.task.symbols:
                return _marked(statement, self.task)
            if wanted.intersection(names):
                return statement
            if isinstance(statement, cst.ClassDef) and isinstance(
                statement.body, cst.IndentedBlock
            ):
                inner = self._only(statement.body.body, f"{names[0]}.", wanted)
                return statement.with_deep_changes(statement.body, body=inner) if inner else None
            return None

        return syntax.edited(body, change)


def _marked(function: cst.FunctionDef, task: Task) -> cst.FunctionDef:
    """The function with the marker as the first line of its body."""
    body = syntax.statements(function.body)
    first = 0 if syntax.docstring(body) is None else 1
    statement = body[first]
    assert isinstance(statement, syntax.Statement)
    comments = [line for line in statement.leading_lines if line.comment is not None]
    marker = cst.EmptyLine(comment=cst.Comment(taken_marker(task.id)))
    body[first] = statement.with_changes(leading_lines=[marker, *comments])
    if isinstance(function.body, cst.IndentedBlock):
        return function.with_changes(body=function.body.with_changes(body=body))
    return function.with_changes(body=cst.IndentedBlock(body))


# --------------------------------------------------------------------------- the command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged unstick``."""
    parser.add_argument("task", metavar="TASK", help="such as 3.3")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="replace what you wrote for the task")


def run(args: argparse.Namespace) -> int:
    """Put an answer into the student's file. Returns 1 if the student says no, else 0."""
    course = load_course()
    stage, task = course.task(args.task)
    part = stage.part(task.part)
    file = part_path(course, stage, part, course.root / "exercises")
    mine = read_text(file) if file.exists() else exercise_text(course, stage, part)
    done = unstick(course, stage, task, mine, args.force)
    if not args.yes and not _confirmed(task):
        print("Nothing has changed.")
        return 1
    kept = back_up(file, "unstick") if done.replaced else None
    write_text(file, done.text)
    shown = file.relative_to(course.root)
    print(f"{shown} has the answer to {task.id}: {', '.join(task.symbols)}.")
    if done.helpers:
        _say(f"With it came {', '.join(done.helpers)}.")
    if kept is not None:
        _say(f"Your old file is {kept.relative_to(course.root)}.")
    for note in done.notes:
        _say(note)
    print(
        f"Task {task.id} is taken: it scores 0. See how far you are: {program()} grade {stage.key}"
    )
    return 0


def _say(text: str) -> None:
    print(textwrap.fill(text, 96))


def _confirmed(task: Task) -> bool:
    if not sys.stdin.isatty():
        raise CourseError(
            f"task {task.id} would score 0 from then on: say --yes to take its answer"
        )
    print(f"Take the answer to {task.id}, {task.title}? It will score 0 of {task.points} points.")
    return input("[y/N] ").strip().lower() in ("y", "yes")
