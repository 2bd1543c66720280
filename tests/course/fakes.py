"""Rounds of grading that nobody graded, to see what is made of them."""

from __future__ import annotations

from collections.abc import Mapping

from minipaged.course.catalog import Course, load_course
from minipaged.course.judge.run import CheckResult, Judged

TOML = """
[course]
title = "A small course"
version = "1"

[[stage]]
number = "07"
name = "boxes"
title = "Boxes"
hours = 1

[[stage.part]]
name = "box"
module = "things.box"
contract = 1

[[stage.task]]
id = "7.1"
title = "Put in"
part = "box"
symbols = ["Box.__init__", "Box.put"]
question = "q"
pointer = "p"
checks = [{ name = "it_keeps_what_is_put_in", points = 3 }, { name = "it_counts", points = 2 }]

[[stage.task]]
id = "7.2"
title = "Take out"
part = "box"
symbols = ["Box.take"]
question = "q"
pointer = "p"
checks = [{ name = "it_gives_the_newest_first", points = 4 }]

[stage.robustness]
checks = [
  { name = "an_empty_box_is_an_error", points = 1, parent = "7.2" },
  { name = "two_boxes_are_two", points = 1, parent = "7.1" },
]

[stage.counterexample]
mutant = "queue"
claim = "A box is a queue."
points = 2
names = { box = "Box()" }
observe = []
max_operations = 4
question = "q"
pointer = "p"

[[stage]]
number = "08"
name = "shelves"
title = "Shelves"
hours = 1

[[stage.part]]
name = "shelf"
module = "things.shelf"
contract = 1

[[stage.task]]
id = "8.1"
title = "Stack"
part = "shelf"
symbols = ["stack"]
question = "q"
pointer = "p"
checks = [{ name = "it_stacks", points = 5 }]
"""
BOX = '''"""A box."""


class Box:
    """Keeps things.

    Example::

        box = Box()
        box.put(3)    # 1: things in it
        box.put(4)    # 2
        box.take()    # 4
    """

    def __init__(self) -> None:
        """Empty."""
        self._things: list[int] = []

    def put(self, thing: int) -> int:
        """Put in."""
        self._things.append(thing)
        return len(self._things)

    def take(self) -> int:
        """Take out the newest."""
        if not self._things:
            raise IndexError("the box is empty")
        return self._things.pop()
'''
SHELF = "def stack(n: int) -> int:\n    return n + 1\n"
STUB = 'raise NotImplementedError("stage 7, task {}: see lessons/07-boxes.md")'
LESSON = "# Boxes\n\n## Task 7.1: put in\n\n## Task 7.2\n\n## Counterexample\n"
QUEUE = '''[[mutant]]
name = "queue"
part = "box"
find = "self._things.pop()"
replace = "self._things.pop(0)"
misconception = """
Your box gives back the oldest thing first.
"""
operations = 3
source = "trap X1"
'''


def small_course(root) -> Course:
    """A course of two stages in a folder, with nothing written by the student yet."""
    files = {
        "course.toml": TOML,
        "things/box.py": BOX,
        "things/shelf.py": SHELF,
        "tests/mutants/stage07.toml": QUEUE,
        "lessons/07-boxes.md": LESSON,
        "exercises/stage07_boxes/box.py": stubbed("7.1", "7.2"),
        "exercises/stage07_boxes/counterexample.toml": "trace = []\n",
        "exercises/stage08_shelves/shelf.py": "def stack(n: int) -> int:\n    "
        'raise NotImplementedError("stage 8, task 8.1: see lessons/08-shelves.md")\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return load_course(root)


def stubbed(*tasks: str) -> str:
    """The student's box with some tasks not written."""
    text = BOX
    if "7.1" in tasks:
        text = text.replace("self._things: list[int] = []", STUB.format("7.1"))
        text = text.replace(
            "self._things.append(thing)\n        return len(self._things)", STUB.format("7.1")
        )
    if "7.2" in tasks:
        start = text.index("        if not self._things")
        text = text[:start] + f"        {STUB.format('7.2')}\n"
    return text


def judged(
    stage, failed: Mapping[str, str] | None = None, *, seed: int = 0, checks=None, note: str = ""
) -> Judged:
    """A round in which some checks failed, with these messages, and all others passed."""
    results = {}
    for check in stage.checks():
        if checks is None or check.name in checks:
            message = (failed or {}).get(check.name)
            results[check.name] = CheckResult(
                name=check.name,
                status="passed" if message is None else "failed",
                message=message or "",
                transcript="" if message is None else "box = Box()\nbox.take() -> 7",
                output="",
                seconds=0.1,
            )
    return Judged(stage.number, seed, results, note)


class FakeJudge:
    """Stands in for the judge: which checks fail with which seed, and what it was asked."""

    def __init__(self, failed: Mapping[str, str] | None = None, later=None) -> None:
        self.failed, self.later = failed or {}, later or {}
        self.asked: list[tuple[str, int, list[str]]] = []

    def __call__(self, course, stage, submission, *, seeds, checks, user="auto"):
        rounds, failed = [], self.failed
        for seed in seeds:
            self.asked.append((stage.key, seed, list(checks)))
            rounds.append(judged(stage, failed, seed=seed, checks=checks))
            checks = [name for name in checks if name not in failed]
            failed = {**self.failed, **self.later}
        return rounds
