"""Piece by piece instead of in bulk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from minipaged.config import ModelConfig


@dataclass(frozen=True)
class Link:
    bytes_per_s: float
    transfer_seconds: float


@dataclass(frozen=True)
class Machine:
    flops_per_s: float
    memory_bytes_per_s: float
    launch_seconds: float
    swap_out: Link
    swap_in: Link


#: The paper's A100-40GB and its host; fitted on figure 19a as the module says. The bandwidth of the
#: card's memory is its data sheet's; a layer is taken to be 10 kernels of 5 µs. Neither shows in
#: the figure.
A100_2023 = Machine(
    flops_per_s=167.5e12,
    memory_bytes_per_s=1555e9,
    launch_seconds=50e-6,
    swap_out=Link(13.15e9, 2.03e-6),
    swap_in=Link(12.33e9, 3.59e-6),
)


def matrix_weights(model: ModelConfig) -> int:
    width = model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads)
    mlp = {"llama": 3, "opt": 2}[model.architecture] * model.intermediate_size
    return model.num_layers * model.hidden_size * (width + mlp)


# --------------------------------------------------------------------------- swap
def swap_bytes(model: ModelConfig, dtype_bytes: int, num_blocks: int, block_size: int) -> int:
    slots = block_size * swap_transfers(model, num_blocks)
    return slots * model.num_kv_heads * model.head_dim * dtype_bytes


def swap_transfers(model: ModelConfig, num_blocks: int) -> int:
    keys = values = num_blocks * model.num_layers
    return keys + values


def swap_seconds(
    model: ModelConfig, dtype_bytes: int, num_blocks: int, block_size: int, link: Link
) -> float:
    piece = block_size * model.num_kv_heads * model.head_dim * dtype_bytes
    each = link.transfer_seconds + piece / link.bytes_per_s
    return swap_transfers(model, num_blocks) * each


# --------------------------------------------------------------------------- recompute
def recompute_flops(model: ModelConfig, num_tokens: int) -> int:
    width = model.num_heads * model.head_dim
    attention = 2 * model.num_layers * width * num_tokens * (num_tokens + 1)
    return attention + 2 * num_tokens * matrix_weights(model)


def recompute_seconds(
    model: ModelConfig, dtype_bytes: int, num_tokens: int, machine: Machine
) -> float:
    reading = dtype_bytes * matrix_weights(model) / machine.memory_bytes_per_s
    computing = recompute_flops(model, num_tokens) / machine.flops_per_s
    launching = machine.launch_seconds * model.num_layers
    return sorted([reading, computing, launching])[-1]


# --------------------------------------------------------------------------- which is cheaper?
def cheaper(
    model: ModelConfig, dtype_bytes: int, num_tokens: int, block_size: int, machine: Machine
) -> Literal["swap", "recompute"]:
    blocks = math.ceil(num_tokens / block_size)
    out = swap_seconds(model, dtype_bytes, blocks, block_size, machine.swap_out)
    back = swap_seconds(model, dtype_bytes, blocks, block_size, machine.swap_in)
    again = recompute_seconds(model, dtype_bytes, num_tokens, machine)
    return "recompute" if again <= out + back else "swap"


def crossover_block_size(
    model: ModelConfig, dtype_bytes: int, num_tokens: int, machine: Machine, largest: int = 256
) -> int | None:
    sizes = [1 << power for power in range(largest.bit_length())]
    swaps = [b for b in sizes if cheaper(model, dtype_bytes, num_tokens, b, machine) == "swap"]
    return swaps[0] if swaps else None


def crossover_tokens(
    model: ModelConfig, dtype_bytes: int, block_size: int, machine: Machine, most: int
) -> int | None:
    lengths = range(1, most + 1)
    return next(
        (n for n in lengths if cheaper(model, dtype_bytes, n, block_size, machine) != "swap"), None
    )
