"""Mutants: named wrong implementations that the graded tests must reject.

Each is one find-and-replace on a reference, with the misconception that it encodes, in
``tests/mutants/stageNN.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from minipaged.course.catalog import Course, Stage
from minipaged.course.submission import Submission, submission_in_memory
from minipaged.errors import CourseError

FOLDER = Path("tests", "mutants")


@dataclass(frozen=True)
class Mutant:
    """One wrong implementation.

    Attributes:
        part: whose reference is changed.
        find, replace: the change; ``find`` occurs once in the reference.
        misconception: what it believes, in a sentence or two to a student.
        operations: how many operations show it.
        source: where it was seen: a known trap, or a public report.
    """

    name: str
    part: str
    find: str
    replace: str
    misconception: str
    operations: int
    source: str = ""


def load_mutants(course: Course, stage: Stage) -> tuple[Mutant, ...]:
    """The mutants of a stage, in the order of their file; none where there is no file.

    Raises:
        CourseError: the file says something that cannot be; the message says where.
    """
    path = course.root / FOLDER / f"stage{stage.number}.toml"
    if not path.is_file():
        return ()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"{path}: {error}") from None
    if set(data) - {"mutant"}:
        raise CourseError(f"{path}: nobody knows the key {min(set(data) - {'mutant'})!r}")
    mutants = tuple(_mutant(row, f"{path}, mutant {i + 1}") for i, row in enumerate(data["mutant"]))
    for mutant in mutants:
        if [other.name for other in mutants].count(mutant.name) > 1:
            raise CourseError(f"{path}: two mutants are called {mutant.name!r}")
        if mutant.part not in [part.name for part in stage.parts]:
            raise CourseError(f"{path}, {mutant.name}: the stage has no part {mutant.part!r}")
    return mutants


def _mutant(row: Mapping[str, Any], where: str) -> Mutant:
    kinds = {field.name: int if field.name == "operations" else str for field in fields(Mutant)}
    for key, kind in kinds.items():
        if key not in row and key != "source":
            raise CourseError(f"{where}: {key} is missing")
        if key in row and type(row[key]) is not kind:
            raise CourseError(f"{where}: {key} must be {kind.__name__}, not {row[key]!r}")
    if set(row) - set(kinds):
        raise CourseError(f"{where}: nobody knows the key {min(set(row) - set(kinds))!r}")
    misconception = " ".join(row["misconception"].split())  # its lines are those of the file
    return Mutant(**{**row, "misconception": misconception})


def find_mutant(course: Course, stage: Stage, name: str) -> Mutant:
    """The mutant of a stage that has this name.

    Raises:
        CourseError: there is none; the message lists those that there are.
    """
    mutants = load_mutants(course, stage)
    for mutant in mutants:
        if mutant.name == name:
            return mutant
    known = ", ".join(mutant.name for mutant in mutants)
    raise CourseError(f"stage {stage.key} has no mutant {name!r}: it has {known or 'none'}")


def reference_source(course: Course, stage: Stage, part: str) -> str:
    """The text of a part's reference."""
    return (course.root / stage.part(part).source).read_text(encoding="utf-8")


def apply(mutant: Mutant, source: str) -> str:
    """The reference's text with the change made.

    Raises:
        CourseError: ``find`` is not there, or there more than once.
    """
    count = source.count(mutant.find)
    if count != 1:
        raise CourseError(
            f"mutant {mutant.name}: its `find` must occur once in the reference of "
            f"{mutant.part}, and occurs {count} times"
        )
    return source.replace(mutant.find, mutant.replace)


def mutant_submission(course: Course, stage: Stage, mutant: Mutant) -> Submission:
    """A mutant as a submission: its part changed, the stage's other parts the reference's."""
    changed = apply(mutant, reference_source(course, stage, mutant.part))
    return submission_in_memory(course, stage, {mutant.part: changed}, f"mutant {mutant.name}")
