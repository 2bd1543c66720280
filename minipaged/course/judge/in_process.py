"""Graded tests on a submission in the tests' own process: for debugging, with a debugger if need
be. It trusts the submission; no score comes from here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from types import ModuleType
from typing import Any

import pytest

from minipaged.course.catalog import Checkpoint, Course, Part, Stage
from minipaged.course.device import compiles_for_device
from minipaged.course.judge.compiling import compile_apart
from minipaged.course.judge.lab import Lab
from minipaged.course.judge.libraries import missing_triton
from minipaged.course.judge.namespace import PartsNamespace, homes
from minipaged.course.judge.rig import Rig
from minipaged.course.judge.stand_in import StandIns
from minipaged.course.source_module import run_as_module
from minipaged.course.submission import PartFile, foundations, read_submission, trace_path
from minipaged.errors import CourseError


@contextmanager
def in_process(course: Course, stage: Stage, impl: str) -> Iterator[Rig]:
    """A rig whose parts are loaded afresh, and forgotten afterwards."""
    if (missing := missing_triton(stage)) != "":
        pytest.skip(missing)
    submission = read_submission(course, stage, impl)
    stands_on_closed = stage.trace_is_sent_in or isinstance(stage, Checkpoint)
    if impl == "ref" and course.closed_parts and stands_on_closed:
        pytest.skip("there is no reference of it in this copy of the course")
    own = StandIns(foundations(course, stage, submission))
    files = submission.files
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

    def compiled(
        part: Part, function: str, arguments: Mapping[str, Any], arch: str, version: int
    ) -> tuple[list[dict[str, Any]], str]:
        file = files[part.name]
        source = file.source or ""
        call = function, arguments, arch, version
        return compile_apart(part.name, str(file.path), source, *call), source

    sys.meta_path.insert(0, own)
    try:
        parts = PartsNamespace(stage, homes(course), resolve)
        yield Rig(parts, _Lab(_device(stage)), trace_path(course, submission), compiled)
    finally:
        sys.meta_path.remove(own)
        for module in modules.values():
            sys.modules.pop(module.__name__, None)


class _Lab(Lab):
    """Where kernels are compiled, nobody counts what they load."""

    def traffic(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> dict[str, dict[str, int]]:
        if self.device != "cpu":
            pytest.skip("bytes are counted in Triton's interpreter: set TRITON_INTERPRET=1")
        return super().traffic(function, *args, **kwargs)


def _device(stage: Stage) -> str:
    """Where tensors live: on the GPU where kernels are compiled for it."""
    return "cuda" if stage.triton and compiles_for_device() else "cpu"


def _load(file: PartFile) -> ModuleType:
    if file.source is None:
        raise CourseError(f"there is no {file.path}: `minipaged sync` writes it")
    if file.error:
        raise CourseError(f"{file.path} cannot be loaded: {file.error}")
    name = next(
        name for i in count() if (name := f"submission_{i}_{file.part.name}") not in sys.modules
    )
    return run_as_module(name, str(file.path), file.source)
