"""Says no, in words, to what a submission has no business with: the answers, the tests, files that
are not its own, other programs.

This is a deterrent and a clear message, not the wall: Python code that is determined gets around
any hook in its own process. The wall is another user, limits, and a judge that keeps what matters
in a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.utime",
)


@dataclass(frozen=True)
class Guard:
    """What one worker may touch.

    Attributes:
        home: the only folder that it may write to.
        closed: folders whose files it may not read, but for what is below ``libraries``.
        answers: files that it may not read wherever they are: sources of the reference.
        libraries: folders that imports need.
    """

    home: str
    closed: Sequence[str]
    answers: Sequence[str]
    libraries: Sequence[str]

    def install(self) -> None:
        """From now on, and for good: a hook cannot be taken out."""
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._check_open(*args)
        elif event in _PROGRAMS:
            raise PermissionError("the grader does not let a submission start other programs")
        elif event in _CHANGES:
            for path in args[1:2] if event == "os.symlink" else args[:2]:
                if isinstance(path, str | bytes):
                    self._check_write(_real(path))

    def _check_open(self, path: Any, mode: str | None, flags: int) -> None:
        if not isinstance(path, str | bytes):
            return
        where = _real(path)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            self._check_write(where)
        elif self._is_closed(where):
            raise PermissionError(f"the grader does not let a submission read {where}")

    def _check_write(self, where: str) -> None:
        if not _below(where, self.home) and where != os.devnull:
            raise PermissionError(
                f"the grader does not let a submission write {where}: its own folder is {self.home}"
            )

    def _is_closed(self, where: str) -> bool:
        # Compiled files too: folder/__pycache__/name.cpython-311.pyc is folder/name.py.
        folder, name = os.path.split(where)
        if os.path.basename(folder) == "__pycache__":
            folder = os.path.dirname(folder)
        if os.path.join(folder, name.split(".")[0] + ".py") in self.answers:
            return True
        if any(_below(where, library) for library in self.libraries):
            return False
        return any(_below(where, closed) for closed in self.closed)


def _real(path: str | bytes) -> str:
    return os.path.realpath(os.fsdecode(path))


def _below(where: str, folder: str) -> bool:
    return where == folder or where.startswith(folder + os.sep)
