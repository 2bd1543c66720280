"""Where in a student's files an exception comes from, in a few lines instead of a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary

from minipaged.course.files import place
from minipaged.course.kernel_errors import chain_of, message_of
from minipaged.errors import DoubleFree, MinipagedError, OutOfBlocks

_MORE = "MINIPAGED_TRACEBACK=1 in front of the command shows the whole traceback"


@dataclass(frozen=True)
class StudentFile:
    """A file that an engine runs on.

    Attributes:
        stage: its number, as ``minipaged grade`` takes it.
        path: of the file.
        module: the name under which it was loaded.
        reference: the module that it stands for.
    """

    stage: str
    path: Path
    module: str
    reference: str


def explain(error: Exception, files: Collection[StudentFile]) -> str | None:
    """What to tell whoever wrote these files; None where the error has nothing to do with them.

    An exception that passed through one of the files is told with the line. Any other is told
    with the files that the engine runs on: a wrong block number shows elsewhere. Errors of the
    user's own (a bad option, a missing model, a closed pipe) are none of theirs.
    """
    error = _in_kernel(_first(error, files))
    for file in files:
        at = line_in(error, file.module)
        if at is not None:
            return (
                f"{_what(error)}\n"
                f"  this is your {file.path.name}, line {at.lineno}, in {at.name}:\n"
                f"      {at.line}\n"
                f"  ({place(file.path)}); `minipaged grade {file.stage}` tests it\n"
                f"  {_MORE}"
            )
    own = isinstance(error, OSError) or (
        isinstance(error, MinipagedError) and not isinstance(error, DoubleFree | OutOfBlocks)
    )
    if own or not files:
        return None
    names = ", ".join(f"{file.path.name} (`minipaged grade {file.stage}`)" for file in files)
    at = line_in(error, "minipaged")
    where = f" ({place(Path(at.filename))}, line {at.lineno})" if at else ""
    return (
        f"{_what(error)}\n"
        f"  this came up in the engine{where}, which runs on your\n"
        f"  {names}\n"
        f"  {_MORE}"
    )


def line_in(error: BaseException, module: str) -> FrameSummary | None:
    """The innermost place of a traceback in the module or package of that name."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if f"{frame.f_globals.get('__name__')}.".startswith(f"{module}."):
            code = frame.f_code
            found = FrameSummary(code.co_filename, line, code.co_name)
    return found


def _what(error: Exception) -> str:
    text = message_of(error) or str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _in_kernel(error: Exception) -> Exception:
    """What happened in the kernel, if Triton wrapped it."""
    inner = chain_of(error)[-1]
    return inner if isinstance(inner, Exception) else error


def _first(error: Exception, files: Collection[StudentFile]) -> Exception:
    """The error that started it: cleaning up after it, the engine may have met another. One that
    a student's code caught itself is none."""
    modules = {file.module for file in files}
    while isinstance(error.__context__, Exception) and not error.__suppress_context__:
        trace = error.__context__.__traceback__
        if trace is None or trace.tb_frame.f_globals.get("__name__") in modules:
            break
        error = error.__context__
    return error
