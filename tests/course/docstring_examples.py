"""The example in a class's docstring, run on some source: does each line do what it says?

A comment that starts with a value, as in ``table.slot(5)  # 5: block 1``, says what the line
returns; where the line returns nothing, what a public attribute of the object holds then, as in
``table.append(6)  # blocks [0, 1]``. Other comments say nothing that can be checked.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

_CLAIM = re.compile(r"^(?:\w+ )?(\[[^\]]*\]|-?\d+|True|False|None)(?=[:,;]|$)")


def class_docstring(source: str) -> str:
    """Of the first class that has an example; empty if none has."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and "Example" in (ast.get_docstring(node) or ""):
            return ast.get_docstring(node) or ""
    return ""


def example_lines(docstring: str) -> Iterator[tuple[str, str]]:
    """(statement, comment) of each line of the example."""
    _, _, rest = docstring.partition("Example")
    block = re.search(r"::\n\n((?:[ ]+.*\n?|\n)+)", rest)
    assert block, f"no example in {docstring!r}"
    for line in textwrap.dedent(block[1]).strip().splitlines():
        statement, _, comment = line.partition("#")
        yield statement.strip(), comment.strip()


def claims(docstring: str, source: str, extra: dict[str, object]) -> list[tuple[str, set[str]]]:
    """Run the example on a source.

    Returns:
        For each line that claims a value: the line, and where that value was found: ``return``
        or names of public attributes of the object. Empty if the line raised.
    """
    # The name of a module that is there: dataclasses look it up.
    values: dict[str, object] = {"__name__": __name__, **extra}
    exec(compile(source, "<example>", "exec", dont_inherit=True), values)
    found = []
    for statement, comment in example_lines(docstring):
        is_call = isinstance(ast.parse(statement).body[0], ast.Expr)
        try:
            returned = eval(statement, values) if is_call else exec(statement, values)
        except Exception as error:
            returned = error
        claim = _CLAIM.match(comment)
        if claim:
            want = ast.literal_eval(claim[1])
            owner = values.get(statement.partition(".")[0])
            found.append((statement, set(_places(want, returned, owner))))
    return found


def _places(want: object, returned: object, owner: object) -> Iterator[str]:
    if returned is not None or want is None:
        if type(returned) is type(want) and returned == want:
            yield "return"
        return
    for name in dir(owner):
        if not name.startswith("_") and getattr(owner, name) == want:
            yield name


def keeps_example(docstring: str, reference: str, source: str, extra: dict[str, object]) -> bool:
    """Does a changed source still do what the example says of the reference?"""
    right, other = (claims(docstring, text, extra) for text in (reference, source))
    return all(places & places_there for (_, places), (_, places_there) in zip(right, other))
