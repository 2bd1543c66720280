"""The course as data: what ``course.toml`` says, read and checked.

``course.toml`` is the only list of stages, parts, tasks, checks, points and hints. Whatever
shows them reads them from here.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from minipaged.errors import CourseError

FILE = "course.toml"

#: A student's trace, beside the parts of its stage.
COUNTEREXAMPLE = "counterexample.toml"

#: An instructor's own checks, beside ``course.toml``: in an autograder, nowhere else.
HIDDEN = "hidden.toml"

#: When Gradescope shows a hidden check to students.
VISIBILITIES = ("hidden", "after_due_date", "after_published")

#: Where a stage names nothing better: a prompt that needs no download.
_USE = 'minipaged generate --parts mine --model opt-stories --raw "Once upon a time"'


@dataclass(frozen=True)
class Check:
    """One graded test function: ``tests/<stage folder>/test_*.py::test_<name>``.

    Attributes:
        points: given only if all cases of the check pass.
        parent: the task without which a check of robustness means nothing.
        visibility: when Gradescope shows it to students: ``visible``, or one of
            :data:`VISIBILITIES` for an instructor's own.
    """

    name: str
    points: int
    parent: str | None = None
    visibility: str = "visible"

    @property
    def hidden(self) -> bool:
        return self.visibility != "visible"

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Part:
    """One module of the engine that students write.

    Attributes:
        name: of the exercise's file, and in ``--parts NAME=mine``.
        module: the reference, as ``minipaged.kvcache.block_table``.
        contract: raised by one when a signature or what it promises changes.
        drop: private helpers of the answer that the skeleton does not have.
        keep: imported names that the skeleton keeps though only the answer uses them.
    """

    name: str
    module: str
    contract: int
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The reference's file, relative to the root."""
        return Path(*self.module.split(".")).with_suffix(".py")


@dataclass(frozen=True)
class Task:
    """What a student writes at one go.

    Attributes:
        id: ``"3.2"``.
        part: empty for the task of a checkpoint, which is about all of its parts.
        symbols: functions and methods of the part, as ``BlockTable.append``.
        question, pointer: the two tiers of ``minipaged hint``.
    """

    id: str
    title: str
    part: str
    symbols: tuple[str, ...]
    question: str
    pointer: str
    checks: tuple[Check, ...]

    @property
    def points(self) -> int:
        return sum(check.points for check in self.checks)


@dataclass(frozen=True)
class Counterexample:
    """A trace, found by the student, on which the reference and a named mutant differ.

    Attributes:
        mutant: of ``tests/mutants``.
        claim: what the mutant believes, in a sentence for the student.
        names: name -> how it is made, as ``{"pool": "BlockAllocator(4)"}``, in this order.
        observe: expressions that are compared after every operation, as ``pool.num_free``.
        max_operations: a longer trace is refused.
        functions: of parts, that a trace may call, as ``fork``.
    """

    mutant: str
    claim: str
    points: int
    names: Mapping[str, str]
    observe: tuple[str, ...]
    max_operations: int
    question: str
    pointer: str
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """One chapter of the course.

    Attributes:
        number: two digits, as ``"03"``.
        torch: do the graded tests need torch in the submission's process?
        triton: and Triton, whose interpreter runs the kernels that are graded?
        robustness: checks that count only where their parent task is whole.
        use: a command that runs on what was written; by default one that serves a prompt.
        gpu: checks that take a GPU. Their points stand in a column of their own: they are pending
            where there is none, and never count in the total.
        audit: public function of a part -> what its machine code must reach, threshold by
            threshold.
        closed: the package has no reference for it, only the skeletons: this is a copy for a class.
        trace_is_sent_in: its counterexample cannot be tried here, for want of a reference.
    """

    number: str
    name: str
    title: str
    hours: int
    torch: bool
    parts: tuple[Part, ...]
    tasks: tuple[Task, ...]
    robustness: tuple[Check, ...]
    counterexample: Counterexample | None
    use: str
    triton: bool = False
    gpu: tuple[Check, ...] = ()
    audit: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    closed: bool = False
    trace_is_sent_in: bool = False

    @property
    def label(self) -> str:
        """What it is called in a sentence: ``stage 3``."""
        return f"stage {self.key}"

    @property
    def heading(self) -> str:
        """The same at the beginning of a line: ``Stage 3``."""
        return self.label[0].upper() + self.label[1:]

    @property
    def folder(self) -> str:
        """Of its exercises, solutions and tests."""
        return f"stage{self.number}_{self.name}"

    @property
    def lesson(self) -> str:
        return f"lessons/{self.number}-{self.name.replace('_', '-')}.md"

    @property
    def notebook(self) -> str:
        return f"notebooks/{self.number}_{self.name}.ipynb"

    @property
    def key(self) -> str:
        """As it is written in task ids and on the command line: ``"3"``."""
        return str(int(self.number))

    @property
    def points(self) -> int:
        return sum(check.points for check in self.checks())

    @property
    def gpu_points(self) -> int:
        return sum(check.points for check in self.gpu)

    def checks(self) -> Iterator[Check]:
        """All checks that can be made here, in the order of the score card."""
        for task in self.tasks:
            yield from task.checks
        yield from self.robustness
        if self.counterexample is not None and not self.trace_is_sent_in:
            yield self.counterexample_check

    @property
    def counterexample_check(self) -> Check:
        if self.counterexample is None:
            raise CourseError(f"stage {self.key} asks for no counterexample")
        return Check("counterexample", self.counterexample.points)

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def tasks_of(self, part: Part) -> list[Task]:
        return [task for task in self.tasks if task.part == part.name]


