"""A student's parts in the real engine: ``--parts mine``.

A part is taken from a file when it is *written*: none of its tasks is still the stub. What is not
written is the reference's. Nothing is mixed inside a part, and nothing falls back in silence.

A copy for a class (``minipaged release``) has no reference for the stages that are closed in it.
What is not written of them is an error when the engine first needs it, and ``mine`` is the default.

::

    from minipaged import LLM
    from minipaged.course import load_parts

    llm = LLM("opt-stories", parts=load_parts("block_table=mine"))
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from minipaged.course.catalog import Course, Part, Stage, is_class_copy, load_course
from minipaged.course.contract import differences
from minipaged.course.device import triton_environment
from minipaged.course.fault import StudentFile, explain, line_in
from minipaged.course.files import place
from minipaged.course.judge.libraries import missing_triton
from minipaged.course.kernel_errors import chain_of, message_of
from minipaged.course.source_module import run_as_module
from minipaged.course.stubs import stub_in
from minipaged.course.submission import PartFile, Submission, impl_folder, read_submission
from minipaged.errors import CourseError
from minipaged.parts import Parts

_NAMED = ("mine", "solutions", "ref")


@dataclass(frozen=True)
class StudentParts(Parts):
    """Parts of which some come from a student's files. Pickles as its ``spec``.

    Attributes:
        spec: as :func:`load_parts` takes it, with absolute paths.
        root: of the course.
        notes: a line for each part that is not the reference's, and one for those that were to be
            taken and are not written.
        files: those that are in use.
        absent: module of a part that is neither written nor given -> what to say about it.
    """

    spec: str = "ref"
    root: Path = Path()
    notes: tuple[str, ...] = ()
    files: tuple[StudentFile, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)

    def module(self, reference: str) -> ModuleType:
        """All of a part, for those who use more of it than an engine does: the student's file
        where it is in use, else the reference.

        Args:
            reference: the module's name, as ``minipaged.kvcache.sizing``.

        Raises:
            CourseError: there is neither.
        """
        if reference in self.absent:
            raise CourseError(self.absent[reference])
        for file in self.files:
            if file.reference == reference:
                return sys.modules[file.module]
        return importlib.import_module(reference)

    def __reduce__(self) -> tuple[Any, ...]:
        return load_parts, (self.spec, self.root)


def default_spec() -> str:
    """Whose parts a command takes that is not told: the reference's, or in a copy for a class,
    which has none for some of them, the student's own."""
    return "mine" if is_class_copy() else "ref"


def load_parts(
    spec: str,
    root: Path | None = None,
    only: Collection[str] | None = None,
    also: Collection[str] = (),
) -> StudentParts:
    """The parts that a user asks for.

    Args:
        spec: ``mine`` (this checkout's ``exercises``), ``solutions``, ``ref``, or a folder that
            is laid out as ``exercises``: all parts that are written there. Or
            ``block_table=mine,scheduler=ref``: these parts, and the reference's for the rest (the
            student's own where this copy has no reference for one). A stage's name stands for
            all of its parts that are written, as in ``kernel=mine``.
        root: of the course; None: that of the working directory.
        only: the parts that matter here; the others' files are not even read. None: those that
            an engine is built from.
        also: parts that matter beside these, for :meth:`StudentParts.module`.

    Raises:
        CourseError: an unknown part or folder; a part asked for by name that is not written; a
            file that cannot be loaded; a signature that is not the engine's. The message names
            the file and, where it can, the line.
    """
    if spec == "ref" and not is_class_copy(root):
        return StudentParts()  # without the course: an installed package has none
    course = load_course(root)
    wishes, whole, spec_again = _wishes(course, spec)
    chosen: dict[str, Any] = {}
    notes: list[str] = []
    fallbacks: dict[str, list[str]] = {}
    absent: dict[str, str] = {}
    files: list[StudentFile] = []
    submissions: dict[tuple[str, str], Submission] = {}
    for name, (impl, by_name) in wishes.items():
        stage, part = course.parts[name]
        matters = name in only if only is not None else bool(seats(part)) or name in also
        if by_name and only is None and not matters:
            raise CourseError(
                f"no engine is built from {name}: `minipaged grade {stage.key}` uses it"
            )
        if stage.triton and (missing := missing_triton(stage)):
            if by_name:
                raise CourseError(missing)
            continue
        if not matters:
            if stage.closed:
                chosen |= {field: _own(course, name, field) for field in seats(part)}
            continue
        if impl == "ref" and not stage.closed:
            continue
        if (stage.number, impl) not in submissions:
            submissions[stage.number, impl] = read_submission(course, stage, impl)
        submission = submissions[stage.number, impl]
        file = submission.files[name]
        if not file.written:
            if by_name or file.error:
                raise CourseError(_cannot_use(stage, file, impl))
            if stage.closed:
                absent[part.module] = _is_needed(stage, file, impl)
                chosen |= dict.fromkeys(seats(part), _absent(absent[part.module]))
            else:
                what = f"{name} ({_what_is_missing(stage, file)})"
                fallbacks.setdefault(impl, []).append(what)
            continue
        module = load_part_file(part, file)
        chosen |= _fill(part, module)
        notes.append(f"parts: {name} {_whose(course, submission, file, impl)}")
        files.append(StudentFile(stage.key, file.path, module.__name__, part.module))
    for stage in whole:
        if not any(file.stage == stage.key for file in files):
            names = ", ".join(part.name for part in stage.parts)
            raise CourseError(
                f"{stage.name} was asked for by name, and none of its parts is written: {names}"
            )
    for impl, parts in fallbacks.items():
        folder = place(impl_folder(course, impl) or course.root)
        whose = "the reference's" if course.given is None else "those that were given"
        notes.append(f"parts: not written in {folder}, so {whose}: {', '.join(parts)}")
    return StudentParts(
        **chosen,
        spec=spec_again,
        root=course.root,
        notes=tuple(notes),
        files=tuple(files),
        absent=absent,
    )


