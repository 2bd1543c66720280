"""The smallest counterexample: a trace, written by a student as data, on which the reference and
a named mutant differ.

A trace is a list of calls, such as ``["a = pool.allocate()", "pool.share(a)"]``. It is read, never
executed as code: each operation is one call of a public method, or of a function that the course
names, with numbers, objects or earlier results as arguments. It runs on trusted code alone.
"""

from __future__ import annotations

import ast
import importlib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from minipaged.course.catalog import COUNTEREXAMPLE, Counterexample, Course, Part, Stage
from minipaged.course.device import triton_environment
from minipaged.course.judge.lab import Lab
from minipaged.course.judge.namespace import homes
from minipaged.course.mutants import apply, find_mutant, reference_source
from minipaged.course.source_module import code_of
from minipaged.course.testing import state_of
from minipaged.errors import CourseError

#: Numbers in a trace are at most this large: no operation may take long.
LARGEST = 1000


@dataclass(frozen=True)
class Verdict:
    """What a trace shows.

    Attributes:
        message: why it earns nothing; empty for full points.
        found: where the two differ, for full points.
    """

    message: str
    found: str = ""


def is_started(path: Path) -> bool:
    """Has the student written anything? A file that cannot be read as a trace has been."""
    try:
        return bool(read_trace(path))
    except CourseError:
        return path.is_file()


