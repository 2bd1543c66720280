"""What the judge found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class CheckResult:
    """One check on one submission.

    Attributes:
        name: of the catalog's check.
        message: why it failed, or was not run; its first line tells one mistake from another.
        transcript: the calls that led there, a line each.
        output: what the submission printed, up to a limit.
    """

    name: str
    status: Status
    message: str = ""
    transcript: str = ""
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Judged:
    """All checks that were asked for, on one submission.

    Attributes:
        stage: its number, as ``"03"``.
        seed: of the random cases.
        checks: check name -> result, in the order of the catalog.
        note: what kept the judge from its work; empty if nothing did.
    """

    stage: str
    seed: int
    checks: Mapping[str, CheckResult]
    note: str = ""
