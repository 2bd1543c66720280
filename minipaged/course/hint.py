"""``minipaged hint 3.2``: a question that helps; with ``--more`` a pointer to what to do."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass

from minipaged.course.catalog import Course, load_course
from minipaged.course.next_step import program
from minipaged.errors import CourseError


@dataclass(frozen=True)
class Hint:
    """What helps with a task or a counterexample.

    Attributes:
        id: ``3.2``, or ``3.counterexample``.
        question, pointer: the two tiers.
        claim: of a counterexample, which has no answer to be taken; empty for a task.
        answer: can the answer be taken?
    """

    id: str
    title: str
    points: int
    lesson: str
    question: str
    pointer: str
    claim: str = ""
    answer: bool = False


def hints(course: Course) -> dict[str, Hint]:
    """All hints, by what they are asked for with."""
    found = {}
    for stage in course.stages:
        for task in stage.tasks:
            found[task.id] = Hint(
                task.id,
                task.title,
                task.points,
                stage.lesson,
                task.question,
                task.pointer,
                answer=not stage.closed,
            )
        asked = stage.counterexample
        if asked is not None:
            name = f"{stage.key}.counterexample"
            found[name] = Hint(
                name,
                "The counterexample",
                asked.points,
                stage.lesson,
                asked.question,
                asked.pointer,
                asked.claim,
            )
    return found


def hint_text(course: Course, name: str, more: bool) -> str:
    """A hint as it is printed.

    Raises:
        CourseError: there is no such task; the message lists those that there are.
    """
    known = hints(course)
    for checkpoint in course.checkpoints:
        if name.upper().partition(".")[0] == checkpoint.key:
            raise CourseError(
                f"{checkpoint.label} has nothing to write, and no hints: {checkpoint.lesson} says "
                "how to read its failures"
            )
    if name not in known:
        raise CourseError(f"there is no task {name!r}: the tasks are {', '.join(known)}")
    hint = known[name]
    lines = [f"{hint.id}  {hint.title} ({hint.points} points, {hint.lesson})", ""]
    if hint.claim:
        lines += [*_paragraph(f"The claim: {hint.claim}"), ""]
    lines += _paragraph(hint.question)
    if not more:
        return "\n".join([*lines, "", f"A pointer: {program()} hint {hint.id} --more"])
    lines += ["", *_paragraph(hint.pointer)]
    if hint.answer:
        lines += ["", f"The answer itself, for no points: {program()} unstick {hint.id}"]
    return "\n".join(lines)


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, 84, initial_indent="    ", subsequent_indent="    ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged hint``."""
    parser.add_argument("task", nargs="?", metavar="TASK", help="such as 3.2 or 3.counterexample")
    parser.add_argument("--more", action="store_true", help="the pointer too")


def run(args: argparse.Namespace) -> int:
    """Print a hint, or what there are hints for."""
    course = load_course()
    if args.task is not None:
        print(hint_text(course, args.task, args.more))
        return 0
    for hint in hints(course).values():
        print(f"{program()} hint {hint.id:<16}  {hint.title}")
    return 0
