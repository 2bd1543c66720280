"""course.toml: whatever cannot be is an error that names its place."""

import pytest
import small_course

from minipaged.course.catalog import defined_symbols, find_root, load_course
from minipaged.errors import CourseError


def changed(old, new):
    assert small_course.TOML.count(old) == 1
    return small_course.TOML.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"Box.take", "weigh"', '"Box.take", "wiegh"', ["part box", "things.box has no wiegh"]),
        ('drop = ["Box._check"', 'drop = ["Box._chekc"', ["part box", "no Box._chekc"]),
        ('module = "things.lids"', 'module = "things.lid"', ["no module things.lid"]),
        (
            'hours = 1\n\n[[stage.part]]\nname = "box"',
            'hours = 1\nhuors = 2\n\n[[stage.part]]\nname = "box"',
            ["stage 07", "'huors'"],
        ),
        ('keep = ["math"]', 'kept = ["math"]', ["part 2", "'kept'"]),
        ('name = "lids"\n', 'name = "box"\n', ["two parts", "'box'"]),
        ('number = "08"', 'number = "07"', ["two stages", "'07'"]),
        ('number = "08"', 'number = "8"', ["two digits"]),
        ('id = "7.2"', 'id = "7.1"', ["two tasks", "'7.1'"]),
        ('id = "7.2"', 'id = "6.2"', ["6.2", "stage 07"]),
        ('name = "it_refuses"', 'name = "it_counts"', ["two checks", "'it_counts'"]),
        ('"Box.take", "weigh"', '"Box.put", "weigh"', ["two symbols", "'Box.put'"]),
        ('part = "lids"', 'part = "lid"', ["task 7.3", "no part 'lid'"]),
        ('parent = "7.1"', 'parent = "7.9"', ["a_full_box_stays_full", "'7.9'"]),
        ("points = 4 }", "points = 0 }", ["at least 1", "0"]),
        ("points = 4 }", 'points = "4" }', ["points must be int", "'4'"]),
        ('question = "What is left?"\n', "", ["question is missing"]),
        ('"Box.take", "weigh"', '"weigh"', ["Box.__init__ is a task", "Box.take", "dropped"]),
        ('title = "The shelf"', "title = The shelf", ["course.toml", "line"]),
        (
            'names = { box = "Box(3)", other = "Box(1)" }',
            "",
            ["stage 07", "counterexample", "nothing to call"],
        ),
    ],
)
def test_what_cannot_be_is_named(tmp_path, old, new, words):
    with pytest.raises(CourseError) as told:
        small_course.make(tmp_path, toml=changed(old, new))
    for word in words:
        assert word in str(told.value)


def test_a_course_that_can_be_is_read(tmp_path):
    course = small_course.make(tmp_path)
    boxes, shelves = course.stages
    assert [check.name for check in boxes.checks()] == [
        "it_counts",
        "it_refuses",
        "it_gives_back",
        "it_closes",
        "a_full_box_stays_full",
        "counterexample",
    ]
    assert (boxes.points, shelves.points) == (14, 1)
    assert course.parts["lids"][0] is boxes
    assert course.task("8.1")[0] is shelves
    for key in ("7", "07", "boxes", "stage07_boxes"):
        assert course.stage(key) is boxes


def test_unknown_stages_and_tasks_are_answered_with_those_that_there_are(tmp_path):
    course = small_course.make(tmp_path)
    with pytest.raises(CourseError, match=r"'9'.*7 \(boxes\), 8 \(shelves\)"):
        course.stage("9")
    with pytest.raises(CourseError, match=r"'7.4'.*7\.1, 7\.2, 7\.3, 8\.1"):
        course.task("7.4")


def test_the_course_is_found_from_below(tmp_path):
    small_course.make(tmp_path)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_root(below) == tmp_path


def test_symbols_are_what_a_module_defines():
    source = (
        "A = 1\nB: int = 2\ndef f(): ...\nasync def g(): ...\nclass C:\n    async def h(self): ..."
    )
    assert defined_symbols(source) == {"A", "B", "f", "g", "C", "C.h"}


def test_the_real_course_is_sound():
    course = load_course(small_course.ROOT)
    assert [stage.key for stage in course.stages][:5] == ["0", "1", "2", "3", "4"]
    assert all(stage.points > 0 for stage in course.stages)
