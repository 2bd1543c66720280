"""What is asked of a kernel's machine code, as data, and what to say where it falls short."""

from __future__ import annotations

from dataclasses import dataclass

from minipaged.audit.cache_loads import CACHES
from minipaged.audit.report import WIDE_BITS, AccessCount, Report


@dataclass(frozen=True)
class Thresholds:
    """What a kernel must reach; by default only that no register is spilled.

    Attributes:
        no_spills: no STL, no LDL, no stack.
        kv_wide_share: bytes of K and of V in 128-bit loads over all bytes of K and of V.
        wide_share: bytes in 128-bit loads and stores of anything, over all bytes.
        tensor_cores: it multiplies matrices on the tensor cores.
        min_warps: warps on a multiprocessor, at least.
        min_kv_bytes_in_flight: bytes of K and V that a thread block asks for at one time.
    """

    no_spills: bool = True
    kv_wide_share: float = 0.0
    wide_share: float = 0.0
    tensor_cores: bool = False
    min_warps: int = 0
    min_kv_bytes_in_flight: int = 0


def check(report: Report, thresholds: Thresholds) -> list[str]:
    """One sentence for each thing that a kernel falls short of; none: it passes."""
    return [
        *(_spills(report) if thresholds.no_spills else ()),
        *(_narrow_loads(report, thresholds.kv_wide_share) if thresholds.kv_wide_share else ()),
        *_other(report, thresholds),
    ]


def _spills(report: Report) -> list[str]:
    if not (report.spill_stores or report.spill_loads or report.stack_bytes):
        return []
    return [
        f"{report.kernel} spills registers to memory: {report.spill_stores} stores (STL), "
        f"{report.spill_loads} loads (LDL), {report.stack_bytes} bytes of stack a thread; "
        f"it uses {report.registers} registers a thread"
    ]


def _narrow_loads(report: Report, share: float) -> list[str]:
    found = []
    for tensor in CACHES:
        loads = [load for load in report.cache_loads if tensor in load.tensor.split("+")]
        total = sum(load.bytes for load in loads)
        narrow = [load for load in loads if load.bits < WIDE_BITS]
        if not loads:
            found.append(f"{report.kernel} has no load of {tensor}")
        elif sum(load.bytes for load in narrow) > (1 - share) * total:
            count = sum(load.count for load in loads)
            found += [_narrow(report.kernel, tensor, load, count) for load in narrow]
    return found


def _narrow(kernel: str, tensor: str, load: AccessCount, of: int) -> str:
    are = "is" if load.count == 1 else "are"
    return (
        f"{kernel}: {load.count} of {of} loads of {tensor} {are} {load.bits} bit wide, "
        f"not {WIDE_BITS} ({load.instruction}, line {load.line})"
    )


def _other(report: Report, thresholds: Thresholds) -> list[str]:
    found = []
    wide = report.wide_share or 0.0
    if wide < thresholds.wide_share:
        found.append(
            f"{report.kernel}: {wide:.0%} of the bytes that it moves are moved {WIDE_BITS} bit "
            f"at a time, at least {thresholds.wide_share:.0%} are asked for"
        )
    if thresholds.tensor_cores and not report.tensor_core_instructions:
        found.append(f"{report.kernel} has no tensor-core instruction: no tl.dot became one")
    limit = report.occupancy
    if limit.warps < thresholds.min_warps:
        found.append(
            f"{report.kernel}: {limit.warps} of {limit.of} warps fit on a multiprocessor of "
            f"{report.arch}, at least {thresholds.min_warps} are asked for; the limit is "
            f"{limit.limit} ({report.registers} registers a thread, {report.shared_bytes} bytes "
            f"of shared memory and {report.num_warps} warps a block)"
        )
    if report.kv_bytes_in_flight < thresholds.min_kv_bytes_in_flight:
        found.append(
            f"{report.kernel}: a thread block has at most {report.kv_bytes_in_flight} bytes of K "
            f"and V in flight, at least {thresholds.min_kv_bytes_in_flight} are asked for; "
            f"{_lines(report)}loads of a loop run ahead by tl.range(..., num_stages=), and by the "
            "launch's num_stages if they feed a tl.dot in it"
        )
    return found


def _lines(report: Report) -> str:
    """Where K and V are loaded, for the middle of a sentence."""
    lines = sorted({load.line for load in report.cache_loads})
    where = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
    return f"they are loaded in {where}; " if lines else ""
