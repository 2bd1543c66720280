"""The judge's side of a worker: its folder, its limits, its deadlines, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import psutil

from minipaged.course.judge import linux
from minipaged.course.judge.limits import Limits, in_words
from minipaged.course.judge.parent import WarmParent, kill_all
from minipaged.course.judge.wire import Channel, Closed, WireError
from minipaged.course.judge.worker import Confinement


class Ended(BaseException):
    """The worker is no more, or no longer to be trusted; the message says why, to the student.

    Not an ``Exception``: no ``pytest.raises`` and no ``except`` of a test may take the end of the
    process for the error that it waits for.
    """


@dataclass(frozen=True)
class Grounds:
    """Where workers live: the same for all of one stage.

    Attributes:
        user: number of the user that they become; None to stay who the judge is.
        limits: what each may use.
        closed, answers, libraries: as :class:`~minipaged.course.judge.guard.Guard` has them.
    """

    user: int | None
    limits: Limits
    closed: tuple[str, ...]
    answers: tuple[str, ...]
    libraries: tuple[str, ...]

    def confinement(self, home: str) -> Confinement:
        """Of a worker with this folder."""
        limits = self.limits
        resources = {
            "RLIMIT_CPU": limits.cpu_seconds,
            "RLIMIT_FSIZE": limits.disk,
            "RLIMIT_NOFILE": limits.files,
            "RLIMIT_CORE": 0,
        }
        if linux.HERE:
            resources["RLIMIT_DATA"] = limits.memory
            resources["RLIMIT_NPROC"] = limits.processes + self._others
        return Confinement(
            home, self.user, resources, limits.output, self.closed, self.answers, self.libraries
        )

    @cached_property
    def _others(self) -> int:
        """Processes and threads of the same user that run anyway, for the limit counts them too."""
        if self.user is not None:
            return 0
        count = 0
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.uids().real == os.getuid():
                    count += process.num_threads()
        return count


class Pen:
    """One worker, from its start to its end."""

    def __init__(
        self,
        parent: WarmParent,
        grounds: Grounds,
        sources: Mapping[str, tuple[str, str]],
        deadline: float,
        own: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """
        Args:
            sources: part name -> (path, text) of the submission.
            deadline: on the monotonic clock; the whole stage must have ended by then.
            own: module -> (path, text) of what stands in for a reference that is not here.
        """
        self.parent, self.grounds, self.deadline = parent, grounds, deadline
        self.limits, self.sources = grounds.limits, sources
        self.ended: Ended | None = None
        self._exit: tuple[int, float] | None = None
        self._home = Path(tempfile.mkdtemp(prefix="minipaged-grade-")).resolve()
        if grounds.user is not None:
            os.chown(self._home, grounds.user, grounds.user)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        mine, theirs = socket.socketpair()
        self._channel = Channel(mine, self.limits.answer)
        mine.settimeout(self.limits.call_seconds)
        self._last_look = time.monotonic()
        self._number = 0
        with theirs:
            confinement = grounds.confinement(str(self._home))
            self.pid = parent.fork(theirs, self._output.fileno(), confinement)
        texts = {"sources": sources, "own": own or {}}
        self._channel.send({k: {n: list(pair) for n, pair in t.items()} for k, t in texts.items()})

    def ask(self, message: dict[str, Any], what: str) -> dict[str, Any]:
        """The worker's answer to a request.

        Args:
            what: what the request asks for, in words for the student, as ``allocate()``.

        Raises:
            Ended: there is none, and there will never be another.
        """
        if self.ended is not None:
            raise self.ended
        self._number += 1
        try:
            if not self._channel.idle:
                self.end("your code wrote to the grader's channel")
            self._channel.send({"id": self._number, **message})
            answer = self._wait(what)
        except Closed:
            self.end(self._why_gone(what))
        except WireError as error:
            self.end(f"your code wrote to the grader's channel: {error}")
        if answer.get("id") != self._number:
            self.end("your code wrote to the grader's channel")
        return answer

    def _wait(self, what: str) -> dict[str, Any]:
        start = time.monotonic()
        while True:
            answer = self._channel.receive(timeout=self.limits.tick)
            now = time.monotonic()
            if now - self._last_look > 2 * self.limits.tick or answer is None:
                self._look()
                self._last_look = time.monotonic()
            if answer is not None:
                return answer
            if now > self.deadline:
                self.end(f"no answer from {what}, and the time for the whole stage is up")
            if now - start > self.limits.call_seconds:
                guess = (
                    "is there an endless loop?" if self._busy() else "does it wait for something?"
                )
                self.end(f"no answer from {what} within {self.limits.call_seconds:g} s: {guess}")

    def _busy(self) -> bool:
        """Has the worker computed much? On a machine with much to do, the clock may run out before
        its CPU time does."""
        try:
            used = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return False
        return bool(used.user + used.system > self.limits.cpu_seconds / 4)

    def _look(self) -> None:
        """The watchdog: limits that the system does not know, or not everywhere."""
        memory, count = 0, 0
        try:
            worker = psutil.Process(self.pid)
            for process in (worker, *worker.children(recursive=True)):
                memory += max(0, process.memory_info().rss - self.parent.rss)
                count += 1
        except psutil.Error:
            pass  # it is ending: the channel will say so
        if memory > self.limits.memory:
            self.end(f"your code used more than {in_words(self.limits.memory)} of memory")
        if count > self.limits.processes:
            self.end(f"your code started more than {self.limits.processes} processes")
        if self._written() > self.limits.disk:
            self.end(f"your code wrote more than {in_words(self.limits.disk)} to its folder")

    def _written(self) -> int:
        total = os.fstat(self._output.fileno()).st_size
        for folder, _, files in os.walk(self._home):
            for name in files:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except OSError:
                    continue
                if total > self.limits.disk:
                    return total
        return total

    def _why_gone(self, what: str) -> str:
        """Why the channel is closed. The process is given a moment to end by itself."""
        end = time.monotonic() + 0.3
        while self._exit is None and time.monotonic() < end:
            self._reap(None)
            time.sleep(0.002)
        if self.parent.gone:
            return "your code ended a process of the grader"
        if self._exit is None:
            return "your code closed the grader's channel"
        code, seconds = self._exit
        if code in (-signal.SIGXCPU, -signal.SIGKILL) and seconds > self.limits.cpu_seconds - 0.2:
            return (
                f"no answer from {what} within {self.limits.cpu_seconds} s of CPU time: is there "
                "an endless loop?"
            )
        if code in (-signal.SIGSEGV, -signal.SIGBUS):
            return (
                f"your code read or wrote memory that is not its own, in {what}, and the system "
                f"ended its process ({signal.Signals(-code).name}): where does a pointer lead?"
            )
        if code < 0:
            return f"your code ended its own process ({signal.Signals(-code).name}) in {what}"
        return f"your code ended its own process (exit status {code}) in {what}"

    def end(self, why: str) -> NoReturn:
        self.ended = Ended(why)
        self._kill()
        raise self.ended from None

    def _reap(self, pid: int | None) -> bool:
        """Are there still processes that came from this worker?"""
        try:
            answer = self.parent.reap(pid)
        except WireError:
            return True
        if str(self.pid) in answer["ended"]:
            code, seconds = answer["ended"][str(self.pid)]
            self._exit = code, seconds
        return bool(answer["left"])

    def _kill(self) -> None:
        """End the worker and all that it has started, wherever that has gone."""
        pid = None
        if self._exit is None and not self.parent.gone:
            # The warm parent has not collected it, so the number is still its own.
            os.kill(self.pid, signal.SIGKILL)
            pid = self.pid
        if self._reap(pid) or not linux.HERE:
            kill_all(self._left)

    def _left(self) -> list[psutil.Process]:
        self._reap(None)
        return list(self.parent.workers())

    def close(self) -> str:
        """End it, and give what it has printed."""
        if self.ended is None:
            self._kill()
        self._channel.sock.close()
        limit = self.limits.output
        data = os.pread(self._output.fileno(), limit + 1, 0)
        self._output.close()
        _remove(self._home)
        text = data[:limit].decode("utf-8", "replace")
        return text + f"\n… (cut at {in_words(limit)})" * (len(data) > limit)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # thousands of folders in one another
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)
