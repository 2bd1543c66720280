"""The judge's own pytest plugin: runs the wanted checks on one submission, and writes down how
each went."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minipaged.course.catalog import Course, Part, Stage
from minipaged.course.judge import plugin
from minipaged.course.judge.libraries import Libraries
from minipaged.course.judge.namespace import PartsNamespace
from minipaged.course.judge.pen import Ended, Pen
from minipaged.course.judge.plugin import OPEN_RIG
from minipaged.course.judge.proxy import Client, RemoteLab
from minipaged.course.judge.remote import Fault, printable
from minipaged.course.judge.results import CheckResult
from minipaged.course.judge.rig import Rig
from minipaged.errors import MinipagedError

_MESSAGE = 6000


@dataclass
class _Case:
    """One test item while it runs."""

    clients: list[Client] = field(default_factory=list)
    message: str | None = None
    output: str = ""

    def failed(self, message: str) -> None:
        """The first reason counts: what comes after follows from it."""
        if self.message is None:
            self.message = printable(message, _MESSAGE)

    @property
    def transcript(self) -> str:
        return "\n".join(filter(None, (str(client.transcript) for client in self.clients)))

    def fault_of(self, error: BaseException) -> Fault | None:
        """Where an exception came from, if it came from a worker."""
        faults = (client.fault_of(error) for client in self.clients)
        return next((fault for fault in faults if fault is not None), None)


class Examiner:
    """One submission's examination."""

    def __init__(
        self,
        open_pen: Callable[..., Pen] | None,
        known: dict[str, tuple[Stage, Part]],
        trace: Path | None,
        checks: Sequence[str],
        deadline: float,
        compiled: str,
        kernels: dict[str, list[dict[str, Any]]],
    ) -> None:
        """
        Args:
            open_pen: starts a worker with the submission, with other libraries if it is told;
                None: the submission runs in this process.
            known: public name -> where it belongs, as :func:`~.namespace.homes` gives it.
            trace: the submission's counterexample.
            checks: those to run, in order.
            deadline: on the monotonic clock; what has not begun by then is not run.
            compiled: a folder of ours for compiled tests. Where pytest looks for them otherwise,
                an earlier submission of the same user may have left others.
            kernels: those that were compiled for earlier submissions, by what went in.
        """
        self.open_pen, self.known, self.trace = open_pen, known, trace
        self.checks, self.deadline, self.compiled = checks, deadline, compiled
        self.kernels = kernels
        self.found: dict[str, CheckResult] = {}
        self.unreadable = ""
        self._case = _Case()

    def run(self, course: Course, stage: Stage, *options: str) -> None:
        """Run pytest on a stage's graded tests, and on nothing else of this machine's.

        Raises:
            RuntimeError: pytest could not.
        """
        fixed = [
            f"--rootdir={course.root}",
            f"-c{os.devnull}",
            "--noconftest",
            "--continue-on-collection-errors",
            "-pno:cacheprovider",
            "-pno:terminal",
            "-pno:unraisableexception",  # they collect garbage, which takes as long as a test
            "-pno:threadexception",
            "-s",
        ]
        folder = str(course.root / "tests" / stage.folder)
        code = pytest.main([folder, *fixed, *options], plugins=[plugin, self])
        if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            raise RuntimeError(f"pytest could not run the grader's tests: {code!r}")

    def results(self) -> list[CheckResult]:
        """One for each wanted check. Without a test that ran, none has passed."""
        lost = self.unreadable or "no test of the grader has this name"
        return [
            self.found.get(name) or CheckResult(name, "not run", message=lost)
            for name in self.checks
        ]

    # ---------------------------------------------------------------- hooks
    def pytest_configure(self, config: pytest.Config) -> None:
        if self.open_pen is not None:
            config.stash[OPEN_RIG] = self._open_rig
        sys.pycache_prefix = self.compiled

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.unreadable:
            last = report.longreprtext.strip().splitlines()[-1:]
            self.unreadable = f"the grader's tests cannot be read: {''.join(last)}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {name: i for i, name in enumerate(self.checks)}
        items[:] = [item for item in items if _check_of(item) in order]
        items.sort(key=lambda item: order[_check_of(item)])

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            name = _check_of(item)
            before = self.found.get(name)
            if before is not None and before.status != "passed":
                continue  # all cases must pass: the rest need not run
            if time.monotonic() > self.deadline:
                self.found[name] = CheckResult(name, "not run", "not run: the time is up")
            else:
                self.found[name] = self._examine(name, item, before.seconds if before else 0.0)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if hasattr(report, "wasxfail") or report.skipped:
            # A submission must not be able to get out of a check.
            self._case.failed("the check did not run to its end: it was skipped, or meant to fail")
        elif call.excinfo is not None:
            self._case.failed(self._tell(call.excinfo))
        return report

    # ---------------------------------------------------------------- one case
    def _examine(self, name: str, item: pytest.Item, seconds: float) -> CheckResult:
        self._case = case = _Case()
        began = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        seconds += time.monotonic() - began
        for client in case.clients:
            if client.pen.ended is not None:
                case.failed(str(client.pen.ended))  # whatever the test made of it
        if case.message is None:
            return CheckResult(name, "passed", seconds=seconds)
        return CheckResult(name, "failed", case.message, case.transcript, case.output, seconds)

    @contextmanager
    def _open_rig(self, course: Course, stage: Stage, impl: str) -> Iterator[Rig]:
        client = self._new_client()
        try:
            parts = PartsNamespace(stage, self.known, client.symbol)
            compile = partial(self._compile, client.pen.sources)
            yield Rig(parts, RemoteLab(client), self.trace, compile)
        finally:
            self._close(client)

    def _compile(
        self,
        sources: Mapping[str, tuple[str, str]],
        part: Part,
        function: str,
        arguments: Mapping[str, Any],
        arch: str,
        version: int,
    ) -> tuple[list[dict[str, Any]], str]:
        """By a worker of its own: the usual one interprets kernels, for good. A part whose text was
        compiled before, as in a second round, is not compiled again: parts do not use each other.
        """
        source = sources[part.name][1]
        request = json.dumps([part.name, source, function, arguments, arch, version])
        if request not in self.kernels:
            client = self._new_client(Libraries.COMPILER)
            try:
                symbol = client.symbol(part, function, True)
                given = symbol, dict(arguments), arch, version
                self.kernels[request] = client.lab("ptx", given, {})
            finally:
                self._close(client)
        return self.kernels[request], source

    def _new_client(self, *libraries: Libraries) -> Client:
        assert self.open_pen is not None
        client = Client(self.open_pen(*libraries))
        self._case.clients.append(client)
        return client

    def _close(self, client: Client) -> None:
        self._case.output += printable(client.pen.close(), client.pen.limits.output)

    def _tell(self, info: pytest.ExceptionInfo[BaseException]) -> str:
        """Why a case failed, in words for the student."""
        error = info.value
        fault = self._case.fault_of(error)
        if fault is not None:
            return str(fault)
        if isinstance(error, Ended | AssertionError | MinipagedError | pytest.fail.Exception):
            return str(error) or f"the check expected: {info.traceback[-1].statement}"
        at = info.traceback[-1]
        summary = info.exconly().strip()
        return f"{summary} (in the check itself, {Path(at.path).name}, line {at.lineno + 1})"


def _check_of(item: pytest.Item) -> str:
    name = getattr(item, "originalname", None) or item.name
    return name.removeprefix("test_")
