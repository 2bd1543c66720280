"""Which kernels are audited, on which inputs, and what each must reach.

The inputs are those of a decode step or a prompt of OPT-13B and LLaMA-13B, and of a model with
grouped-query attention, on tensors without memory: only shapes, types and strides count. Q, K and
V are views of one projection, and the caches are one layer of a pool, as in the engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minipaged.audit.compiler import AuditError
from minipaged.audit.thresholds import Thresholds

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Configuration:
    """Shapes and type that kernels are compiled for.

    Attributes:
        dtype: name of a torch type: of weights, activations and cache.
        num_heads, num_kv_heads, head_dim: of attention.
        inner: columns of the gate of a LLaMA MLP.
        block_size: tokens of a block.
        num_seqs: sequences that decode, or prompts.
        context_len: tokens of the longest context.
        num_blocks: blocks of the pool.
        layers: of the model.
    """

    dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner: int
    block_size: int = 16
    num_seqs: int = 8
    context_len: int = 2048
    num_blocks: int = 1024
    layers: int = 40

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.num_heads * self.head_dim


_13B = {"num_heads": 40, "num_kv_heads": 40, "head_dim": 128, "inner": 13824}
_GQA = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "inner": 14336}

CONFIGURATIONS: Mapping[str, Configuration] = MappingProxyType(
    {
        "13b-fp16": Configuration("float16", **_13B),
        "13b-bf16": Configuration("bfloat16", **_13B),
        "gqa-bf16": Configuration("bfloat16", **_GQA),
    }
)

#: host function -> its module in ``minipaged.kernels``
HOST_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "cache_write": "cache_write",
        "copy_blocks_in_pool": "block_copy",
        "paged_decode_v0": "paged_decode_v0",
        "paged_decode_v1": "paged_decode_v1",
        "paged_decode_v2": "paged_decode_v2",
        "paged_prefill": "paged_prefill",
        "rms_norm": "rms_norm",
        "rotate_and_write": "rotary",
        "silu_mul": "silu_mul",
    }
)

#: What v1 and v2 read K and V with. An A100 hides its memory's latency with about 40 KB in flight
#: on a multiprocessor; 4 thread blocks of 32 KB are well above.
_DECODE = Thresholds(kv_wide_share=1.0, min_warps=16, min_kv_bytes_in_flight=32768)
_DECODE_GQA = replace(_DECODE, tensor_cores=True)
#: Numbers of slots and blocks, 8 bytes a thread, are not wide.
_MOVER = Thresholds(wide_share=0.85, min_warps=32)

#: kernel, or kernel:family of configurations -> what it must reach on sm_80; the heads of the
#: files say why. The kernels that are not here must not spill.
REQUIRED: Mapping[str, Thresholds] = MappingProxyType(
    {
        "cache_write_kernel": _MOVER,
        "block_copy_kernel": _MOVER,
        "rms_norm_kernel": replace(_MOVER, wide_share=1.0),
        "rotate_and_write_kernel": _MOVER,
        "silu_mul_kernel": replace(_MOVER, wide_share=1.0),
        "paged_decode_v1_kernel": _DECODE,
        "paged_decode_v1_gqa_kernel": _DECODE_GQA,
        "paged_decode_v2_kernel:13b": _DECODE,
        "paged_decode_v2_kernel:gqa": _DECODE_GQA,
        "paged_prefill_kernel": Thresholds(kv_wide_share=1.0, tensor_cores=True, min_warps=8),
    }
)


@dataclass(frozen=True)
class Case:
    """One host function in one configuration."""

    function: str
    configuration: str

    @property
    def name(self) -> str:
        """How it is chosen on the command line."""
        return f"{self.function}:{self.configuration}"

    def required(self, kernel: str) -> Thresholds:
        """What a kernel that it launches must reach on sm_80."""
        family = self.configuration.partition("-")[0]
        return REQUIRED.get(f"{kernel}:{family}") or REQUIRED.get(kernel) or Thresholds()

    def call(self) -> object:
        """Call the host function on tensors without memory."""
        return host_function(self.function)(**arguments(self.function, self.configuration))


CASES: tuple[Case, ...] = tuple(
    Case(function, configuration) for function in HOST_FUNCTIONS for configuration in CONFIGURATIONS
)


def host_function(name: str) -> Callable[..., object]:
    """A host function of ``minipaged.kernels``, by name."""
    if name not in HOST_FUNCTIONS:
        raise AuditError(f"no kernel {name!r}: choose from {', '.join(HOST_FUNCTIONS)}")
    module = importlib.import_module(f"minipaged.kernels.{HOST_FUNCTIONS[name]}")
    return getattr(module, name)  # type: ignore[no-any-return]


def arguments(function: str, configuration: str, device: str = "meta") -> dict[str, Any]:
    """The arguments of a host function, by name.

    Args:
        function: of :data:`HOST_FUNCTIONS`.
        configuration: of :data:`CONFIGURATIONS`.
        device: where the tensors are; their contents are not set.

    Raises:
        AuditError: there is no such function or configuration.
    """
    if configuration not in CONFIGURATIONS:
        raise AuditError(
            f"no configuration {configuration!r}: choose from {', '.join(CONFIGURATIONS)}"
        )
    inputs = _Inputs(CONFIGURATIONS[configuration], device)
    match function:
        case "cache_write":
            _, k, v = inputs.projection(inputs.shapes.num_seqs)
            return {"k": k, "v": v} | inputs.caches() | inputs.slot_mapping()
        case "copy_blocks_in_pool":
            return {"pool": inputs.pool(), "pairs": inputs.int64(16, 2)}
        case "paged_decode_v0" | "paged_decode_v1":
            return inputs.decode()
        case "paged_decode_v2":
            # As for a small batch: several parts, and so the reduction too.
            lengths = {"max_context_len": inputs.shapes.context_len, "num_splits": 8}
            return inputs.decode() | lengths
        case "paged_prefill":
            return inputs.prefill()
        case "rms_norm":
            width = inputs.shapes.hidden
            x, residual = inputs.half(8, width), inputs.half(8, width)
            return {"x": x, "weight": inputs.half(width), "eps": 1e-5, "residual": residual}
        case "rotate_and_write":
            return inputs.rotation()
        case "silu_mul":
            return {"gate_up": inputs.half(8, 2 * inputs.shapes.inner)}
    raise AuditError(f"no kernel {function!r}: choose from {', '.join(HOST_FUNCTIONS)}")


@dataclass(frozen=True)
class _Inputs:
    shapes: Configuration
    device: str

    def half(self, *shape: int) -> Tensor:
        import torch

        return torch.empty(shape, dtype=getattr(torch, self.shapes.dtype), device=self.device)

    def float32(self, *shape: int) -> Tensor:
        import torch

        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def int32(self, *shape: int) -> Tensor:
        import torch

        return torch.empty(shape, dtype=torch.int32, device=self.device)

    def int64(self, *shape: int) -> Tensor:
        import torch

        return torch.empty(shape, dtype=torch.int64, device=self.device)

    def projection(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v: ``[tokens, heads, head_dim]``, views of one tensor."""
        s = self.shapes
        heads = self.half(tokens, s.num_heads + 2 * s.num_kv_heads, s.head_dim)
        keys, values = s.num_heads, s.num_heads + s.num_kv_heads
        return heads[:, :keys], heads[:, keys:values], heads[:, values:]

    def pool(self) -> Tensor:
        s = self.shapes
        return self.half(s.layers, 2, s.num_blocks, s.num_kv_heads, s.block_size, s.head_dim)

    def caches(self) -> dict[str, Tensor]:
        k_cache, v_cache = self.pool()[1]
        return {"k_cache": k_cache, "v_cache": v_cache}

    def slot_mapping(self) -> dict[str, Tensor]:
        return {"slot_mapping": self.int64(self.shapes.num_seqs)}

    def attention(self, tokens: int) -> dict[str, Any]:
        s = self.shapes
        return {
            "q": self.projection(tokens)[0],
            **self.caches(),
            "block_tables": self.int32(s.num_seqs, s.context_len // s.block_size),
            "context_lens": self.int32(s.num_seqs),
            "scale": s.head_dim**-0.5,
        }

    def decode(self) -> dict[str, Any]:
        return self.attention(self.shapes.num_seqs)

    def prefill(self) -> dict[str, Any]:
        s = self.shapes
        lengths = {"query_start": self.int32(s.num_seqs + 1), "max_query_len": s.context_len}
        return self.attention(s.num_seqs * s.context_len) | lengths

    def rotation(self) -> dict[str, Any]:
        s = self.shapes
        q, k, v = self.projection(s.num_seqs)
        half = (s.num_seqs, s.head_dim // 2)
        angles = {"cos": self.float32(*half), "sin": self.float32(*half)}
        return {"q": q, "k": k, "v": v} | angles | self.caches() | self.slot_mapping()
