"""A student's work, carried into a newer skeleton symbol by symbol.

It is a merge of three texts: the skeleton that the student was given (``base``), what became of it
(``mine``) and the skeleton of today (``new``). Docstrings and signatures are the new ones, bodies
the student's, and whatever the student added comes along. Nothing that the student wrote is lost;
where that cannot be decided without a person, it is listed.
"""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import libcst as cst

from minipaged.course import syntax
from minipaged.course.stubs import is_stub
from minipaged.course.syntax import code, head, names_defined, statements, with_body, with_comments

Key = tuple[str, ...]
_Def = TypeVar("_Def", cst.FunctionDef, cst.ClassDef)


@dataclass(frozen=True)
class Conflict:
    """Something for the student to look at.

    Attributes:
        symbol: what it is about.
        what: what happened to it, in a sentence.
        before, after: the student's text and the new one; empty where there is nothing to show.
    """

    symbol: str
    what: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Transplant:
    """A new skeleton with the student's work in it.

    Attributes:
        carried: the symbols and imports that are the student's.
    """

    text: str
    carried: tuple[str, ...]
    conflicts: tuple[Conflict, ...]


def transplant(new: str, mine: str, base: str) -> Transplant:
    """Merge a student's file into a newer skeleton.

    Args:
        new: the skeleton of today.
        mine: the student's file.
        base: the skeleton that the student started from; empty where that is not known.

    Raises:
        CourseError: the student's file is no Python; the message says in which line.
    """
    trees = [syntax.module(text) for text in (new, mine, base)]
    wanted: set[str] = set()
    while True:  # what was carried may need more of what is gone from the new skeleton
        merge = _Merge(wanted)
        module = merge.modules(*trees)
        names, attributes = syntax.identifiers(module)
        more = (merge.gone & (names | attributes)) - wanted
        if not more:
            break
        wanted |= more
    return Transplant(module.code, tuple(merge.carried), tuple(merge.conflicts))


