"""What Gradescope, JUnit and Classroom 50 are given."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from fakes import BOX, judged, small_course, stubbed

from minipaged.course.catalog import load_course
from minipaged.course.reports import classroom50, gradescope, junit
from minipaged.course.scores import score
from minipaged.course.submission import submission_in_memory
from minipaged.errors import CourseError

UGLY = "expected </failure> & \x00\x1b[31m\ud800 \U0001f600 ]]> <!-- got\n\tnothing"


@pytest.fixture
def course(tmp_path):
    return small_course(tmp_path)


@pytest.fixture
def scores(course):
    stage = course.stage("7")
    failed = {"it_counts": UGLY}
    whole = submission_in_memory(course, stage, {"box": BOX}, "test")
    part = submission_in_memory(course, stage, {"box": stubbed("7.2")}, "test")
    return [
        score(stage, whole, [judged(stage, failed)], trace_started=True, seconds=1.25),
        score(stage, part, [judged(stage)], trace_started=False, seconds=2.5),
    ]


def test_gradescope(scores):
    report = json.loads(json.dumps(gradescope(scores)))
    tests = report["tests"]
    assert len(tests) == 12
    assert report["score"] == sum(test["score"] for test in tests) == 10 + 6
    assert sum(test["max_score"] for test in tests) == 26
    assert report["execution_time"] == 3.8
    assert report["stdout_visibility"] == "hidden"
    names = [test["name"] for test in tests]
    assert names[0] == "7.1 Put in: it keeps what is put in"
    assert names[3:6] == [
        "7 robustness: an empty box is an error",
        "7 robustness: two boxes are two",
        "7 counterexample",
    ]
    assert {test["status"] for test in tests} == {"passed", "failed"}
    for test in tests:
        assert (test["status"] == "passed") == (test["score"] == test["max_score"])
        assert (test["status"] == "passed") == (test["output"] == "")
        assert test["visibility"] == "visible"
    assert "box.take() -> 7" in tests[1]["output"]
    assert tests[8]["output"] == "not started"
    assert "Stage 7, Boxes: 10 of 13 points" in report["output"]


def test_junit_is_well_formed_whatever_was_printed(scores):
    root = ET.fromstring(junit(scores).encode("utf-8", "surrogatepass"))
    suites = root.findall("testsuite")
    assert [suite.get("name") for suite in suites] == ["stage07_boxes"] * 2
    for suite in suites:
        cases = suite.findall("testcase")
        assert int(suite.get("tests")) == len(cases) == 6
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped"))
    failure = suites[0].find("testcase/failure")
    assert "expected </failure> &" in failure.get("message")
    assert "\U0001f600 ]]> <!-- got" in failure.text
    assert "nothing" in failure.text
    points = {p.get("name"): p.get("value") for p in suites[0].find("properties")}
    assert points == {"points": "10", "total": "13"}


def test_classroom50_has_a_test_for_each_check(course):
    rows = json.loads(json.dumps(classroom50(course.stages)))
    assert rows[0]["name"] == "setup"
    assert rows[0]["points"] == 0
    assert len(rows) == 1 + 7
    assert sum(row["points"] for row in rows) == 18
    assert rows[2]["run"] == ".venv/bin/minipaged grade 7 --check it_counts"


def renumbered(stage, copy):
    key = f"{10 * copy + int(stage.number)}"
    tasks = tuple(replace(task, id=f"{key}.{task.id[2:]}") for task in stage.tasks)
    return replace(stage, number=key.zfill(2), tasks=tasks)


@pytest.mark.parametrize("count", [2, None], ids=["by check", "by task"])
def test_classroom50_takes_what_is_written(count):
    """Bounds of the format: at most 100 tests, unique names, whole points, some seconds."""
    stages = load_course().stages[:count]
    rows = classroom50(stages)
    checks = sum(1 for stage in stages for _ in stage.checks())
    assert (len(rows) == 1 + checks) == (count is not None)
    assert len(rows) <= 100
    assert len({row["name"] for row in rows}) == len(rows)
    assert sum(row["points"] for row in rows) == sum(stage.points for stage in stages)
    for row in rows:
        assert set(row) == {"name", "type", "run", "timeout", "points"}
        assert row["type"] == "run"
        assert type(row["points"]) is int
        assert 0 <= row["points"] <= 1000
        assert 1 <= row["timeout"] <= 600
        assert len(row["name"].encode()) <= 100


def test_classroom50_cannot_take_more():
    stages = [renumbered(stage, i) for i in range(20) for stage in load_course().stages]
    with pytest.raises(CourseError, match="at most 100"):
        classroom50(stages)