@dataclass(frozen=True)
class Checkpoint(Stage):
    """The whole engine on a student's own parts, with no reference in their place.

    It has no exercises: its parts are those of earlier stages, and its one task is that they
    work together.

    Attributes:
        number: a letter.
        after: number of the stage that it follows.
    """

    after: str = ""

    @property
    def label(self) -> str:
        return f"checkpoint {self.number}"

    @property
    def folder(self) -> str:
        return f"checkpoint_{self.number.lower()}"

    @property
    def lesson(self) -> str:
        return f"lessons/checkpoint-{self.number.lower()}.md"

    @property
    def key(self) -> str:
        return self.number


@dataclass(frozen=True)
class Course:
    """All stages, in order, and the checkpoints between them.

    Attributes:
        root: the folder of ``course.toml``.
        given: in a copy for a class, the numbers of the stages whose modules are the reference;
            None where all are.
    """

    title: str
    version: str
    stages: tuple[Stage, ...]
    checkpoints: tuple[Checkpoint, ...]
    root: Path
    given: tuple[str, ...] | None = None

    def is_given(self, unit: Stage) -> bool:
        """Was the class given it, or part of a checkpoint? Then nobody is asked for it."""
        homes = {self.parts[part.name][0].number for part in unit.parts}
        return self.given is not None and not homes.isdisjoint(self.given)

    @cached_property
    def units(self) -> tuple[Stage, ...]:
        """All that is graded, in the order in which a student gets there."""
        return tuple(
            unit
            for stage in self.stages
            for unit in (stage, *(c for c in self.checkpoints if c.after == stage.number))
        )

    @cached_property
    def parts(self) -> dict[str, tuple[Stage, Part]]:
        """Part name -> where it belongs."""
        return {part.name: (stage, part) for stage in self.stages for part in stage.parts}

    @cached_property
    def closed_parts(self) -> dict[str, tuple[Stage, Part]]:
        """Those of which the package has only the skeleton."""
        return {name: home for name, home in self.parts.items() if home[0].closed}

    def stage(self, key: str) -> Stage:
        """The stage that a user means by ``3``, ``03``, ``block_table`` or ``stage03_block_table``.

        Raises:
            CourseError: there is none; the message lists those that there are.
        """
        for stage in self.stages:
            if key in (stage.key, stage.number, stage.name, stage.folder):
                return stage
        known = ", ".join(f"{stage.key} ({stage.name})" for stage in self.stages)
        raise CourseError(f"there is no stage {key!r}: the stages are {known}")

    def unit(self, key: str) -> Stage:
        """As :meth:`stage`, or the checkpoint that a user means by ``A``, ``a`` or
        ``checkpoint_a``.

        Raises:
            CourseError: there is none; the message lists those that there are.
        """
        for checkpoint in self.checkpoints:
            if key.upper() == checkpoint.key or key == checkpoint.folder:
                return checkpoint
        try:
            return self.stage(key)
        except CourseError as error:
            letters = ", ".join(checkpoint.key for checkpoint in self.checkpoints)
            raise CourseError(f"{error}; the checkpoints are {letters or 'none'}") from None

    def task(self, task_id: str) -> tuple[Stage, Task]:
        """The task that a user means by ``3.2``.

        Raises:
            CourseError: there is none; the message lists those that there are.
        """
        for stage in self.stages:
            for task in stage.tasks:
                if task.id == task_id:
                    return stage, task
        known = ", ".join(task.id for stage in self.stages for task in stage.tasks)
        raise CourseError(f"there is no task {task_id!r}: the tasks are {known}")


