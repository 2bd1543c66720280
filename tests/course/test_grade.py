"""`minipaged grade`: its rounds, its exit status, and what it says to do next."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from fakes import BOX, FakeJudge, small_course, stubbed

from minipaged import cli
from minipaged.course import grade
from minipaged.course.catalog import load_course
from minipaged.course.grade import grade_stage
from minipaged.course.mutants import load_mutants, mutant_submission
from minipaged.course.progress import last_scores
from minipaged.course.skeleton import exercise_text
from minipaged.course.submission import read_submission, submission_in_memory


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return small_course(tmp_path)


@pytest.fixture
def desk(course):
    """Writes the student's files."""

    def write(text, name="stage07_boxes/box.py"):
        (course.root / "exercises" / name).write_text(text, encoding="utf-8")

    return write


@pytest.fixture
def command(course, monkeypatch, capsys):
    """`minipaged grade …` with a judge that says what it is told to."""

    def run(*args, failed=None, later=None):
        fake = FakeJudge(failed, later)
        run.asked = fake.asked

        def stage_graded(*a, **k):
            return grade_stage(*a, **k, run_judge=fake)

        monkeypatch.setattr(grade, "grade_stage", stage_graded)
        try:
            status = cli.main(["grade", *args])
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


def line_of(words, text=None):
    """The line of a box's source that has these words."""
    lines = (text or stubbed("7.1", "7.2")).splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line)


# --------------------------------------------------------------------------- rounds
def test_two_rounds_the_second_with_a_fresh_seed(course, desk):
    desk(BOX)
    stage, seeds = course.stage("7"), set()
    for _ in range(2):
        fake = FakeJudge({"it_counts": "no"})
        grade_stage(course, stage, read_submission(course, stage, "mine"), run_judge=fake)
        (_, first, asked), (_, second, again) = fake.asked
        assert first == 0
        assert second > 0
        assert set(asked) - set(again) == {"it_counts"}
        seeds.add(second)
    assert len(seeds) == 2


def test_a_seed_of_ones_own_is_one_round(course, desk):
    desk(BOX)
    stage, fake = course.stage("7"), FakeJudge()
    mine = read_submission(course, stage, "mine")
    result = grade_stage(course, stage, mine, seed=5, run_judge=fake)
    assert [seed for _, seed, _ in fake.asked] == [5]
    assert result.seeds == (5,)


def test_a_skeleton_is_not_even_judged(course):
    stage, fake = course.stage("7"), FakeJudge()
    result = grade_stage(course, stage, read_submission(course, stage, "mine"), run_judge=fake)
    assert fake.asked == []
    assert (result.points, result.total) == (0, 13)


def test_what_fails_in_the_second_round_earns_nothing(command, desk):
    desk(BOX)
    status, out, _ = command("7", later={"it_counts": "2 is not 1"})
    seed = command.asked[1][1]
    assert status == 1
    assert f"--seed {seed}" in out
    assert "3 / 5" in out


# --------------------------------------------------------------------------- status and text
def test_a_skeleton_is_told_where_to_begin(command):
    status, out, _ = command("7")
    assert status == 1
    assert "0 of 13 points" in out
    tail = out[out.index("Next:") :]
    assert "task 7.1, Put in (5 points)" in tail
    assert "lessons/07-boxes.md:3" in tail
    assert f"exercises/stage07_boxes/box.py:{line_of('def __init__')}  Box.__init__" in tail
    assert "hint 7.1" in tail
    assert "grade 7" in tail


def test_the_next_task_follows(command, desk):
    desk(stubbed("7.2"))
    status, out, _ = command("7")
    assert status == 1
    assert "task 7.2, Take out (4 points)" in out
    assert f"box.py:{line_of('def take', stubbed('7.2'))}  Box.take" in out


def test_a_failure_is_shown_with_the_function_it_speaks_of(command, desk):
    desk(BOX)
    _, out, _ = command("7", failed={"it_counts": "put(3): expected 1, got 2"})
    assert "Next: task 7.1: it counts" in out
    assert f"box.py:{line_of('def put', BOX)}  Box.put" in out
    placed = "IndexError: pop from empty list (box.py, line 30, in take)"
    _, out, _ = command("7", failed={"it_gives_the_newest_first": placed})
    assert "box.py:30  Box.take" in out


