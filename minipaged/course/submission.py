"""What a student has handed in for one stage, read from the syntax trees; nothing is run.

A submission is a folder laid out as ``exercises/``: ``stage03_block_table/block_table.py`` and so
on. ``mine`` is this checkout's ``exercises``, ``solutions`` its worked answers, ``ref`` the
reference itself; anything else is the path of such a folder.
"""

from __future__ import annotations

import ast
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minipaged.course.catalog import COUNTEREXAMPLE, Course, Part, Stage, Task
from minipaged.course.stubs import is_stub, taken_by
from minipaged.errors import CourseError

TaskState = Literal["ready", "not started", "taken", "broken"]

#: A longer file is not read.
MAX_BYTES = 1_000_000

#: Base classes that bring no method along.
_EMPTY_BASES = frozenset({"object", "ABC", "abc.ABC", "Protocol", "Generic"})


@dataclass(frozen=True)
class PartFile:
    """One file of a submission.

    Attributes:
        path: where it is, or would be.
        source: its text; None where there is no file, or none that can be read.
        error: why it cannot be used, as ``line 12: invalid syntax``; empty if it can.
        stubs: symbols of tasks whose body is still the stub.
        missing: symbols of tasks that the file does not define.
        taken: ids of tasks of which a body was copied by ``minipaged unstick``.
    """

    part: Part
    path: Path
    source: str | None
    error: str
    stubs: frozenset[str]
    missing: frozenset[str]
    taken: frozenset[str]

    @property
    def written(self) -> bool:
        """Does it define all that its tasks ask for?"""
        return not (self.source is None or self.error or self.stubs or self.missing)


@dataclass(frozen=True)
class Submission:
    """The files of one stage, or of a checkpoint's parts.

    Attributes:
        folder: the one that is laid out as ``exercises/``; None for ``ref`` and where the sources
            were never on a disk.
        name: as the user gave it: ``mine``, ``solutions``, ``ref`` or a path.
        files: part name -> file, one for each part of the stage.
    """

    stage: Stage
    folder: Path | None
    name: str
    files: Mapping[str, PartFile]

    def task_state(self, task: Task) -> TaskState:
        """``ready`` to be graded, or why not.

        A task is *not started* if one of its symbols is missing or a stub, *taken* if one of
        their bodies came from ``minipaged unstick``, *broken* if the file cannot be parsed. The
        task of a checkpoint asks for all of its parts; that a body in them was taken has had its
        price.
        """
        if self.error_of(task):
            return "broken"
        if not task.part:
            whole = all(file.written for file in self.files.values())
            return "ready" if whole else "not started"
        file = self.files[task.part]
        if file.source is None or (file.stubs | file.missing) & set(task.symbols):
            return "not started"
        return "taken" if task.id in file.taken else "ready"

    def error_of(self, task: Task) -> str:
        """Why a task's file cannot be used; empty if it can. A checkpoint's task names the file."""
        if task.part:
            return self.files[task.part].error
        wrong = (f"{name}.py, {file.error}" for name, file in self.files.items() if file.error)
        return next(wrong, "")


def impl_folder(course: Course, impl: str) -> Path | None:
    """The folder that ``mine``, ``solutions`` or a path means; None for ``ref``.

    Raises:
        CourseError: a path that is no folder, or one that has no stage of the course in it.
    """
    if impl == "ref":
        return None
    if impl == "mine":
        return course.root / "exercises"
    if impl == "solutions" and course.given is None:
        return course.root / "solutions"
    if impl == "solutions":
        raise CourseError("this copy of the course has no solutions: say mine, or name a folder")
    folder = Path(impl).expanduser().resolve()
    if not folder.is_dir():
        raise CourseError(
            f"there is no folder {impl!r}: say mine, solutions, ref, or the path of a folder "
            "that is laid out as exercises/"
        )
    stages = [stage.folder for stage in course.stages]
    if not any((folder / name).is_dir() for name in stages):
        raise CourseError(
            f"{impl!r} is not laid out as exercises/: it has no {' and no '.join(stages)}"
        )
    return folder


def read_submission(course: Course, stage: Stage, impl: str) -> Submission:
    """Read the files of one stage, or of a checkpoint's parts.

    Args:
        impl: ``mine``, ``solutions``, ``ref`` or a path, as :func:`impl_folder`.

    Raises:
        CourseError: there is no such implementation. A file that is missing or cannot be parsed
            is no error here: its :class:`PartFile` says so.
    """
    folder = impl_folder(course, impl)
    files = {}
    for part in stage.parts:
        home, _ = course.parts[part.name]
        path = part_path(course, home, part, folder)
        source, error = _read(path)
        files[part.name] = read_part(home, part, path, source, error)
    return Submission(stage, folder, impl, files)


def submission_in_memory(
    course: Course, stage: Stage, sources: Mapping[str, str], name: str
) -> Submission:
    """A submission that is on no disk: mutants, for one.

    Args:
        sources: part name -> text. Parts that are not named are the reference's.
    """
    files = dict(read_submission(course, stage, "ref").files)
    for part in stage.parts:
        if part.name in sources:
            home, _ = course.parts[part.name]
            path = Path(name, home.folder, f"{part.name}.py")
            files[part.name] = read_part(home, part, path, sources[part.name])
    return Submission(stage, None, name, files)


