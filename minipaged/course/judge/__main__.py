"""The judge's own process: a request on standard input, a line of JSON for each job on standard
output."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minipaged.course.catalog import Checkpoint, Part, Stage, load_course
from minipaged.course.judge import linux
from minipaged.course.judge.libraries import Libraries
from minipaged.course.judge.limits import Limits
from minipaged.course.judge.parent import WarmParent
from minipaged.course.judge.pen import Grounds, Pen
from minipaged.course.judge.results import CheckResult
from minipaged.errors import CourseError

#: What the lab and the engine import only when it is wanted. The package's files may be closed to
#: a worker of another user.
_LAB = ("minipaged.course.judge.scheduling_lab", "minipaged.kvcache.manager", "minipaged.parts")
_KERNELS = (
    "minipaged.course.judge.cache_lab",
    "minipaged.course.judge.kernel_lab",
    "minipaged.audit.compiler",
    "minipaged.audit.memory_trace",
)
_KERNEL_ENGINE = (
    "minipaged.attention.triton",
    "minipaged.kernels.rms_norm",
    "minipaged.kernels.silu_mul",
)
_ENGINE = ("minipaged.course.judge.serving", "minipaged.sampling.text_stream")


class Court:
    """One stage's judge: its warm parents, and the submissions one after the other."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.course = load_course(Path(request["root"]))
        self.stage = self.course.unit(request["stage"])
        self.seconds = request["seconds"]
        self.grounds = {
            trusted: Grounds(
                request["user"],
                Limits(**request["limits"]),
                tuple(request["closed"]),
                () if trusted else tuple(request["answers"]),
                tuple(request["libraries"]),
            )
            for trusted in (False, True)
        }
        # Started at once: it loads torch while we load pytest.
        libraries = Libraries.of(self.stage)
        first = request["jobs"][0]["trusted"], libraries
        self._starting = {first: WarmParent(libraries)}
        self._parents: dict[tuple[bool, Libraries], WarmParent] = {}
        self._homes: dict[str, tuple[Stage, Part]] | None = None
        self._compiled = tempfile.TemporaryDirectory(prefix="minipaged-judge-")
        self._kernels: dict[str, list[dict[str, Any]]] = {}

    def judge(self, job: Mapping[str, Any], checks: list[str]) -> list[CheckResult]:
        """Run checks on one submission."""
        from minipaged.course.judge.examiner import Examiner
        from minipaged.course.judge.namespace import homes

        sources = {name: (path, text) for name, (path, text) in job["sources"].items()}
        own = {module: (path, text) for module, (path, text) in job["own"].items()}
        trusted = job["trusted"]
        usual = Libraries.of(self.stage)
        self.parent(trusted, usual)
        deadline = time.monotonic() + self.seconds

        def open_pen(libraries: Libraries = usual) -> Pen:
            parent = self.parent(trusted, libraries)
            return Pen(parent, self.grounds[trusted], sources, deadline, own)

        trace = None if job["trace"] is None else Path(job["trace"])
        if self._homes is None:
            self._homes = homes(self.course)
        examiner = Examiner(
            open_pen, self._homes, trace, checks, deadline, self._compiled.name, self._kernels
        )
        examiner.run(self.course, self.stage, f"--seed={job['seed']}")
        return examiner.results()

    def parent(self, trusted: bool, libraries: Libraries) -> WarmParent:
        """A warm parent that is alive."""
        kind = trusted, libraries
        known = self._parents.get(kind)
        if known is not None and not known.gone:
            return known
        if known is not None:
            known.close()
        parent = self._starting.pop(kind, None) or WarmParent(libraries)
        self._parents[kind] = parent  # to be closed, even if it refuses
        serves = isinstance(self.stage, Checkpoint)
        parent.prepare(self._skeletons(trusted), self._modules(), serves)
        return parent

    def _skeletons(self, trusted: bool) -> dict[str, str]:
        from minipaged.course.skeleton import skeleton_module_source

        if trusted:
            return {}
        return {p.module: skeleton_module_source(self.course, p) for p in self.stage.parts}

    def _modules(self) -> list[str]:
        """What workers may need: all parts that do not need more than the stage does, what the lab
        makes, and for a checkpoint the engine. What stands on parts that only a worker has, each
        loads for itself.
        """
        own = [p.module for _, p in self.course.closed_parts.values() if p not in self.stage.parts]
        serves = isinstance(self.stage, Checkpoint)
        kernels = (*_KERNELS, *_KERNEL_ENGINE * serves) * self.stage.triton
        more = (*_LAB, *kernels, *_ENGINE * serves)
        return [
            "minipaged.errors",
            *(
                part.module
                for stage in self.course.stages
                for part in stage.parts
                if part.module not in own and self._loads(part)
            ),
            *(() if own else more),
        ]

    def _loads(self, part: Part) -> bool:
        """Does a part need no more than the graded stage does?"""
        text = (self.course.root / part.source).read_text(encoding="utf-8")
        needed = set(re.findall(r"^(?:import|from) (torch|triton)\b", text, re.M))
        here = {"torch": self.stage.torch, "triton": self.stage.triton}
        return all(here[library] for library in needed)

    def close(self) -> None:
        for parent in (*self._starting.values(), *self._parents.values()):
            parent.close()
        self._compiled.cleanup()


def main() -> None:
    linux.hide_memory()
    linux.adopt_orphans()
    # Only we write the results: what a test prints goes nowhere.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as results:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
        request = json.load(sys.stdin)
        court = Court(request)
        try:
            passed: list[str] = []
            for job in request["jobs"]:
                checks = passed if job["again"] else job["checks"]
                found = court.judge(job, checks)
                passed = [result.name for result in found if result.status == "passed"]
                results.write(json.dumps([asdict(result) for result in found]) + "\n")
                results.flush()
        except CourseError as error:
            sys.exit(str(error))
        finally:
            court.close()


if __name__ == "__main__":
    main()
