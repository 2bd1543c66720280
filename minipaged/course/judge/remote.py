"""An exception of the submission, as the judge tells of it and raises it."""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from typing import Any

from minipaged import errors
from minipaged.course.judge.wire import WireError

_KNOWN = {"builtins": vars(builtins), "minipaged.errors": vars(errors)}


class RemoteError(Exception):
    """An exception of a class that is neither built in nor of :mod:`minipaged.errors`."""


@dataclass(frozen=True)
class Fault:
    """What a worker says of an exception. It may be forged: it is shown, and never believed.

    Attributes:
        classes: full names, from its own to ``object``.
        message: its text.
        frames: (file, line, function, code) in the submission, the innermost last.
    """

    classes: tuple[str, ...]
    message: str
    frames: tuple[tuple[str, int, str, str], ...]

    @classmethod
    def read(cls, answer: Any) -> Fault:
        """
        Raises:
            WireError: it is none.
        """
        try:
            frames = tuple(
                (printable(file, 200), int(line), printable(name, 100), printable(code, 200))
                for file, line, name, code in answer["frames"][:10]
            )
            classes = tuple(printable(name, 200) for name in answer["classes"][:50])
            return cls(classes, printable(answer["message"], 4000), frames)
        except (KeyError, TypeError, ValueError):
            raise WireError("not an error") from None

    @property
    def name(self) -> str:
        """Of the class, alone. A worker that cannot send an answer says so without a class."""
        if not self.classes:
            return "the grader cannot read the answer"
        return self.classes[0].rpartition(".")[2] or "an error"

    @property
    def summary(self) -> str:
        """``TypeError: what it says``."""
        return f"{self.name}: {self.message}" if self.message else self.name

    def __str__(self) -> str:
        """The summary, the place, and the submission's frames; not the judge's."""
        if not self.frames:
            return self.summary
        first, newline, rest = self.summary.partition("\n")
        file, line, function, _ = self.frames[-1]
        lines = [f"{first} ({file}, line {line}, in {function}){newline}{rest}"]
        for file, line, function, code in self.frames:
            lines += [f"    {file}, line {line}, in {function}", f"        {code}"]
        return "\n".join(lines)

    def exception(self) -> Exception:
        """The exception to raise: of the nearest class of its own that the judge knows too."""
        for name in self.classes:
            module, _, short = name.rpartition(".")
            kind = _KNOWN.get(module, {}).get(short)
            if kind in (Exception, BaseException):
                break
            if isinstance(kind, type) and issubclass(kind, Exception):
                if issubclass(kind, StopIteration | StopAsyncIteration):
                    break  # it would end a loop of the test in silence
                try:
                    # Without __init__, which in some classes wants other arguments.
                    error: Exception = kind.__new__(kind, self.message)
                except TypeError:
                    break
                if str(error):
                    return error
                return error if not self.message else RemoteError(self.summary)
        return RemoteError(self.summary)


def printable(text: Any, limit: int) -> str:
    """A string that a terminal and an XML file can take, cut at a limit.

    Raises:
        TypeError: not a string.
    """
    if type(text) is not str:
        raise TypeError(f"not a string: {type(text).__name__}")
    cut = text if len(text) <= limit else text[:limit] + "…"
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", cut)