def find_root(start: Path | None = None) -> Path:
    """The checkout that the user is in, else the one that the package was installed from.

    Raises:
        CourseError: neither has a ``course.toml``.
    """
    here = (start or Path.cwd()).resolve()
    installed = Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, installed):
        if (folder / FILE).is_file():
            return folder
    raise CourseError(
        f"there is no {FILE} in {here} or above it: the course's commands are run in a checkout"
    )


def is_class_copy(root: Path | None = None) -> bool:
    """Was this copy made for a class, by ``minipaged release``? Without a course it was not."""
    try:
        return "release" in _data((root or find_root()) / FILE)
    except CourseError:
        return False


def load_course(root: Path | None = None) -> Course:
    """Read and check ``course.toml``.

    Raises:
        CourseError: it is not there, or says something that cannot be; the message says where.
    """
    root = find_root() if root is None else root
    data = _data(root / FILE)
    try:
        course = _course(_Table(data, FILE), root)
        if (root / HIDDEN).is_file():
            course = _with_hidden(course, _Table(_data(root / HIDDEN), HIDDEN))
    except _Wrong as wrong:
        raise CourseError(str(wrong)) from None
    _check_names(course)
    for stage in course.stages:
        for part in stage.parts:
            _check_symbols(course, stage, part)
    return course


# --------------------------------------------------------------------------- reading
def _data(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"{path}: {error}") from None


class _Wrong(Exception):
    """A value that cannot be, with its place."""


