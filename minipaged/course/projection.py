"""A reference module without its answers: a projection of its syntax tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import libcst as cst

from minipaged.course import syntax
from minipaged.course.syntax import INDENT, LINE_LENGTH, Statement, code, names_defined, names_used
from minipaged.errors import CourseError


def project(
    source: str, messages: Mapping[str, str], drop: Sequence[str] = (), keep: Sequence[str] = ()
) -> cst.Module:
    """Stubs for the bodies of tasks; signatures, type hints, docstrings and all the rest stay.

    Args:
        messages: symbol of a task -> what its stub says.
        drop: functions, classes, methods and module-level names that go.
        keep: imported names that stay though nothing is left that uses them.

    Raises:
        CourseError: a symbol that the module does not define.
    """
    module = syntax.module(source)
    strip = _Strip(messages, frozenset(drop))
    body = strip.body(module.body)
    if missing := {*messages, *drop} - strip.seen:
        raise CourseError(f"the reference has no {', no '.join(sorted(missing))}")
    footer = (
        module.footer if body and names_defined(module.body[-1]) == names_defined(body[-1]) else []
    )
    wanted = names_used(module) - set(keep)
    while True:  # what is left of an import may itself be the last use of a name: TYPE_CHECKING
        unused = wanted - names_used(module.with_changes(body=body))
        pruned = prune_imports(body, unused)
        if len(pruned) == len(body) and all(map(cst.CSTNode.deep_equals, pruned, body)):
            return module.with_changes(body=body, footer=footer)
        body = pruned


class _Strip:
    """Walks down the classes of a module, and remembers which symbols it met."""

    def __init__(self, messages: Mapping[str, str], drop: frozenset[str]) -> None:
        self.messages, self.drop = messages, drop
        self.seen: set[str] = set()

    def body(self, body: Iterable[cst.BaseStatement], owner: str = "") -> list[cst.BaseStatement]:
        def change(statement: Statement) -> Statement | None:
            names = [owner + name for name in names_defined(statement)]
            self.seen.update(names)
            if names and self.drop.issuperset(names):
                return None
            if isinstance(statement, cst.FunctionDef) and names[0] in self.messages:
                return with_stub(statement, self.messages[names[0]], depth=1 + owner.count("."))
            if isinstance(statement, cst.ClassDef) and isinstance(
                statement.body, cst.IndentedBlock
            ):
                inner = self.body(statement.body.body, f"{names[0]}.")
                return statement.with_deep_changes(statement.body, body=inner)
            return statement

        return syntax.edited(body, change)


def with_stub(function: cst.FunctionDef, message: str, depth: int) -> cst.FunctionDef:
    """The function with a stub for a body; its docstring stays.

    Args:
        depth: how far the body is indented: 1 for a function of the module.
    """
    kernel = any(code(d.decorator).startswith("triton.jit") for d in function.decorators)
    call, argument = "raise NotImplementedError", f'"{message}"'
    if kernel:
        call, argument = "tl.static_assert", f"False, {argument}"
    line = f"{call}({argument})"
    if depth * INDENT + len(line) > LINE_LENGTH:
        line = f"{call}(\n{' ' * INDENT}{argument}\n)"
    body = [cst.parse_statement(line)]
    if (doc := syntax.docstring(syntax.statements(function.body))) is not None:
        body.insert(0, doc)
    if isinstance(function.body, cst.IndentedBlock):
        return function.with_changes(body=function.body.with_changes(body=body, footer=[]))
    return function.with_changes(body=cst.IndentedBlock(body))


def prune_imports(body: Iterable[cst.BaseStatement], unused: set[str]) -> list[cst.BaseStatement]:
    """Imports of names that nothing uses any more go: they would tell how the answer works."""

    def change(statement: Statement) -> Statement | None:
        if syntax.is_type_checking(statement):
            assert isinstance(statement.body, cst.IndentedBlock)
            inner = prune_imports(statement.body.body, unused)
            return statement.with_deep_changes(statement.body, body=inner) if inner else None
        if not syntax.is_import(statement) or syntax.is_future(statement):
            return statement
        smalls = [_import_of(small, unused) for small in statement.body]
        left = [small for small in smalls if small is not None]
        return statement.with_changes(body=left) if left else None

    return syntax.edited(body, change)


def _import_of(node: cst.BaseSmallStatement, unused: set[str]) -> cst.BaseSmallStatement | None:
    """What is left of an import: itself, fewer names, or nothing."""
    assert isinstance(node, syntax.Import)
    found = syntax.aliases(node)
    left = [alias for alias in found if syntax.bound_name(alias) not in unused]
    return syntax.with_aliases(node, left) if left else None
