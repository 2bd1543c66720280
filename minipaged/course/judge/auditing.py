"""The machine code of a submission's kernels, held against what ``course.toml`` asks of it.

Whoever holds the submission makes PTX; it is assembled and read here, by the grader, which needs
no GPU for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minipaged.course.catalog import Course, Part, Stage, defined_symbols
from minipaged.course.device import triton_environment
from minipaged.course.judge.namespace import homes
from minipaged.errors import CourseError

if TYPE_CHECKING:
    from minipaged.audit.compiler import Ptx
    from minipaged.audit.report import Report

#: The A100, which the paper's figures are from.
ARCH = "sm_80"

Compile = Callable[[Part, str, Mapping[str, Any], str, int], tuple[list[dict[str, Any]], str]]
"""(part, function, arguments, architecture, version of PTX) -> (kernels as
:func:`minipaged.course.judge.kernel_lab.ptx` gives them, source of the part)"""


@dataclass(frozen=True)
class Audited:
    """What the machine code of one call says.

    Attributes:
        sentences: what it falls short of; empty where it reaches all that is asked.
        reports: of each kernel, in the order of their launches.
    """

    sentences: list[str]
    reports: list[Report]


def _read(fields: Any) -> Ptx:
    """What a submission's process gives as a kernel. It may be anything."""
    from minipaged.audit.compiler import Ptx

    wanted = {"text": str, "kernel": str, "num_warps": int, "shared_bytes": int}
    if not isinstance(fields, dict) or {n: type(v) for n, v in fields.items()} != wanted:
        raise CourseError("your code gave something else for a compiled kernel")
    return Ptx(**fields)


class Auditor:
    """Audits functions of the graded stage."""

    def __init__(self, course: Course, stage: Stage, make: Compile) -> None:
        self._course, self._stage, self._make = course, stage, make
        self._known = homes(course)

    def __call__(self, function: str, arguments: Mapping[str, Any], asked: str) -> Audited:
        """
        Args:
            function: that launches kernels, as ``paged_decode_v1``.
            arguments: of the call, by name. A tensor is ``[type, shape]``, as ``["float16",
                [32, 40, 128]]``; it has no memory, so the function must not look into it.
            asked: which thresholds: a table ``[stage.audit.NAME]`` of ``course.toml``, with the
                fields of :class:`minipaged.audit.thresholds.Thresholds` and ``kernel``, the one
                that they are for; by default they are for each that is launched.

        Raises:
            AuditError: a kernel does not compile, or cannot be assembled.
            CourseError: there are no such thresholds, or no such kernel is launched.
        """
        from minipaged.audit.report import audit_ptx
        from minipaged.audit.thresholds import check
        from minipaged.audit.toolchain import ptx_version

        # Triton is imported into this process, in which a counterexample may be interpreted later.
        os.environ.update(triton_environment(os.environ))
        thresholds, kernel = self._asked(asked)
        _, part = self._known[function]
        made, source = self._make(part, function, arguments, ARCH, ptx_version(ARCH))
        reports = [
            audit_ptx(each, self._source_of(each, part, source), ARCH) for each in map(_read, made)
        ]
        wanted = [report for report in reports if kernel in (None, report.kernel)]
        if not wanted:
            launched = ", ".join(report.kernel for report in reports)
            raise CourseError(f"{function} launches {launched}, and not {kernel}")
        return Audited([text for each in wanted for text in check(each, thresholds)], reports)

    def _source_of(self, kernel: Ptx, part: Part, source: str) -> str:
        """The text that defines a kernel: a worked answer may stand on the reference."""
        if kernel.kernel in defined_symbols(source):
            return source
        return (self._course.root / part.source).read_text(encoding="utf-8")

    def _asked(self, name: str) -> tuple[Any, str | None]:
        from minipaged.audit.thresholds import Thresholds

        if name not in self._stage.audit:
            known = ", ".join(self._stage.audit) or "none"
            raise CourseError(f"{self._stage.label} asks for no {name!r} in its audit: {known}")
        fields = dict(self._stage.audit[name])
        kernel = fields.pop("kernel", None)
        return Thresholds(**fields), kernel