def test_robustness_then_the_counterexample_come_next(command, desk):
    desk(BOX)
    _, out, _ = command("7", failed={"an_empty_box_is_an_error": "no"})
    assert "Next: robustness of task 7.2: an empty box is an error" in out
    _, out, _ = command("7")
    assert "Next: the counterexample (2 points)" in out
    assert "lessons/07-boxes.md:7" in out
    assert "exercises/stage07_boxes/counterexample.toml" in out
    assert "hint 7.counterexample" in out


def test_a_file_that_is_no_python_is_told_with_its_line(command, desk):
    desk("class Box:\n    def put(self:\n")
    status, out, _ = command("7")
    assert status == 1
    assert "box.py:2" in out
    assert command.asked == []


def test_without_a_verdict_an_earlier_score_stands(command, desk, course, monkeypatch, capsys):
    desk(BOX)
    command("7")
    before = last_scores(course.root)
    assert before["07"].points

    def lost(*a, **k):
        result = grade_stage(*a, **k, run_judge=FakeJudge({"it_counts": "no"}))
        return replace(result, note="the judge was ended from outside")

    monkeypatch.setattr(grade, "grade_stage", lost)
    assert cli.main(["grade", "7"]) == 1
    out = capsys.readouterr().out
    assert "not graded" in out
    assert "the judge was ended from outside" in out
    assert "it counts" not in out
    assert "Next" not in out
    assert last_scores(course.root) == before


def test_a_whole_stage_is_put_to_work(command, desk):
    desk("def stack(n):\n    return n + 1\n", "stage08_shelves/shelf.py")
    status, out, _ = command("8")
    assert status == 0
    assert "Stage 8 is whole." in out
    assert 'generate --parts mine --model opt-stories --raw "Once upon a time"' in out
    assert "demo --parts mine" in out


def test_other_stages_are_graded_when_one_is_not_whole(command, desk):
    desk("def stack(n):\n    return n + 1\n", "stage08_shelves/shelf.py")
    status, out, _ = command("all")
    assert status == 1
    assert "Stage 7" in out
    assert "Stage 8" in out
    assert "5 of 18 points" in out
    assert "Next: task 7.1" in out


def test_a_drop_is_told(command, desk):
    desk("def stack(n):\n    return n + 1\n", "stage08_shelves/shelf.py")
    command("8")
    _, out, _ = command("8", failed={"it_stacks": "no"})
    assert "was 5, now 0 of 5 points" in out
    _, out, _ = command()
    assert "was 5, now 0" in out


def test_only_ones_own_scores_are_kept(command, desk, course):
    desk("def stack(n):\n    return n + 1\n", "stage08_shelves/shelf.py")
    command("8", "--impl", str(course.root / "exercises"))
    command("8", "--seed", "3")
    command("8", "--check", "it_stacks")
    assert last_scores(course.root) == {}
    command("8")
    assert last_scores(course.root)["08"].points == 5


# --------------------------------------------------------------------------- progress
def test_without_a_stage_nothing_is_graded(command):
    status, out, _ = command()
    assert status == 0
    assert command.asked == []
    assert "A small course" in out
    assert "0 of 13" in out
    assert "Next: task 7.1" in out


def test_progress_goes_on_to_the_next_stage(command, desk, course):
    desk(BOX)
    _, out, _ = command()
    assert "Next: grade stage 7" in out
    command("7", failed={"it_gives_the_newest_first": "no"})
    _, out, _ = command()
    assert "Next: task 7.2" in out
    command("7")
    _, out, _ = command()
    assert "Next: the counterexample" in out


def test_a_taken_task_does_not_hold_one_up(command, desk, course):
    taken = BOX.replace("        if not", "        # taken: minipaged unstick 7.2\n        if not")
    desk(taken)
    _, out, _ = command("7")
    assert "taken, 0" in out
    assert "Next: the counterexample" in out


