"""A student's work in a newer skeleton: nothing is lost, and what needs a person is told."""

import ast

import pytest
import small_course
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from minipaged.course.skeleton import exercise_text
from minipaged.course.transplant import transplant
from minipaged.errors import CourseError

BASE = '''\
"""Boxes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

NAME = "box"


class Box:
    """Holds things."""

    def __init__(self, size: int) -> None:
        """An empty box."""
        raise NotImplementedError("stage 7, task 7.1: see a lesson")

    def put(self, things: Iterable[int]) -> None:
        """Put things in."""
        raise NotImplementedError("stage 7, task 7.1: see a lesson")

    def twice(self) -> int:
        """Given."""
        return 2


def weigh(box: Box) -> Fraction:
    """The weight."""
    raise NotImplementedError("stage 7, task 7.2: see a lesson")
'''
STUB_71 = 'raise NotImplementedError("stage 7, task 7.1: see a lesson")'
STUB_72 = 'raise NotImplementedError("stage 7, task 7.2: see a lesson")'


def replaced(text, *changes):
    for old, new in changes:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    return text


def moved(new, mine, base=BASE):
    result = transplant(new, mine, base)
    ast.parse(result.text)
    return result


def symbols(result):
    return [conflict.symbol for conflict in result.conflicts]


NEW = replaced(
    BASE,
    ("Holds things.", "Holds things, in order."),
    ("The weight.", "The weight, exactly."),
    ("lesson", "newer lesson"),
    (
        "    def twice(self) -> int:",
        '    def shake(self) -> None:\n        """New."""\n        '
        + STUB_71
        + "\n\n    def twice(self) -> int:",
    ),
)


def test_without_work_it_is_the_new_skeleton():
    assert moved(NEW, BASE).text == NEW
    assert moved(NEW, BASE).carried == ()
    assert moved(NEW, BASE).conflicts == ()


def test_bodies_move_and_docstrings_are_new():
    mine = replaced(BASE, (STUB_72, "return Fraction(1)"), ("The weight.", "My notes."))
    assert moved(NEW, mine).text == replaced(NEW, (STUB_72, "return Fraction(1)"))
    assert moved(NEW, mine).carried == ("weigh",)


def test_helpers_stay_where_they_were():
    helper = '    def _mine(self) -> int:\n        """Own."""\n        return 1\n\n'
    mine = replaced(
        BASE,
        ("    def put(", helper + "    def put("),
        ("class Box:", "LIMIT = 3  # mine\n\n\ndef own(): return LIMIT  # too\n\n\nclass Box:"),
    )
    want = replaced(
        NEW,
        ("    def put(", helper + "    def put("),
        ("class Box:", "LIMIT = 3  # mine\n\n\ndef own(): return LIMIT  # too\n\n\nclass Box:"),
    )
    result = moved(NEW, mine)
    assert result.text == want
    assert result.carried == ("LIMIT", "own", "Box._mine")


def test_comments_in_bodies_survive():
    body = "# first\n        x = 1  # beside\n\n        # before the end\n        return x"
    mine = replaced(BASE, (STUB_71, body), (STUB_71, "# a note\n        " + STUB_71))
    text = moved(NEW, mine).text
    assert body in text
    assert "# a note\n        raise NotImplementedError" in text


def test_comments_outside_bodies_survive():
    mine = (
        "# my name\n" + replaced(BASE, ("    def put(", "    # hard\n    def put(")) + "# the end\n"
    )
    text = moved(NEW, mine).text
    assert "    # hard\n    def put(" in text
    assert text.startswith("# my name\n")
    assert text.endswith("# the end\n")


def test_imports_move_and_merge():
    mine = replaced(
        BASE,
        (
            "from collections.abc import Iterable",
            "import heapq as h\nfrom collections.abc import Iterable, Sized",
        ),
        ("    from fractions", "    from decimal import Decimal\n    from fractions"),
    )
    new = replaced(NEW, ("import Iterable", "import Iterable, Iterator"))
    text = moved(new, mine).text
    assert "import heapq as h\n" in text
    assert "from collections.abc import Iterable, Iterator, Sized\n" in text
    assert "if TYPE_CHECKING:\n    from decimal import Decimal\n    from fractions import" in text
    assert (
        moved(NEW, replaced(BASE, ("NAME", "from os import *\nNAME"))).text.count("import *") == 1
    )