class _Table:
    """A TOML table that is read key by key: a key of the wrong type or one that nobody asked
    for is an error."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise _Wrong(f"{where} must be a table")
        self.data, self.where = dict(data), where

    def take(self, key: str, kind: type, default: Any = None) -> Any:
        if key not in self.data:
            if default is None:
                raise _Wrong(f"{self.where}: {key} is missing")
            return default
        value = self.data.pop(key)
        if type(value) is not kind:
            raise _Wrong(f"{self.where}: {key} must be {kind.__name__}, not {value!r}")
        return value

    def names(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        values = self.take(key, list, None if default is None else list(default))
        for value in values:
            if not isinstance(value, str):
                raise _Wrong(f"{self.where}: {key} must hold strings, not {value!r}")
        return tuple(values)

    def tables(self, key: str, what: str, default: list[Any] | None = None) -> list[_Table]:
        rows = self.take(key, list, default)
        return [_Table(row, f"{self.where}, {what} {i + 1}") for i, row in enumerate(rows)]

    def done(self) -> None:
        if self.data:
            raise _Wrong(f"{self.where}: nobody knows the key {next(iter(self.data))!r}")


def _course(table: _Table, root: Path) -> Course:
    head = _Table(table.take("course", dict), f"{FILE}: [course]")
    release = _Table(table.take("release", dict, {}), f"{FILE}: [release]")
    given = release.names("given") if release.data else None
    release.done()
    stages = _opened([_stage(row) for row in table.tables("stage", "stage")], given)
    rows = table.tables("checkpoint", "checkpoint", [])
    checkpoints = tuple(_checkpoint(row, stages) for row in rows)
    title, version = head.take("title", str), head.take("version", str)
    course = Course(title, version, stages, checkpoints, root, given)
    head.done()
    table.done()
    return course


def _opened(stages: Sequence[Stage], given: Sequence[str] | None) -> tuple[Stage, ...]:
    """The stages, which know what is closed. A trace may run on parts of earlier stages."""
    if given is None:
        return tuple(stages)
    for number in given:
        if number not in [stage.number for stage in stages]:
            raise _Wrong(f"{FILE}: [release]: there is no stage {number!r}")
    closed = [stage.number for stage in stages if stage.number not in given]
    return tuple(
        replace(
            stage,
            closed=stage.number in closed,
            trace_is_sent_in=any(number <= stage.number for number in closed),
        )
        for stage in stages
    )


def _stage(table: _Table) -> Stage:
    number, name = table.take("number", str), table.take("name", str)
    table.where = f"{FILE}: stage {number}"
    if not re.fullmatch(r"\d\d", number):
        raise _Wrong(f"{table.where}: number must have two digits")
    robust = _Table(table.take("robustness", dict, {}), f"{table.where}, robustness")
    counter = table.take("counterexample", dict, {})
    triton = table.take("triton", bool, False)
    stage = Stage(
        number=number,
        name=name,
        title=table.take("title", str),
        hours=table.take("hours", int),
        torch=table.take("torch", bool, triton) or triton,
        triton=triton,
        parts=tuple(_part(row) for row in table.tables("part", "part")),
        tasks=tuple(_task(row) for row in table.tables("task", "task")),
        robustness=_checks(robust, parents=True) if robust.data else (),
        counterexample=_counterexample(_Table(counter, f"{table.where}, counterexample"))
        if counter
        else None,
        use=table.take("use", str, _USE),
        gpu=_checks(table, parents=False, key="gpu"),
        audit=_audit(_Table(table.take("audit", dict, {}), f"{table.where}, audit")),
    )
    robust.done()
    table.done()
    return stage


def _checkpoint(table: _Table, stages: Sequence[Stage]) -> Checkpoint:
    letter = table.take("id", str)
    table.where = f"{FILE}: checkpoint {letter}"
    if not re.fullmatch(r"[A-Z]", letter):
        raise _Wrong(f"{table.where}: id must be a capital letter")
    after = table.take("after", str)
    if after not in [stage.number for stage in stages]:
        raise _Wrong(f"{table.where}: there is no stage {after!r} that it could follow")
    known = {p.name: p for stage in stages if stage.number <= after for p in stage.parts}
    names = table.names("parts")
    for name in names:
        if name not in known:
            raise _Wrong(f"{table.where}: no stage up to {after} has a part {name!r}")
    title = table.take("title", str)
    task = Task(
        id=f"{letter}.1",
        title=table.take("task", str),
        part="",
        symbols=(),
        question="",
        pointer="",
        checks=_checks(table, parents=False),
    )
    checkpoint = Checkpoint(
        number=letter,
        name=f"checkpoint_{letter.lower()}",
        title=title,
        hours=0,
        torch=True,
        triton=table.take("triton", bool, False),
        parts=tuple(known[name] for name in names),
        tasks=(task,),
        robustness=(),
        counterexample=None,
        use=table.take("use", str),
        after=after,
    )
    table.done()
    return checkpoint


def _part(table: _Table) -> Part:
    part = Part(
        name=table.take("name", str),
        module=table.take("module", str),
        contract=table.take("contract", int),
        drop=table.names("drop", ()),
        keep=table.names("keep", ()),
    )
    table.done()
    return part


def _task(table: _Table) -> Task:
    task = Task(
        id=table.take("id", str),
        title=table.take("title", str),
        part=table.take("part", str),
        symbols=table.names("symbols"),
        question=table.take("question", str).strip(),
        pointer=table.take("pointer", str).strip(),
        checks=_checks(table, parents=False),
    )
    table.done()
    return task


def _audit(table: _Table) -> dict[str, dict[str, Any]]:
    return {
        name: _Table(wanted, f"{table.where}, {name}").data for name, wanted in table.data.items()
    }


def _checks(table: _Table, parents: bool, key: str = "checks") -> tuple[Check, ...]:
    found = []
    for row in table.tables(key, "check", None if key == "checks" else []):
        check = Check(
            row.take("name", str),
            row.take("points", int),
            row.take("parent", str) if parents else None,
        )
        row.done()
        if check.points < 1:
            raise _Wrong(f"{row.where}: points must be at least 1, not {check.points}")
        found.append(check)
    return tuple(found)


def _counterexample(table: _Table) -> Counterexample:
    names = table.take("names", dict, {})
    found = Counterexample(
        mutant=table.take("mutant", str),
        claim=table.take("claim", str).strip(),
        points=table.take("points", int),
        names=names,
        functions=table.names("functions", ()),
        observe=table.names("observe"),
        max_operations=table.take("max_operations", int),
        question=table.take("question", str).strip(),
        pointer=table.take("pointer", str).strip(),
    )
    table.done()
    if not found.names and not found.functions:
        raise _Wrong(f"{table.where}: a trace has nothing to call, neither names nor functions")
    return found


def _with_hidden(course: Course, table: _Table) -> Course:
    """The course with an instructor's own checks, which count as robustness."""
    visibility = table.take("visibility", str, VISIBILITIES[-1])
    if visibility not in VISIBILITIES:
        raise _Wrong(f"{HIDDEN}: visibility must be {' or '.join(VISIBILITIES)}")
    more: dict[str, tuple[Check, ...]] = {}
    for row in table.tables("stage", "stage"):
        number = row.take("number", str)
        row.where = f"{HIDDEN}: stage {number}"
        if number not in [stage.number for stage in course.stages]:
            raise _Wrong(f"{row.where}: {FILE} has no such stage")
        found = [replace(check, visibility=visibility) for check in _checks(row, parents=True)]
        more[number] = (*more.get(number, ()), *found)
        row.done()
    table.done()
    stages = tuple(
        replace(stage, robustness=(*stage.robustness, *more.get(stage.number, ())))
        for stage in course.stages
    )
    return replace(course, stages=stages)


