"""The instructor's guide covers the course: every stage's lecture, every question's marking."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minipaged.course.catalog import load_course

ROOT = Path(__file__).resolve().parents[2]
COURSE = load_course(ROOT)
STAGES = pytest.mark.parametrize("stage", COURSE.stages, ids=lambda stage: stage.name)
GUIDE = (ROOT / "lessons" / "instructor.md").read_text(encoding="utf-8")


def section(text, heading):
    """What stands under a heading, its subsections included."""
    level = heading.split()[0]
    _, _, rest = f"\n{text}".partition(f"\n{heading}")
    assert rest, heading
    return re.split(rf"^#{{2,{len(level)}}} ", rest, maxsplit=1, flags=re.M)[0]


def numbers(text):
    return [int(number) for number in re.findall(r"^(\d+)\. ", text, re.M)]


@STAGES
def test_a_lecture_has_ten_lines(stage):
    lines = section(GUIDE, f"### Stage {stage.key}: ")
    assert numbers(lines) == list(range(1, 11))


@STAGES
def test_every_question_of_a_discussion_is_marked(stage):
    lesson = (ROOT / stage.lesson).read_text(encoding="utf-8")
    asked = numbers(section(lesson, "## Discussion"))
    assert numbers(section(GUIDE, f"### Lesson {stage.key}\n")) == asked


def test_the_hours_are_those_of_the_course():
    assert f"| core | stages 0 to 6, checkpoints A and B | {hours(0, 6)} |" in GUIDE


def hours(first, last):
    return sum(stage.hours for stage in COURSE.stages if first <= int(stage.number) <= last)


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)\s]+)\)", GUIDE)
    assert len(links) >= 4
    for link in links:
        assert (ROOT / "lessons" / link.partition("#")[0]).is_file(), link


def test_the_example_of_a_check_is_that_of_the_folder():
    shown = re.search(r"^```toml\n(.*?)^```", GUIDE, re.M | re.S)[1]
    example = (ROOT / "lessons" / "hidden-checks" / "hidden.toml").read_text(encoding="utf-8")
    for line in shown.splitlines():
        assert line in example


def test_what_it_costs_is_told_for_all_that_is_graded():
    row = next(line for line in section(GUIDE, "## What it costs").splitlines() if "| A |" in line)
    assert re.findall(r"\w+", row) == [unit.key for unit in COURSE.units]
