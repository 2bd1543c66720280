"""Graded tests on a submission in the tests' own process: for debugging, with a debugger if need
be. It trusts the submission; no score comes from here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import ModuleType
from typing import Any

from minipaged.course.catalog import Course, Part, Stage
from minipaged.course.judge.lab import Lab
from minipaged.course.judge.namespace import PartsNamespace, homes
from minipaged.course.judge.rig import COUNTEREXAMPLE, Rig
from minipaged.course.submission import PartFile, impl_folder, read_submission
from minipaged.errors import CourseError


@contextmanager
def in_process(course: Course, stage: Stage, impl: str) -> Iterator[Rig]:
    """A rig whose parts are loaded afresh, and forgotten afterwards."""
    files = read_submission(course, stage, impl).files
    modules: dict[str, ModuleType] = {}

    def resolve(part: Part, symbol: str, graded: bool) -> Any:
        if not graded or impl == "ref":
            return getattr(importlib.import_module(part.module), symbol)
        if part.name not in modules:
            modules[part.name] = _load(files[part.name])
        module = modules[part.name]
        if not hasattr(module, symbol):
            raise CourseError(f"{files[part.name].path} has no {symbol}")
        return getattr(module, symbol)

    try:
        folder = impl_folder(course, "solutions" if impl == "ref" else impl)
        trace = folder / stage.folder / COUNTEREXAMPLE if folder else None
        yield Rig(PartsNamespace(stage, homes(course), resolve), Lab(), trace)
    finally:
        for module in modules.values():
            sys.modules.pop(module.__name__, None)


def _load(file: PartFile) -> ModuleType:
    if file.source is None:
        raise CourseError(f"there is no {file.path}: `minipaged sync` writes it")
    if file.error:
        raise CourseError(f"{file.path} cannot be loaded: {file.error}")
    # Dataclasses and pickles look their module up by its name.
    name = next(
        name for i in count() if (name := f"submission_{i}_{file.part.name}") not in sys.modules
    )
    module = ModuleType(name)
    module.__file__ = str(file.path)
    sys.modules[name] = module
    exec(compile(file.source, str(file.path), "exec"), module.__dict__)
    return module
