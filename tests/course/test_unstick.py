"""minipaged unstick: the answer to one task, and nothing of the others."""

import subprocess
import sys
import types

import pytest
import small_course

from minipaged.cli import main
from minipaged.course.skeleton import exercise_text
from minipaged.course.submission import read_submission
from minipaged.course.unstick import unstick
from minipaged.errors import CourseError


@pytest.fixture
def course(tmp_path):
    return small_course.make(tmp_path)


@pytest.fixture
def skeleton(course):
    stage, part = course.parts["box"]
    return exercise_text(course, stage, part)


def taken(course, task_id, text, **options):
    stage, task = course.task(task_id)
    return unstick(course, stage, task, text, **options)


@pytest.fixture
def run(monkeypatch):
    """Execute a text as a module of its own."""

    def execute(text):
        module = types.ModuleType("student")
        monkeypatch.setitem(sys.modules, "student", module)
        exec(compile(text, "student", "exec"), vars(module))
        return vars(module)

    return execute


def test_bodies_come_with_their_helpers_and_imports(course, skeleton, run):
    done = taken(course, "7.1", skeleton)
    assert done.helpers == ("Box._check", "_LIMIT")
    assert "import heapq\n" in done.text
    assert "_settle" not in done.text
    assert '"""An empty box."""\n        # taken: minipaged unstick 7.1\n' in done.text
    assert "# the answer keeps a heap of things\n        self.size = size\n" in done.text
    assert done.text.count("# taken: minipaged unstick 7.1\n") == 2
    box = run(done.text)["Box"](3)
    box.put([3, 1, 2])
    with pytest.raises(ValueError, match="full"):
        box.put([4])
    with pytest.raises(NotImplementedError):
        box.take()


def test_all_tasks_one_after_the_other_give_the_reference(course, skeleton, run):
    text = taken(course, "7.2", taken(course, "7.1", skeleton).text).text
    module = run(text)
    box = module["Box"](3)
    box.put([5, 4])
    assert (box.take(), module["weigh"]([1, 2])) == (4, 3)
    assert text.count("# taken") == 4


def test_the_state_of_the_task_is_taken_and_the_others_stay(course, skeleton):
    mine = small_course.solved(skeleton, "put", "self.mine = things")
    mine = small_course.solved(mine, "__init__", "self.mine = []  # another design")
    done = taken(course, "7.2", mine)
    file = course.root / "exercises" / "stage07_boxes" / "box.py"
    file.parent.mkdir(parents=True)
    file.write_text(done.text)
    stage = course.stages[0]
    submission = read_submission(course, stage, "mine")
    assert [submission.task_state(task) for task in stage.tasks[:2]] == ["ready", "taken"]
    assert "self.mine = []  # another design" in done.text


def test_an_answer_that_stands_on_another_state_says_so(course, skeleton):
    mine = small_course.solved(skeleton, "__init__", "self.mine = []")
    (note,) = taken(course, "7.2", mine).notes
    assert "Box keeps what the answer's __init__ sets up" in note
    assert "minipaged unstick 7.1" in note
    same = small_course.solved(
        skeleton,
        "__init__",
        "# the answer keeps a heap of things\nself.size = size\nself._things: list[int] = []",
    )
    assert taken(course, "7.2", same).notes == ()
    assert taken(course, "7.2", taken(course, "7.1", skeleton).text).notes == ()


def test_an_answer_that_calls_what_is_not_written_says_so(tmp_path):
    shelf = (
        '"""S."""\n\n\ndef first():\n    """F."""\n    return 1\n\n\n'
        'def store():\n    """S."""\n    return first()\n'
    )
    toml = small_course.TOML + (
        '[[stage.task]]\nid = "8.2"\ntitle = "F"\npart = "shelf"\nsymbols = ["first"]\n'
        'question = "q"\npointer = "p"\nchecks = [{ name = "c", points = 1 }]\n'
    )
    course = small_course.make(tmp_path, shelf=shelf, toml=toml)
    stage, part = course.parts["shelf"]
    skeleton = exercise_text(course, stage, part)
    assert taken(course, "8.1", skeleton).notes == (
        "It calls first, which you have not written yet (8.2).",
    )
    assert taken(course, "8.1", taken(course, "8.2", skeleton).text).notes == ()


def test_what_the_student_wrote_is_replaced_only_by_force(course, skeleton):
    mine = small_course.solved(skeleton, "weigh", "return 7")
    with pytest.raises(CourseError, match="you have written weigh: --force"):
        taken(course, "7.2", mine)
    done = taken(course, "7.2", mine, force=True)
    assert done.replaced == ("weigh",)
    assert "return 7" not in done.text
    assert "total_of_the_answer" in done.text
    assert "def heavier" in done.text


def test_imports_of_the_student_survive_force(course, skeleton):
    mine = small_course.solved(skeleton, "weigh", "return math.inf")
    mine = mine.replace("from typing", "import math\nfrom typing")
    assert "import math\n" in taken(course, "7.2", mine, force=True).text


def test_an_answer_is_taken_once(course, skeleton):
    text = taken(course, "7.1", skeleton).text
    with pytest.raises(CourseError, match=r"7\.1 is in box\.py already"):
        taken(course, "7.1", text)