def test_an_import_that_is_gone_stays_only_for_who_uses_it():
    new = replaced(
        NEW, ("from collections.abc import Iterable\n", ""), ("Iterable[int]", "list[int]")
    )
    assert "Iterable" not in moved(new, BASE).text
    mine = replaced(BASE, (STUB_72, "return isinstance(box, Iterable)"))
    assert "from collections.abc import Iterable\n" in moved(new, mine).text


def test_a_given_helper_that_is_gone_stays_only_for_who_uses_it():
    new = replaced(
        NEW, ('    def twice(self) -> int:\n        """Given."""\n        return 2\n', "")
    )
    assert "twice" not in moved(new, BASE).text
    result = moved(new, replaced(BASE, (STUB_72, "return box.twice()")))
    assert "def twice" in result.text
    assert symbols(result) == ["Box.twice"]


def test_a_changed_signature_is_listed_with_both():
    new = replaced(
        NEW, ("def weigh(box: Box) -> Fraction", "def weigh(box: Box, unit: str) -> Fraction")
    )
    assert moved(new, BASE).conflicts == ()  # nothing was written for the old one
    result = moved(new, replaced(BASE, (STUB_72, "return Fraction(1)")))
    (conflict,) = result.conflicts
    assert conflict.before == "def weigh(box: Box) -> Fraction:"
    assert conflict.after == "def weigh(box: Box, unit: str) -> Fraction:"
    assert "unit: str) -> Fraction:\n" in result.text
    assert "return Fraction(1)" in result.text


def test_decorators_and_async_are_part_of_a_signature():
    new = replaced(
        NEW, ("def weigh(", "async def weigh("), ("    def put(", "    @final\n    def put(")
    )
    mine = replaced(BASE, (STUB_71, "self.a = 1"), (STUB_71, "self.b = 1"), (STUB_72, "return 1"))
    result = moved(new, mine)
    assert symbols(result) == ["Box.put", "weigh"]
    assert "    @final\n    def put(" in result.text
    assert "async def weigh(" in result.text


def test_a_signature_that_the_student_changed_alone_stays():
    mine = replaced(
        BASE,
        ("def weigh(box: Box)", "@cache\ndef weigh(box: Box, _known: int = 0)"),
        (STUB_72, "return _known"),
        ("class Box:", "class Box(Base):"),
    )
    result = moved(NEW, mine)
    assert "@cache\ndef weigh(box: Box, _known: int = 0) -> Fraction:" in result.text
    assert "class Box(Base):" in result.text
    assert result.conflicts == ()


def test_line_breaks_are_no_change_of_a_signature():
    mine = replaced(
        BASE,
        ("def weigh(box: Box) -> Fraction:", "def weigh(\n    box: Box,\n) -> Fraction:"),
        (STUB_72, "return 1"),
    )
    assert moved(NEW, mine).text == replaced(NEW, (STUB_72, "return 1"))


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("return 1  # one", "    return 1  # one\n"),
        ("x = 1; return x", "    x = 1\n    return x\n"),
        ('"""My words."""; return 1', "    return 1\n"),
    ],
)
def test_bodies_on_one_line(body, want):
    start = BASE.index("def weigh")
    mine = BASE[:start] + f"def weigh(box: Box) -> Fraction: {body}\n"
    assert moved(NEW, mine).text == replaced(NEW, (f"    {STUB_72}\n", want))


def test_other_indentation_becomes_ours():
    mine = replaced(BASE, (STUB_72, "if box:\n        return 1\n    return 2"))
    tabs = mine.replace("    ", "\t")
    assert moved(NEW, tabs).text == moved(NEW, mine).text


