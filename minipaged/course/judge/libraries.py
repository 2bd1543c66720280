"""What a warm parent loads for its workers: as much as the graded stage needs, and no more."""

from __future__ import annotations

import importlib
import importlib.util
from enum import StrEnum

from minipaged.course.catalog import Stage
from minipaged.errors import CourseError

_TORCH = ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention")

#: Of the largest error of a sum that the interpreter may make, relative to the sum.
_TOLERANCE = 1e-4


class Libraries(StrEnum):
    """What is loaded beyond numpy.

    A process that has imported Triton interprets kernels for good, or compiles them for good: so
    there are two kinds that have it.
    """

    NUMPY = "numpy"
    TORCH = "torch"
    INTERPRETER = "interpreter"
    COMPILER = "compiler"

    @classmethod
    def of(cls, stage: Stage) -> Libraries:
        """What the graded tests of a stage run on."""
        if stage.triton:
            return cls.INTERPRETER
        return cls.TORCH if stage.torch else cls.NUMPY

    @property
    def torch(self) -> bool:
        return self is not Libraries.NUMPY

    @property
    def triton(self) -> bool:
        return self in (Libraries.INTERPRETER, Libraries.COMPILER)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that loads them."""
        return {"TRITON_INTERPRET": "1"} if self is Libraries.INTERPRETER else {}

    def load(self) -> None:
        """Import them, and what they leave for their first use."""
        if not self.torch:
            return
        for name in _TORCH:
            importlib.import_module(name)
        _warm_torch()
        if self.triton:
            importlib.import_module("triton.language")
        if self is Libraries.COMPILER:
            importlib.import_module("triton.backends.nvidia.compiler")
            _warm_meta()


def missing_triton(stage: Stage) -> str:
    """Why a stage cannot be graded here, in a sentence; empty if it can."""
    if not stage.triton or importlib.util.find_spec("triton") is not None:
        return ""
    return (
        f"{stage.label} needs Triton, which there is for Linux alone: grade it there, a virtual "
        "machine or WSL will do"
    )


def check_interpreter() -> None:
    """Run a kernel whose results are known, before any kernel is graded.

    Raises:
        CourseError: it gives other results.
    """
    import numpy as np

    self_test = importlib.import_module("minipaged.kernels.self_test")
    got, expected = self_test.run("cpu")
    wrong = ~np.isclose(got, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise CourseError(
            "no kernel is graded here, because Triton's interpreter gives wrong values on this "
            f"machine: {wrong.sum()} of {wrong.size} sums of the self-test, row {row} is "
            f"{got[row]:g} and should be {expected[row]:g}; `minipaged doctor` says what to install"
        )


def _warm_meta() -> None:
    """Tensors without memory, which kernels are compiled for: what torch knows of them is loaded
    when the first is made like another."""
    import torch

    torch.empty_like(torch.empty(1, device="meta"))


def _warm_torch() -> None:
    import numpy as np
    import torch

    torch.set_num_threads(1)
    values = torch.ones(2, 2)
    torch.nn.functional.softmax(values @ values, dim=-1)[np.newaxis]
