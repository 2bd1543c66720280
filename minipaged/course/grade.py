"""``minipaged grade``: points for what a student wrote, and what to do next.

Two rounds are graded: one with seed 0, the same on every machine, and one with a fresh seed for
all that passed, so that nothing is won by knowing the visible cases.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from minipaged.course.answers import known_seeds
from minipaged.course.catalog import Check, Course, Stage, load_course
from minipaged.course.counterexample import is_started, judge_trace, what_is_wrong
from minipaged.course.device import has_cuda_device
from minipaged.course.judge.libraries import missing_triton
from minipaged.course.judge.on_device import judge_on_device
from minipaged.course.judge.run import CheckResult, Judged, judge_rounds
from minipaged.course.next_step import after_grading, from_record, is_done
from minipaged.course.progress import last_scores, record_score
from minipaged.course.reports import classroom50, gradescope, junit
from minipaged.course.score_card import (
    make_console,
    show_check,
    show_foundations,
    show_next,
    show_progress,
    show_stage,
    show_total,
    show_void,
)
from minipaged.course.scores import StageScore, runnable, score
from minipaged.course.signatures import diagnose
from minipaged.course.submission import Submission, impl_folder, read_submission, trace_path
from minipaged.errors import CourseError

#: Seeds of the second round are below it: short enough to be typed again.
SEEDS = 1_000_000_000


def grade_stage(
    course: Course,
    stage: Stage,
    submission: Submission,
    *,
    seed: int | None = None,
    only: Collection[str] | None = None,
    user: str | None = "auto",
    run_judge: Callable[..., list[Judged]] = judge_rounds,
    run_on_device: Callable[[], Judged] | None = None,
) -> StageScore:
    """Grade one stage.

    Args:
        seed: of the only round; None for seed 0 and then a fresh one.
        only: the names of the checks that may run; None for all.
        user: whom the submission runs as, as :func:`~minipaged.course.judge.run.judge` says.
        run_judge: what judges; the judge, but in tests.
        run_on_device: what judges the GPU checks; None where they stay pending.
    """
    began = time.monotonic()
    trace = trace_path(course, submission)
    started = trace is not None and is_started(trace)
    wanted = runnable(stage, submission, started)
    wanted = [name for name in wanted if only is None or name in only]
    seeds = (0, _fresh_seed(course, stage)) if seed is None else (seed,)
    missing = missing_triton(stage)
    if missing:
        lost = {name: CheckResult(name, "not run", missing) for name in wanted}
        rounds = [Judged(stage.number, seeds[0], lost, missing)]
    elif wanted:
        rounds = run_judge(course, stage, submission, seeds=seeds, checks=wanted, user=user)
    else:
        rounds = []
    mutant = diagnose(course, stage, rounds[0]) if rounds else None
    result = score(
        stage,
        submission,
        rounds,
        trace_started=started,
        diagnosis=mutant.misconception if mutant else "",
        on_device=run_on_device() if run_on_device and rounds and only is None else None,
        seconds=time.monotonic() - began,
    )
    return _with_finding(course, result)


def _fresh_seed(course: Course, stage: Stage) -> int:
    known = [seed for seed in known_seeds(course, stage) if seed]
    return secrets.choice(known) if known else 1 + secrets.randbelow(SEEDS)


def _with_finding(course: Course, result: StageScore) -> StageScore:
    """Say of a trace that earned its points where the two differ, and of one that is to be sent in
    why it could earn none."""
    check = result.counterexample
    trace = trace_path(course, result.submission)
    if check is None or trace is None:
        return result
    if check.status == "passed":
        found = judge_trace(course, result.stage, trace).found
    elif check.status == "sent in" and is_started(trace):
        found = what_is_wrong(result.stage, trace) or "It can be run: hand it in."
    else:
        return result
    return replace(result, counterexample=replace(check, message=found))


# --------------------------------------------------------------------------- the command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged grade``."""
    parser.add_argument(
        "stage",
        nargs="*",
        metavar="STAGE",
        help="2, block_allocator, …, A (a checkpoint), or all; without one: the last results, and "
        "what is next",
    )
    parser.add_argument(
        "--impl",
        metavar="IMPL",
        help="mine (default), solutions, or a folder laid out as exercises/",
    )
    parser.add_argument(
        "--check",
        action="append",
        metavar="NAME",
        help="grade this check of the stage alone; may be given several times",
    )
    parser.add_argument("--seed", type=_seed, metavar="N", help="grade one round, with this seed")
    parser.add_argument(
        "--keep-user",
        action="store_true",
        help="as root: let the submission run as root too, not as nobody",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write Gradescope's results.json")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    parser.add_argument(
        "--classroom50",
        type=Path,
        metavar="FILE",
        help="write Classroom 50's declarative tests, and grade nothing",
    )


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 on, not {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Grade, and show what came of it.

    Returns:
        0 if all that was graded has all its points, 1 if not, 2 for bad options.
    """
    course = load_course()
    impl = args.impl or "mine"
    try:
        stages = _stages(course, args.stage)
        checks = _checks(stages, args)
        impl_folder(course, impl)
    except CourseError as error:
        print(f"minipaged: error: {error}", file=sys.stderr)
        return 2
    if args.classroom50:
        _write(args.classroom50, _json(classroom50(stages)))
        return 0
    if checks:
        return _grade_checks(course, stages[0], impl, checks, args)
    experiment = args.impl or args.json or args.junit or args.seed is not None
    if not args.stage and not experiment:
        return _show_progress(course)
    return _grade_stages(course, stages, impl, args)


def _stages(course: Course, names: Sequence[str]) -> list[Stage]:
    if not names or "all" in names:
        return list(course.units)
    wanted = [course.unit(name).number for name in names]
    return [unit for unit in course.units if unit.number in wanted]


def _checks(stages: Sequence[Stage], args: argparse.Namespace) -> list[Check]:
    """The checks that ``--check`` asks for; none where it is not given."""
    if not args.check:
        return []
    if len(stages) != 1 or args.json or args.junit:
        raise CourseError(
            "--check takes one stage and writes no report, as `minipaged grade 2 --check NAME`"
        )
    known = {check.name: check for check in stages[0].checks()}
    found = []
    for asked in args.check:
        name = "_".join(asked.split())  # a title, as the screen shows it, is a name with blanks
        if name not in known:
            raise CourseError(
                f"{stages[0].label} has no check {asked!r}; it has: {', '.join(known)}"
            )
        found.append(known[name])
    return found


def _grade_stages(
    course: Course, stages: Sequence[Stage], impl: str, args: argparse.Namespace
) -> int:
    console = make_console()
    # A round with a seed of one's own is an experiment, and is not kept.
    keep = impl == "mine" and args.seed is None
    scores = []
    for stage in stages:
        result = _graded(course, stage, impl, args)
        scores.append(result)
        if result.note:  # no verdict: an earlier score stands
            show_void(console, result)
            continue
        record = record_score(course.root, result, date.today()) if keep else None
        show_stage(console, result, record)
        show_foundations(console, course, stage)
    if len(scores) > 1:
        show_total(console, scores)
    if args.json:
        _write(args.json, _json(gradescope(scores)))
    if args.junit:
        _write(args.junit, junit(scores))
    if impl not in ("solutions", "ref") and not all(result.note for result in scores):
        last = next((result for result in scores if not result.whole), scores[-1])
        show_next(console, after_grading(course, last))
    return 0 if all(result.whole for result in scores) else 1


def _grade_checks(
    course: Course, stage: Stage, impl: str, checks: Sequence[Check], args: argparse.Namespace
) -> int:
    # A check of robustness says nothing without those of its parent.
    parents = {check.parent for check in checks}
    needed = [check for task in stage.tasks if task.id in parents for check in task.checks]
    result = _graded(course, stage, impl, args, [check.name for check in (*checks, *needed)])
    asked = [found for found in result.checks if found.check in checks]
    console = make_console()
    for found in asked:
        show_check(console, found)
    return 0 if all(found.status == "passed" for found in asked) else 1


def _graded(
    course: Course,
    stage: Stage,
    impl: str,
    args: argparse.Namespace,
    only: Collection[str] | None = None,
) -> StageScore:
    submission = read_submission(course, stage, impl)
    with _busy(f"grading {stage.label}, {stage.title} …"):
        return grade_stage(
            course,
            stage,
            submission,
            seed=args.seed,
            only=only,
            user=None if args.keep_user else "auto",
            run_on_device=_on_device(course, stage, impl, args.seed or 0),
        )


def _on_device(course: Course, stage: Stage, impl: str, seed: int) -> Callable[[], Judged] | None:
    """What judges the GPU checks, if there is a GPU. They run without the judge's walls, so only
    the user's own files, and those of this checkout, are run by them."""
    if stage.gpu and impl in ("mine", "solutions", "ref") and has_cuda_device():
        return partial(judge_on_device, course, stage, impl, seed)
    return None


def _show_progress(course: Course) -> int:
    """The last results, and what is next; nothing is graded."""
    console = make_console()
    records = last_scores(course.root)
    show_progress(console, course, records)
    for stage in course.units:
        submission = read_submission(course, stage, "mine")
        record = records.get(stage.number)
        if course.is_given(stage) and record is None:
            continue
        if stage is course.units[-1] or not is_done(stage, submission, record):
            show_next(console, from_record(course, stage, submission, record))
            break
    return 0


@contextmanager
def _busy(what: str) -> Iterator[None]:
    """Something that moves while the judge works; nothing in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CourseError(f"{path} cannot be written: {error.strerror}") from None
