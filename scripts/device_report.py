"""What ``scripts/device_check.sh`` found, in one table and one JSON file.

``python scripts/device_report.py OUTDIR`` reads the files of the steps there, as far as they have
come, prints the table, and writes ``summary.txt`` and ``summary.json``. Status 1: a step failed.
It needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: For the audit, where the card's own is not known.
DEFAULT_ARCH = "sm_80"

#: What the speed should be (none of it makes a step fail): see ``kernels/RESULTS.md``.
COPY_SHARE_TARGET = 0.70
PAGING_TARGET = 1.15
STEP_TARGET = 1.4


def read_json(path: Path) -> dict[str, Any]:
    """What a step wrote; empty where it came to nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """Status, time and limit of each step."""
    steps = []
    for line in (folder / "steps.tsv").read_text(encoding="utf-8").splitlines():
        name, status, seconds, limit = line.split("\t")
        steps.append(
            {"name": name, "status": int(status), "seconds": int(seconds), "limit": int(limit)}
        )
    return steps


def outcome(step: dict[str, Any]) -> str:
    """In one word, or two."""
    if step["status"] == 0:
        return "passed"
    return "out of time" if step["status"] in (124, 137) else f"failed ({step['status']})"


def target(value: float, limit: float, *, at_least: bool = False) -> str:
    met = value >= limit if at_least else value <= limit
    return f"target {'>=' if at_least else '<='} {limit:g}: {'met' if met else 'NOT met'}"


def about_lines(found: dict[str, Any]) -> Iterator[str]:
    figures = found.get("figures", {})
    if figures:
        copy = figures["copy_bytes_per_s"] / 1e9
        versions = ", ".join(
            f"{name} {figures[name]}" for name in ("python", "torch", "triton") if name in figures
        )
        yield f"{figures.get('name', figures['device'])}: copies at {copy:,.0f} GB/s; {versions}"


def graph_lines(found: dict[str, Any]) -> Iterator[str]:
    figures = found.get("figures", {})
    for step in figures.get("steps", []):
        line = (
            f"{figures['model']} {figures['dtype']} decode, batch {step['batch']}, context "
            f"{figures['context']}: graph {step['graph_s'] * 1e3:.2f} ms, single launches "
            f"{step['single_launches_s'] * 1e3:.2f} ms, floor {step['floor_s'] * 1e3:.2f} ms, "
            f"{step['over_floor']:.2f}x"
        )
        yield f"{line} ({target(step['over_floor'], STEP_TARGET)})" if step["batch"] == 32 else line


def pressure_lines(found: dict[str, Any]) -> Iterator[str]:
    figures = found.get("figures", {})
    for name, run in figures.get("runs", {}).items():
        ratio = run["decode_step_over_floor"]
        yield (
            f"{figures['model']}, {figures['requests']} requests, {name}: "
            f"{run['output_tokens_per_s']:,.0f} tokens/s, {run['gpu_blocks']:,} blocks, "
            f"{run['preemptions']} preemptions, {run['blocks_swapped']} blocks swapped, decode "
            f"steps {'-' if ratio is None else f'{ratio:.2f}x'} their floor"
        )


def audit_lines(found: dict[str, Any]) -> Iterator[str]:
    kernels = found.get("kernels", [])
    if kernels:
        faults = sum(bool(kernel["faults"]) for kernel in kernels)
        yield f"{found['arch']}: {len(kernels)} kernels compiled, {faults} with faults"


def case_lines(measured: list[dict[str, Any]]) -> Iterator[str]:
    """Each size, as far as anything was measured, and why something was not."""
    cases: dict[tuple[Any, ...], list[str]] = {}
    reasons: dict[str, int] = {}
    for entry in measured:
        name, case = entry["implementation"], (entry["heads"], entry["context"], entry["batch"])
        if entry["seconds"] is not None:
            cases.setdefault(case, []).append(
                f"{name} {entry['seconds'] * 1e6:,.0f} us {entry['of_copy']:.0%}"
            )
        elif entry["why_not"]:
            reason = f"{name}: {entry['why_not']}"
            reasons[reason] = reasons.get(reason, 0) + 1
    for (heads, context, batch), parts in sorted(cases.items()):
        yield f"{heads}, context {context}, batch {batch}: {', '.join(parts)}"
    yield from (f"not measured ({count}): {reason}" for reason, count in reasons.items())


def bench_lines(found: dict[str, Any]) -> Iterator[str]:
    """The best and the worst of each kernel, and the paper's Figure 18a."""
    if not found.get("device"):
        return
    shares: dict[tuple[str, str], list[float]] = {}
    for entry in found["measured"]:
        if entry["of_copy"] is not None and entry["bytes"] >= 256 << 20:
            shares.setdefault((entry["heads"], entry["implementation"]), []).append(
                entry["of_copy"]
            )
    for (heads, name), values in shares.items():
        best = max(values)
        line = f"{heads} {name}: {min(values):.0%} to {best:.0%} of the copy bandwidth"
        yield f"{line} ({target(best, COPY_SHARE_TARGET, at_least=True)})" if "v2" in name else line
    yield from case_lines(found["measured"])
    ratios = [entry["paged_over_contiguous"] for entry in found["figure_18a"]]
    if ratios:
        worst = max(ratios)
        yield (
            f"paged over contiguous (Figure 18a): {min(ratios):.2f} to {worst:.2f} "
            f"({target(worst, PAGING_TARGET)})"
        )


LINES = {
    "about": about_lines,
    "graphs": graph_lines,
    "pressure": pressure_lines,
    "audit": audit_lines,
    "bench": bench_lines,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="device_report.py")
    parser.add_argument("folder", type=Path, metavar="OUTDIR")
    parser.add_argument("--arch", action="store_true", help="print the card's architecture alone")
    args = parser.parse_args()
    found = {name: read_json(args.folder / f"{name}.json") for name in LINES}
    if args.arch:
        print(found["about"].get("figures", {}).get("arch", DEFAULT_ARCH))
        return 0
    steps = read_steps(args.folder)
    lines = [
        f"{step['name']:<13} {outcome(step):<12} {step['seconds']:>4} s of {step['limit']}"
        for step in steps
    ]
    for name, describe in LINES.items():
        described = list(describe(found[name]))
        described += [
            f"FAILED: {check['name']}: {check['found']}"
            for check in found[name].get("checks", [])
            if not check["ok"]
        ]
        if described:
            lines += ["", name, *(f"  {line}" for line in described)]
    failed = [step["name"] for step in steps if step["status"]]
    lines += ["", f"failed: {', '.join(failed)}" if failed else "all steps passed"]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    (args.folder / "summary.txt").write_text(text, encoding="utf-8")
    summary = {"steps": steps, "failed": failed, **found}
    (args.folder / "summary.json").write_text(
        json.dumps(summary, indent=2) + "\n", encoding="utf-8"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
