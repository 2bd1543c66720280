"""The last scores: kept, read back, and lost without harm."""

from __future__ import annotations

import json
import os
from datetime import date

import pytest
from fakes import BOX, judged, small_course

from minipaged.course.progress import FILE, last_scores, record_score
from minipaged.course.scores import score
from minipaged.course.submission import submission_in_memory

DAY = date(2026, 5, 6)


@pytest.fixture
def course(tmp_path):
    return small_course(tmp_path)


def result(course, failed=()):
    stage = course.stage("7")
    box = submission_in_memory(course, stage, {"box": BOX}, "test")
    rounds = [judged(stage, dict.fromkeys(failed, "no"))]
    return score(stage, box, rounds, trace_started=True)


def test_a_score_is_read_back(course):
    kept = record_score(course.root, result(course, ["it_counts"]), DAY)
    assert last_scores(course.root) == {"07": kept}
    assert (kept.points, kept.total, kept.best, kept.date) == (10, 13, 10, DAY)
    assert kept.tasks == {"7.1": 3, "7.2": 4, "robustness": 1, "counterexample": 2}
    assert not kept.dropped


def test_a_drop_is_known_until_it_is_made_good(course):
    record_score(course.root, result(course), DAY)
    for _ in range(2):
        low = record_score(course.root, result(course, ["it_counts"]), DAY)
        assert (low.dropped, low.best, low.points) == (True, 13, 10)
    assert not record_score(course.root, result(course), DAY).dropped


def test_other_stages_stay(course):
    (course.root / FILE).parent.mkdir()
    other = {"points": 1, "total": 5, "date": "2026-01-01", "best": 2, "tasks": {"8.1": 1}}
    (course.root / FILE).write_text(json.dumps({"08": other}))
    record_score(course.root, result(course), DAY)
    assert sorted(last_scores(course.root)) == ["07", "08"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"07": 3}', '{"07": {}}', "\0", "[" * 100_000,
     '{"07": {"points": "8", "total": 1, "date": "2026-01-01", "best": 2, "tasks": {}}}',
     '{"07": {"points": 8, "total": 1, "date": 3, "best": 2, "tasks": {}}}',
     '{"07": {"points": 8, "total": 1, "date": "2026-01-01", "best": 2, "tasks": 4}}',
     '{"07": {"points": 8, "total": 1, "date": "2026-01-01", "best": 2, "tasks": {}, "x": 1}}'],
)  # fmt: skip
def test_a_file_that_cannot_be_read_counts_as_none(course, text):
    (course.root / FILE).parent.mkdir()
    (course.root / FILE).write_text(text)
    assert last_scores(course.root) == {}
    assert record_score(course.root, result(course), DAY).points == 13
    assert last_scores(course.root)["07"].points == 13


def test_no_file_is_no_score(tmp_path):
    assert last_scores(tmp_path) == {}


def test_a_folder_that_cannot_be_written_loses_the_score_alone(course):
    (course.root / FILE.parent).write_text("a file where the folder should be")
    assert record_score(course.root, result(course), DAY).points == 13
    assert last_scores(course.root) == {}
    assert os.listdir(course.root).count(".minipaged") == 1
