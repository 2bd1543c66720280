"""The course on top of the engine: skeletons, a student's parts, the judge and the score card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minipaged.course.student_parts import load_parts as load_parts

__all__ = ["load_parts"]


def __getattr__(name: str) -> Any:
    # Loaded when it is first asked for: the judge's workers import little.
    if name != "load_parts":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minipaged.course.student_parts import load_parts

    return load_parts
