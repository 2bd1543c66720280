"""A student's files: how they are named to a user, and how they are written: never half a file,
and never over the only copy."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from minipaged.errors import CourseError


def place(path: Path, line: int | None = None) -> str:
    """``exercises/…/block_table.py:57``, from the folder that the user is in if it is below it."""
    relative = os.path.relpath(path)
    text = str(path) if relative.startswith("..") else relative
    return text if line is None else f"{text}:{line}"


def write_text(path: Path, text: str) -> None:
    """Replace a file at once: whoever reads it sees the old text or the new one.

    Raises:
        CourseError: it cannot be written.
    """
    path = path.resolve()  # a link stays one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.chmod(made, path.stat().st_mode if path.exists() else 0o644)
            os.replace(made, path)
        except BaseException:
            os.unlink(made)
            raise
    except OSError as error:
        raise CourseError(f"{path} cannot be written: {error.strerror}") from None


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        CourseError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CourseError(f"{path} is not UTF-8: save it as UTF-8") from None


def back_up(path: Path, why: str) -> Path:
    """Keep a copy beside a file, as ``block_table.py.before-sync``; one that is there already
    stays.

    Args:
        why: what comes next, as ``sync``.
    """
    number = 1
    while True:
        middle = f".{number}" if number > 1 else ""
        copy = path.with_name(f"{path.name}{middle}.before-{why}")
        if not copy.exists():
            write_text(copy, read_text(path))
            return copy
        number += 1
