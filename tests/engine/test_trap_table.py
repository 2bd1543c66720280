"""The table of known traps, ``tests/traps.md``, against the tests that there are."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = HERE.parent / "traps.md"
TRAPS = [
    1,
    2,
    5,
    6,
    7,
    8,
    10,
    12,
    14,
    15,
    17,
    18,
    19,
    21,
    22,
    24,
    26,
    27,
    28,
    30,
    31,
    34,
    36,
    38,
    39,
]
"""Those of the list; what is not here is none."""
LATER = {"with the server", "with the kernels", "with tensor parallelism"}


def rows():
    """The cells of each row, by its first one."""
    lines = (line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:2] == "| ")
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    heads = {"---", "trap", "promise"}
    return {first: rest for first, *rest in cells if first not in heads}


def named(cell):
    return re.findall(r"`(\w+\.py)::(\w+)`", cell)


@cache
def names_in(file):
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_trap_has_a_row_and_every_row_is_a_trap():
    expected = {f"B{number:02}" for number in TRAPS}
    found = [first for first in rows() if re.fullmatch(r"B\d+", first)]
    assert set(found) == expected
    assert len(found) == len(expected) == 25
    first_cells = re.findall(r"^\| (B\d+) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert first_cells == found, "a trap with two rows"


@pytest.mark.parametrize("first", rows())
def test_the_tests_of_a_row_are_there(first):
    cell = rows()[first][-1]
    pairs = named(cell)
    assert pairs or cell in LATER, f"neither a test nor when there will be one: {cell!r}"
    for file, name in pairs:
        assert name in names_in(file), f"{file} has no {name}"
    # Nothing but tests and, behind a colon, when the rest will come.
    rest = re.sub(r"`\w+\.py::\w+`(, )?", "", cell)
    assert not rest or rest in LATER or rest.rpartition(": ")[2] in LATER, rest


def test_tests_that_are_named_for_a_trap_are_in_its_row():
    table = rows()
    for path in sorted(HERE.glob("test_*.py")):
        for name in names_in(path.name):
            found = re.match(r"test_(b\d\d)_", name)
            if found:
                assert (path.name, name) in named(table[found[1].upper()][-1]), (
                    f"{path.name}::{name} is not in the row of {found[1].upper()}"
                )


def test_a_row_says_what_went_wrong_what_is_right_and_where_it_was_reported():
    for first, rest in rows().items():
        if first.startswith("B"):
            wrong, right, _ = rest
            assert re.search(r"#\d+|commit", wrong), first
            assert right
