"""Cards as :mod:`minipaged.scheduling.transfer_cost` sees them: what they reach of their data
sheets."""

from __future__ import annotations

from minipaged.hardware import Gpu
from minipaged.scheduling.transfer_cost import A100_2023, Link, Machine

#: What a prefill reaches of a card's peak FLOP/s: as on the A100 of figure 19a.
FLOPS_UTILIZATION = 0.54
#: What a long transfer between a card and pinned host memory reaches of a link's nominal bandwidth:
#: 25 GB/s of the 32 of PCIe 4. (The machine of figure 19a had half of that; ``minipaged plan``
#: takes another with ``--link``.)
LINK_UTILIZATION = 0.78
#: Fixed cost of a transfer: between the two of figure 19a.
TRANSFER_SECONDS = 2.8e-6


def machine_of(gpu: Gpu, link_bytes_per_s: float | None = None) -> Machine:
    """What a card and its host can be expected to reach.

    Args:
        link_bytes_per_s: that a long transfer reaches, each way; None: a fraction of what the link
            promises.
    """
    link = Link(link_bytes_per_s or LINK_UTILIZATION * gpu.host_link_bytes_per_s, TRANSFER_SECONDS)
    return Machine(
        flops_per_s=FLOPS_UTILIZATION * gpu.fp16_flops,
        memory_bytes_per_s=gpu.hbm_bytes_per_s,
        launch_seconds=A100_2023.launch_seconds,
        swap_out=link,
        swap_in=link,
    )