@contextmanager
def explained(parts: Parts) -> Iterator[None]:
    """What goes wrong inside leaves as an error that says in which of these parts.

    Raises:
        CourseError: instead of an exception that a student's part caused, or may have caused.
    """
    try:
        yield
    except CourseError:
        raise  # it tells what to do
    except Exception as error:
        told = _stub_of(error)
        if told:
            root = parts.root if isinstance(parts, StudentParts) else None
            raise CourseError(_not_written(told, root)) from error
        files = parts.files if isinstance(parts, StudentParts) else ()
        story = explain(error, files)
        if story is None:
            raise
        raise CourseError(story) from error


def _stub_of(error: Exception) -> str:
    """What a stub says, in a kernel too; empty for all other errors."""
    inner = chain_of(error)[-1]
    if not isinstance(error, NotImplementedError) and inner is error and not message_of(error):
        return ""
    text = (message_of(inner) or str(inner)).partition("\n")[0]
    return text if stub_in(text) else ""


def _not_written(told: str, root: Path | None) -> str:
    """What a stub's text means to whoever ran into it. In a copy for a class it may be the
    package's own stub, in the place of a file that nobody has written."""
    task_id = stub_in(told)
    if task_id is not None and is_class_copy(root):
        course = load_course(root)
        stage, task = course.task(task_id)
        file = read_submission(course, stage, "mine").files[task.part]
        if stage.closed and not file.written:
            return _cannot_use(stage, file, "mine")
    return f"something that you have not written is needed: {told}"


# --------------------------------------------------------------------------- what is wished for
Wishes = Mapping[str, tuple[str, bool]]
"""Part -> (implementation, was the part named?)"""


def _wishes(course: Course, spec: str) -> tuple[Wishes, list[Stage], str]:
    """What is wished for each part; the stages that were named whole; and the spec again, for
    another process, which may be in another folder."""
    if "=" not in spec or Path(spec).is_dir():
        impl = _absolute(spec)
        return dict.fromkeys(course.parts, (impl, False)), [], impl
    of_stages = dict.fromkeys(course.closed_parts, ("mine", False))
    of_parts: dict[str, tuple[str, bool]] = {}
    stages = {stage.name: stage for stage in course.stages if stage.name not in course.parts}
    named: dict[str, str] = {}
    for wish in spec.split(","):
        name, equals, impl = (word.strip() for word in wish.partition("="))
        if not (name and equals and impl):
            raise CourseError(
                f"{wish!r} in {spec!r} is not PART=mine, PART=ref, PART=solutions or PART=FOLDER"
            )
        if name in named:
            raise CourseError(f"{spec!r} says twice whose {name} to take")
        named[name] = _absolute(impl)
        if name in course.parts:
            of_parts[name] = (named[name], True)
        elif name in stages:
            of_stages |= {part.name: (named[name], False) for part in stages[name].parts}
        else:
            raise CourseError(
                f"there is no part {name!r}: the parts are {', '.join(course.parts)}; "
                f"{', '.join(stages)} are stages, which stand for all their parts"
            )
    whole = [stages[n] for n, impl in named.items() if n in stages and impl != "ref"]
    again = ",".join(f"{name}={impl}" for name, impl in named.items())
    return of_stages | of_parts, whole, again


def _absolute(impl: str) -> str:
    return impl if impl in _NAMED else str(Path(impl).expanduser().resolve())


