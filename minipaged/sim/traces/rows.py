"""What all formats have in common: a row is a request, and a wrong one is named."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TextIO

from minipaged.errors import ConfigError, MinipagedError
from minipaged.sim.workloads import Piece

TOKENS = "a whole number of tokens, at least 1"


class TraceFormatError(MinipagedError):
    """A trace file is wrong; the message names file, line, field and value.

    Attributes:
        path, line: where; lines count from 1.
        field: what was read. value: what stands there. expected: what should.
    """

    def __init__(self, path: Path, line: int, field: str, value: object, expected: str) -> None:
        super().__init__(path, line, field, value, expected)
        self.path, self.line, self.field = path, line, field
        self.value, self.expected = value, expected

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 80:
            shown = f"{shown[:77]}..."
        return f"{self.path}:{self.line}: {self.field} is {shown}: expected {self.expected}"


class Row(NamedTuple):
    """A request as it stands in a file."""

    time: float | None
    """Seconds since any moment; None: the format has no times."""
    prompt_len: int
    output_len: int
    content: tuple[Piece, ...] = ()


class Place(NamedTuple):
    """A line of a file, for what is read there."""

    path: Path
    line: int

    def wrong(self, field: str, value: object, expected: str) -> TraceFormatError:
        return TraceFormatError(self.path, self.line, field, value, expected)

    def whole(self, field: str, value: object, least: int, expected: str) -> int:
        """A whole number, as JSON's or as text.

        Raises:
            TraceFormatError: it is none, or below ``least``.
        """
        if isinstance(value, str):
            number = int(value) if value.isdecimal() and value.isascii() else None
        else:
            number = value if isinstance(value, int) and not isinstance(value, bool) else None
        if number is None or number < least:
            raise self.wrong(field, value, expected)
        return number

    def finite(self, field: str, value: object, expected: str) -> float:
        """A finite number, as JSON's or as text.

        Raises:
            TraceFormatError: it is none.
        """
        number = math.nan
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                number = float(value)
        if not math.isfinite(number):
            raise self.wrong(field, value, expected)
        return number


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A file of UTF-8 text, with or without the mark that some programs begin it with.

    Raises:
        ConfigError: it cannot be read.
        TraceFormatError: it is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise _not_utf8(path) from None


def _not_utf8(path: Path) -> TraceFormatError:
    """Where it is that a file is not UTF-8. The decoder tells where in its buffer, which does not
    begin where the file does."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                bad = line[error.start : error.end]
                return TraceFormatError(path, number, "text", bad, "UTF-8")
    raise AssertionError(f"{path} was not UTF-8 and is now")
