"""How many warps of a kernel fit on one multiprocessor at a time, and what keeps out the next.

The rules are those of NVIDIA's occupancy calculator; the limits are in the CUDA C++ Programming
Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from minipaged.audit.compiler import WARP_SIZE, AuditError, capability_of

REGISTERS = 65_536
"""32-bit registers of a multiprocessor."""
REGISTER_UNIT = 256
"""Registers are handed to a warp in pieces of so many."""
PARTITIONS = 4
"""A warp lives in one quarter of the multiprocessor, with a quarter of its registers."""
SHARED_UNIT = 128
"""Shared memory is handed to a block in pieces of so many bytes."""
SHARED_RESERVED = 1024
"""Bytes of each block's shared memory that the system keeps."""


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor has: warps, thread blocks, bytes of shared memory."""

    warps: int
    blocks: int
    shared_bytes: int


MULTIPROCESSORS: Mapping[int, Multiprocessor] = MappingProxyType(
    {
        80: Multiprocessor(64, 32, 164 * 1024),
        86: Multiprocessor(48, 16, 100 * 1024),
        87: Multiprocessor(48, 16, 164 * 1024),
        89: Multiprocessor(48, 24, 100 * 1024),
        90: Multiprocessor(64, 32, 228 * 1024),
        100: Multiprocessor(64, 32, 228 * 1024),
        120: Multiprocessor(48, 24, 100 * 1024),
    }
)


@dataclass(frozen=True)
class Occupancy:
    """Attributes:
    warps: of the kernel that are resident on a multiprocessor at most.
    of: warps that a multiprocessor can hold.
    blocks: thread blocks that these warps are.
    limit: what keeps out one more block: ``registers``, ``shared memory``, ``warps``, ``blocks``.
    """

    warps: int
    of: int
    blocks: int
    limit: str


def occupancy(arch: str, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy limit of a kernel.

    Args:
        num_warps: warps of a thread block.
        registers: 32-bit registers of a thread.
        shared_bytes: shared memory of a thread block.

    Raises:
        AuditError: the architecture is not in the table, or not even one block fits.

    Example:
        4 warps of 96 registers and 68096 bytes on sm_80: registers would admit 5 blocks, but
        shared memory has room for 2, so 8 warps of 64.
    """
    capability = capability_of(arch)
    if capability not in MULTIPROCESSORS:
        known = ", ".join(f"sm_{number}" for number in MULTIPROCESSORS)
        raise AuditError(f"the limits of {arch} are not known here, only those of {known}")
    sm = MULTIPROCESSORS[capability]
    of_warp = _round_up(registers * WARP_SIZE, REGISTER_UNIT)
    warps_by_registers = PARTITIONS * (REGISTERS // PARTITIONS // of_warp)
    of_block = _round_up(shared_bytes + SHARED_RESERVED, SHARED_UNIT)
    blocks = {
        "warps": sm.warps // num_warps,
        "registers": warps_by_registers // num_warps,
        "shared memory": sm.shared_bytes // of_block,
        "blocks": sm.blocks,
    }
    limit = min(blocks, key=lambda name: blocks[name])
    if not blocks[limit]:
        raise AuditError(
            f"not one block of {num_warps} warps, {registers} registers a thread and "
            f"{shared_bytes} bytes of shared memory fits on {arch}: too much {limit}"
        )
    return Occupancy(blocks[limit] * num_warps, sm.warps, blocks[limit], limit)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
