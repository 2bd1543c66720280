"""What the lessons show is true: states are the notation, Python blocks run, commands print what
the lesson says they print, a mistake looks on screen as shown, and pictures are as drawn.

In a lesson, ``state`` blocks hold states, a line each; ``python`` blocks share their names, and
with ``>>>`` are compared; ``console`` blocks hold commands after ``$`` and some of the lines that
they print, with ``…`` where some are left out; a ``text`` block under ``<!-- mutant: NAME -->`` is
what the score card says of that mutant.
"""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from minipaged.cli import main
from minipaged.course.catalog import load_course
from minipaged.course.judge.run import judge_many
from minipaged.course.mutants import (
    apply,
    find_mutant,
    load_mutants,
    mutant_submission,
    reference_source,
)
from minipaged.course.submission import submission_in_memory
from minipaged.viz.state import format_state, parse_state

ROOT = Path(__file__).resolve().parents[2]
COURSE = load_course(ROOT)
STAGES = [stage for stage in COURSE.stages if (ROOT / stage.lesson).is_file()]
LESSONS = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
#: Stages and checkpoints.
PAGES = pytest.mark.parametrize(
    "stage", [*STAGES, *COURSE.checkpoints], ids=lambda stage: stage.name
)
#: Stands for lines that a lesson leaves out of what a command prints.
CUT = "…"
#: Commands that are quick and leave nothing behind: a lesson's output of these is compared.
RUNNABLE = ("plan",)


@dataclass(frozen=True)
class Block:
    """A fenced block, with the comment in the line before it."""

    kind: str
    text: str
    comment: str
    line: int


def blocks(stage, kind):
    text = (ROOT / stage.lesson).read_text(encoding="utf-8")
    pattern = r"(?:^<!-- (?P<comment>[^\n]*) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$"
    found = re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    return [
        Block(kind, m["text"], m["comment"] or "", text.count("\n", 0, m.start("text")) + 1)
        for m in found
        if m["kind"] == kind
    ]


def plain(text):
    return " ".join(text.split())


def test_there_is_a_lesson_for_each_stage():
    missing = [unit.lesson for unit in COURSE.units if not (ROOT / unit.lesson).is_file()]
    assert not missing


@PAGES
def test_every_state_is_in_the_notation(stage):
    states = [(b.line, line) for b in blocks(stage, "state") for line in b.text.splitlines()]
    assert len(states) >= 3 or stage not in STAGES
    for line, state in states:
        assert format_state(parse_state(state)) == state, f"{stage.lesson}, line {line}"


@LESSONS
def test_python_blocks_run_as_shown(stage, capsys):
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(verbose=False)
    found = blocks(stage, "python")
    assert found
    for block in found:
        if ">>>" in block.text:
            where = f"{stage.lesson}, line {block.line}"
            test = doctest.DocTestParser().get_doctest(block.text, names, where, None, block.line)
            runner.run(test, clear_globs=False)
            names.update(test.globs)
        else:
            exec(compile(block.text, f"{stage.lesson}:{block.line}", "exec"), names)
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out


@LESSONS
def test_commands_print_what_is_shown(stage, capsys):
    compared = 0
    for block in blocks(stage, "console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            words = shlex.split(command)
            if not shown.strip() or words[:1] != ["minipaged"] or words[1] not in RUNNABLE:
                continue
            assert main(words[1:]) == 0
            printed = capsys.readouterr().out
            for line in shown.splitlines():
                told = line == CUT or line in printed
                assert told, f"{stage.lesson}: `{command}` prints\n{printed}"
            compared += 1
    assert compared, "a lesson has a number that a command checks"


@PAGES
def test_a_mistake_looks_on_screen_as_shown(stage):
    shown = {b.comment.removeprefix("mutant: "): b.text for b in blocks(stage, "text") if b.comment}
    assert shown, "a lesson shows what the usual mistakes look like"
    submissions = [wrong(stage, name) for name in shown]
    wanted = {name: _check(stage, text) for name, text in shown.items()}
    results = judge_many(COURSE, stage, submissions, checks=set(wanted.values()))
    for (name, text), judged in zip(shown.items(), results, strict=True):
        check = judged.checks[wanted[name]]
        said = plain(f"{check.message} calls {check.transcript}")
        for line in text.splitlines()[1:]:
            assert plain(line) in said, f"mutant {name} says\n{check.message}\n{check.transcript}"


def wrong(unit, name):
    """A mutant as a submission, to a checkpoint too."""
    if unit in STAGES:
        return mutant_submission(COURSE, unit, find_mutant(COURSE, unit, name))
    mutants = {mutant.name: (stage, mutant) for stage in STAGES
               for mutant in load_mutants(COURSE, stage)}  # fmt: skip
    stage, mutant = mutants[name]
    text = apply(mutant, reference_source(COURSE, stage, mutant.part))
    return submission_in_memory(COURSE, unit, {mutant.part: text}, name)


def _check(stage, text):
    """The check that a message's first line names."""
    title = text.splitlines()[0].removeprefix("✗").split("  ")[0].strip()
    return next(check.name for check in stage.checks() if check.title == title)


@PAGES
def test_a_lesson_links_to_what_exists(stage):
    lesson = ROOT / stage.lesson
    links = re.findall(r"\]\(([^)\s]+)\)", lesson.read_text(encoding="utf-8"))
    for link in links:
        if not link.startswith("http"):
            assert (lesson.parent / link.partition("#")[0]).exists(), link


@LESSONS
def test_every_picture_is_as_drawn_and_says_its_state(stage):
    text = (ROOT / stage.lesson).read_text(encoding="utf-8")
    found = re.findall(r"!\[(.*?)\]\(images/([\w-]+)\.svg\)", text)
    images = {name: alt for alt, name in found}
    pictures = {p.name: p for p in _script().PICTURES if p.name.startswith(stage.number)}
    assert images, "a lesson has a picture"
    assert set(images) == set(pictures)
    for name, picture in pictures.items():
        assert images[name] == picture.state == format_state(picture.pool_state())
        drawn = picture.path.read_text(encoding="utf-8")
        assert drawn == picture.svg(), "python scripts/lesson_pictures.py draws it anew"


@cache
def _script():
    spec = importlib.util.spec_from_file_location(
        "lesson_pictures", ROOT / "scripts" / "lesson_pictures.py"
    )
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
