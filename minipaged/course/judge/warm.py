"""The warm parent of the workers: it has loaded the libraries once, forks a worker for each test,
and tells the judge how each ended. It never runs a submission.

In it the modules of the graded stage are their skeletons, so importing the answer earns nothing;
those of all other stages are the reference, or are left to the worker where this copy has none.

Its arguments are FD LIBRARIES: a socket to the judge, and what to load (:mod:`libraries`).
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from minipaged.course.judge import linux
from minipaged.course.judge.libraries import Libraries, check_interpreter
from minipaged.course.judge.stand_in import StandIns
from minipaged.course.judge.wire import Channel, WireError
from minipaged.course.judge.worker import Confinement, serve
from minipaged.course.source_module import remember
from minipaged.errors import CourseError

_LIBRARY = """
    abc array bisect collections collections.abc contextlib copy dataclasses datetime decimal
    encodings.ascii encodings.idna encodings.latin_1 enum fractions functools graphlib heapq
    inspect io itertools json logging math numbers operator pathlib pprint queue random re
    reprlib statistics string struct tempfile textwrap threading time traceback types typing
    warnings weakref
"""

#: A worker of another user may not be able to read the library's files: what a submission may
#: want is here before.
STANDARD_LIBRARY = tuple(_LIBRARY.split())
NUMPY = ("numpy.fft", "numpy.linalg", "numpy.random", "numpy.typing")


def main(fd: int, libraries: Libraries) -> None:
    linux.hide_memory()
    linux.adopt_orphans()
    control = Channel(socket.socket(fileno=fd))
    for name in (*STANDARD_LIBRARY, *NUMPY):
        importlib.import_module(name)
    libraries.load()
    try:
        setup = control.receive()
        assert setup is not None
        skeletons = {n: (f"<skeleton of {n}>", text) for n, text in setup["skeletons"].items()}
        sys.meta_path.insert(0, StandIns(skeletons))
        if libraries is Libraries.INTERPRETER:
            check_interpreter()
        for name in setup["modules"]:
            importlib.import_module(name)
        _keep_kernels()
        if setup["serves"]:
            from minipaged.course.judge.stories import stories

            stories()
        gc.collect()
        gc.freeze()  # what is here now is shared with every worker
        control.send({"ready": True, "rss": psutil.Process().memory_info().rss})
        while (request := control.receive()) is not None:
            control.send(_answer(control, request))
    except CourseError as error:
        control.send({"ready": False, "why": str(error)})
    except WireError:
        _end()  # the judge is gone, in whatever way


def _keep_kernels() -> None:
    """Triton reads the source of a kernel when that is launched: a worker may not be able to."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.startswith("minipaged.kernels.") and file is not None:
            remember(file, Path(file).read_text(encoding="utf-8"))


def _answer(control: Channel, request: Mapping[str, Any]) -> dict[str, Any]:
    if request["op"] == "fork":
        control.send({"ready": True})
        _, (worker, output), _, _ = socket.recv_fds(control.sock, 1, 2)
        pid = _fork(control, worker, output, Confinement(**request["confinement"]))
        os.close(worker)
        os.close(output)
        return {"pid": pid}
    return _reap(request["pid"])


def _fork(control: Channel, worker: int, output: int, confinement: Confinement) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        control.sock.close()
        serve(socket.socket(fileno=worker), output, confinement)
    finally:
        os._exit(70)


def _reap(pid: int | None) -> dict[str, Any]:
    """Collect those that ended.

    Args:
        pid: wait for this one first.
    """
    ended: dict[str, tuple[int, float]] = {}
    wanted, how = (pid, 0) if pid is not None else (-1, os.WNOHANG)
    while True:
        try:
            found, status, used = os.wait4(wanted, how)
        except ChildProcessError:
            return {"ended": ended, "left": False}
        if found == 0:
            return {"ended": ended, "left": True}
        ended[str(found)] = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        wanted, how = -1, os.WNOHANG


def _end() -> None:
    """Take everything along that workers have started."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            try:
                child.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        while _reap(None)["ended"]:
            pass
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Libraries(sys.argv[2]))
