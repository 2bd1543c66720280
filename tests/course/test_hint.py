"""minipaged hint: a question first."""

import pytest
import small_course

from minipaged.cli import main


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    small_course.make(tmp_path)
    monkeypatch.chdir(tmp_path)


def told(capsys, *arguments):
    assert main(["hint", *arguments]) == 0
    return capsys.readouterr().out


def test_the_question_comes_alone(capsys):
    text = told(capsys, "7.2")
    assert text.startswith("7.2  Take out (4 points, lessons/07-boxes.md)\n")
    assert "What is left?" in text
    assert "Take one from the count." not in text
    assert "minipaged hint 7.2 --more" in text


def test_then_the_pointer(capsys):
    text = told(capsys, "7.2", "--more")
    assert text.index("What is left?") < text.index("Take one from the count.")
    assert "minipaged unstick 7.2" in text


def test_a_counterexample_has_hints_and_no_answer(capsys):
    text = told(capsys, "7.counterexample")
    assert text.startswith("7.counterexample  The counterexample (")
    assert text.index("The claim: ") < text.index("When does a count show?")
    text = told(capsys, "7.counterexample", "--more")
    assert "Take twice." in text
    assert "unstick" not in text


def test_without_a_task_all_are_listed(capsys):
    text = told(capsys)
    assert [line.split()[2] for line in text.splitlines()] == [
        "7.1",
        "7.2",
        "7.3",
        "7.counterexample",
        "8.1",
    ]


@pytest.mark.parametrize("task", ["7.9", "8.counterexample", "seven"])
def test_an_unknown_task_is_answered_with_those_that_there_are(capsys, task):
    assert main(["hint", task]) == 1
    error = capsys.readouterr().err
    assert repr(task) in error
    assert "7.1, 7.2, 7.3, 7.counterexample, 8.1" in error
