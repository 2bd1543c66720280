"""The judge's side of the warm parent, and how everything that came from it is ended."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import psutil

from minipaged.course.judge import isolated, linux
from minipaged.course.judge.libraries import Libraries
from minipaged.course.judge.wire import Channel, WireError
from minipaged.course.judge.worker import Confinement
from minipaged.errors import CourseError

#: In the environment of all that a warm parent starts, where nothing adopts orphans.
_MARK = "MINIPAGED_WARM_PARENT"


class WarmParent:
    """The process that workers are forked from (:mod:`minipaged.course.judge.warm`)."""

    def __init__(self, libraries: Libraries) -> None:
        """Start it; it loads the libraries while the judge goes on."""
        mine, theirs = socket.socketpair()
        self.channel = Channel(mine)
        self.rss = 0
        self.gone = False
        environment = {
            **libraries.environment,
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PATH": os.defpath,
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS: we fork on purpose
        }
        mark = f"{os.getpid()}.{time.monotonic_ns()}"
        with theirs:
            self.process = subprocess.Popen(
                isolated.command("minipaged.course.judge.warm", str(theirs.fileno()), libraries),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**environment, _MARK: mark},
                start_new_session=True,
            )
        self._mark = mark

    def prepare(
        self, skeletons: Mapping[str, str], modules: Sequence[str], serves: bool = False
    ) -> None:
        """Load the parts.

        Args:
            skeletons: module -> text that stands in for it.
            modules: to be loaded.
            serves: load a model too.

        Raises:
            CourseError: it refuses to work, and says why.
            RuntimeError: it ended; it has said why on standard error.
        """
        try:
            self.channel.send({"skeletons": skeletons, "modules": list(modules), "serves": serves})
            ready = self.channel.receive(timeout=120)
        except WireError:
            ready = None
        if ready is None:
            self.process.kill()
            raise RuntimeError("the warm parent of the workers did not start")
        if not ready["ready"]:
            raise CourseError(ready["why"])
        self.rss = ready["rss"]

    def fork(self, worker: socket.socket, output: int, confinement: Confinement) -> int:
        """A new worker's process number.

        Args:
            worker: its end of its channel.
            output: file descriptor for what it prints.
        """
        self._ask({"op": "fork", "confinement": asdict(confinement)})
        socket.send_fds(self.channel.sock, [b"!"], [worker.fileno(), output])
        pid: int = self._answer()["pid"]
        return pid

    def reap(self, pid: int | None = None) -> dict[str, Any]:
        """``ended``: pid (text) -> (exit code, CPU seconds) of those that ended since; ``left``:
        are there others?

        Args:
            pid: wait for this one.
        """
        return self._ask({"op": "reap", "pid": pid})

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self.channel.send(message)
        except WireError:
            self.gone = True
            raise
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = self.channel.receive()
        except WireError:
            self.gone = True
            raise
        assert answer is not None
        return answer

    def workers(self) -> Iterator[psutil.Process]:
        """All processes that came from workers."""
        if linux.HERE:
            # The warm parent adopts orphans; the judge does, if the warm parent is gone.
            mine = psutil.Process().children(recursive=True)
            yield from (p for p in mine if p.pid != self.process.pid)
            return
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._mark and process.pid != self.process.pid:
                    yield process
            except psutil.Error:
                continue

    def close(self) -> None:
        """End it and all that came from it."""
        self.channel.sock.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        kill_all(self.workers)


def kill_all(find: Callable[[], Iterable[psutil.Process]]) -> None:
    """Kill what ``find()`` lists, again until it lists nothing: a fork bomb outruns one look."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        alive = [process for process in find() if not _has_ended(process)]
        if not alive:
            return
        for process in alive:
            with suppress(psutil.Error):
                process.kill()


def _has_ended(process: psutil.Process) -> bool:
    """Is it gone? If it is ours, by adoption, it is let go."""
    with suppress(psutil.Error, ChildProcessError):
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
        os.waitpid(process.pid, os.WNOHANG)
    return True
