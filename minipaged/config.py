"""Every setting of the engine, as frozen dataclasses that check themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from minipaged.errors import ConfigError as ConfigError

PreemptionMode = Literal["auto", "swap", "recompute"]
Batching = Literal["iteration", "request"]
Reservation = Literal["paged", "max", "pow2", "oracle"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder, for the two architectures that the paper evaluates.

    One class serves both: fields that an architecture does not use keep their default.
    """

    architecture: Literal["opt", "llama"]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    """Positions that the model was trained for."""
    tie_word_embeddings: bool = True
    name: str = ""
    dtype: str = "float32"
    """The checkpoint's own type."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    # LLaMA
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    attention_bias: bool = False
    mlp_bias: bool = False
    # OPT
    word_embed_proj_dim: int = 0
    """Width of OPT's embedding where it differs from ``hidden_size`` (350m); 0: the same."""
    do_layer_norm_before: bool = True
    final_layer_norm: bool = True
    enable_bias: bool = True
    layer_norm_affine: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads",
                     "head_dim", "max_model_len"):  # fmt: skip
            value = getattr(self, name)
            _require(value >= 1, f"{name} must be at least 1, not {value}")
        _require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
            f"({self.num_kv_heads})",
        )

    @property
    def embed_dim(self) -> int:
        """Width of the token embedding."""
        return self.word_embed_proj_dim or self.hidden_size


@dataclass(frozen=True)
class CacheConfig:
    """The paged pool (paper, section 4.2)."""

    block_size: int = 16
    """Tokens a block (the paper's default, section 7.2)."""
    num_gpu_blocks: int | None = None
    """Blocks on the device; None: as many as the memory allows."""
    num_cpu_blocks: int | None = None
    """Blocks in host memory for swapping; None: as many as ``swap_space_bytes`` holds."""
    gpu_memory_utilization: float = 0.90
    swap_space_bytes: int = 4 << 30
    watermark: float = 0.01
    """Fraction of the device blocks that admission leaves free, so that running sequences
    can grow for a while before the first preemption."""
    reservation: Reservation = "paged"
    """``paged``, or one of the contiguous baselines of section 6.1."""
    prefix_caching: bool | Literal["registered"] = False
    """Share the full blocks that prompts begin with: those of prefixes that were registered
    beforehand (``registered``, the paper's section 4.4), or whatever is still there (True)."""

    def __post_init__(self) -> None:
        _require(self.block_size >= 1, f"block_size must be at least 1, not {self.block_size}")
        for name, least in (("num_gpu_blocks", 1), ("num_cpu_blocks", 0)):
            value = getattr(self, name)
            _require(
                value is None or value >= least, f"{name} must be at least {least}, not {value}"
            )
        _require(
            0.0 < self.gpu_memory_utilization <= 1.0,
            f"gpu_memory_utilization must be in (0, 1], not {self.gpu_memory_utilization}",
        )
        _require(
            self.swap_space_bytes >= 0, f"swap space must be >= 0, not {self.swap_space_bytes}"
        )
        _require(0.0 <= self.watermark < 1.0, f"watermark must be in [0, 1), not {self.watermark}")
        _require(
            self.prefix_caching in (False, True, "registered"),
            f"prefix_caching must be False, True or 'registered', not {self.prefix_caching!r}",
        )
        _require(
            not self.prefix_caching or self.reservation == "paged",
            f"prefix_caching shares blocks, and reservation {self.reservation!r} has none to share",
        )


@dataclass(frozen=True)
class SchedulerConfig:
    """Who runs in a step, and what happens when memory is short (paper, section 4.5)."""

    max_num_seqs: int = 256
    """Live sequences a step."""
    max_num_batched_tokens: int = 2560
    """Tokens computed a step."""
    max_model_len: int = 2048
    """Prompt plus output of one sequence."""
    preemption: PreemptionMode = "auto"
    """``auto``: recompute a group with one live sequence, swap one with several."""
    batching: Batching = "iteration"
    """``request``: a batch is admitted together and runs until all are done
    (FasterTransformer); ``iteration``: membership changes every step (Orca, vLLM)."""
    prefill_first: bool = False
    """Steps that hold prompts hold nothing else (vLLM 0.1 and 0.2)."""
    chunked_prefill: bool = False
    """A long prompt is computed over several steps, beside the decodes."""
    demand_free_block_per_seq: bool = False
    """A running group goes on only if there is a free block for each of its sequences,
    whether or not it opens one (the authors' experiments)."""
    count_max_seqs: bool = False
    """Count ``n`` sequences for a group from its admission to its end, finished ones included
    (the authors' experiments), instead of its live ones."""
    forced_preemption: float = 0.0
    """For tests: the chance, a step, that a random running group is preempted before the scan."""
    forced_preemption_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            _require(value >= 1, f"{name} must be at least 1, not {value}")
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({self.max_num_seqs}): every running sequence feeds a token a step",
        )
        _require(
            self.preemption in ("auto", "swap", "recompute"),
            f"preemption must be auto, swap or recompute, not {self.preemption!r}",
        )
        _require(
            self.batching in ("iteration", "request"),
            f"batching must be iteration or request, not {self.batching!r}",
        )
        _require(
            not (self.prefill_first and self.chunked_prefill),
            "prefill_first and chunked_prefill exclude each other",
        )
        _require(
            0.0 <= self.forced_preemption <= 1.0,
            f"forced_preemption must be in [0, 1], not {self.forced_preemption}",
        )

    @classmethod
    def paper_2023(cls, **changes: Any) -> SchedulerConfig:
        """The settings of the authors' experiments (section 6.1)."""
        paper = cls(demand_free_block_per_seq=True, count_max_seqs=True)
        return replace(paper, **changes)


#: What goes with :meth:`SchedulerConfig.paper_2023` on the memory's side.
PAPER_2023_CACHE = CacheConfig(gpu_memory_utilization=0.95, swap_space_bytes=20 << 30)