def test_a_task_that_is_gone_leaves_the_body_as_a_helper():
    start, end = NEW.index("    def put"), NEW.index("    def shake")
    new = NEW[:start] + NEW[end:]
    assert "def put" not in moved(new, BASE).text
    result = moved(new, replaced(BASE, (STUB_71, "pass"), (STUB_71, "self.mine = 1")))
    assert "    def put(self, things: Iterable[int]) -> None:" in result.text
    assert "self.mine = 1" in result.text
    assert symbols(result) == ["Box.put"]
    assert "from collections.abc import Iterable" in result.text


def test_a_class_that_is_gone_stays_if_anything_of_it_was_written():
    start, end = NEW.index("class Box"), NEW.index("def weigh")
    new = NEW[:start] + NEW[end:].replace("box: Box", "box: object")
    assert "class Box" not in moved(new, BASE).text
    result = moved(new, replaced(BASE, (STUB_71, "self.mine = 1")))
    assert "self.mine = 1" in result.text
    assert symbols(result) == ["Box"]


def test_given_code_that_both_changed_stays_the_students_and_is_listed():
    new = replaced(NEW, ("return 2", "return 1 + 1"))
    assert "return 1 + 1" in moved(new, BASE).text
    assert "return 3" in moved(NEW, replaced(BASE, ("return 2", "return 3"))).text
    assert moved(NEW, replaced(BASE, ("return 2", "return 3"))).conflicts == ()
    result = moved(new, replaced(BASE, ("return 2", "return 3")))
    assert "return 3" in result.text
    assert symbols(result) == ["Box.twice"]


def test_constants_that_one_or_both_changed():
    new, mine = replaced(NEW, ('"box"', '"crate"')), replaced(BASE, ('"box"', '"chest"'))
    assert 'NAME = "crate"' in moved(new, BASE).text
    assert 'NAME = "chest"' in moved(NEW, mine).text
    result = moved(new, mine)
    assert 'NAME = "chest"' in result.text
    assert symbols(result) == ["NAME"]
    assert result.conflicts[0].after == 'NAME = "crate"'


def test_a_helper_whose_name_the_new_skeleton_gives_to_another_is_listed():
    mine = replaced(BASE, ("class Box:", "def own():\n    return 1\n\n\nclass Box:"))
    new = replaced(NEW, ("class Box:", "def own():\n    return 2\n\n\nclass Box:"))
    result = moved(new, mine)
    assert "return 1" in result.text
    assert symbols(result) == ["own"]
    assert "return 2" in result.conflicts[0].after


def test_a_helper_that_became_a_task_is_its_answer():
    mine = replaced(
        BASE, ("    def twice", "    def shake(self) -> None:\n        self.a = 1\n\n    def twice")
    )
    result = moved(NEW, mine)
    assert result.text.count("def shake") == 1
    assert '"""New."""\n        self.a = 1' in result.text


def test_code_of_the_module_moves():
    tail = '\n\nif __name__ == "__main__":\n    print(weigh(Box(1)))\n'
    assert moved(NEW, BASE + tail).text == NEW + tail


def test_a_stub_that_was_left_above_a_second_definition():
    mine = BASE + "\n\ndef weigh(box: Box) -> Fraction:\n    return 1\n"
    text = moved(NEW, mine).text
    assert text.rindex("return 1") > text.index(STUB_72[:30])


def test_without_a_base_everything_that_is_not_new_is_the_students():
    mine = replaced(BASE, (STUB_72, "return 1"), ("NAME", "OTHER"))
    result = moved(NEW, mine, base="")
    assert set(result.carried) == {"OTHER", "weigh"}


def test_no_python_is_an_error_with_its_line():
    with pytest.raises(CourseError, match="line 2: invalid syntax"):
        transplant(NEW, "x = 1\ndef f(:\n", BASE)


