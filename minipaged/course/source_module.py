"""A student's file as a module: run from its text, under a name of our own."""

from __future__ import annotations

import linecache
import sys
from types import CodeType, ModuleType


def code_of(path: str, text: str) -> CodeType:
    """A source as code. Tracebacks show the lines of ``text``, whatever is in the file by then.

    Raises:
        SyntaxError: it is no Python.
    """
    remember(path, text)
    return compile(text, path, "exec", dont_inherit=True)


def remember(path: str, text: str) -> None:
    """Whoever asks for the lines of ``path`` from now on is given those of ``text``: tracebacks
    do, and Triton does, for a kernel. The file need not be readable, or there."""
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)


def run_as_module(name: str, path: str, text: str) -> ModuleType:
    """Run a source as the module ``name``.

    Not by importlib, whose cached bytecode overlooks an edit within the same second. The module
    stays in ``sys.modules``, where pickle and dataclasses look it up, unless running it fails.

    Raises:
        BaseException: whatever the source raises.
    """
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    try:
        exec(code_of(path, text), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