def part_path(course: Course, stage: Stage, part: Part, folder: Path | None) -> Path:
    """The file of a part in an implementation's folder; in the package where that is None."""
    if folder is None:
        return course.root / part.source
    return folder / stage.folder / f"{part.name}.py"


def trace_path(course: Course, submission: Submission) -> Path | None:
    """The file of a submission's counterexample; None where it is on no disk. The reference has
    none of its own: the worked one stands for it."""
    folder = course.root / "solutions" if submission.name == "ref" else submission.folder
    return None if folder is None else folder / submission.stage.folder / COUNTEREXAMPLE


def foundations(course: Course, stage: Stage, submission: Submission) -> dict[str, tuple[str, str]]:
    """What a copy for a class grades a stage on, where it has no reference for other stages: the
    submission's own files. Module -> (path, text); those that are missing or no Python are left
    out."""
    folder = submission.folder or course.root / "exercises"
    found = {}
    for home, part in course.closed_parts.values():
        if part in stage.parts:
            continue
        path = part_path(course, home, part, folder)
        file = read_part(home, part, path, *_read(path))
        if file.source is not None and not file.error:
            found[part.module] = (str(path), file.source)
    return found


def read_part(
    stage: Stage, part: Part, path: Path, source: str | None, error: str = ""
) -> PartFile:
    """What the syntax tree of one file shows.

    Args:
        source: the file's text; None where there is none.
        error: why it could not be read, if so.
    """
    symbols = [symbol for task in stage.tasks_of(part) for symbol in task.symbols]
    nothing: frozenset[str] = frozenset()
    if source is None:
        return PartFile(part, path, None, error, nothing, frozenset(symbols), nothing)
    try:
        tree = parse(source)
    except ValueError as wrong:
        return PartFile(part, path, source, str(wrong), nothing, nothing, nothing)
    found = Definitions(tree)
    functions = {s: f for s in symbols if (f := found.functions.get(s)) is not None}
    return PartFile(
        part,
        path,
        source,
        "",
        stubs=frozenset(symbol for symbol, f in functions.items() if is_stub(f)),
        missing=frozenset(symbol for symbol in symbols if not found.has(symbol)),
        taken=frozenset(
            task.id
            for task in stage.tasks_of(part)
            for line, marked in _taken_lines(source)
            if marked == task.id
            and any(_encloses(functions.get(symbol), line) for symbol in task.symbols)
        ),
    )


def parse(source: str) -> ast.Module:
    """The syntax tree.

    Raises:
        ValueError: it is no Python; the message starts with the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes: the student's own interpreter warns
            return ast.parse(source)
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        raise ValueError(f"line {error.lineno or 1}: {error.msg}{text}") from None
    except (RecursionError, MemoryError):
        raise ValueError("line 1: nested too deeply to be parsed") from None
    except ValueError as error:  # a null byte, in older Pythons
        raise ValueError(f"line 1: {error}") from None


class Definitions:
    """The names that a module binds, and the functions among them, by symbol.

    Symbols are ``name`` or ``Class.name``. What is bound under ``if``, ``try`` or ``with`` counts,
    and of two definitions the later one.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self._bound: set[str] = set()
        self._classes: dict[str, ast.ClassDef] = {}
        self._star = False
        for node in _flat(tree.body):
            self._take(node, "")
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = node
                for inner in _flat(node.body):
                    self._take(inner, f"{node.name}.")

    def _take(self, node: ast.stmt, prefix: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions[prefix + node.name] = node
            self._bound.add(prefix + node.name)
            return
        for name in _names_bound(node):
            self.functions.pop(prefix + name, None)
            self._bound.add(prefix + name)
            self._star |= name == "*"

    def has(self, symbol: str) -> bool:
        """Is it defined here, imported, or inherited from a class that is?"""
        if symbol in self._bound or self._star:
            return True
        owner, _, method = symbol.partition(".")
        return bool(method) and owner in self._bound and self._inherits(owner, method, frozenset())

    def _inherits(self, owner: str, method: str, seen: frozenset[str]) -> bool:
        if f"{owner}.{method}" in self._bound:
            return True
        if owner not in self._classes:  # imported, or made by a call
            return owner not in _EMPTY_BASES
        bases = [ast.unparse(base).split("[")[0] for base in self._classes[owner].bases]
        seen |= {owner}
        return any(self._inherits(base, method, seen) for base in bases if base not in seen)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the body does, those of functions and classes left out."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for field in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _flat(handler.body)


def _names_bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    else:
        return []
    return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]


def _taken_lines(source: str) -> list[tuple[int, str]]:
    """Line and task of each comment that ``unstick`` left."""
    return [
        (number, task)
        for number, line in enumerate(source.split("\n"), 1)
        if (task := taken_by(line.strip())) is not None
    ]


def _encloses(node: ast.FunctionDef | ast.AsyncFunctionDef | None, line: int) -> bool:
    return node is not None and node.lineno <= line <= (node.end_lineno or node.lineno)


def _read(path: Path) -> tuple[str | None, str]:
    """A file's text, and why there is none."""
    try:
        if not path.exists():
            return None, ""
        if not path.is_file():  # a pipe or a folder: reading it could wait for ever
            return None, "line 1: not a file"
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        return None, f"line 1: it cannot be read: {error.strerror}"
    if len(data) > MAX_BYTES:
        return None, f"line 1: longer than {MAX_BYTES:,} bytes"
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read(), ""
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return None, f"line {line}: byte {error.start} is not UTF-8: save the file as UTF-8"