class _Merge:
    """One pass over the three trees.

    ``wanted`` are names that must not go though the new skeleton has them no more; ``gone``
    collects the others.
    """

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self.gone: set[str] = set()
        self.carried: list[str] = []
        self.conflicts: list[Conflict] = []

    def modules(self, new: cst.Module, mine: cst.Module, base: cst.Module) -> cst.Module:
        body = self.bodies(new.body, mine.body, base.body, "")
        header = _with_comment_lines(new.header, mine.header)
        footer = _with_comment_lines(new.footer, mine.footer)
        return new.with_changes(body=body, header=header, footer=footer)

    def bodies(
        self,
        new: Sequence[cst.BaseStatement],
        mine: Sequence[cst.BaseStatement],
        base: Sequence[cst.BaseStatement],
        owner: str,
    ) -> list[cst.BaseStatement]:
        """What the student added stands behind what it stood behind before."""
        upstream, given = dict(_keyed(new)), dict(_keyed(base))
        merged = list(upstream.items())
        at = 0
        for key, statement in _keyed(mine):
            known = given.get(key)
            if key in upstream:
                at = next(i for i, (other, _) in enumerate(merged) if other == key)
                merged[at] = (key, self.both(upstream[key], statement, known, owner))
                at += 1
                continue
            own = self.own(statement, known, new, owner)
            if own is not None:
                at = max(at, _first_free(merged))
                merged.insert(at, (key, own))
                at += 1
        return [statement for _, statement in merged]

    # ------------------------------------------------------------------ only the student has it
    def own(
        self,
        mine: cst.BaseStatement,
        base: cst.BaseStatement | None,
        new: Sequence[cst.BaseStatement],
        owner: str,
    ) -> cst.BaseStatement | None:
        """A statement that the new skeleton lacks, or None where nobody misses it."""
        untouched = base is not None and same_statement(mine, base)
        if syntax.is_import(mine):
            return self.imports(mine, new, untouched)
        names = [owner + name for name in names_defined(mine)]
        title = ", ".join(names) or _first_line(mine)
        if untouched or (isinstance(mine, cst.FunctionDef) and _is_stub(mine)):
            if not self.wanted.intersection(names_defined(mine)):
                self.gone.update(names_defined(mine))
                return None
            what = "is not in the new skeleton; it stays, since your code uses it"
            self.conflicts.append(Conflict(title, what))
        elif base is not None:
            what = "is not in the new skeleton any more; yours stays, as a helper of your own"
            self.conflicts.append(Conflict(title, what, _shown(mine)))
        self.carried.append(title)
        return mine

    def imports(
        self, mine: cst.SimpleStatementLine, new: Sequence[cst.BaseStatement], untouched: bool
    ) -> cst.SimpleStatementLine | None:
        """An import, without the names that the new skeleton imports as well."""
        there = {key for statement in new for key in _imported(statement)}
        smalls: list[cst.BaseSmallStatement] = []
        for small in mine.body:
            assert isinstance(small, syntax.Import)
            found = syntax.aliases(small)
            left = [a for a in found if (_origin(small), syntax.plain(a)) not in there]
            if untouched:
                self.gone.update(map(syntax.bound_name, left))
                left = [a for a in left if syntax.bound_name(a) in self.wanted]
            if not found and not untouched:  # from somewhere import *
                smalls.append(small)
            elif left:
                smalls.append(syntax.with_aliases(small, left))
        if not smalls:
            return None
        line = mine.with_changes(body=smalls)
        self.carried.append(code(line.with_changes(leading_lines=[])).strip())
        return line

    # ------------------------------------------------------------------ both have it
    def both(
        self,
        new: cst.BaseStatement,
        mine: cst.BaseStatement,
        base: cst.BaseStatement | None,
        owner: str,
    ) -> cst.BaseStatement:
        """A statement that the new skeleton has as well."""
        new = with_comments(new, mine)
        if _is_docstring(mine) or same_statement(new, mine):
            return new
        if syntax.is_import(new) and syntax.is_import(mine):
            untouched = base is not None and same_statement(mine, base)
            more = self.imports(mine, [new], untouched)
            return new if more is None else _joined(new, more)
        if isinstance(new, cst.FunctionDef) and isinstance(mine, cst.FunctionDef):
            known = base if isinstance(base, cst.FunctionDef) else None
            if known is not None or _is_stub(new):
                return self.functions(new, mine, known, owner)
        blocks = [_block(new), _block(mine)]
        if None not in blocks and type(new) is type(mine):
            return self.containers(new, mine, base, owner)
        if base is not None and same_statement(mine, base):
            return new
        title = ", ".join(owner + name for name in names_defined(mine)) or _first_line(mine)
        self.carried.append(title)
        if base is None or not same_statement(new, base):
            what = "is yours and is new in the skeleton too; yours stays"
            self.conflicts.append(Conflict(title, what, _shown(mine), _shown(new)))
        return mine

    def functions(
        self,
        new: cst.FunctionDef,
        mine: cst.FunctionDef,
        base: cst.FunctionDef | None,
        owner: str,
    ) -> cst.FunctionDef:
        symbol = owner + new.name.value
        if _is_stub(mine):
            return _with_notes(new, mine)
        if base is not None and _same_body(mine, base):
            return self.heads(new, mine, base, symbol, written=False)
        self.carried.append(symbol)
        if not _is_stub(new) and (base is None or not _same_body(new, base)):
            what = "was changed by you and in the skeleton; your body stays"
            self.conflicts.append(Conflict(symbol, what, _shown(mine), _shown(new)))
        return with_body(self.heads(new, mine, base, symbol, written=True), mine)

    def containers(
        self,
        new: cst.BaseStatement,
        mine: cst.BaseStatement,
        base: cst.BaseStatement | None,
        owner: str,
    ) -> cst.BaseStatement:
        """Classes, or ``if TYPE_CHECKING:``."""
        if isinstance(new, cst.ClassDef) and isinstance(mine, cst.ClassDef):
            symbol = owner + new.name.value
            known = base if isinstance(base, cst.ClassDef) else None
            new = self.heads(new, mine, known, symbol, written=True)
            owner = f"{symbol}."
        block, theirs = _block(new), _block(mine)
        given = _block(base) if base is not None else None
        assert block is not None
        assert theirs is not None
        body = self.bodies(block.body, theirs.body, given.body if given else [], owner)
        footer = _with_comment_lines(block.footer, theirs.footer)
        return new.with_changes(body=block.with_changes(body=body, footer=footer))

    def heads(
        self,
        new: _Def,
        mine: _Def,
        base: _Def | None,
        symbol: str,
        written: bool,
    ) -> _Def:
        """The new one under the signature that was changed by one side alone; the new one and a
        note if both sides did, or if a body that the student wrote was for another."""
        was, today = head(mine), head(new)
        if _same_text(was, today):
            return new
        if base is not None and _same_text(today, head(base)):
            return mine.with_changes(body=new.body, leading_lines=new.leading_lines)
        if written:
            what = "is declared in another way now: see whether your body fits it"
            self.conflicts.append(Conflict(symbol, what, was, today))
        return new


# ---------------------------------------------------------------------- questions to statements
def _keyed(body: Iterable[cst.BaseStatement]) -> list[tuple[Key, cst.BaseStatement]]:
    """Statements under what they are known by: definitions by name, others by their code; equal
    ones are counted."""
    found: list[tuple[Key, cst.BaseStatement]] = []
    counts: Counter[Key] = Counter()
    for i, statement in enumerate(body):
        key = _key(statement, first=i == 0)
        found.append(((*key, str(counts[key])), statement))
        counts[key] += 1
    return found


