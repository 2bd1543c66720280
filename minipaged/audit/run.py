"""The audit of our kernels: compiled in child processes, read and checked here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from minipaged.audit.cases import CASES, Case
from minipaged.audit.compiler import AuditError, Ptx, capability_of
from minipaged.audit.report import Report, audit_ptx
from minipaged.audit.thresholds import Thresholds, check
from minipaged.audit.toolchain import ptx_version

REQUIRED_ON = "sm_80"
"""The architecture that the claims are made for."""
TIME_LIMIT_S = 600.0
ERROR_LINES = 12
"""Of what a child says when it fails: the compiler's message points into the source."""


@dataclass(frozen=True)
class Audited:
    """One kernel in one configuration.

    Attributes:
        case: what was launched.
        report: its machine code.
        faults: sentences; none: it reaches what is asked.
    """

    case: Case
    report: Report
    faults: tuple[str, ...]


def audit(
    arch: str = REQUIRED_ON, cases: Sequence[Case] = CASES, processes: int = 2
) -> list[Audited]:
    """Compile, read and check kernels.

    Args:
        arch: all claims are made for sm_80; on others only spills are faults.
        cases: in any order; the result has theirs.
        processes: children that compile at a time.

    Raises:
        AuditError: a kernel does not compile; a tool is missing.
    """
    capability_of(arch)
    version = ptx_version(arch)
    shares = [cases[i::processes] for i in range(min(processes, len(cases)))]
    with ThreadPoolExecutor(len(shares)) as pool:
        found = list(pool.map(lambda share: list(_audit(arch, version, share)), shares))
    audited = [entry for share in found for entry in share]
    return sorted(audited, key=lambda entry: cases.index(entry.case))


def _audit(arch: str, version: int, cases: Sequence[Case]) -> Iterator[Audited]:
    for row in _compile(arch, version, cases):
        report = audit_ptx(Ptx(**row["ptx"]), row["source"], arch)
        case = Case(*row["case"].split(":"))
        required = case.required(report.kernel) if arch == REQUIRED_ON else Thresholds()
        yield Audited(case, report, tuple(check(report, required)))


def _compile(arch: str, version: int, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "minipaged.audit.child", arch, str(version)]
    done = subprocess.run(
        [*command, *(case.name for case in cases)],
        env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        end = "\n".join(done.stderr.strip().splitlines()[-ERROR_LINES:])
        raise AuditError(f"kernels do not compile for {arch}:\n{end}")
    yield from map(json.loads, done.stdout.splitlines())
