"""The layers that both architectures are made of, for inference only.

``T`` is the number of tokens of a step: prompts, chunks and decodes stand one after the other in
one flat batch. Parameters are allocated and never initialized: what is not loaded is an error,
not a random number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipaged.errors import ModelError

_PREPACK_ROWS = 256
"""The batch size that oneDNN is told to lay out weights for; other sizes gain as much or more."""


def empty_parameter(*shape: int, dtype: torch.dtype, device: torch.device | str) -> nn.Parameter:
    """A parameter with room for its values and no values."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


class Linear(nn.Module):
    """``x W^T + b``, where ``W`` may hold several projections of the same input, one below the
    other, so that one matrix product computes them all.

    Attributes:
        parts: rows of each projection, by its name in a checkpoint; empty for a single one,
            which has the name of the layer itself.
        weight: ``[out_features, in_features]``; None once it is packed.
        bias: ``[out_features]`` or None.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int | Mapping[str, int],
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self.parts = {} if isinstance(out_features, int) else dict(out_features)
        rows = out_features if isinstance(out_features, int) else sum(out_features.values())
        self.weight = empty_parameter(rows, in_features, dtype=dtype, device=device)
        self.bias = empty_parameter(rows, dtype=dtype, device=device) if bias else None
        self._packed: Tensor | None = None

    def prepack(self) -> bool:
        """Lay the weight out as oneDNN wants it, once, in place of the plain weight.

        ``F.linear`` lays it out anew in every call, or falls back to a slower product: on 2 cores
        a decode step of a 135M model at batch 32 spends 96 to 102 ms in plain products and 67 ms
        in packed ones, and packed ones were the faster at every batch from 1 to 128. The plain
        weight lives on only where an embedding shares it.

        Returns:
            Whether the weight is packed: float32 on a CPU, in a torch that has oneDNN.
        """
        weight = self.weight
        if weight is None or weight.dtype != torch.float32 or weight.device.type != "cpu":
            return self._packed is not None
        try:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PREPACK_ROWS)
        except (AttributeError, RuntimeError):  # a torch without oneDNN, or with another one
            return False
        self.weight = None
        return True

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in_features]`` -> ``[T, out_features]``."""
        if self._packed is None:
            assert self.weight is not None
            return F.linear(x, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self._packed, self.bias, "none", [], ""
        )
        return product


class Embedding(nn.Module):
    """A table of vectors, ``weight: [rows, width]``."""

    def __init__(
        self, rows: int, width: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(rows, width, dtype=dtype, device=device)

    def forward(self, ids: Tensor) -> Tensor:
        """``[T]`` int64 -> ``[T, width]``."""
        return F.embedding(ids, self.weight)


class LayerNorm(nn.Module):
    """Layer normalization with epsilon 1e-5, with or without weight and bias."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self, width: int, *, affine: bool, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.shape = (width,)
        self.weight = empty_parameter(width, dtype=dtype, device=device) if affine else None
        self.bias = empty_parameter(width, dtype=dtype, device=device) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """``[T, width]`` -> ``[T, width]``; mean and variance are float32 whatever the type."""
        return F.layer_norm(x, self.shape, self.weight, self.bias, 1e-5)


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich, 2019).

    Attributes:
        kernel: what computes it in place of PyTorch's operations, if anything: called
            ``kernel(x, weight, eps, update)``.
    """

    kernel: Callable[[Tensor, Tensor, float, Tensor | None], Tensor] | None = None

    def __init__(
        self, width: int, eps: float, *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.shape = (width,)
        self.eps = eps
        self.weight = empty_parameter(width, dtype=dtype, device=device)

    def forward(self, x: Tensor, update: Tensor | None = None) -> Tensor:
        """``[T, width]`` -> ``[T, width]``; the mean square is float32 whatever the type: in
        float16 the square of 256 is past the range.

        Args:
            update: ``[T, width]``, added to ``x`` first, in place: the norm is that of the sum.
        """
        if self.kernel is not None:
            return self.kernel(x, self.weight, self.eps, update)
        if update is not None:
            x.add_(update)
        if x.dtype != torch.float32:
            return F.rms_norm(x, self.shape, self.weight, self.eps)
        # On a CPU rms_norm is six operations; these are fewer and smaller.
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # [T, 1]
        inverse = norm.square_().div_(self.shape[0]).add_(self.eps).rsqrt_()  # [T, 1]
        return (x * inverse).mul_(self.weight)


class SiluMul(nn.Module):
    """``silu(gate) * up``, the gated unit of LLaMA (Shazeer, 2020).

    Attributes:
        kernel: what computes it in place of PyTorch's operations, if anything.
    """

    kernel: Callable[[Tensor], Tensor] | None = None

    def forward(self, gate_up: Tensor) -> Tensor:
        """``[T, 2 * inner]``, the gate first -> ``[T, inner]``; the gate is overwritten."""
        if self.kernel is not None:
            return self.kernel(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)  # [T, inner] each, views
        return F.silu(gate, inplace=True) * up


class Rotary(NamedTuple):
    """Cosines and sines of the angles of a step's tokens, the same for every layer.

    Attributes:
        cos: ``[T, 1, d]``: its halves are equal.
        sin: ``[T, 1, d/2]``.
    """

    cos: Tensor
    sin: Tensor


class RotaryEmbedding(nn.Module):
    """Rotary position embedding in the rotate-half form (Su et al., 2021): dimensions ``i`` and
    ``i + d/2`` of a head are one pair, rotated by the angle ``p * theta^(-2i/d)`` at position
    ``p``. Scores then depend on the distance of two positions only.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        head_dim: int,
        max_positions: int,
        theta: float,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        if head_dim % 2:
            raise ModelError(f"rotary embedding needs an even head_dim, not {head_dim}")
        f32 = torch.float32
        exponent = torch.arange(0, head_dim, 2, dtype=f32, device=device) / head_dim  # [d/2]
        position = torch.arange(max_positions, dtype=f32, device=device)  # [P]
        # float32 up to here whatever the model's type: bfloat16 cannot tell position 256 from 257.
        angle = torch.outer(position, 1.0 / theta**exponent)  # [P, d/2]
        both_halves = torch.cat((angle, angle), dim=-1)  # [P, d]
        self.register_buffer("cos", both_halves.cos().to(dtype), persistent=False)  # [P, d]
        self.register_buffer("sin", angle.sin().to(dtype), persistent=False)  # [P, d/2]

    def forward(self, positions: Tensor) -> Rotary:
        """``positions: [T]`` int64."""
        cos = self.cos.index_select(0, positions).unsqueeze(1)  # [T, 1, d]
        sin = self.sin.index_select(0, positions).unsqueeze(1)  # [T, 1, d/2]
        return Rotary(cos, sin)


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate the heads of ``x: [T, heads, d]`` by their positions -> ``[T, heads, d]``, new."""
    low, high = x.chunk(2, dim=-1)  # [T, heads, d/2] each
    rotated = x * rotary.cos  # [T, heads, d]
    rotated_low, rotated_high = rotated.chunk(2, dim=-1)  # views, written in place
    rotated_low.addcmul_(high, rotary.sin, value=-1)
    rotated_high.addcmul_(low, rotary.sin)
    return rotated