def read_trace(path: Path) -> list[str]:
    """The operations of a trace file, as text.

    Raises:
        CourseError: no such file, not TOML, or no ``trace`` that is a list of strings.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CourseError(
            f"{path.parent.name}/{path.name} cannot be read: {error.strerror}; "
            "`minipaged sync` writes a new one"
        ) from None
    except UnicodeDecodeError:
        raise CourseError(f"{path.name} is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"{path.name} is not TOML: {error}") from None
    trace = data.get("trace")
    if not isinstance(trace, list) or not all(isinstance(text, str) for text in trace):
        raise CourseError(
            f"{path.name}: trace must be a list of strings, one for each operation, in brackets"
        )
    return trace


def judge_trace(course: Course, stage: Stage, path: Path) -> Verdict:
    """Run a student's trace on the reference and on the stage's mutant."""
    asked = stage.counterexample
    if asked is None:
        raise CourseError(f"stage {stage.key} asks for no counterexample")
    if stage.triton:
        os.environ.update(triton_environment(os.environ))
    try:
        operations = _operations(asked, path)
        return _compare(operations, asked, *_sides(course, stage, asked))
    except CourseError as error:
        return Verdict(str(error))


def what_is_wrong(stage: Stage, path: Path) -> str:
    """What can be said of a trace without running it; empty if it can be run."""
    asked = stage.counterexample
    if asked is None:
        raise CourseError(f"stage {stage.key} asks for no counterexample")
    try:
        _operations(asked, path)
    except CourseError as error:
        return str(error)
    return ""


def _operations(asked: Counterexample, path: Path) -> list[Operation]:
    """The calls of a trace file.

    Raises:
        CourseError: it cannot be run, or is too long.
    """
    trace = read_trace(path)
    if not trace:
        raise CourseError("the trace is empty")
    if len(trace) > asked.max_operations:
        raise CourseError(
            f"the trace has {len(trace)} operations, and at most {asked.max_operations} are "
            "allowed: which of them does it not need?"
        )
    return list(parse(trace, asked))


# --------------------------------------------------------------------------- reading
@dataclass(frozen=True)
class Operation:
    """One call of a trace.

    Attributes:
        label: as messages name it.
        target: the name that its result gets, if any.
        uses: earlier results among its arguments, or whose method it is.
    """

    label: str
    code: CodeType
    target: str | None
    uses: tuple[str, ...]


def parse(trace: Sequence[str], asked: Counterexample) -> Iterator[Operation]:
    """Read the operations one by one.

    Raises:
        CourseError: an operation is more than one call with numbers, objects or earlier
            results; the message names it and says what is allowed.
    """
    known: set[str] = set()
    for number, text in enumerate(trace, 1):
        operation = _operation(f"operation {number}, `{text.strip()}`", text, asked, known)
        if operation.target is not None:
            known.add(operation.target)
        yield operation


def _operation(label: str, text: str, asked: Counterexample, known: set[str]) -> Operation:
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CourseError(f"{label}, is not Python") from None
    statement = body[0] if len(body) == 1 else None
    target = None
    if isinstance(statement, ast.Assign):
        target = _target(label, statement, asked)
    call = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
    if not isinstance(call, ast.Call):
        raise CourseError(f"{label}, is no call: one call each, as `a = {_sample(asked)}()`")
    owner = _called(label, call.func, asked, known)
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if any(keyword.arg is None for keyword in call.keywords):
        raise CourseError(f"{label}: `**` is not allowed")
    named = [name for argument in arguments for name in _names(label, argument)]
    for name in named:
        if name not in known and name not in asked.names:
            raise CourseError(f"{label}: no earlier operation gives {name!r} a value")
    if owner is None and any(isinstance(node, ast.USub) for node in ast.walk(call)):
        raise CourseError(f"{label}: a function is called with numbers that are not negative")
    uses = tuple(name for name in (owner, *named) if name in known)
    return Operation(label, compile(ast.Expression(call), COUNTEREXAMPLE, "eval"), target, uses)


def _target(label: str, statement: ast.Assign, asked: Counterexample) -> str:
    target = statement.targets[0]
    if len(statement.targets) > 1 or not isinstance(target, ast.Name):
        raise CourseError(f"{label}: a result gets one name, as `a = {_sample(asked)}()`")
    if target.id in (*asked.names, *asked.functions) or target.id.startswith("_"):
        raise CourseError(f"{label}: a result cannot be called {target.id!r}; try another name")
    return target.id


def _called(label: str, call: ast.expr, asked: Counterexample, known: set[str]) -> str | None:
    """Whose method is called; None for a function."""
    match call:
        case ast.Name(id=name) if name in asked.functions:
            return None
        case ast.Attribute(value=ast.Name(id=name), attr=method):
            if name not in asked.names and name not in known:
                here = " or ".join((*asked.names, *asked.functions))
                raise CourseError(f"{label}: there is no {name!r} here, only {here}")
            if method.startswith("_"):
                raise CourseError(f"{label}: {method!r} is private; use the public methods")
            return name
    allowed = [*(f"methods of {name}" for name in asked.names), *asked.functions]
    raise CourseError(f"{label}: only {' or '.join(allowed)} can be called")


def _names(label: str, argument: ast.expr) -> Iterator[str]:
    """The names in an argument, which is a number, a name or a list of these."""
    match argument:
        case ast.Constant(value=bool()):
            raise CourseError(f"{label}: {ast.unparse(argument)} is no number")
        case (
            ast.Constant(value=int() as value)
            | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value))
        ):
            if value > LARGEST:
                raise CourseError(f"{label}: {value} is more than {LARGEST}; a small one will do")
        case ast.Name(id=name):
            yield name
        case ast.List(elts=items):
            for item in items:
                yield from _names(label, item)
        case _:
            raise CourseError(
                f"{label}: {ast.unparse(argument)} is neither a whole number nor an earlier "
                "result nor a list of these"
            )


def _sample(asked: Counterexample) -> str:
    for name in asked.names:
        return f"{name}.method"
    return asked.functions[0]


# --------------------------------------------------------------------------- running
class _Side:
    """The objects of a trace, made from one implementation."""

    def __init__(self, asked: Counterexample, symbol: Callable[[str], Any]) -> None:
        self.observe = asked.observe
        self.values: dict[str, Any] = {"state_of": state_of, "lab": Lab()}
        self.values |= {name: symbol(name) for name in asked.functions}
        for name, made in asked.names.items():
            for node in ast.walk(ast.parse(made)):
                if isinstance(node, ast.Name) and node.id not in self.values:
                    self.values[node.id] = symbol(node.id)
            self.values[name] = eval(made, self.values)

    def do(self, operation: Operation) -> tuple[str, Exception | None]:
        """Make one call. Returns its outcome as text, and the error if it was one."""
        try:
            value = eval(operation.code, self.values)
        except Exception as error:
            return type(error).__name__, error
        if operation.target is not None:
            self.values[operation.target] = value
        return _shown(value), None

    def look(self) -> dict[str, str]:
        """Everything that is compared after an operation."""
        return {expression: self._look(expression) for expression in self.observe}

    def _look(self, expression: str) -> str:
        try:
            value = eval(expression, self.values)
        except Exception as error:
            return type(error).__name__
        return value if isinstance(value, str) else _shown(value)


def _sides(course: Course, stage: Stage, asked: Counterexample) -> tuple[_Side, _Side]:
    """The same objects made from the reference and from the mutant."""
    mutant = find_mutant(course, stage, asked.mutant)
    known = homes(course)

    def reference(symbol: str) -> Any:
        if symbol not in known:
            raise CourseError(f"the counterexample of stage {stage.key}: no part has {symbol}")
        return getattr(importlib.import_module(known[symbol][1].module), symbol)

    changed = apply(mutant, reference_source(course, stage, mutant.part))
    wrong = _execute(stage.part(mutant.part), changed)

    def mutated(symbol: str) -> Any:
        if symbol in known and known[symbol][1].name == mutant.part:
            return wrong[symbol]
        return reference(symbol)

    return _Side(asked, reference), _Side(asked, mutated)


def _execute(part: Part, source: str) -> dict[str, Any]:
    # Under the reference's own name, which dataclasses look up.
    importlib.import_module(part.module)
    values: dict[str, Any] = {"__name__": part.module}
    exec(code_of(f"<mutant of {part.name}>", source), values)
    return values


def _compare(
    operations: Sequence[Operation], asked: Counterexample, reference: _Side, mutant: _Side
) -> Verdict:
    lost: dict[str, str] = {}
    seen: Mapping[str, str] = {}
    for operation in operations:
        for name in operation.uses:
            if name in lost:
                raise CourseError(f"{operation.label}: {name!r} has no value, since {lost[name]}")
        right, error = reference.do(operation)
        if isinstance(error, TypeError | AttributeError | ZeroDivisionError):
            raise CourseError(f"{operation.label}, cannot be called like this: {error}")
        wrong, _ = mutant.do(operation)
        if right != wrong:
            return Verdict("", _difference(operation, "the call", right, wrong))
        seen, other = reference.look(), mutant.look()
        for expression, value in seen.items():
            if value != other[expression]:
                return Verdict("", _difference(operation, expression, value, other[expression]))
        if operation.target is not None and error is not None:
            lost[operation.target] = f"{operation.label}, ended with {right}"
    count = "the one operation" if len(operations) == 1 else f"all {len(operations)} operations"
    ends = [f"the last call gives {right}"]
    ends += [f"{expression} is {value}" for expression, value in seen.items()]
    return Verdict(
        f"the trace shows no difference: after {count} a right implementation and one that "
        f"believes the claim agree: {', '.join(ends)}.\nThe claim: {' '.join(asked.claim.split())}"
    )


def _difference(operation: Operation, what: str, right: str, wrong: str) -> str:
    return f"after {operation.label}: {what} gives {right}, and {wrong} where the claim is believed"


def _shown(value: Any) -> str:
    """A value as text; two values are the same if their texts are."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple):
        inside = ", ".join(_shown(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return f"a {type(value).__name__}"
