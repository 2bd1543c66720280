"""``minipaged kernels audit`` and ``minipaged kernels bench``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from minipaged.errors import RequestError

if TYPE_CHECKING:
    from minipaged.bench.kernels import Case, Measured

MAX_COLUMNS = 200

#: Title, columns, rows.
Table: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[str]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged kernels``."""
    commands = parser.add_subparsers(dest="kernels_command", metavar="COMMAND", required=True)
    about = "compile every kernel for a GPU and read its machine code; needs no GPU"
    audit = commands.add_parser("audit", help=about, description=f"{about[0].upper()}{about[1:]}.")
    audit.add_argument(
        "functions", nargs="*", metavar="FUNCTION", help="host functions; default: all"
    )
    audit.add_argument("--arch", default="sm_80", help="default: %(default)s, an A100")
    audit.add_argument("--processes", type=int, default=2, metavar="N", help="that compile")
    audit.add_argument("--json", metavar="FILE", help="write what was found; - for the terminal")
    audit.add_argument(
        "--code-only", action="store_true", help="do not count bytes in the interpreter"
    )
    audit.add_argument(
        "--write", action="store_true", help="put the tables into kernels/RESULTS.md"
    )
    about = "time the kernels on a GPU; without one, print the floors for an A100"
    bench = commands.add_parser("bench", help=about, description=f"{about[0].upper()}{about[1:]}.")
    bench.add_argument(
        "--seconds", type=float, default=600.0, metavar="S", help="stop when so many have passed"
    )
    bench.add_argument(
        "--dtype", default="float16", choices=("float16", "bfloat16"), help="default: %(default)s"
    )
    bench.add_argument("--json", metavar="FILE", help="write what was measured; - for the terminal")


def run(args: argparse.Namespace) -> int:
    """Run one of the two. Status 1: a kernel falls short of what it must reach."""
    return _audit(args) if args.kernels_command == "audit" else _bench(args)


