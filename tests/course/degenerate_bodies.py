"""Answers that are none: bodies that ignore what they are asked."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection

from minipaged import errors

Function = ast.FunctionDef


def _returns(text: str) -> Callable[[Function], str]:
    return lambda function: f"return {text}"


def _first_argument(function: Function) -> str:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if names[0] == "self" and len(names) > 1:
        return f"return {names[1]}"
    return f"return {names[0]}"


def _named_error(function: Function) -> str:
    """Raise what the docstring says that the function may raise."""
    named = re.search(r"Raises:\n\s+(\w+)[:,]", ast.get_docstring(function) or "")
    name = named[1] if named else "ValueError"
    if hasattr(errors, name):
        return f"from minipaged.errors import {name}; raise {name}('no')"
    return f"raise {name}('no')"


BODIES: dict[str, Callable[[Function], str]] = {
    "return None": _returns("None"),
    "return 0": _returns("0"),
    "return -1": _returns("-1"),
    "return True": _returns("True"),
    "return []": _returns("[]"),
    "return the first argument": _first_argument,
    "raise RuntimeError": lambda function: "raise RuntimeError('no')",
    "raise the named error": _named_error,
}


def with_bodies(source: str, symbols: Collection[str], body: Callable[[Function], str]) -> str:
    """A source in which the bodies of some functions and methods are replaced."""
    tree = ast.parse(source)
    found = {node.name: node for node in tree.body if isinstance(node, Function)}
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef):
            for node in owner.body:
                if isinstance(node, Function):
                    found[f"{owner.name}.{node.name}"] = node
    lines = source.splitlines()
    for node in sorted((found[s] for s in symbols), key=lambda node: -node.lineno):
        first = node.body[0]
        lines[first.lineno - 1 : node.end_lineno] = [" " * first.col_offset + body(node)]
    return "\n".join(lines) + "\n"