# --------------------------------------------------------------------------- options
def test_one_check(command, desk):
    desk(BOX)
    status, out, _ = command("7", "--check", "it_counts")
    assert (status, "it counts" in out) == (0, True)
    assert command.asked[0][2] == ["it_counts"]
    status, out, _ = command("7", "--check", "it_counts", failed={"it_counts": "2 is not 1"})
    assert status == 1
    assert "2 is not 1" in out
    status, out, _ = command("7", "--check", "it counts")  # as the screen shows it
    assert (status, command.asked[0][2]) == (0, ["it_counts"])


def test_a_check_of_robustness_brings_its_parent(command, desk):
    desk(BOX)
    asked = ("7", "--check", "two_boxes_are_two")
    status, out, _ = command(*asked, failed={"it_counts": "no"})
    assert status == 1
    assert "is whole" in out
    assert command(*asked)[0] == 0
    assert set(command.asked[0][2]) == {
        "it_keeps_what_is_put_in", "it_counts", "two_boxes_are_two"
    }  # fmt: skip


def test_a_check_of_a_task_that_is_not_written_fails(command):
    assert command("7", "--check", "it_counts")[0] == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["9"], ["no stage '9'", "7 (boxes)"]),
        (["7", "--check", "none"], ["no check 'none'", "it_counts"]),
        (["--check", "it_counts"], ["one stage"]),
        (["7", "--check", "it_counts", "--json", "x"], ["no report"]),
        (["7", "--impl", "nowhere"], ["nowhere"]),
        (["7", "--seed", "x"], ["--seed"]),
        (["7", "--seed", "-1"], ["--seed"]),
    ],
)
def test_bad_options_end_with_status_2(command, args, words):
    status, _, err = command(*args)
    assert status == 2
    for word in words:
        assert word in err


def test_reports_are_written(command, desk, course):
    desk(BOX)
    files = [course.root / "results.json", course.root / "results.xml"]
    status, *_ = command("7", "--json", str(files[0]), "--junit", str(files[1]))
    assert status == 1
    assert json.loads(files[0].read_text(encoding="utf-8"))["score"] == 11
    assert ET.parse(files[1]).getroot().find("testsuite").get("tests") == "6"


def test_a_report_that_cannot_be_written_is_told(command, desk, course):
    status, _, err = command("8", "--json", str(course.root / "no" / "results.json"))
    assert status == 1
    assert "cannot be written" in err


def test_the_declarative_tests_are_written_without_grading(command, course):
    status, out, _ = command("8", "--classroom50", str(course.root / "tests.json"))
    assert (status, out, command.asked) == (0, "", [])
    rows = json.loads((course.root / "tests.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in rows] == ["setup", "8 it stacks"]


# --------------------------------------------------------------------------- the course itself
COURSE = load_course()
KEYS = [stage.key for stage in COURSE.stages]


@pytest.mark.parametrize("key", KEYS)
def test_the_solutions_earn_all_points(key, exhaustive):
    stage, seed = COURSE.stage(key), None
    if stage.triton and not exhaustive:
        seed = 0  # one round; another seed is tried by test_seeds.py
    result = grade_stage(COURSE, stage, read_submission(COURSE, stage, "solutions"), seed=seed)
    lost = {c.check.name: f"{c.status}: {c.message}" for c in result.checks if not c.points}
    assert lost == {}
    assert result.points == result.total == stage.points
    assert result.diagnosis == ""
    assert len(result.seeds) == (2 if seed is None else 1)
    if stage.counterexample is not None:
        assert "where the claim is believed" in result.counterexample.message


@pytest.mark.parametrize("key", KEYS)
def test_an_untouched_skeleton_earns_nothing(key):
    stage = COURSE.stage(key)
    texts = {part.name: exercise_text(COURSE, stage, part) for part in stage.parts}
    result = grade_stage(COURSE, stage, submission_in_memory(COURSE, stage, texts, "skeleton"))
    assert result.points == 0
    assert {check.status for check in result.checks} == {"not started"}


def test_a_known_misconception_is_named():
    stage = COURSE.stage("2")
    mutant = load_mutants(COURSE, stage)[0]
    result = grade_stage(COURSE, stage, mutant_submission(COURSE, stage, mutant))
    assert 0 < result.points < result.total
    assert result.diagnosis == mutant.misconception
