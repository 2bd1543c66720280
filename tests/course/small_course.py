"""A course of two stages in a folder of its own: small enough to be changed at will."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

from minipaged.course.catalog import Course, load_course

ROOT = Path(__file__).parents[2]

TOML = """
[course]
title = "A small course"
version = "1"

[[stage]]
number = "07"
name = "boxes"
title = "The box"
hours = 1

[[stage.part]]
name = "box"
module = "things.box"
contract = 1
drop = ["Box._check", "_LIMIT", "_settle"]

[[stage.part]]
name = "lids"
module = "things.lids"
contract = 1
keep = ["math"]

[[stage.task]]
id = "7.1"
title = "Put in"
part = "box"
symbols = ["Box.__init__", "Box.put"]
question = "How many are in it before?"
pointer = "Add one to the count."
checks = [{ name = "it_counts", points = 3 }, { name = "it_refuses", points = 2 }]

[[stage.task]]
id = "7.2"
title = "Take out"
part = "box"
symbols = ["Box.take", "weigh"]
question = "What is left?"
pointer = "Take one from the count."
checks = [{ name = "it_gives_back", points = 4 }]

[[stage.task]]
id = "7.3"
title = "Close"
part = "lids"
symbols = ["close"]
question = "Which lid fits?"
pointer = "The round one."
checks = [{ name = "it_closes", points = 1 }]

[stage.robustness]
checks = [{ name = "a_full_box_stays_full", points = 2, parent = "7.1" }]

[stage.counterexample]
mutant = "box_without_count"
claim = "A box needs no count."
points = 2
names = { box = "Box(3)", other = "Box(1)" }
observe = ["box.size", "other.size"]
max_operations = 4
question = "When does a count show?"
pointer = "Take twice."

[[stage]]
number = "08"
name = "shelves"
title = "The shelf"
hours = 1

[[stage.part]]
name = "shelf"
module = "things.shelf"
contract = 1

[[stage.task]]
id = "8.1"
title = "Store"
part = "shelf"
symbols = ["store"]
question = "Where?"
pointer = "There."
checks = [{ name = "it_is_there", points = 1 }]
"""

BOX = '''\
"""Boxes for things.

A box has a size.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction

#: More never fit into one box.
_LIMIT = 3

#: What a box is called.
NAME = "box"


class Box:
    """Holds things.

    Attributes:
        size: how many fit.
    """

    def __init__(self, size: int) -> None:
        """An empty box."""
        # the answer keeps a heap of things
        self.size = size
        self._things: list[int] = []

    def put(self, things: Iterable[int]) -> None:
        """Put things in.

        Raises:
            ValueError: it is full.
        """
        for thing in things:
            self._check(thing)
            heapq.heappush(self._things, thing)  # answers stay sorted

    def take(self) -> Fraction:
        """Take the smallest out."""
        return _settle(heapq.heappop(self._things))

    def _check(self, thing: int) -> None:
        if len(self._things) >= min(self.size, _LIMIT):
            raise ValueError(f"the box of {self.size} is full: {thing} does not fit")


# --------------------------------------------------------------------------- weighing
def _settle(weight: int) -> Fraction:
    """Secret of the answer: it needs a rest."""
    from fractions import Fraction

    return Fraction(weight)


def weigh(things: Sequence[int]) -> int:
    """What things weigh together."""
    total_of_the_answer = 0
    for thing in things:
        total_of_the_answer += thing
    return total_of_the_answer


def heavier(one: Sequence[int], other: Sequence[int]) -> bool:
    """Given: is one heavier than the other?"""
    return weigh(one) > weigh(other)  # both are weighed


# --------------------------------------------------------------------------- private
def _unused_elsewhere(value: Decimal) -> str:
    return f"{NAME} of {value}"
'''

LIDS = '''\
"""Lids for boxes."""

import math


def close(radius: float) -> float:
    """The lid of a round box: its area."""
    return math.pi * radius**2
'''

SHELF = '''\
"""Shelves."""


def store(things: list[int], thing: int) -> list[int]:
    """The things with one more at the end."""
    return [*things, thing]
'''


def make(root: Path, **changes: str) -> Course:
    """Write the course into a folder.

    Args:
        changes: other texts for ``toml``, ``box``, ``lids`` or ``shelf``.
    """
    texts = {"toml": TOML, "box": BOX, "lids": LIDS, "shelf": SHELF} | changes
    (root / "things").mkdir(parents=True, exist_ok=True)
    (root / "course.toml").write_text(texts.pop("toml"))
    for name, text in texts.items():
        (root / "things" / f"{name}.py").write_text(text)
    return load_course(root)


def copy_of_the_course(root: Path) -> Course:
    """What the real course's exercises are made from, without those of this checkout."""
    shutil.copy(ROOT / "course.toml", root)
    shutil.copy(ROOT / "pyproject.toml", root)
    for _, part in load_course(ROOT).parts.values():
        (root / part.source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part.source, root / part.source)
    return load_course(root)


def solved(skeleton: str, symbol: str, body: str) -> str:
    """A skeleton with a body in place of one stub.

    Args:
        symbol: the function's name, without its class.
        body: unindented lines.
    """
    start = skeleton.index(f"def {symbol}(")
    at = skeleton.index("raise NotImplementedError", start)
    line = skeleton.rindex("\n", 0, at) + 1
    end = skeleton.index(")\n", at) + 2
    written = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * (at - line)) + "\n"
    return skeleton[:line] + written + skeleton[end:]
