"""``minipaged mutants``: is the grader itself right? Every mutant must be rejected."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from minipaged.course.catalog import Course, Stage, load_course
from minipaged.course.judge.run import Judged, judge_many
from minipaged.course.mutants import Mutant, load_mutants, mutant_submission
from minipaged.course.score_card import make_console, put
from minipaged.course.signatures import Signature, graded_checks, save_signatures, signature_of
from minipaged.course.submission import read_submission
from minipaged.errors import CourseError


@dataclass(frozen=True)
class Outcome:
    """What the graded tests said to one mutant."""

    mutant: Mutant
    signature: Signature

    @property
    def rejected(self) -> bool:
        return bool(self.signature.failed)


def grade_mutants(
    course: Course,
    stage: Stage,
    mutants: Sequence[Mutant],
    checks: Sequence[Sequence[str]] | None = None,
) -> list[Outcome]:
    """Grade mutants with seed 0.

    Args:
        checks: for each mutant, those that run; None for all that say something about code.

    Raises:
        CourseError: a check did not run, which is no rejection, or the reference fails it.
    """
    everything = graded_checks(stage)
    wanted = [everything] * len(mutants) if checks is None else checks
    used = [name for name in everything if any(name in names for names in wanted)]
    submissions = [read_submission(course, stage, "ref")]
    submissions += [mutant_submission(course, stage, mutant) for mutant in mutants]
    first, *rounds = judge_many(course, stage, submissions, checks_of_each=[used, *wanted])
    _must_have_run("the reference", first, used)
    # What fails anyway says nothing of a mutant.
    for name, value in signature_of(stage, first).failed.items():
        raise CourseError(f"stage {stage.key}: the reference itself fails {name}: {value}")
    outcomes = []
    for mutant, judged, names in zip(mutants, rounds, wanted, strict=True):
        _must_have_run(f"mutant {mutant.name}", judged, names)
        outcomes.append(Outcome(mutant, signature_of(stage, judged)))
    return outcomes


def _must_have_run(who: str, judged: Judged, wanted: Sequence[str]) -> None:
    for name in wanted:
        result = judged.checks.get(name)
        if result is None or result.status == "not run":
            why = judged.note or (result.message if result else "no result")
            raise CourseError(f"{who}: {name} did not run: {why}")


# --------------------------------------------------------------------------- the command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged mutants``."""
    parser.add_argument("stage", nargs="*", metavar="STAGE", help="default: all stages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome as JSON")
    parser.add_argument(
        "--write", action="store_true", help="put on record how each mutant is rejected"
    )


def run(args: argparse.Namespace) -> int:
    """Grade the mutants of some stages.

    Returns:
        0 if all are rejected, 1 if not, or if there are none.
    """
    course = load_course()
    stages = [course.stage(name) for name in args.stage]
    stages = stages or [stage for stage in course.stages if not stage.closed]
    for stage in stages:
        if stage.closed:
            raise CourseError(f"this copy of the course has no reference of stage {stage.key}")
    outcomes = {}
    console = make_console()
    for stage in stages:
        outcomes[stage.number] = grade_mutants(course, stage, load_mutants(course, stage))
        _show(console, stage, outcomes[stage.number])
    found = [outcome for rows in outcomes.values() for outcome in rows]
    rejected = sum(outcome.rejected for outcome in found)
    put(console, Text(f"total {len(found)}, rejected {rejected}", "bold"))
    if args.json:
        text = json.dumps(_as_data(outcomes), indent=2, ensure_ascii=False)
        args.json.write_text(text + "\n", encoding="utf-8")
    if args.write:
        save_signatures(
            course,
            {n: {o.mutant.name: o.signature for o in rows} for n, rows in outcomes.items()},
        )
    return 0 if found and rejected == len(found) else 1


def _show(console: Console, stage: Stage, outcomes: Sequence[Outcome]) -> None:
    """A row a mutant: what caught it, and the first thing that was wrong."""
    rejected = sum(outcome.rejected for outcome in outcomes)
    put(
        console,
        Text.assemble(
            (f"Stage {stage.key}  {stage.title}", "bold"),
            (f"   {rejected} of {len(outcomes)} mutants rejected", "dim"),
        ),
    )
    for outcome in outcomes:
        mark, style = ("✓", "green") if outcome.rejected else ("✗", "red")
        put(console, Text.assemble((f"  {mark} ", style), (outcome.mutant.name, "bold")))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", width=10)
        table.add_column(overflow="fold")
        if outcome.rejected:
            check, value = outcome.signature.first
            table.add_row("caught by", ", ".join(outcome.signature.failed))
            table.add_row("says", f"{check}: {value}")
        else:
            table.add_row("survives", outcome.mutant.misconception)
        put(console, Padding(table, (0, 0, 0, 4)))
    put(console, "")


def _as_data(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    found = [outcome for rows in outcomes.values() for outcome in rows]
    return {
        "total": len(found),
        "rejected": sum(outcome.rejected for outcome in found),
        "mutants": [
            {
                "stage": number,
                "name": outcome.mutant.name,
                "rejected": outcome.rejected,
                "checks": list(outcome.signature.failed),
                "first_wrong_value": outcome.signature.first[1] if outcome.rejected else None,
            }
            for number, rows in outcomes.items()
            for outcome in rows
        ],
    }
