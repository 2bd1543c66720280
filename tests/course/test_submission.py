"""What is written is read from the syntax tree."""

import textwrap

import pytest
import small_course

from minipaged.course.skeleton import exercise_text
from minipaged.course.stubs import is_stub
from minipaged.course.submission import (
    MAX_BYTES,
    impl_folder,
    read_part,
    read_submission,
    submission_in_memory,
)
from minipaged.errors import CourseError


@pytest.fixture
def course(tmp_path):
    return small_course.make(tmp_path)


@pytest.fixture
def boxes(course):
    return course.stages[0]


@pytest.fixture
def skeleton(course, boxes):
    return exercise_text(course, boxes, boxes.part("box"))


def put(course, name, text):
    file = course.root / "exercises" / "stage07_boxes" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def states(course, boxes, impl="mine"):
    submission = read_submission(course, boxes, impl)
    return [submission.task_state(task) for task in boxes.tasks]


def test_skeletons_are_not_started_and_the_reference_is_ready(course, boxes, skeleton):
    assert states(course, boxes) == ["not started"] * 3
    put(course, "box.py", skeleton)
    assert states(course, boxes) == ["not started"] * 3
    assert states(course, boxes, "ref") == ["ready"] * 3


def test_a_task_is_ready_when_the_last_of_its_stubs_is_gone(course, boxes, skeleton):
    half = small_course.solved(skeleton, "take", "return 0")
    put(course, "box.py", half)
    assert states(course, boxes) == ["not started", "not started", "not started"]
    put(course, "box.py", small_course.solved(half, "weigh", "return 0"))
    assert states(course, boxes) == ["not started", "ready", "not started"]
    file = read_submission(course, boxes, "mine").files["box"]
    assert file.stubs == {"Box.__init__", "Box.put"}
    assert not file.written


def test_a_body_that_was_taken_is_taken_until_its_marker_is_gone(course, boxes, skeleton):
    text = small_course.solved(skeleton, "weigh", "return 0")
    body = "# taken: minipaged unstick 7.2\nreturn 0"
    put(course, "box.py", small_course.solved(text, "take", body))
    assert states(course, boxes)[1] == "taken"
    elsewhere = "# taken: minipaged unstick 7.2\n" + small_course.solved(text, "take", "return 0")
    put(course, "box.py", elsewhere)
    assert states(course, boxes)[1] == "ready"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ndef f(:\n", "line 2: invalid syntax: def f(:"),
        ("x = 1\n  y = 2\n", "line 2: unexpected indent: y = 2"),
        ("x = (\n", "line 1: '(' was never closed: x = ("),
        (b"x = 1\ny = '\xff'\n", "line 2: byte 11 is not UTF-8: save the file as UTF-8"),
        ("x = " + "(" * 300 + ")" * 300, "line 1: too many nested parentheses"),
        ("x = " + "-" * 100_000 + "1", "line 1: nested too deeply to be parsed"),
        ("x = 1\n\0", "line"),
        ("#" * (MAX_BYTES + 1), "line 1: longer than 1,000,000 bytes"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_broken(course, boxes, text, words):
    put(course, "box.py", text)
    assert states(course, boxes) == ["broken", "broken", "not started"]
    file = read_submission(course, boxes, "mine").files["box"]
    assert words in file.error
    assert not file.written


def test_a_pipe_is_not_waited_for(course, boxes):
    import os

    (course.root / "exercises" / "stage07_boxes").mkdir(parents=True)
    os.mkfifo(course.root / "exercises" / "stage07_boxes" / "box.py")
    assert states(course, boxes)[0] == "broken"


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("from elsewhere import Box, weigh", set()),
        ("from elsewhere import *", set()),
        ("import elsewhere\nBox = elsewhere.Box\nweigh = elsewhere.weigh", set()),
        ("class Base:\n    def put(self): ...\n    def take(self): ...\nclass Box(Base):\n"
         "    def __init__(self): ...\ndef weigh(): ...", set()),
        ("from x import Base\nclass Box(Base): ...\ndef weigh(): ...", set()),
        ("class Box:\n    put = take = __init__ = None\nif True:\n    def weigh(): ...", set()),
        ("class Box:\n    def put(self): ...\n", {"Box.__init__", "Box.take", "weigh"}),
        ("class A(Box): ...\nclass Box(A): ...", {"Box.__init__", "Box.put", "Box.take", "weigh"}),
        ("def f():\n    def weigh(): ...", {"Box.__init__", "Box.put", "Box.take", "weigh"}),
    ],
)  # fmt: skip
def test_what_a_file_defines(boxes, source, missing):
    part = boxes.part("box")
    assert read_part(boxes, part, part.source, source).missing == missing


def test_the_later_of_two_definitions_counts(boxes, skeleton):
    part = boxes.part("box")
    again = skeleton + "\n\ndef weigh(things):\n    return 0\n"
    assert "weigh" not in read_part(boxes, part, part.source, again).stubs


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ('raise NotImplementedError("stage 2, task 2.1: see x")', True),
        ('"doc"\nraise NotImplementedError("stage 2, task 2.1: see x")', True),
        ('raise NotImplementedError(\n"stage 2, task 2.1: see x")', True),
        ('tl.static_assert(False, "stage 7, task 7.1: see x")', True),
        ('raise NotImplementedError("later")', False),
        ("raise NotImplementedError", False),
        ('raise ValueError("stage 2, task 2.1: see x")', False),
        ('x = 1\nraise NotImplementedError("stage 2, task 2.1: see x")', False),
        ('tl.static_assert(True, "stage 7, task 7.1: see x")', False),
        ("return None", False),
        ('"doc"', False),
    ],
)
def test_what_is_a_stub(body, answer):
    import ast

    (node,) = ast.parse("def f():\n" + textwrap.indent(body, "    ")).body
    assert is_stub(node) is answer


def test_implementations(course, boxes, tmp_path):
    assert impl_folder(course, "ref") is None
    assert impl_folder(course, "mine") == course.root / "exercises"
    assert impl_folder(course, "solutions") == course.root / "solutions"
    with pytest.raises(CourseError, match="no folder 'nowhere'"):
        impl_folder(course, "nowhere")
    with pytest.raises(CourseError, match="no stage07_boxes"):
        impl_folder(course, str(tmp_path / "things"))
    other = tmp_path / "other" / "stage07_boxes"
    other.mkdir(parents=True)
    (other / "lids.py").write_text("def close(radius): return 0")
    assert states(course, boxes, str(tmp_path / "other"))[2] == "ready"


def test_a_submission_that_is_on_no_disk(course, boxes):
    submission = submission_in_memory(course, boxes, {"lids": "close = 1"}, "a mutant")
    assert submission.folder is None
    assert submission.files["lids"].source == "close = 1"
    assert submission.files["box"].source == small_course.BOX
    assert [submission.task_state(task) for task in boxes.tasks] == ["ready"] * 3
