"""Questions to a concrete syntax tree (libcst), the kind that has its comments and blanks still."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeGuard, TypeVar

import libcst as cst

from minipaged.course.submission import parse
from minipaged.errors import CourseError

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Import = cst.Import | cst.ImportFrom

LINE_LENGTH = 100
INDENT = 4

_T = TypeVar("_T", bound=cst.BaseStatement)
_SECTION = re.compile(r"# -{5,}")
_WORD = re.compile(r"[A-Za-z_]\w*")


def module(source: str) -> cst.Module:
    """The tree of a module.

    Raises:
        CourseError: it is no Python; the message starts with the line.
    """
    try:
        parse(source)
        return cst.parse_module(source)
    except ValueError as error:
        raise CourseError(str(error)) from None
    except cst.ParserSyntaxError as error:
        raise CourseError(f"line {error.raw_line}: {error.message}") from None


def code(node: cst.CSTNode) -> str:
    """The text of a node, outermost blanks included."""
    return cst.Module([]).code_for_node(node)


def statements(body: cst.BaseSuite) -> list[cst.BaseStatement]:
    """The statements of a block, or of what stands behind a colon on its line."""
    if isinstance(body, cst.IndentedBlock):
        return list(body.body)
    assert isinstance(body, cst.SimpleStatementSuite)
    smalls = (s.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for s in body.body)
    return [cst.SimpleStatementLine([small]) for small in smalls]


def docstring(body: Iterable[cst.BaseStatement]) -> cst.SimpleStatementLine | None:
    """The first statement, if it is a string."""
    first = next(iter(body), None)
    if not isinstance(first, cst.SimpleStatementLine) or not isinstance(first.body[0], cst.Expr):
        return None
    string = isinstance(first.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    return first if string else None


def names_defined(statement: cst.BaseStatement) -> list[str]:
    """What a function, a class or an assignment to plain names defines."""
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return [statement.name.value]
    found = []
    for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
        targets: list[cst.BaseExpression] = []
        if isinstance(small, cst.Assign):
            targets = [target.target for target in small.targets]
        elif isinstance(small, cst.AnnAssign):
            targets = [small.target]
        for target in targets:
            parts = (
                [e.value for e in target.elements] if isinstance(target, cst.Tuple) else [target]
            )
            found += [part.value for part in parts if isinstance(part, cst.Name)]
    return found


def is_import(statement: cst.BaseStatement) -> TypeGuard[cst.SimpleStatementLine]:
    """Does a line import, and nothing else?"""
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Import | cst.ImportFrom) for small in statement.body
    )


def is_future(statement: cst.BaseStatement) -> bool:
    """``from __future__ import …``."""
    if not is_import(statement):
        return False
    first = statement.body[0]
    return isinstance(first, cst.ImportFrom) and origin(first) == "__future__"


def is_type_checking(statement: cst.BaseStatement) -> TypeGuard[cst.If]:
    """``if TYPE_CHECKING:``."""
    return isinstance(statement, cst.If) and code(statement.test).split(".")[-1] == "TYPE_CHECKING"


def origin(node: cst.ImportFrom) -> str:
    """The module that names are imported from, leading dots included."""
    return "." * len(node.relative) + (code(node.module) if node.module is not None else "")


def aliases(node: Import) -> list[cst.ImportAlias]:
    """What is imported, one by one; nothing for ``*``."""
    return [] if isinstance(node.names, cst.ImportStar) else list(node.names)


def bound_name(alias: cst.ImportAlias) -> str:
    """The name that an import gives to its module: ``F`` of ``torch.nn.functional as F``, ``a`` of
    ``a.b``."""
    if alias.asname is not None:
        return code(alias.asname.name).strip()
    return code(alias.name).split(".")[0]


def plain(alias: cst.ImportAlias) -> str:
    """An alias without its comma: ``a.b as c``."""
    return code(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip()


def with_aliases(node: Import, names: Sequence[cst.ImportAlias]) -> Import:
    """The import, of these names; one that has as many is as it was."""
    if len(names) == len(aliases(node)):
        return node
    head = f"from {origin(node)} import " if isinstance(node, cst.ImportFrom) else "import "
    text = head + ", ".join(map(plain, names))
    if len(text) > LINE_LENGTH:
        text = f"{head}(\n" + "".join(f"{' ' * INDENT}{plain(a)},\n" for a in names) + ")"
    (line,) = cst.parse_module(text).body
    assert isinstance(line, cst.SimpleStatementLine)
    (small,) = line.body
    assert isinstance(small, Import)
    return small


def names_used(node: cst.CSTNode) -> set[str]:
    """Names that an import could have given: those of attributes and keywords are left out, and so
    are the imports themselves; those in a quoted annotation are not."""
    found = _Names()
    node.visit(found)
    return found.names


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Annotation(self, node: cst.Annotation) -> None:
        for text in _strings(node):
            self.names.update(_WORD.findall(text))

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


def _strings(node: cst.CSTNode) -> list[str]:
    found = [node.value] if isinstance(node, cst.SimpleString) else []
    return found + [text for child in node.children for text in _strings(child)]


def edited(
    body: Iterable[cst.BaseStatement], change: Callable[[Statement], Statement | None]
) -> list[cst.BaseStatement]:
    """The statements that are left of a body; ``change`` gives None for one that goes.

    The heading of a section goes with the last statement of its section, and the blank line
    before a group of imports with the last of the group.
    """
    left: list[cst.BaseStatement] = []
    orphans: list[cst.EmptyLine] = []
    for statement in body:
        assert isinstance(statement, Statement)
        lines = list(statement.leading_lines)
        if any(map(_is_section, lines)):
            orphans = []
        changed = change(statement)
        if changed is None:
            headings = [i for i, line in enumerate(lines) if _is_section(line)]
            blanks = [i for i, line in enumerate(lines) if line.comment is None]
            if headings:
                orphans = lines[: headings[0] + 1]
            elif not orphans and 0 in blanks:
                orphans = lines[:1]
            continue
        if any(map(_is_section, orphans)):
            lines = [*orphans, *_without_blanks(lines)]
        elif orphans and (not lines or lines[0].comment is not None):
            lines = [*orphans, *lines]
        left.append(changed.with_changes(leading_lines=lines) if orphans else changed)
        orphans = []
    return left


def _without_blanks(lines: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    first = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
    return lines[first:]


def _is_section(line: cst.EmptyLine) -> bool:
    return line.comment is not None and _SECTION.match(line.comment.value) is not None


def definitions(module: cst.Module) -> dict[str, cst.BaseStatement]:
    """Symbol -> what defines it: functions, classes, their members and assigned names."""
    found: dict[str, cst.BaseStatement] = {}
    for statement in module.body:
        found |= dict.fromkeys(names_defined(statement), statement)
        if isinstance(statement, cst.ClassDef):
            for inner in statements(statement.body):
                names = [f"{statement.name.value}.{name}" for name in names_defined(inner)]
                found |= dict.fromkeys(names, inner)
    return found


def identifiers(node: cst.CSTNode) -> tuple[set[str], set[str]]:
    """The names that are read or written in statements, and the attributes."""
    tree = list(ast.walk(ast.parse(code(node))))
    names = {inner.id for inner in tree if isinstance(inner, ast.Name)}
    return names, {inner.attr for inner in tree if isinstance(inner, ast.Attribute)}


def names_imported(module: cst.Module) -> set[str]:
    """Names that imports bind, wherever these stand."""
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(ast.parse(module.code))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


# --------------------------------------------------------------------------- functions
def head(node: cst.FunctionDef | cst.ClassDef) -> str:
    """Decorators and signature, or decorators and bases, without the body."""
    bare = node.with_changes(
        body=cst.SimpleStatementSuite([cst.Expr(cst.Ellipsis())]), leading_lines=[]
    )
    return code(bare).strip().removesuffix("...").rstrip()


def body_without_docstring(function: cst.FunctionDef) -> list[cst.BaseStatement]:
    """The statements that do something."""
    body = statements(function.body)
    doc = docstring(body)
    if doc is None:
        return body
    rest = [doc.with_changes(body=doc.body[1:], leading_lines=[])] if len(doc.body) > 1 else []
    return [*rest, *body[1:]]


def with_body(target: cst.FunctionDef, source: cst.FunctionDef) -> cst.FunctionDef:
    """``target`` with the body of ``source``, comments included; the docstring is the target's if
    it has one."""
    own = docstring(statements(target.body))
    theirs = docstring(statements(source.body))
    doc = own or theirs
    whole = body_without_docstring(source)
    if doc is not None:
        doc = doc.with_changes(body=doc.body[:1])
        whole.insert(0, doc if theirs is None else with_comments(doc, theirs))
    if isinstance(source.body, cst.IndentedBlock):
        return target.with_changes(body=source.body.with_changes(body=whole))
    # It stood behind the colon: its comment, if any, goes with its last statement.
    assert isinstance(source.body, cst.SimpleStatementSuite)
    last = whole[-1].with_changes(trailing_whitespace=source.body.trailing_whitespace)
    return target.with_changes(body=cst.IndentedBlock([*whole[:-1], last]))


def comments(node: cst.CSTNode) -> list[str]:
    """The comments in a node, in order."""
    found = [node.value] if isinstance(node, cst.Comment) else []
    return found + [text for child in node.children for text in comments(child)]


def comments_within(body: Iterable[cst.BaseStatement]) -> list[str]:
    """The comments in statements, but for those above one of them."""
    bare = (statement.with_changes(leading_lines=[]) for statement in body)
    return [text for statement in bare for text in comments(statement)]


def with_comments(statement: _T, other: cst.BaseStatement) -> _T:
    """The statement, with the comments that stand above another one and not above it."""
    mine = list(getattr(statement, "leading_lines", ()))
    known = {line.comment.value for line in mine if line.comment is not None}
    more = [
        line
        for line in getattr(other, "leading_lines", ())
        if line.comment is not None and line.comment.value not in known
    ]
    return statement.with_changes(leading_lines=[*mine, *more]) if more else statement
