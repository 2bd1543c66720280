"""Points from rounds of grading, and the card that shows them."""

from __future__ import annotations

import io
from datetime import date

import pytest
from fakes import BOX, FakeJudge, judged, small_course, stubbed
from rich.console import Console

from minipaged.course.grade import grade_stage
from minipaged.course.next_step import NextStep
from minipaged.course.progress import ScoreRecord
from minipaged.course.score_card import (
    show_check,
    show_next,
    show_progress,
    show_stage,
    show_total,
)
from minipaged.course.scores import runnable, score
from minipaged.course.submission import read_submission, submission_in_memory

TAKEN = BOX.replace(
    '"""Take out the newest."""',
    '"""Take out the newest."""\n        # taken: minipaged unstick 7.2',
)


@pytest.fixture
def course(tmp_path):
    return small_course(tmp_path)


@pytest.fixture
def stage(course):
    return course.stage("7")


def with_box(course, text):
    return submission_in_memory(course, course.stage("7"), {"box": text}, "test")


def graded(course, text, failed=None, trace=True, **later):
    stage = course.stage("7")
    return score(stage, with_box(course, text), [judged(stage, failed)], trace_started=trace)


def shown(show, *args, width=100):
    file = io.StringIO()
    show(Console(file=file, width=width, highlight=False, markup=False, emoji=False), *args)
    return file.getvalue()


# --------------------------------------------------------------------------- points
def test_all_passed_is_all_points(course, stage):
    result = graded(course, BOX)
    assert (result.points, result.total) == (13, 13) == (stage.points, stage.points)
    assert result.whole
    assert all(check.status == "passed" for check in result.checks)


def test_a_check_gives_all_or_nothing(course):
    result = graded(course, BOX, {"it_counts": "2 is not 1"})
    first, second = result.tasks
    assert (first.points, first.total, first.whole) == (3, 5, False)
    assert (second.points, second.whole) == (4, True)


def test_robustness_counts_only_where_its_parent_is_whole(course):
    result = graded(course, BOX, {"it_counts": "wrong"})
    assert {c.check.name: c.status for c in result.robustness} == {
        "an_empty_box_is_an_error": "passed",
        "two_boxes_are_two": "parent failed",
    }
    assert sum(c.points for c in result.robustness) == 1


@pytest.mark.parametrize(
    ("text", "states", "points"),
    [
        (stubbed("7.1", "7.2"), ["not started", "not started"], 0),
        (stubbed("7.2"), ["ready", "not started"], 6),
        (stubbed("7.1"), ["not started", "ready"], 5),
        (TAKEN, ["ready", "taken"], 6),
        ("def box(:", ["broken", "broken"], 0),
        ("", ["not started", "not started"], 0),
    ],
)
def test_only_what_is_written_and_ones_own_earns_points(course, text, states, points):
    result = graded(course, text, trace=False)
    assert [task.state for task in result.tasks] == states
    assert result.points == points
    for task in result.tasks:
        assert task.state == "ready" or {c.status for c in task.checks} == {task.state}


def test_what_is_not_written_does_not_run(course, stage):
    names = runnable(stage, with_box(course, stubbed("7.2")), trace_started=False)
    assert names == ["it_keeps_what_is_put_in", "it_counts", "two_boxes_are_two"]
    names = runnable(stage, with_box(course, TAKEN), trace_started=True)
    assert names[-1] == "counterexample"
    assert "it_gives_the_newest_first" not in names
    assert "an_empty_box_is_an_error" not in names


def test_robustness_of_a_taken_task_earns_nothing(course):
    assert graded(course, TAKEN).robustness[0].status == "parent taken"


def test_a_trace_that_is_not_started_earns_nothing(course):
    result = graded(course, BOX, trace=False)
    assert result.counterexample.status == "not started"
    assert result.points == 11


def test_every_round_must_pass(course, stage):
    first = judged(stage, {"it_counts": "wrong"})
    passed = [name for name, check in first.checks.items() if check.status == "passed"]
    second = judged(stage, {"it_gives_the_newest_first": "7 is not 8"}, seed=99, checks=passed)
    result = score(stage, with_box(course, BOX), [first, second], trace_started=True)
    by_name = {check.check.name: check for check in result.checks}
    assert by_name["it_counts"].message == "wrong"
    late = by_name["it_gives_the_newest_first"]
    assert late.status == "failed"
    assert late.message.startswith("7 is not 8")
    assert "--seed 99" in late.message
    assert by_name["an_empty_box_is_an_error"].status == "parent failed"


def test_a_check_without_a_result_earns_nothing(course, stage):
    some = judged(stage, checks=["it_counts"], note="the judge was ended from outside")
    result = score(stage, with_box(course, BOX), [some], trace_started=True)
    assert result.points == 2
    assert result.checks[0].status == "not run"
    assert result.checks[0].message == "the judge was ended from outside"
    nothing = score(stage, with_box(course, BOX), [], trace_started=True)
    assert nothing.points == 0


