"""What a graded test may ask for by name: ``parts.BlockAllocator``, ``parts.write_kv``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipaged.course.catalog import Course, Part, Stage, defined_symbols

Resolve = Callable[[Part, str, bool], Any]
"""(part, symbol, does the part belong to the graded stage?) -> the object"""


def homes(course: Course) -> dict[str, tuple[Stage, Part]]:
    """Public name at the top of a part's module -> where it belongs. Read, never imported."""
    found = {}
    for stage, part in course.parts.values():
        text = (course.root / part.source).read_text(encoding="utf-8")
        for symbol in defined_symbols(text):
            if "." not in symbol and not symbol.startswith("_"):
                found[symbol] = (stage, part)
    return found


class PartsNamespace:
    """The implementation under test. Symbols of the graded stage come from the submission, those
    of every other stage from the reference."""

    def __init__(
        self, stage: Stage, known: dict[str, tuple[Stage, Part]], resolve: Resolve
    ) -> None:
        self._stage, self._known, self._resolve = stage, known, resolve

    def __getattr__(self, name: str) -> Any:
        if name not in self._known:
            raise AttributeError(f"no part has a public {name!r}: {', '.join(sorted(self._known))}")
        _, part = self._known[name]
        return self._resolve(part, name, part in self._stage.parts)
