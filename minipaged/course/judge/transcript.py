"""What a test has done so far, as lines that can be pasted into a Python prompt."""

from __future__ import annotations

import re
from collections import Counter, deque
from typing import Any

import numpy as np

#: Calls that are shown: the last ones.
_CALLS = 12

#: Objects whose making is always shown: the first ones.
_MADE = 6

#: Characters of a line: two on a terminal, or so; more for what a test gives to a submission.
_LINE = 200
_GIVEN = 500

#: Whole numbers of an array that are shown one by one.
_NUMBERS = 32

#: What a value is when it is not an object of the submission.
_PLAIN = (bool, int, float, str, list, tuple, set, dict, type(None))


class Transcript:
    """Calls and what they gave, with a name for each object that a test has made."""

    def __init__(self) -> None:
        self._made: list[str] = []
        self._calls: deque[str] = deque(maxlen=_CALLS)
        self._count = 0
        self._names: Counter[str] = Counter()

    def name_for(self, kind: str) -> str:
        """``block_allocator`` for the first BlockAllocator, ``block_allocator_2`` for the next."""
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
        name = name if name.isidentifier() else "x"
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"

    def begin(self, line: str) -> None:
        """Forget what was done so far: this line says it all."""
        self._made = [line]
        self._calls.clear()
        self._count = 0
        self._names.clear()

    def rename(self, old: str, new: str) -> None:
        """An object that came to be under one name has another."""
        for i, line in enumerate(self._made):
            self._made[i] = _renamed(line, old, new)
        for i, line in enumerate(self._calls):
            self._calls[i] = _renamed(line, old, new)

    def made(self, line: str) -> None:
        """An object came to be."""
        if len(self._made) < _MADE:
            self._made.append(cut(line, _GIVEN))
        else:
            self.called(line)

    def called(self, line: str) -> None:
        """Something was called or set."""
        self._count += 1
        self._calls.append(cut(line, _LINE))

    def __str__(self) -> str:
        skipped = self._count - len(self._calls)
        gap = [f"… {skipped} calls before" if skipped > 1 else "… 1 call before"] if skipped else []
        return "\n".join([*self._made, *gap, *self._calls])


def _renamed(line: str, old: str, new: str) -> str:
    return f"{new} = {line.removeprefix(f'{old} = ')}" if line.startswith(f"{old} = ") else line


def cut(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shown(value: Any) -> str:
    """A value as an argument or a result."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "i" and value.size <= _NUMBERS:
            return str(value.tolist())
        return f"array{list(value.shape)} {value.dtype}"
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, list) and len(value) > 1 and not isinstance(value[0], _PLAIN):
        first, *others = map(repr, value)
        if set(others) == {first}:
            return f"[{first}, {len(value)} times]"  # objects that have no name of their own
    return cut(repr(value), 80)


def call_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """``name(1, b=2)``."""
    inside = [shown(x) for x in args] + [f"{key}={shown(x)}" for key, x in kwargs.items()]
    return f"{name}({', '.join(inside)})"
