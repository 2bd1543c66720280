"""Answers that are none: bodies that ignore what they are asked."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection

from minipaged import errors

Function = ast.FunctionDef


#: What a kernel writes to goes by one of these names.
_TARGETS = ("out", "target", "k_cache")


def _returns(text: str, kernel: str = "pass") -> Callable[[Function], str]:
    """
    Args:
        kernel: the body of one, which returns nothing; ``TARGET`` in it is what it writes to.
    """
    return lambda function: (
        kernel.replace("TARGET", _target(function)) if is_kernel(function) else f"return {text}"
    )


def is_kernel(function: Function) -> bool:
    return any(ast.unparse(d).startswith("triton.jit") for d in function.decorator_list)


def _target(kernel: Function) -> str:
    names = [argument.arg for argument in kernel.args.args]
    return next((name for name in _TARGETS if name in names), names[0])


def _first_argument(function: Function) -> str:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if is_kernel(function):
        target = _target(function)
        given = next(name for name in names if name != target)
        here = "tl.program_id(0)"
        return f"tl.store({target} + {here}, tl.load({given} + {here}))"
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
    "return 0": _returns("0", "tl.store(TARGET + tl.program_id(0), 0)"),
    "return -1": _returns("-1", "tl.store(TARGET + tl.program_id(0), -1)"),
    "return True": _returns("True", "tl.store(TARGET + tl.arange(0, 16), 1)"),
    "return []": _returns("[]", "return"),
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