# --------------------------------------------------------------------------- checking
def _check_names(course: Course) -> None:
    """Nothing is there twice, and what is referred to exists."""
    parts = [part.name for stage in course.stages for part in stage.parts]
    _no_twins(parts, "parts")
    _no_twins([stage.number for stage in course.stages], "stages")
    _no_twins([checkpoint.number for checkpoint in course.checkpoints], "checkpoints")
    for checkpoint in course.checkpoints:
        names = [check.name for check in checkpoint.checks()]
        _no_twins(names, f"checks of checkpoint {checkpoint.number}")
    for stage in course.stages:
        where = f"{FILE}: stage {stage.number}"
        tasks = [task.id for task in stage.tasks]
        _no_twins(tasks, f"tasks of stage {stage.number}")
        checks = [check.name for check in (*stage.checks(), *stage.gpu)]
        _no_twins(checks, f"checks of stage {stage.number}")
        for task in stage.tasks:
            if not re.fullmatch(rf"{stage.key}\.\d+", task.id):
                raise CourseError(f"{where}: {task.id} is no id of a task of this stage")
            if task.part not in [part.name for part in stage.parts]:
                raise CourseError(f"{where}, task {task.id}: there is no part {task.part!r}")
        for check in stage.robustness:
            if check.parent not in tasks:
                raise CourseError(f"{where}: {check.name} has no such parent: {check.parent!r}")


def _no_twins(names: list[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise CourseError(f"{FILE}: two {what} are called {name!r}")


def _check_symbols(course: Course, stage: Stage, part: Part) -> None:
    """Every symbol exists in the reference, and belongs to one task; whoever writes the state of a
    class writes all that reads it."""
    file = course.root / part.source
    where = f"{FILE}: stage {stage.number}, part {part.name}"
    if not file.is_file():
        raise CourseError(f"{where}: there is no module {part.module}")
    known = defined_symbols(file.read_text(encoding="utf-8"))
    symbols = [symbol for task in stage.tasks_of(part) for symbol in task.symbols]
    for symbol in (*symbols, *part.drop):
        if symbol not in known:
            raise CourseError(f"{where}: {part.module} has no {symbol}")
    _no_twins([*symbols, *part.drop], f"symbols of {part.name}")
    for symbol in symbols:
        owner, _, method = symbol.partition(".")
        members = {other for other in known if other.startswith(f"{owner}.")}
        left = sorted(members - {*symbols, *part.drop})
        if method == "__init__" and left:
            raise CourseError(
                f"{where}: {symbol} is a task, so {left[0]} must be one too, or be dropped"
            )


def defined_symbols(source: str) -> set[str]:
    """Functions, classes, their methods and module-level names that a source defines."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [
                n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            found |= {f"{node.name}.{method.name}" for method in methods}
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found
