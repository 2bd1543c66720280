"""A Python process that neither the user's environment nor the working directory reaches, and
that runs this very package: one virtual environment may serve several checkouts."""

from __future__ import annotations

import sys
from pathlib import Path

import minipaged

_START = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of this package."""
    package = Path(minipaged.__file__).resolve().parent
    return [sys.executable, "-I", "-c", _START, str(package.parent), module, *arguments]
