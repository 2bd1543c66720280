"""What the machine code of one kernel says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minipaged.audit.cache_loads import CACHES, find_cache_loads, load_at
from minipaged.audit.compiler import WARP_SIZE, AuditError, Ptx
from minipaged.audit.machine_code import TENSOR_CORE, Instruction, bytes_in_flight, parse
from minipaged.audit.occupancy import Occupancy, occupancy
from minipaged.audit.toolchain import Cubin, assemble, disassemble, resource_usage

WIDE_BITS = 128
"""The widest load of one thread, 16 bytes; what a KV cache should be read with."""


@dataclass(frozen=True)
class AccessCount:
    """Loads or stores of global memory, of one kind.

    Attributes:
        tensor: for a load ``k_cache``, ``v_cache``, both joined by ``+``, or ``other``; for a
            store ``other``.
        instruction: ``LDG`` into registers, ``LDGSTS`` into shared memory, ``STG`` a store.
        bits: width for one thread.
        line: in the source: of the ``tl.load``; 0 for ``other``.
        count: how many of them the code has.
    """

    tensor: str
    instruction: str
    bits: int
    line: int
    count: int

    @property
    def bytes(self) -> int:
        """Bytes that one thread moves when each of them runs once."""
        return self.count * self.bits // 8


@dataclass(frozen=True)
class Report:
    """The audit of one kernel.

    Attributes:
        kernel: its name.
        arch: the GPU that it was compiled for.
        num_warps: warps of a thread block.
        registers: 32-bit registers of a thread.
        stack_bytes: of a thread's local memory. Not 0: registers were spilled, or an array is
            indexed by a variable.
        spill_stores, spill_loads: instructions STL and LDL.
        shared_bytes: shared memory of a thread block.
        occupancy: warps that fit on a multiprocessor.
        tensor_core_instructions: HMMA and its like.
        accesses: loads and stores, counted.
        kv_bytes_in_flight: bytes of K and V that a thread block has asked for at one time and not
            yet waited for, at most (:func:`~minipaged.audit.machine_code.bytes_in_flight`).
    """

    kernel: str
    arch: str
    num_warps: int
    registers: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    occupancy: Occupancy
    tensor_core_instructions: int
    accesses: tuple[AccessCount, ...]
    kv_bytes_in_flight: int

    @property
    def cache_loads(self) -> tuple[AccessCount, ...]:
        """The loads that read K or V."""
        return tuple(access for access in self.accesses if access.tensor != "other")

    @property
    def kv_wide_share(self) -> float | None:
        """Bytes of K and V in 128-bit loads over all bytes of K and V; None: it loads neither."""
        return wide_share(self.cache_loads)

    @property
    def wide_share(self) -> float | None:
        """Bytes in 128-bit loads and stores over all bytes; None: it moves nothing."""
        return wide_share(self.accesses)


def wide_share(accesses: Iterable[AccessCount]) -> float | None:
    """Bytes at 128 bit over all bytes, when each instruction runs once; None: no bytes."""
    counted = list(accesses)
    total = sum(access.bytes for access in counted)
    wide = sum(access.bytes for access in counted if access.bits >= WIDE_BITS)
    return wide / total if total else None


def inspect(cubin: Cubin, ptx: Ptx, source: str, arch: str = "sm_80") -> Report:
    """Read the machine code of a kernel.

    Args:
        cubin: assembled from ``ptx``.
        source: the text of the file that defines the kernel, for what its loads read.
        arch: what ``cubin`` is for.
    """
    instructions = parse(disassemble(cubin))
    usage = re.search(
        rf"Function {re.escape(ptx.kernel)}:\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)",
        resource_usage(cubin),
    )
    if usage is None:
        raise AuditError(f"cuobjdump says nothing of {ptx.kernel}")
    registers, stack, static_shared = map(int, usage.groups())
    shared = static_shared + ptx.shared_bytes
    accesses, of_cache = _attribute(instructions, cubin, source, ptx.kernel)
    return Report(
        kernel=ptx.kernel,
        arch=arch,
        num_warps=ptx.num_warps,
        registers=registers,
        stack_bytes=stack,
        spill_stores=sum(i.name == "STL" for i in instructions),
        spill_loads=sum(i.name == "LDL" for i in instructions),
        shared_bytes=shared,
        occupancy=occupancy(arch, ptx.num_warps, registers, shared),
        tensor_core_instructions=sum(bool(TENSOR_CORE.match(i.name)) for i in instructions),
        accesses=accesses,
        kv_bytes_in_flight=bytes_in_flight(instructions, of_cache) * ptx.num_warps * WARP_SIZE,
    )


def audit_ptx(ptx: Ptx, source: str, arch: str = "sm_80") -> Report:
    """Assemble a kernel and read its machine code."""
    return inspect(assemble(ptx, arch), ptx, source, arch)


def _attribute(
    instructions: Sequence[Instruction], cubin: Cubin, source: str, kernel: str
) -> tuple[tuple[AccessCount, ...], frozenset[int]]:
    """Loads and stores, counted by what they touch, and the indices of the loads of the cache."""
    in_source = find_cache_loads(source, kernel)
    counts: dict[tuple[str, str, int, int], int] = {}
    of_cache = set()
    for index, instruction in enumerate(instructions):
        if not (instruction.is_load or instruction.is_store):
            continue
        site = cubin.sites[instruction.line - 1] if instruction.line else ()
        load = load_at(site, in_source) if instruction.is_load else None
        tensor, line = "other", 0
        if load is not None:
            tensor = "+".join(name for name in CACHES if name in load.tensors)
            line = load.line
            of_cache.add(index)
        key = (tensor, instruction.name, instruction.bits, line)
        counts[key] = counts.get(key, 0) + 1
    rows = (AccessCount(t, name, bits, line, n) for (t, name, bits, line), n in counts.items())
    order = sorted(rows, key=lambda row: (row.tensor, row.line, row.bits, row.instruction))
    return tuple(order), frozenset(of_cache)
