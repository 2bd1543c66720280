"""Which loads of a kernel read the KV cache, told from its source.

Names of local variables are free, so pointers are followed: what is computed from the parameter
``k_cache`` points into K, what is computed from ``v_cache`` into V, through assignments, loops,
branches and calls of helpers in the same file. What a load returns is a value, not a pointer.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from minipaged.audit.compiler import AuditError
from minipaged.audit.toolchain import Site

CACHES = ("k_cache", "v_cache")

Tensors = frozenset[str]
_NONE: Tensors = frozenset()
# A kernel is a page of code: more than this is no kernel, or meant to keep the reader busy.
_MAX_CALLS = 8
_MAX_STATEMENTS = 10_000


@dataclass(frozen=True)
class CacheLoad:
    """A call of ``tl.load`` on a pointer into the cache.

    Attributes:
        tensors: ``k_cache``, ``v_cache``, or both where one call reads either.
        calls: the load, then the call of the helper that it stands in, and so on out.
    """

    tensors: Tensors
    calls: tuple[ast.Call, ...]

    @property
    def line(self) -> int:
        """The line of the load, from 1."""
        return self.calls[0].lineno

    def matches(self, site: Site) -> bool:
        """Can this load be at ``site``?"""
        return len(site) == len(self.calls) and all(
            (call.lineno, call.col_offset)
            <= (at.line, at.column)
            <= (call.end_lineno or 0, call.end_col_offset or 0)
            for call, at in zip(self.calls, site)
        )

    def is_exactly_at(self, site: Site) -> bool:
        """Triton gives a load the place of its last positional argument."""
        return len(site) == len(self.calls) and all(
            bool(call.args) and (call.args[-1].lineno, call.args[-1].col_offset)
            == (at.line, at.column)
            for call, at in zip(self.calls, site)
        )  # fmt: skip


def find_cache_loads(source: str, kernel: str) -> list[CacheLoad]:
    """The loads of a kernel that read K or V.

    Args:
        source: the text of its file.
        kernel: its name.

    Raises:
        AuditError: the file does not define the kernel, or does not parse, or is nested too
            deeply to follow.
    """
    try:
        return _find(ast.parse(source), kernel)
    except (SyntaxError, ValueError) as error:
        raise AuditError(f"the source of {kernel} does not parse: {error}") from error
    except RecursionError as error:
        raise AuditError(f"the source of {kernel} is nested too deeply") from error


def _find(tree: ast.Module, kernel: str) -> list[CacheLoad]:
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if kernel not in functions:
        raise AuditError(f"the source does not define {kernel}")
    parameters = {name: frozenset({name}) for name in CACHES}
    walk = _Walk(functions)
    walk.function(functions[kernel], parameters, ())
    return list(walk.found.values())


def load_at(site: Site, loads: Sequence[CacheLoad]) -> CacheLoad | None:
    """The load that an instruction from ``site`` belongs to; None: it reads something else."""
    exact = [load for load in loads if load.is_exactly_at(site)]
    inside = exact or [load for load in loads if load.matches(site)]
    # Of nested calls the innermost: it starts last.
    return max(
        inside,
        key=lambda load: [(call.lineno, call.col_offset) for call in load.calls],
        default=None,
    )


@dataclass
class _Walk:
    functions: dict[str, ast.FunctionDef]
    found: dict[tuple[ast.Call, ...], CacheLoad] = field(default_factory=dict)
    statements: int = 0

    def function(
        self, node: ast.FunctionDef, pointers: dict[str, Tensors], calls: tuple[ast.Call, ...]
    ) -> Tensors:
        """Walk a body whose parameters point into these tensors; what it returns points into."""
        return _Body(self, dict(pointers), calls).block(node.body)

    def load(self, call: ast.Call, tensors: Tensors, calls: tuple[ast.Call, ...]) -> None:
        key = (call, *calls)
        known = self.found[key].tensors if key in self.found else _NONE
        if tensors:
            self.found[key] = CacheLoad(known | tensors, key)


@dataclass
class _Body:
    walk: _Walk
    pointers: dict[str, Tensors]
    calls: tuple[ast.Call, ...]

    def block(self, statements: Sequence[ast.stmt]) -> Tensors:
        returned = _NONE
        for statement in statements:
            returned |= self.statement(statement)
        return returned

    def statement(self, node: ast.stmt) -> Tensors:
        self.walk.statements += 1
        if self.walk.statements > _MAX_STATEMENTS:
            raise AuditError("a kernel's loops and helpers are too many to follow")
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self.pointers[name] = self.pointers.get(name, _NONE) | self.of(value)
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                self.bind(target, self.of(iterated))
                return self.repeated(body) | self.block(orelse)
            case ast.While(test=test, body=body):
                self.of(test)
                return self.repeated(body)
            case ast.If(test=test, body=body, orelse=orelse):
                self.of(test)
                before = dict(self.pointers)
                returned = self.block(body)
                after, self.pointers = self.pointers, before
                returned |= self.block(orelse)
                self.merge(after)
                return returned
            case ast.With(body=body):
                return self.block(body)
            case ast.Return(value=ast.expr() as value):
                return self.of(value)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.of(child)
        return _NONE

    def repeated(self, body: Sequence[ast.stmt]) -> Tensors:
        # A variable of the loop may take a turn to reach the next, and none may run.
        before = dict(self.pointers)
        returned = _NONE
        for _ in range(2):
            returned |= self.block(body)
            self.merge(before)
        return returned

    def merge(self, other: dict[str, Tensors]) -> None:
        for name, tensors in other.items():
            self.pointers[name] = self.pointers.get(name, _NONE) | tensors

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            for name, tensors in [(t, self.of(v)) for t, v in zip(target.elts, value.elts)]:
                self.bind(name, tensors)
        else:
            self.bind(target, self.of(value))

    def bind(self, target: ast.expr, tensors: Tensors) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.pointers[node.id] = tensors

    def of(self, node: ast.expr) -> Tensors:
        """What the value of an expression points into; records the loads in it."""
        match node:
            case ast.Name(id=name):
                return self.pointers.get(name, _NONE)
            case ast.Call():
                return self.call(node)
            case ast.Compare():
                self.children(node)
                return _NONE
            case _:
                return self.children(node)

    def children(self, node: ast.AST) -> Tensors:
        found = _NONE
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                found |= self.of(child)
            elif isinstance(child, ast.keyword):
                found |= self.of(child.value)
        return found

    def call(self, node: ast.Call) -> Tensors:
        if isinstance(node.func, ast.Name) and node.func.id in self.walk.functions:
            return self.helper(node, self.walk.functions[node.func.id])
        named = {keyword.arg: self.of(keyword.value) for keyword in node.keywords}
        arguments = [self.of(argument) for argument in node.args]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "load":
            # tl.load(pointer), or descriptor.load(offsets)
            pointer = self.of(node.func.value) or named.get("pointer", _NONE)
            self.walk.load(node, pointer.union(*arguments[:1]), self.calls)
            return _NONE
        if isinstance(node.func, ast.Attribute) and node.func.attr.startswith("atomic_"):
            return _NONE
        return self.of(node.func).union(*named.values(), *arguments)

    def helper(self, node: ast.Call, function: ast.FunctionDef) -> Tensors:
        if len(self.calls) >= _MAX_CALLS:
            raise AuditError(f"helpers of a kernel call each other {_MAX_CALLS} deep")
        parameters = [argument.arg for argument in function.args.args]
        given = dict(zip(parameters, map(self.of, node.args)))
        given |= {k.arg: self.of(k.value) for k in node.keywords if k.arg is not None}
        return self.walk.function(function, given, (node, *self.calls))
