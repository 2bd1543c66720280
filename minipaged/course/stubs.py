"""What stands in a skeleton where an answer will: one statement that says which task it is.

A task is written or not by what its syntax tree shows; nothing is run to find out.
"""

from __future__ import annotations

import ast
import re

from minipaged.course.catalog import Stage, Task

_MESSAGE = re.compile(r"stage \d+, task \d+\.\d+: ")
_RAISED = re.compile(r"\bstage \d+, task (\d+\.\d+): see lessons/")
_TAKEN = re.compile(r"#\s*taken: minipaged unstick (\d+\.\d+)\b")


def stub_message(stage: Stage, task: Task) -> str:
    """``stage 3, task 3.2: see lessons/03-block-table.md``."""
    return f"stage {stage.key}, task {task.id}: see {stage.lesson}"


def is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Is a docstring and the stub all that the body has?

    The stub is ``raise NotImplementedError("stage …")``, or ``tl.static_assert(False, "stage …")``
    in a Triton kernel, where ``raise`` does not compile.
    """
    body = function.body[has_docstring(function) :]
    if len(body) != 1:
        return False
    match body[0]:
        case ast.Raise(exc=ast.Call(func=ast.Name("NotImplementedError"), args=[message])):
            pass
        case ast.Expr(
            ast.Call(ast.Attribute(attr="static_assert"), [ast.Constant(False), message])
        ):
            pass
        case _:
            return False
    text = message.value if isinstance(message, ast.Constant) else None
    return isinstance(text, str) and _MESSAGE.match(text) is not None


def stub_in(message: str) -> str | None:
    """The task whose stub an error speaks of, if it does."""
    found = _RAISED.search(message.partition("\n")[0])
    return found[1] if found else None


def has_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Is the first statement a string?"""
    match function.body[0]:
        case ast.Expr(ast.Constant(str())):
            return True
    return False


def taken_marker(task_id: str) -> str:
    """The comment that ``minipaged unstick`` puts first into a body that it copies."""
    return f"# taken: minipaged unstick {task_id}"


def taken_by(comment: str) -> str | None:
    """The task that a comment marks as taken, if it does."""
    found = _TAKEN.match(comment)
    return found[1] if found else None
