"""Which type the weights are computed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minipaged.errors import ModelError

if TYPE_CHECKING:
    from minipaged.models.checkpoint import Weight

_BY_NAME = {
    "float32": torch.float32,
    "float": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "half": torch.float16,
    "fp16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
}
_STORED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def choose_dtype(
    asked: str | torch.dtype, stored: str, device: torch.device
) -> tuple[torch.dtype, str]:
    """The type to compute in, and a sentence on what ``auto`` chose (empty where it was asked).

    ``auto`` takes the checkpoint's own type on a GPU and float32 on a CPU; it never narrows the
    range of a checkpoint.

    Raises:
        ModelError: a type that minipaged does not compute in.
    """
    name = str(asked).removeprefix("torch.").lower()
    if name != "auto":
        if name not in _BY_NAME:
            raise ModelError(
                f"dtype must be auto, float32, float16 or bfloat16, not {str(asked)!r}"
            )
        return _BY_NAME[name], ""
    own = stored.removeprefix("torch.")
    if device.type == "cpu":
        why = "the checkpoint's own type"
        if own != "float32":
            why = f"the checkpoint is {own}, which is slow or less exact on a CPU"
        return torch.float32, f"dtype auto: float32 ({why})"
    if own not in _BY_NAME:
        return torch.float32, f"dtype auto: float32 (the checkpoint's own type is {own})"
    return _BY_NAME[own], f"dtype auto: {own} (the checkpoint's own type)"


def require_float(weight: Weight) -> None:
    """Raise ModelError for a tensor of integers or of 8-bit floats: a quantized checkpoint."""
    if weight.tensor.dtype not in _STORED:
        raise ModelError(
            f"{weight.file}: tensor {weight.name!r} is stored as "
            f"{str(weight.tensor.dtype).removeprefix('torch.')}: quantized checkpoints are read "
            "from GGUF alone"
        )


def overflows(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Does the tensor hold values that are past the range of ``dtype``?"""
    if torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max or tensor.numel() == 0:
        return False
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high)) > torch.finfo(dtype).max
