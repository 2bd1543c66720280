"""The process that runs a submission, and holds nothing else: it knows no test and no point.

It is forked from the warm parent for one test, locks itself in, and answers until the judge goes
away. From the first line of the submission on, nothing that it says can be trusted.
"""

from __future__ import annotations

import importlib
import io
import linecache
import os
import random
import resource
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any

from minipaged.course.judge import linux
from minipaged.course.judge.guard import Guard
from minipaged.course.judge.lab import Lab
from minipaged.course.judge.stand_in import StandIns
from minipaged.course.judge.wire import Channel, Closed, WireError, decode, encode
from minipaged.course.kernel_errors import chain_of, message_of
from minipaged.course.source_module import run_as_module

#: Frames of a traceback that are sent: the innermost.
_FRAMES = 4


@dataclass(frozen=True)
class Confinement:
    """How a worker locks itself in.

    Attributes:
        home: its folder.
        user: number of the user and group that it becomes; None to stay who it is.
        limits: of ``resource``: name -> value. ``RLIMIT_DATA`` is on top of what is in use.
        output: bytes of standard output that are kept.
        closed, answers, libraries: as :class:`~minipaged.course.judge.guard.Guard` has them.
    """

    home: str
    user: int | None
    limits: Mapping[str, int]
    output: int
    closed: tuple[str, ...]
    answers: tuple[str, ...]
    libraries: tuple[str, ...]

    def enter(self, output: int) -> None:
        """
        Args:
            output: file descriptor that takes what the submission prints.
        """
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        printed = _Output(self.output)
        for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
            setattr(sys, name, printed)
        os.chdir(self.home)
        os.environ.update(HOME=self.home, TMPDIR=self.home)
        for name, value in self.limits.items():
            if name == "RLIMIT_DATA":
                value += linux.data_bytes()
            _limit(getattr(resource, name), value)
        if self.user is not None:
            os.setgroups([])
            os.setgid(self.user)
            os.setuid(self.user)
        linux.drop_powers()
        linux.die_with_parent()
        Guard(self.home, self.closed, self.answers, self.libraries).install()


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    # The second second of CPU time is for those who ignore the signal of the first.
    last = value + 1 if which == resource.RLIMIT_CPU and value != hard else value
    resource.setrlimit(which, (value, last))


class _Output(io.TextIOBase):
    """Standard output, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "replace")[: self._left]
        self._left -= len(data)
        os.write(1, data)
        return len(text)


def serve(sock: socket.socket, output: int, confinement: Confinement) -> None:
    """Be a worker until the judge closes the channel."""
    low, high = sorted((sock.fileno(), output))
    for first, last in ((3, low), (low + 1, high), (high + 1, 256)):
        os.closerange(first, last)
    confinement.enter(output)
    os.close(output)
    random.seed(0)
    channel = Channel(sock)
    start = channel.receive()
    if start is not None:
        own = {module: (path, text) for module, (path, text) in start["own"].items()}
        sys.meta_path.insert(0, StandIns(own))
        Worker(channel, start["sources"], own).run()


class Worker:
    """The objects of one submission, by handle."""

    def __init__(
        self,
        channel: Channel,
        sources: Mapping[str, tuple[str, str]],
        own: Mapping[str, tuple[str, str]],
    ) -> None:
        """
        Args:
            sources: part name -> (path, text).
            own: module -> (path, text), of parts of other stages that are the student's too.
        """
        self.channel, self.sources = channel, sources
        self.paths = {path for path, _ in (*sources.values(), *own.values())}
        self.modules: dict[str, ModuleType] = {}
        self.objects: list[Any] = []
        self.handles: dict[int, int] = {}
        self.lab = Lab()

    def run(self) -> None:
        while True:
            try:
                request = self.channel.receive()
            except Closed:
                return
            if request is None:
                return
            try:
                answer = self.answer(request)
                self.channel.send({"id": request["id"], **answer})
            except BaseException as error:
                # SystemExit too: whatever the submission raises is its answer.
                self.channel.send({"id": request["id"], "error": self.fault(error)})

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        op, name = request["op"], request.get("name", "")
        if op == "symbol":
            return self.sent(self.symbol(request["part"], request["module"], name))
        if op == "lab":
            args, kwargs = self.arguments(request)
            return self.sent(getattr(self.lab, name)(*args, **kwargs))
        target = self.objects[request["on"]]
        if op == "get":
            value = getattr(target, name)
            bound = isinstance(value, MethodType | BuiltinMethodType) and value.__self__ is target
            return {"method": True} if bound else self.sent(value)
        if op == "set":
            setattr(target, name, self.received(request["value"]))
            return {"ok": None}
        if op == "len":
            return self.sent(len(target))
        args, kwargs = self.arguments(request)
        called = getattr(target, name) if op == "method" else target
        return self.sent(called(*args, **kwargs))

    def symbol(self, part: str, module: str, name: str) -> Any:
        """A public name of a part: the submission's where it has the part's source."""
        if part not in self.sources:
            return getattr(importlib.import_module(module), name)
        if part not in self.modules:
            self.modules[part] = self.load(part)
        return getattr(self.modules[part], name)

    def load(self, part: str) -> ModuleType:
        # From memory: this process may not be able to read the file.
        return run_as_module(part, *self.sources[part])

    def arguments(self, request: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args = [self.received(value) for value in request["args"]]
        return args, {name: self.received(value) for name, value in request["kwargs"].items()}

    def received(self, message: Any) -> Any:
        return decode(message, lambda handle: self.objects[handle["h"]])

    def sent(self, value: Any) -> dict[str, Any]:
        return {"ok": encode(value, self.handle)}

    def handle(self, value: Any) -> dict[str, Any]:
        if id(value) not in self.handles:
            self.handles[id(value)] = len(self.objects)
            self.objects.append(value)
        return {"h": self.handles[id(value)], "n": _called(value)}

    def fault(self, error: BaseException) -> dict[str, Any]:
        """What the judge needs to tell of an error: classes, message, the submission's frames."""
        if isinstance(error, WireError):
            return {"classes": [], "message": str(error), "frames": []}
        chain = chain_of(error)
        frames = [
            (frame.f_code.co_filename, line, frame.f_code.co_name)
            for each in chain
            for frame, line in traceback.walk_tb(each.__traceback__)
            if frame.f_code.co_filename in self.paths
        ]
        error = chain[-1]
        if isinstance(error, SyntaxError) and error.filename in self.paths and error.lineno:
            frames.append((error.filename, error.lineno, "<module>"))
        return {
            "classes": [f"{c.__module__}.{c.__qualname__}" for c in type(error).__mro__],
            "message": _message(error)[:4000],
            "frames": [
                [os.path.basename(path), line, name, linecache.getline(path, line).strip()[:200]]
                for path, line, name in frames[-_FRAMES:]
            ],
        }


def _message(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return str(error.msg)  # its own text names the place once more
    try:
        if (told := message_of(error)) is not None:
            return told
        alone = error.args[0] if len(error.args) == 1 else None
        # str(KeyError("x")) has quotes that the judge's KeyError would add once more.
        return alone if type(alone) is str else str.__str__(str(error))
    except BaseException as worse:
        return f"(its message cannot be made: {type(worse).__name__})"


def _called(value: Any) -> str:
    """What a transcript calls an object: its type, and for a tensor its shape."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return f"tensor{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