def _audit(args: argparse.Namespace) -> int:
    from minipaged.audit.cases import CASES, HOST_FUNCTIONS
    from minipaged.audit.movement import movements
    from minipaged.audit.results import (
        AUDIT_COLUMNS,
        MOVEMENT_COLUMNS,
        as_json,
        audit_row,
        movement_row,
        write_results,
    )
    from minipaged.audit.run import REQUIRED_ON, audit

    for name in args.functions:
        if name not in HOST_FUNCTIONS:
            raise RequestError(f"no kernel {name!r}: choose from {', '.join(HOST_FUNCTIONS)}")
    if args.processes < 1:
        raise RequestError(f"--processes must be at least 1, not {args.processes}")
    if args.write and (args.functions or args.code_only or args.arch != REQUIRED_ON):
        raise RequestError(f"--write takes all kernels, their bytes, and {REQUIRED_ON}")
    chosen = [case for case in CASES if not args.functions or case.function in args.functions]
    audited = audit(args.arch, chosen, args.processes)
    moved = [] if args.functions or args.code_only else movements()
    if args.json:
        _write_json(args.json, as_json(args.arch, audited, moved))
    if args.json != "-":
        _print_table(f"Machine code for {args.arch}", AUDIT_COLUMNS, map(audit_row, audited))
        if moved:
            title = "Bytes of one ragged batch, counted in the interpreter"
            _print_table(title, MOVEMENT_COLUMNS, map(movement_row, moved))
    if args.write:
        write_results(args.arch, audited, moved)
    faults = [(entry.case.configuration, fault) for entry in audited for fault in entry.faults]
    for configuration, fault in faults:
        print(f"{configuration}: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _bench(args: argparse.Namespace) -> int:
    import torch

    if args.seconds <= 0:
        raise RequestError(f"--seconds must be above 0, not {args.seconds:g}")
    if torch.cuda.is_available():
        found, tables = _measured(args.seconds, args.dtype)
    else:
        print("no GPU here: nothing is measured, an A100's floors stand for it", file=sys.stderr)
        found, tables = _floors()
    if args.json:
        _write_json(args.json, found)
    if args.json != "-":
        for title, columns, rows in tables:
            _print_table(title, columns, rows)
    return 0


def _floors() -> tuple[dict[str, object], list[Table]]:
    from minipaged.bench.kernels import FIGURE_18A, SWEEP
    from minipaged.hardware import GPUS

    gpu = GPUS["a100-40gb"]
    floors = [
        (case, case.must_bytes, case.must_bytes / gpu.hbm_bytes_per_s)
        for case in sorted({*FIGURE_18A, *SWEEP}, key=_in_a_table)
    ]
    found: dict[str, object] = {
        "device": None,
        "floors_of": gpu.name,
        "floors": [
            _plain(case) | {"bytes": size, "floor_s": seconds} for case, size, seconds in floors
        ],
    }
    rows = [
        (*_size(case), f"{size / 1e6:,.1f} MB", f"{seconds * 1e6:,.1f} us")
        for case, size, seconds in floors
    ]
    title = f"Bytes that must move, over {gpu.hbm_bytes_per_s / 1e9:.0f} GB/s ({gpu.name})"
    return found, [(title, ("heads", "batch", "context", "must move", "floor"), rows)]


def _in_a_table(case: Case) -> tuple[int, int, int]:
    return -case.shape.num_kv_heads, case.context, case.batch


def _measured(seconds: float, dtype: str) -> tuple[dict[str, object], list[Table]]:
    import torch

    from minipaged.bench.kernels import (
        FIGURE_18A,
        SWEEP,
        copy_bandwidth,
        measure,
        overhead_of_paging,
        time_on_gpu,
    )

    deadline = time.monotonic() + seconds
    device = torch.device("cuda")
    copy = copy_bandwidth(time_on_gpu, device)
    free, _ = torch.cuda.mem_get_info(device)
    figure, sweep = (
        measure(cases, time_on_gpu, device, getattr(torch, dtype),
                memory_bytes=int(0.8 * free), deadline=deadline)
        for cases in (FIGURE_18A, SWEEP)
    )  # fmt: skip
    overheads = overhead_of_paging(figure)
    name = torch.cuda.get_device_name(device)
    found: dict[str, object] = {
        "device": name,
        "dtype": dtype,
        "copy_bytes_per_s": copy,
        "figure_18a": [
            _plain(case) | {"paged_over_contiguous": ratio} for case, ratio in overheads.items()
        ],
        "measured": [
            {
                **_plain(entry.case),
                "implementation": entry.implementation,
                "bytes": entry.case.must_bytes,
                "seconds": entry.seconds,
                "of_copy": entry.bytes_per_s and entry.bytes_per_s / copy,
                "why_not": entry.why_not,
            }
            for entry in (*figure, *sweep)
        ],
    }
    ratios = [(*_size(case), f"{ratio:.2f}") for case, ratio in overheads.items()]
    return found, [
        _times(f"{name}, {dtype}: time, share of the copy bandwidth ({copy / 1e9:.0f} GB/s)",
               [*figure, *sweep], copy),
        ("Figure 18a: paged over contiguous attention",
         ("heads", "batch", "context", "paged / contiguous"), ratios),
    ]  # fmt: skip


def _times(title: str, measured: Sequence[Measured], copy: float) -> Table:
    """A row for each case, a column for each implementation."""
    names = list(dict.fromkeys(entry.implementation for entry in measured))
    cells: dict[Case, dict[str, str]] = {}
    for entry in measured:
        cell = "-"
        if entry.seconds is not None and entry.bytes_per_s is not None:
            cell = f"{entry.seconds * 1e6:,.1f} us {entry.bytes_per_s / copy:4.0%}"
        cells.setdefault(entry.case, {})[entry.implementation] = cell
    order = sorted(cells, key=lambda case: (case.heads, case.context, case.batch))
    rows = [(*_size(case), *(cells[case][name] for name in names)) for case in order]
    return title, ("heads", "batch", "context", *names), rows


def _size(case: Case) -> tuple[str, str, str]:
    return case.heads, str(case.batch), str(case.context)


def _plain(case: Case) -> dict[str, object]:
    return {"heads": case.heads, "batch": case.batch, "context": case.context}


def _print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    table = RichTable(box=None, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    print(f"\n{title}")
    # Wider than any row: nothing is cut where it goes into a file or a narrow terminal.
    Console(width=MAX_COLUMNS).print(table)


def _write_json(path: str, found: object) -> None:
    text = json.dumps(found, indent=2)
    if path == "-":
        print(text)
    else:
        Path(path).write_text(text + "\n", encoding="utf-8")
        print(f"written to {path}", file=sys.stderr)
