"""GPUs, by their data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GiB = 1 << 30
MiB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One card.

    A card that is sold as "40 GB" has neither 40e9 bytes nor 40 GiB for a program: some of its
    memory is kept for error correction and by the driver. ``memory_bytes`` is what CUDA reports
    (``cudaDeviceProp.totalGlobalMem``); it differs by some hundred MiB between driver versions.

    Attributes:
        name: key in :data:`GPUS`.
        memory_bytes: memory that a program can have.
        marketed_gb: memory that is on the label.
        hbm_bytes_per_s: peak bandwidth of the card's own memory.
        fp16_flops: peak of the tensor cores in float16 with float32 sums, without sparsity.
        host_link_bytes_per_s: nominal bandwidth to host memory, one direction.
        peer_link_bytes_per_s: nominal bandwidth to the other cards, one direction: NVLink, or
            the host link where there is none.
    """

    name: str
    memory_bytes: int
    marketed_gb: int
    hbm_bytes_per_s: float
    fp16_flops: float
    host_link_bytes_per_s: float
    peer_link_bytes_per_s: float


PCIE3 = 16e9
PCIE4 = 32e9
PCIE5 = 64e9

# Bandwidth and FLOP/s: NVIDIA's data sheets of the products (of the SXM board where there are
# several; GeForce: the architecture white papers). Memory: as printed by
# torch.cuda.get_device_properties on such cards.
GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            Gpu("v100-16gb", 16_160 * MiB, 16, 900e9, 125e12, PCIE3, 150e9),
            Gpu("v100-32gb", 32_510 * MiB, 32, 900e9, 125e12, PCIE3, 150e9),
            Gpu("t4", 15_102 * MiB, 16, 320e9, 65e12, PCIE3, PCIE3),
            Gpu("a10g", 22_587 * MiB, 24, 600e9, 70e12, PCIE4, PCIE4),
            Gpu("a100-40gb", 40_536 * MiB, 40, 1555e9, 312e12, PCIE4, 300e9),
            Gpu("a100-80gb", 85_056_798_720, 80, 2039e9, 312e12, PCIE4, 300e9),
            Gpu("l4", 22_692 * MiB, 24, 300e9, 121e12, PCIE4, PCIE4),
            Gpu("l40s", 45_589 * MiB, 48, 864e9, 362e12, PCIE4, PCIE4),
            Gpu("h100-80gb", 81_089 * MiB, 80, 3350e9, 989e12, PCIE5, 450e9),
            Gpu("h200", 143_156 * MiB, 141, 4800e9, 989e12, PCIE5, 450e9),
            Gpu("rtx-3090", 24_268 * MiB, 24, 936e9, 71e12, PCIE4, PCIE4),
            Gpu("rtx-4090", 24_217 * MiB, 24, 1008e9, 165e12, PCIE4, PCIE4),
        )
    }
)
