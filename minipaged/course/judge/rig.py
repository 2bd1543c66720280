"""What a graded test stands on, whichever process the submission lives in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minipaged.course.catalog import Course, Stage
from minipaged.course.judge.auditing import Compile


@dataclass(frozen=True)
class Rig:
    """One test's implementation under test.

    Attributes:
        parts: its public names, as ``parts.BlockAllocator(3)``.
        lab: makes and reads tensors, as :class:`minipaged.course.judge.lab.Lab`.
        trace: the submission's file of a counterexample; None if it is on no disk.
        compile: makes PTX of its kernels.
    """

    parts: Any
    lab: Any
    trace: Path | None
    compile: Compile


OpenRig = Callable[[Course, Stage, str], AbstractContextManager[Rig]]
"""(course, stage, what ``--impl`` says) -> a rig for one test"""
