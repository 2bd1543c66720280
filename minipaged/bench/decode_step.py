"""How far is a decode step from the matrix products that it cannot do without?

Step and products run in one process, interleaved, because on a busy machine only the ratio of
their medians means something.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from minipaged.attention import AttentionBackend
from minipaged.config import ModelConfig
from minipaged.contracts import Span, StepLogits, StepPlan
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.kvcache.pool import KVPool
from minipaged.models.causal_lm import CausalLM
from minipaged.models.random_weights import random_model
from minipaged.parts import Parts

SMOLLM2_SHAPE = ModelConfig(
    architecture="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536,
    num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, max_model_len=8192,
    rms_norm_eps=1e-5, rope_theta=100000.0, name="smollm2-135m",
)  # fmt: skip

_BLOCK_SIZE = 16


@dataclass(frozen=True)
class DecodeStep:
    """Medians, in milliseconds.

    Attributes:
        batch_size, context: sequences, and tokens in the cache of each (on average).
        linear_ms: the products of one step through ``F.linear``, head included.
        packed_ms: the same with weights packed for oneDNN; None where there is no oneDNN.
        step_ms: a whole step of the executor, from plan to logits.
    """

    batch_size: int
    context: int
    linear_ms: float
    packed_ms: float | None
    step_ms: float

    @property
    def floor_ms(self) -> float:
        """The faster of the two ways to compute the products."""
        return self.linear_ms if self.packed_ms is None else min(self.linear_ms, self.packed_ms)

    @property
    def decode_step_over_floor(self) -> float:
        """The step as a multiple of its products."""
        return self.step_ms / self.floor_ms

    def __str__(self) -> str:
        packed = "none" if self.packed_ms is None else f"{self.packed_ms:.1f} ms"
        return (
            f"{self.decode_step_over_floor:5.2f}x   (step {self.step_ms:.1f} ms; products: "
            f"F.linear {self.linear_ms:.1f} ms, packed {packed})"
        )


def measure_decode_step(
    model: CausalLM | None = None,
    parts: Parts | None = None,
    *,
    batch_size: int = 32,
    context: int = 128,
    rounds: int = 20,
) -> DecodeStep:
    """Time decode steps over a shuffled, filled block pool, and the products of such a step.

    Args:
        model: a LLaMA; None: random weights in the shape of SmolLM2-135M.
        parts: whose attention; None: the reference's.
        context: tokens that each sequence attends to, in the middle of the measurement.
        rounds: repetitions; each round times everything once.
    """
    model = random_model(SMOLLM2_SHAPE).model if model is None else model
    tasks: dict[str, Callable[[int], object]] = {
        "step": _decode_steps(model, (parts or Parts()).attention(), batch_size, context, rounds),
        "linear": _products(model.config, batch_size, packed=False),
    }
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        tasks["packed"] = _products(model.config, batch_size, packed=True)

    times: dict[str, list[float]] = {name: [] for name in tasks}
    with torch.inference_mode():
        for turn in range(rounds + 1):
            for name, task in tasks.items():
                start = time.perf_counter()
                task(turn)
                times[name].append((time.perf_counter() - start) * 1e3)
    # The first round warms up.
    medians = {name: median(values[1:]) for name, values in times.items()}
    return DecodeStep(
        batch_size, context, medians["linear"], medians.get("packed"), medians["step"]
    )


def _products(config: ModelConfig, rows: int, *, packed: bool) -> Callable[[int], None]:
    """The matrix products of one step of a LLaMA, each with weights of its own."""
    heads = config.num_heads + 2 * config.num_kv_heads
    layer = [  # (out, in)
        (heads * config.head_dim, config.hidden_size),
        (config.hidden_size, config.num_heads * config.head_dim),
        (2 * config.intermediate_size, config.hidden_size),
        (config.hidden_size, config.intermediate_size),
    ]
    shapes = [*layer * config.num_layers, (config.vocab_size, config.hidden_size)]
    inputs = {width: torch.randn(rows, width) for _, width in shapes}
    weights: list[Tensor] = [torch.randn(shape) for shape in shapes]
    if packed:
        for i, weight in enumerate(weights):
            weights[i] = torch.ops.mkldnn._reorder_linear_weight(weight, rows)

    def run(turn: int) -> None:
        for (_, width), weight in zip(shapes, weights):
            if packed:
                torch.ops.mkldnn._linear_pointwise(inputs[width], weight, None, "none", [], "")
            else:
                F.linear(inputs[width], weight)

    return run


def _decode_steps(
    model: CausalLM, attention: AttentionBackend, batch: int, context: int, rounds: int
) -> Callable[[int], StepLogits]:
    """Step ``turn`` of sequences whose mean context is ``context``, over all turns."""
    config = model.config
    first = max(1, context - rounds // 2)
    blocks_each = -(-(first + rounds + 1) // _BLOCK_SIZE)
    pool = KVPool(config, _BLOCK_SIZE, batch * blocks_each)
    for cache in (*pool.k_cache, *pool.v_cache):
        cache.normal_()
    tables = torch.randperm(batch * blocks_each).view(batch, blocks_each).tolist()
    tokens = torch.randint(config.vocab_size, (rounds + 1, batch)).tolist()
    executor = TorchExecutor(model, pool, attention)

    def run(turn: int) -> StepLogits:
        spans = [
            Span(seq_id, first + turn - 1, [tokens[turn][seq_id]], table)
            for seq_id, table in enumerate(tables)
        ]
        return executor.execute(StepPlan(step=turn, spans=spans))

    return run