def _key(statement: cst.BaseStatement, first: bool) -> Key:
    if first and _is_docstring(statement):
        return ("docstring",)
    if names := names_defined(statement):
        return ("name", *names)
    if syntax.is_type_checking(statement):
        return ("if TYPE_CHECKING",)
    if (line := _from(statement)) is not None:
        return ("from", syntax.origin(line))
    return ("code", *_meaning([statement]))


def _meaning(body: Sequence[cst.BaseStatement]) -> list[str]:
    """What statements do and what the comments in them say, whatever their blanks."""
    return [ast.dump(ast.parse("".join(map(code, body)))), *syntax.comments_within(body)]


def same_statement(one: cst.BaseStatement, other: cst.BaseStatement) -> bool:
    """Do they do the same, and do their comments say it? Blanks do not matter."""
    return _meaning([one]) == _meaning([other])


def _same_body(one: cst.FunctionDef, other: cst.FunctionDef) -> bool:
    """Docstrings apart."""
    bodies = [
        (_meaning(syntax.body_without_docstring(f)), syntax.comments(f.body)) for f in (one, other)
    ]
    return bodies[0] == bodies[1]


def _same_text(one: str, other: str) -> bool:
    """Signatures, whatever their line breaks."""
    return ast.dump(ast.parse(f"{one} ...")) == ast.dump(ast.parse(f"{other} ..."))


def _is_docstring(statement: cst.BaseStatement) -> bool:
    return syntax.docstring([statement]) is not None


def _is_stub(function: cst.FunctionDef) -> bool:
    (node,) = ast.parse(code(function)).body
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_stub(node)


def _block(statement: cst.BaseStatement) -> cst.IndentedBlock | None:
    """The block of a class or of a plain ``if TYPE_CHECKING:``."""
    if isinstance(statement, cst.If) and statement.orelse is not None:
        return None
    if isinstance(statement, cst.ClassDef) or syntax.is_type_checking(statement):
        return statement.body if isinstance(statement.body, cst.IndentedBlock) else None
    return None


def _imported(statement: cst.BaseStatement) -> set[tuple[str, str]]:
    """Origin and alias of what a line imports."""
    if not syntax.is_import(statement):
        return set()
    return {
        (_origin(small), syntax.plain(alias))
        for small in statement.body
        if isinstance(small, syntax.Import)
        for alias in syntax.aliases(small)
    }


def _from(statement: cst.BaseStatement) -> cst.ImportFrom | None:
    """The one import of names that a line is, if it is."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    small = statement.body[0]
    named = isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar)
    return small if named and isinstance(small, cst.ImportFrom) else None


def _joined(new: cst.SimpleStatementLine, more: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    """Two imports from one module as one."""
    one, other = _from(new), _from(more)
    assert one is not None
    assert other is not None
    names = sorted([*syntax.aliases(one), *syntax.aliases(other)], key=_import_order)
    return new.with_changes(body=[syntax.with_aliases(one, names)])


def _import_order(alias: cst.ImportAlias) -> tuple[int, str]:
    """CONSTANTS, Classes, functions."""
    name = code(alias.name)
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


def _origin(node: syntax.Import) -> str:
    return syntax.origin(node) if isinstance(node, cst.ImportFrom) else ""


def _first_free(merged: Sequence[tuple[Key, cst.BaseStatement]]) -> int:
    """Where the first statement may stand: behind the docstring and the future."""
    heads = (key[0] == "docstring" or syntax.is_future(s) for key, s in merged)
    return len(list(takewhile(bool, heads)))


# ---------------------------------------------------------------------- comments and pictures
def _with_notes(new: cst.FunctionDef, mine: cst.FunctionDef) -> cst.FunctionDef:
    """A function that the student has not written, with the comments that stand in it."""
    known = syntax.comments(new.body)
    notes = [text for text in syntax.comments(mine.body) if text not in known]
    if not notes:
        return new
    body = statements(new.body)
    last = body[-1]
    assert isinstance(last, syntax.Statement)
    lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in notes]
    last = last.with_changes(leading_lines=[*last.leading_lines, *lines])
    return new.with_changes(body=new.body.with_changes(body=[*body[:-1], last]))


def _with_comment_lines(
    lines: Sequence[cst.EmptyLine], others: Sequence[cst.EmptyLine]
) -> list[cst.EmptyLine]:
    known = {line.comment.value for line in lines if line.comment is not None}
    more = (line for line in others if line.comment is not None)
    return [*lines, *(line for line in more if line.comment and line.comment.value not in known)]


def _shown(statement: cst.BaseStatement) -> str:
    return textwrap.dedent(code(statement)).strip("\n")


def _first_line(statement: cst.BaseStatement) -> str:
    return _shown(statement).splitlines()[0]
