"""The audit as a table: for the terminal, as JSON, and in ``kernels/RESULTS.md``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from minipaged.audit.compiler import AuditError
from minipaged.audit.movement import Movement
from minipaged.audit.report import WIDE_BITS, AccessCount, Report
from minipaged.audit.run import Audited

RESULTS = Path(__file__).parents[1] / "kernels" / "RESULTS.md"
BEGIN, END = "<!-- audit: begin -->", "<!-- audit: end -->"

AUDIT_COLUMNS = (
    "kernel", "inputs", "regs", "spills", "smem", "warps", "mma", "K,V loads", "wide", "flight"
)  # fmt: skip
MOVEMENT_COLUMNS = ("host function", "heads", "must move", "moves", "must / moves")

_LIMITS = {"registers": "regs", "shared memory": "smem"}


def audit_row(entry: Audited) -> tuple[str, ...]:
    """One row of :data:`AUDIT_COLUMNS`; ``kernels/RESULTS.md`` says what they mean."""
    report, limit = entry.report, entry.report.occupancy.limit
    spills = report.spill_stores + report.spill_loads
    wide = report.kv_wide_share if report.cache_loads else report.wide_share
    return (
        report.kernel.removesuffix("_kernel").removeprefix("paged_"),
        entry.case.configuration,
        str(report.registers),
        f"{spills} ({report.stack_bytes} B)" if spills or report.stack_bytes else "-",
        f"{report.shared_bytes / 1024:.1f}K" if report.shared_bytes else "-",
        f"{report.occupancy.warps} {_LIMITS.get(limit, limit)}",
        str(report.tensor_core_instructions or "-"),
        _loads(report.cache_loads),
        "-" if wide is None else f"{wide:.0%}",
        f"{report.kv_bytes_in_flight / 1024:.0f}K" if report.cache_loads else "-",
    )


def movement_row(movement: Movement) -> tuple[str, ...]:
    """One row of :data:`MOVEMENT_COLUMNS`."""
    return (
        movement.function,
        movement.heads,
        f"{movement.must:,}",
        f"{movement.does:,}",
        f"{movement.efficiency:.3f}",
    )


def as_json(arch: str, audited: Sequence[Audited], movements: Sequence[Movement]) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "arch": arch,
        "triton": version("triton"),
        "kernels": [
            {"case": entry.case.name, "faults": list(entry.faults), **_plain(entry.report)}
            for entry in audited
        ],
        "movement": [
            dataclasses.asdict(movement) | {"efficiency": movement.efficiency}
            for movement in movements
        ],
    }


def write_results(
    arch: str, audited: Sequence[Audited], movements: Sequence[Movement], path: Path = RESULTS
) -> None:
    """Put the tables between the markers of ``kernels/RESULTS.md``.

    Raises:
        AuditError: the file or its markers are not there.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise AuditError(f"{path.name} has no place for the tables: {BEGIN} and {END}")
    tables = (
        f"Compiled for {arch} by Triton {version('triton')}.\n\n"
        + _markdown(AUDIT_COLUMNS, [audit_row(entry) for entry in audited])
        + "\nBytes of one ragged batch, counted in the interpreter.\n\n"
        + _markdown(MOVEMENT_COLUMNS, [movement_row(movement) for movement in movements])
    )
    path.write_text(f"{head}{begin}\n\n{tables}\n{end}{tail}", encoding="utf-8")


def _loads(loads: Sequence[AccessCount]) -> str:
    kinds: dict[str, int] = {}
    for load in loads:
        kind = load.instruction + (f".{load.bits}" if load.bits < WIDE_BITS else "")
        kinds[kind] = kinds.get(kind, 0) + load.count
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "-"


def _plain(report: Report) -> dict[str, Any]:
    shares = {"kv_wide_share": report.kv_wide_share, "wide_share": report.wide_share}
    return dataclasses.asdict(report) | shares


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