def test_a_helper_of_the_student_with_the_same_name_is_named(course, skeleton):
    mine = skeleton.replace(
        "    def take", "    def _check(self):\n        return 1\n\n    def take"
    )
    with pytest.raises(CourseError, match=r"Box\._check.*rename yours"):
        taken(course, "7.1", mine)


def test_a_missing_symbol_and_a_broken_file_are_named(course, skeleton):
    with pytest.raises(CourseError, match=r"box\.py has no weigh"):
        taken(course, "7.2", skeleton.replace("def weigh", "def wiegh"))
    with pytest.raises(CourseError, match=r"box\.py, line \d+: invalid syntax"):
        taken(course, "7.2", skeleton + "def f(:\n")


def test_the_worked_answer_comes_before_the_reference(course, skeleton):
    folder = course.root / "solutions" / "stage07_boxes"
    folder.mkdir(parents=True)
    (folder / "lids.py").write_text(
        '"""Plainer."""\n\nimport math\n\nfrom things.box import Box\n\n\n'
        'def close(radius: float) -> float:\n    """Other words."""\n'
        "    return math.pi * _square(radius)\n\n\n"
        "def _square(x: float) -> float:\n    return x * x\n\n\ndef _other() -> Box: ...\n"
    )
    (folder / "box.py").write_text("from things.box import Box, weigh\n")
    stage, part = course.parts["lids"]
    text = taken(course, "7.3", exercise_text(course, stage, part)).text
    assert "return math.pi * _square(radius)" in text
    assert '"""The lid of a round box: its area."""' in text
    assert "def _square" in text
    assert "Box" not in text
    assert "total_of_the_answer" in taken(course, "7.2", skeleton).text


def test_an_answer_does_not_import_what_is_the_students_to_write(course):
    folder = course.root / "solutions" / "stage07_boxes"
    folder.mkdir(parents=True)
    (folder / "box.py").write_text(
        '"""Plainer."""\n\nfrom things.box import heavier\n\n\nclass Box:\n'
        "    def take(self):\n        return heavier([1], [self.put([])])\n\n\n"
        "def weigh(things):\n    return sum(things)\n"
    )
    stage, part = course.parts["box"]
    done = taken(course, "7.2", exercise_text(course, stage, part))
    text = done.text
    assert "return heavier([1], [self.put([])])" in text
    assert done.notes[0] == "It calls Box.put, which you have not written yet (7.1)."
    assert "import heavier" not in text


def test_a_closed_book_has_no_answers(course, skeleton):
    (course.root / "things" / "box.py").write_text(skeleton)
    with pytest.raises(CourseError, match=r"this copy of the course has no answer to 7\.2"):
        taken(course, "7.2", skeleton)


# --------------------------------------------------------------------------- the command
def test_the_command_writes_it(course, skeleton, monkeypatch, capsys):
    monkeypatch.chdir(course.root)
    assert main(["unstick", "7.1", "--yes"]) == 0
    told = capsys.readouterr().out
    file = course.root / "exercises" / "stage07_boxes" / "box.py"
    assert file.read_text() == taken(course, "7.1", skeleton).text
    for words in ("Box.__init__, Box.put", "Box._check, _LIMIT", "scores 0", "minipaged grade 7"):
        assert words in told
    assert main(["unstick", "7.2", "--yes"]) == 0


def test_it_keeps_what_it_replaces(course, skeleton, monkeypatch):
    monkeypatch.chdir(course.root)
    file = course.root / "exercises" / "stage07_boxes" / "box.py"
    file.parent.mkdir(parents=True)
    mine = small_course.solved(skeleton, "weigh", "return 7")
    file.write_text(mine)
    assert main(["unstick", "7.2", "--yes"]) == 1
    assert file.read_text() == mine
    assert main(["unstick", "7.2", "--yes", "--force"]) == 0
    assert file.with_name("box.py.before-unstick").read_text() == mine


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_it_asks_first(course, monkeypatch, capsys, answer, status):
    monkeypatch.chdir(course.root)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert main(["unstick", "7.1"]) == status
    assert "It will score 0 of 5 points" in capsys.readouterr().out
    assert (course.root / "exercises").exists() is (status == 0)


def test_without_a_terminal_it_wants_to_be_told(course, monkeypatch, capsys):
    monkeypatch.chdir(course.root)
    assert main(["unstick", "7.1"]) == 1
    assert "--yes" in capsys.readouterr().err
    assert not (course.root / "exercises").exists()
    assert main(["unstick", "7.9", "--yes"]) == 1
    assert "7.1, 7.2" in capsys.readouterr().err


# --------------------------------------------------------------------------- the real ones
def test_every_answer_of_the_course_can_be_taken(tmp_path):
    course = small_course.copy_of_the_course(tmp_path)
    for stage in course.stages:
        for part in stage.parts:
            text = exercise_text(course, stage, part)
            for task in stage.tasks_of(part):
                text = unstick(course, stage, task, text).text
            file = course.root / "exercises" / stage.folder / f"{part.name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            undefined = ["ruff", "check", "--no-cache", "--select", "F821", str(file)]
            subprocess.run([sys.executable, "-m", *undefined], cwd=tmp_path, check=True)
        submission = read_submission(course, stage, "mine")
        assert {submission.task_state(task) for task in stage.tasks} == {"taken"}
        assert all(file.written for file in submission.files.values())
