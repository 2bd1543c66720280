"""What a part must offer: the reference's public functions and methods, with its signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any

_METHODS = (property, classmethod, staticmethod)


def differences(reference: ModuleType, other: ModuleType) -> list[str]:
    """Where ``other`` offers something else: two lines for each symbol, the reference's first.

    Names, kinds and defaults of parameters count, annotations do not. What is offered beyond the
    reference's does not matter.
    """
    found = []
    for symbol in _public(reference):
        want, got = _describe(reference, symbol), _describe(other, symbol)
        if got is None:
            got = "there is none"
        if got != want:
            found += [f"  the engine's  {want}", f"  yours         {got}"]
    return found


def _public(module: ModuleType) -> Iterator[str]:
    """Functions and methods that the module defines, ``__init__`` among them."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(_python(value), "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            for member, inside in vars(value).items():
                public = member == "__init__" or not member.startswith("_")
                if public and (callable(inside) or isinstance(inside, _METHODS)):
                    yield f"{name}.{member}"
        elif callable(value):
            yield name


def _python(value: Any) -> Any:
    """The function that Triton made a kernel of, compiled or interpreted; anything else as it
    is. Not asked of Triton, which need not be here."""
    if type(value).__module__.startswith("triton."):
        return getattr(value, "fn", value)
    return value


def _describe(module: ModuleType, symbol: str) -> str | None:
    """``BlockTable.slot(self, token)``; None where there is no such thing."""
    owner: Any = module
    *path, name = symbol.split(".")
    for step in path:
        owner = getattr(owner, step, None)
    value = inspect.getattr_static(owner, name, None)
    if value is None or value is inspect.getattr_static(object, name, None):
        return None
    if isinstance(value, property):
        return f"{symbol}, a property"
    kind = ""
    if (kernel := _python(value)) is not value:
        kind, value = "@triton.jit ", kernel
    if isinstance(value, classmethod | staticmethod):
        kind, value = f"@{type(value).__name__} ", value.__func__
    if not callable(value):
        return f"{symbol}, no function but {value!r}"
    return f"{kind}{symbol}{_without_annotations(value)}"


def _without_annotations(function: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C
        return "(…)"
    parameters = [p.replace(annotation=Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=Signature.empty))