# --------------------------------------------------------------------------- nothing is lost
STATEMENTS = st.sampled_from(
    [
        "self.a = 1",
        "x = [i for i in range(3)]  # three",
        "# only a comment\ny = 2",
        "if self:\n    return 1\nelse:\n    z = 3",
        "for i in range(2):\n    # inside\n    print(i)",
        "with open('a') as f:\n    f.read()",
        "def inner(a, *, b=1):\n    return a + b",
        "try:\n    w = 1\nfinally:\n    v = 2",
        "text = '''\n  kept as it is\n'''",
        "lambda: 0",
        "heapq.heappush(self.a, 1)",
        "pass",
    ]
)
BODIES = st.lists(STATEMENTS, min_size=1, max_size=4).map("\n".join)


def indented(text, depth):
    """Statements, further in; but for the text of a string over several lines."""
    return (
        text.replace("\n", "\n" + "    " * depth)
        .replace("\n" + "    " * depth + "  kept", "\n  kept")
        .replace("\n" + "    " * depth + "'''", "\n'''")
    )


@st.composite
def students(draw):
    """A file that a student may have made of BASE, and the statements in it."""
    text, written = BASE, []

    def body(depth):
        statements = draw(BODIES)
        written.extend(ast.dump(node) for node in ast.parse(statements).body)
        return indented(statements, depth)

    for stub, depth in [(STUB_71, 2), (STUB_71, 2), (STUB_72, 1)]:
        if draw(st.booleans()):
            text = replaced(text, (stub, body(depth)))
        else:
            text = replaced(text, (stub, stub.replace("see", "SEE")))
    if draw(st.booleans()):
        helper = f"    def helper(self):\n        {body(2)}\n\n"
        text = replaced(text, ("    def twice", helper + "    def twice"))
    if draw(st.booleans()):
        text = replaced(text, ("class Box:", f"def own(self):\n    {body(1)}\n\n\nclass Box:"))
    if draw(st.booleans()):
        text = replaced(text, ("return 2", body(2)))
    if draw(st.booleans()):
        text = replaced(text, ("from typing", "import heapq\nfrom typing"))
        written.append(ast.dump(ast.parse("import heapq").body[0]))
    return text.replace("SEE", "see"), written


@st.composite
def skeletons(draw):
    """What may have become of BASE upstream."""
    text = BASE
    changes = [
        ("Holds things.", "Holds many things."),
        ("def weigh(box: Box)", "def weigh(box: Box, unit: str)"),
        (
            "    def put(self, things: Iterable[int])",
            "    @final\n    def put(self, things: list[int])",
        ),
        ("return 2", "return 1 + 1"),
        ("class Box:", "class Box(Base):"),
        ("def weigh", "def measure"),
        (
            "    def twice",
            '    def helper(self):\n        """Given."""\n        return 4\n\n    def twice',
        ),
        ('NAME = "box"\n', ""),
    ]
    for change in changes:
        if draw(st.booleans()):
            text = replaced(text, change)
    if draw(st.booleans()):
        start, end = text.index("class Box"), text.index("def ", text.index("def twice") + 9)
        text = text[:start] + text[end:]
    return text


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(students(), skeletons())
def test_every_statement_of_the_student_is_in_the_result(student, new):
    mine, written = student
    result = moved(new, mine)
    there = [
        ast.dump(node) for node in ast.walk(ast.parse(result.text)) if isinstance(node, ast.stmt)
    ]
    assert [
        statement for statement in set(written) if written.count(statement) > there.count(statement)
    ] == []


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(students(), skeletons())
def test_a_second_time_changes_nothing(student, new):
    # A clash of names is left to the student, docstring and all.
    assume("def helper" not in new or "def helper" not in student[0])
    once = moved(new, student[0]).text
    assert moved(new, once, base=new).text == once


def test_the_real_exercises_take_the_real_answers(tmp_path):
    course = small_course.copy_of_the_course(tmp_path)
    for stage in course.stages:
        for part in stage.parts:
            skeleton = exercise_text(course, stage, part)
            reference = (course.root / part.source).read_text()
            result = transplant(skeleton, reference, "")
            ours, theirs = ast.parse(result.text), ast.parse(reference)
            assert sorted(map(ast.dump, ours.body[1:])) == sorted(map(ast.dump, theirs.body[1:]))
