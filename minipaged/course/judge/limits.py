"""What a submission may use."""

from __future__ import annotations

from dataclasses import dataclass

from minipaged.course.catalog import Checkpoint, Stage


@dataclass(frozen=True)
class Limits:
    """All of them are far above what an honest answer needs.

    Attributes:
        cpu_seconds: of one test; an endless loop ends here, however busy the machine is.
        call_seconds: by the clock, of one call; for code that waits.
        memory: bytes, beyond what a worker starts with.
        disk: bytes that it may write.
        files: that it may hold open.
        processes: and threads that it may start.
        output: bytes of what it prints that are kept.
        answer: bytes of one answer.
        tick: seconds between two looks of the watchdog.
    """

    cpu_seconds: int = 4
    call_seconds: float = 20.0
    memory: int = 1 << 30
    disk: int = 16 << 20
    files: int = 256
    processes: int = 64
    output: int = 64 << 10
    answer: int = 64 << 20
    tick: float = 0.1

    @classmethod
    def of(cls, stage: Stage) -> Limits:
        """For the graded tests of a stage: kernels are interpreted, which takes its time, or
        compiled; a checkpoint interprets those of every layer and step."""
        if not stage.triton:
            return cls()
        return cls(cpu_seconds=60 if isinstance(stage, Checkpoint) else 15, call_seconds=90.0)


def in_words(size: int) -> str:
    """``1 GiB``, ``64 KiB``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
