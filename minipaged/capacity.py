"""What fits on a card: weights, KV cache, blocks and sequences of a model.

Arithmetic only: it needs no GPU and no weights. ``minipaged plan`` shows it, and the simulator
sizes its pools with it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

from minipaged.config import CacheConfig, ConfigError, ModelConfig
from minipaged.errors import MinipagedError
from minipaged.hardware import GPUS, GiB, Gpu
from minipaged.kvcache import sizing
from minipaged.models.catalog import CATALOG, parameter_count

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

#: Bytes of each card that are neither weights nor KV cache: activations, the CUDA context,
#: buffers of the collectives. With the 0.95 utilization of the authors' experiments, table 1
#: implies 1.67 GiB for the 13B model, 1.68 for 66B and 1.60 for 175B: nearly the same number
#: three times, though the models differ by a factor of 13.
ACTIVATION_BYTES = round(1.67 * GiB)

MAX_TENSOR_PARALLEL = 64

#: The paper's table 1: model, cards, GPU, parameters (GB), KV memory (GB), slots (thousands), as
#: printed.
PAPER_TABLE_1 = (
    ("opt-13b", 1, "a100-40gb", 26.0, 12.0, 15.7),
    ("opt-66b", 4, "a100-40gb", 132.0, 21.0, 9.7),
    ("opt-175b", 8, "a100-80gb", 346.0, 264.0, 60.1),
)

T = TypeVar("T")


class PlanError(MinipagedError, ValueError):
    """There is no such model or card, or one does not fit on the other."""


@dataclass(frozen=True)
class Plan:
    """A model on ``tensor_parallel`` cards. Bytes are those of one card; all cards hold the same
    blocks, so blocks, slots and sequences are those of the whole engine.

    Attributes:
        kv_heads: that each card stores.
        kv_bytes: what is left for the KV cache.
        num_slots: tokens in ``num_blocks`` whole blocks.
        max_sequences: of ``max_model_len`` tokens each, at the same time.
    """

    model: str
    gpu: str
    tensor_parallel: int
    dtype: str
    block_size: int
    utilization: float
    watermark: float
    max_model_len: int
    parameters: int
    num_layers: int
    kv_heads: int
    head_dim: int
    card_bytes: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_block: int
    num_blocks: int
    num_slots: int
    watermark_blocks: int
    swap_bytes: int
    swap_blocks: int
    max_sequences: int


def make_plan(
    model: ModelConfig,
    gpu: Gpu,
    tensor_parallel: int = 1,
    dtype: str = "float16",
    cache: CacheConfig | None = None,
    max_model_len: int | None = None,
    activation_bytes: int = ACTIVATION_BYTES,
    arithmetic: ModuleType = sizing,
) -> Plan:
    """Divide the memory of a card.

    Weights are taken to be spread evenly over the cards (norms and biases, which every card
    holds, are less than a thousandth).

    Args:
        cache: block size, utilization, swap space (of each card) and watermark; its numbers of
            blocks play no part.
        max_model_len: tokens of the longest sequence; None: as many as the model has positions.
        activation_bytes: of each card, kept for all that is neither weights nor KV cache.
        arithmetic: has the functions of :mod:`minipaged.kvcache.sizing`.

    Raises:
        PlanError: the weights leave no room for a single block; the message names the least
            number of cards that fit.
        ConfigError: the heads cannot be spread over ``tensor_parallel`` cards.
    """
    cache = cache or CacheConfig()
    plan = _divide(
        model, gpu, tensor_parallel, dtype, cache,
        max_model_len or model.max_model_len, activation_bytes, arithmetic,
    )  # fmt: skip
    if plan.num_blocks:
        return plan
    advice = "no number of such cards holds it"
    least = least_tensor_parallel(
        model, gpu, dtype, cache, max_model_len, activation_bytes, arithmetic
    )
    if least is not None:
        advice = f"the least number of such cards that holds it is {least} (--tensor-parallel)"
    raise PlanError(
        f"{model.name} does not fit on {tensor_parallel} x {gpu.name}: of each card's "
        f"{gib(gpu.memory_bytes)} the engine may use "
        f"{gib(int(gpu.memory_bytes * cache.gpu_memory_utilization))} "
        f"({cache.gpu_memory_utilization:.0%}); weights in {dtype} take "
        f"{gib(plan.weight_bytes)} and activations {gib(activation_bytes)}, which leaves no room "
        f"for a block of KV cache; {advice}"
    )


def least_tensor_parallel(
    model: ModelConfig,
    gpu: Gpu,
    dtype: str = "float16",
    cache: CacheConfig | None = None,
    max_model_len: int | None = None,
    activation_bytes: int = ACTIVATION_BYTES,
    arithmetic: ModuleType = sizing,
) -> int | None:
    """The least number of cards that hold the model and one sequence of ``max_model_len``;
    None if none up to 64 does."""
    length = max_model_len or model.max_model_len
    for ranks in range(1, min(model.num_heads, MAX_TENSOR_PARALLEL) + 1):
        try:
            plan = _divide(
                model, gpu, ranks, dtype, cache or CacheConfig(), length, activation_bytes,
                arithmetic,
            )  # fmt: skip
        except ConfigError:
            continue
        if plan.max_sequences:
            return ranks
    return None


def _divide(
    model: ModelConfig,
    gpu: Gpu,
    tensor_parallel: int,
    dtype: str,
    cache: CacheConfig,
    max_model_len: int,
    activation_bytes: int,
    arithmetic: ModuleType,
) -> Plan:
    item = DTYPE_BYTES[dtype]
    block_size = cache.block_size
    block_bytes = arithmetic.kv_bytes_per_block(model, item, block_size, tensor_parallel)
    parameters = parameter_count(model)
    weight_bytes = -(-parameters * item // tensor_parallel)
    kv_bytes = arithmetic.kv_budget_bytes(
        gpu.memory_bytes, cache.gpu_memory_utilization, weight_bytes, activation_bytes
    )
    num_blocks = arithmetic.blocks_that_fit(kv_bytes, block_bytes)
    return Plan(
        model=model.name,
        gpu=gpu.name,
        tensor_parallel=tensor_parallel,
        dtype=dtype,
        block_size=block_size,
        utilization=cache.gpu_memory_utilization,
        watermark=cache.watermark,
        max_model_len=max_model_len,
        parameters=parameters,
        num_layers=model.num_layers,
        kv_heads=arithmetic.kv_heads_per_rank(model, tensor_parallel),
        head_dim=model.head_dim,
        card_bytes=gpu.memory_bytes,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=arithmetic.kv_bytes_per_token(model, item, tensor_parallel),
        kv_bytes_per_block=block_bytes,
        num_blocks=num_blocks,
        num_slots=num_blocks * block_size,
        watermark_blocks=arithmetic.watermark_blocks(num_blocks, cache.watermark),
        swap_bytes=cache.swap_space_bytes,
        swap_blocks=arithmetic.blocks_that_fit(cache.swap_space_bytes, block_bytes),
        max_sequences=arithmetic.sequences_that_fit(num_blocks, max_model_len, block_size),
    )


def find_model(name: str) -> ModelConfig:
    """A model of the catalog, by its name or hub id. Raises PlanError, with suggestions."""
    return _find("model", name, name.rsplit("/", 1)[-1], CATALOG)


def find_gpu(name: str) -> Gpu:
    """A card, by its name. Raises PlanError, with suggestions."""
    return _find("GPU", name, name, GPUS)


def _find(kind: str, given: str, name: str, known: Mapping[str, T]) -> T:
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key in known:
        return known[key]
    near = [k for k in known if k.startswith(key)] if key else []
    near = near or difflib.get_close_matches(key, known, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise PlanError(f"unknown {kind} {given!r}: {hint}known are {', '.join(known)}")


def gib(num_bytes: int) -> str:
    """Bytes as they are printed: ``12.00 GiB``."""
    return f"{num_bytes / GiB:.2f} GiB"