# --------------------------------------------------------------------------- one part
def load_part_file(part: Part, file: PartFile) -> ModuleType:
    """The student's module, whose interface is the reference's.

    Raises:
        CourseError: it cannot be loaded, or a signature is another one.
    """
    # Before Triton is imported, for a kernel: without a GPU it interprets them.
    os.environ.update(triton_environment(os.environ))
    module = _module(part, file)
    wrong = differences(importlib.import_module(part.module), module)
    if wrong:
        raise CourseError(
            f"{place(file.path)} cannot stand in for {part.module}:\n"
            + "\n".join(wrong)
            + "\nRestore what the skeleton had: the engine calls it that way."
        )
    return module


def _module(part: Part, file: PartFile) -> ModuleType:
    """Run the file as a module of its own name: one for each path and content, so that two
    engines can have different ones, and an edit is picked up by the next load."""
    source = file.source or ""
    digest = hashlib.sha256(f"{file.path}\0{source}".encode()).hexdigest()[:16]
    name = f"minipaged_part_{part.name}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        return run_as_module(name, str(file.path), source)
    except (Exception, SystemExit) as error:
        at = line_in(error, name)
        raise CourseError(
            f"{place(file.path)}{f', line {at.lineno}' if at else ''}: "
            f"{type(error).__name__}: {error} (while the file was being loaded)"
        ) from error


def seats(part: Part) -> dict[str, str]:
    """The fields of :class:`Parts` that this part fills -> the name in its module. Some parts have
    none: they are for grading and for the lessons."""
    if part.module == "minipaged.attention.reference":
        return {"attention": "ReferenceAttention"}
    return {
        field.name: field.name
        for field in fields(Parts)
        if getattr(field.default, "__module__", None) == part.module
    }


def _own(course: Course, name: str, field: str) -> Callable[..., Any]:
    """A student's own, for want of a reference; its file is read when it is first called."""

    @cache
    def load() -> Any:
        return getattr(load_parts(f"{name}=mine", course.root, only=(name,)), field)

    def own(*args: Any, **kwargs: Any) -> Any:
        return load()(*args, **kwargs)

    return own


def _absent(message: str) -> Callable[..., Any]:
    """What stands where a part would: whoever calls it is told what is missing."""

    def absent(*args: Any, **kwargs: Any) -> Any:
        raise CourseError(message)

    return absent


def _fill(part: Part, module: ModuleType) -> dict[str, Any]:
    return {field: getattr(module, name) for field, name in seats(part).items()}


# --------------------------------------------------------------------------- what is said
def _cannot_use(stage: Stage, file: PartFile, impl: str) -> str:
    where = place(file.path)
    if file.error:
        return f"{where}, {file.error}. Mend it, or take parts by name: --parts PART=mine"
    if stage.closed:
        return _is_needed(stage, file, impl)
    return (
        f"{file.part.name} was asked for by name, and is not written in {where}: "
        f"{_what_is_missing(stage, file)}. With --parts mine the reference stands in for it"
    )


def _is_needed(stage: Stage, file: PartFile, impl: str) -> str:
    if impl == "ref":
        return (
            f"this copy of the course has no reference for {file.part.name}: say --parts mine, or "
            "the path of a folder that is laid out as exercises/"
        )
    return (
        f"{file.part.name} is not written ({_what_is_missing(stage, file)}): {stage.label}, "
        f"{stage.lesson}; write {place(file.path)}, then `minipaged grade {stage.key}`"
    )


def _what_is_missing(stage: Stage, file: PartFile) -> str:
    if file.source is None:
        return "no file"
    left = file.stubs | file.missing
    tasks = [task.id for task in stage.tasks_of(file.part) if left & set(task.symbols)]
    return f"task {tasks[0]}" if len(tasks) == 1 else f"tasks {', '.join(tasks)}"


def _whose(course: Course, submission: Submission, file: PartFile, impl: str) -> str:
    if impl == "solutions":
        return "is the worked solution's"
    taken = f"; taken: {', '.join(sorted(file.taken))}" if file.taken else ""
    if impl != "mine":
        return f"is from {place(file.path)}{taken}"
    return f"is yours ({_last_score(course, submission)}{taken})"


def _last_score(course: Course, submission: Submission) -> str:
    from minipaged.course.progress import digest_of, last_scores

    stage = submission.stage
    score = last_scores(course.root).get(stage.number)
    if score is None:
        return f"stage {stage.key} is not graded yet"
    if score.digest != digest_of(submission):
        return f"stage {stage.key} was changed since it was graded"
    day = f"{score.date.day} {score.date:%b}"
    return f"stage {stage.key}: {score.points} of {score.total} points, {day}"