# --------------------------------------------------------------------------- the card
@pytest.mark.parametrize("terminal", [True, False])
def test_a_command_is_shown_on_one_line_however_narrow_the_screen(terminal):
    command = 'minipaged generate "Once upon a time" --model opt-stories --raw --parts mine'
    file = io.StringIO()
    console = Console(file=file, width=40, force_terminal=terminal, color_system=None)
    show_next(console, NextStep("Stage 7 is whole.", (("use it", command), ("", "minipaged demo"))))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert lines == ["Stage 7 is whole.", f"  use it  {command}", "          minipaged demo"]


def test_the_card_shows_points_and_failures(course):
    result = graded(course, BOX, {"it_gives_the_newest_first": "take(): expected 8, got 7\nmore"})
    text = shown(show_stage, result)
    assert "8 of 13 points" in text
    assert "Take out" in text
    assert "0 / 4" in text
    assert "counts once 7.2 is whole" in text
    assert "functionality 5 of 9   robustness 1 of 2   counterexample 2 of 2" in text
    lines = [line.rstrip() for line in text.splitlines()]
    assert "    take(): expected 8, got 7" in lines
    assert "    more" in lines
    assert "      box.take() -> 7" in lines
    assert all(len(line) <= 100 for line in lines)
    assert "\x1b" not in text


def test_only_the_first_failures_are_shown_with_their_calls(course, stage):
    names = [check.name for check in stage.checks() if check.parent is None]
    text = shown(show_stage, graded(course, BOX, {name: f"{name}: no" for name in names}))
    assert text.count("box.take() -> 7") == 3
    assert "grade 7 --check counterexample" in text


def test_what_has_one_cause_is_told_once(course, stage):
    names = ["it_counts", "it_keeps_what_is_put_in", "it_gives_the_newest_first"]
    text = shown(show_stage, graded(course, BOX, dict.fromkeys(names, "NameError: foo")))
    assert text.count("NameError: foo") == 1
    assert "it gives the newest first  task 7.2\n    NameError: foo" in text


def test_what_is_not_written_is_no_failure(course):
    text = shown(show_stage, graded(course, stubbed("7.1", "7.2"), trace=False))
    assert "✗" not in text
    assert text.count("not started") == 5
    assert "0 of 13 points" in text


def test_taken_and_broken_are_told(course):
    assert "taken, 0" in shown(show_stage, graded(course, TAKEN))
    text = shown(show_stage, graded(course, "\n\ndef box(:"))
    assert "cannot be read" in text
    assert "line 3" in text


def test_a_drop_is_told(course):
    record = ScoreRecord(8, 13, date(2026, 1, 2), 13, {})
    result = graded(course, BOX, {"it_gives_the_newest_first": "no"})
    assert "was 13, now 8 of 13 points" in shown(show_stage, result, record)


def test_text_of_a_submission_is_shown_as_it_is(course):
    text = shown(show_stage, graded(course, BOX, {"it_counts": "[bold]:smile: [/] got [1]"}))
    assert "[bold]:smile: [/] got [1]" in text


def test_a_narrow_terminal_loses_nothing(course):
    message = "expected 8, got 7, and this goes on for a while until it is wider than the screen"
    text = shown(show_stage, graded(course, BOX, {"it_counts": message}), width=40)
    assert " ".join(text.split()).count("wider than the screen") == 1
    assert all(len(line) <= 40 for line in text.splitlines())


def test_one_check_by_itself(course):
    result = graded(course, BOX, {"it_counts": "2 is not 1"})
    text = shown(show_check, result.checks[1])
    assert "it counts" in text
    assert "2 is not 1" in text
    assert "box.take() -> 7" in text


def test_all_stages_together(course):
    text = shown(show_total, [graded(course, BOX), graded(course, stubbed("7.2"))])
    assert "21 of 26 points" in text
    assert "3 of 4 of them robustness" in text


def test_progress_shows_points_dates_and_drops(course):
    text = shown(show_progress, course, {"07": ScoreRecord(8, 13, date(2026, 3, 4), 13, {})})
    assert "8 of 13" in text
    assert "4 Mar 2026" in text
    assert "was 13, now 8" in text
    assert "0 of 5" in text
    assert "not graded yet" in text
    assert "8 of 18 points" in text


def test_a_diagnosis_is_shown_in_plain_words(course, stage):
    path = course.root / "tests" / "mutants" / "signatures.json"
    path.write_text('{"07": {"queue": {"it_gives_the_newest_first": "take(): 7"}}}')
    fake = FakeJudge({"it_gives_the_newest_first": "take(): 7\nand more"})
    course_file = course.root / "exercises" / "stage07_boxes" / "box.py"
    course_file.write_text(BOX, encoding="utf-8")
    result = grade_stage(course, stage, read_submission(course, stage, "mine"), run_judge=fake)
    assert "Your box gives back the oldest thing first." in shown(show_stage, result)
