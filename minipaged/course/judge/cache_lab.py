"""Caches for graded tests of kernels: one whose offsets take more than 32 bits, and a tiny one that
a trace of whole numbers can drive."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

_MAP_NORESERVE = 0x4000  # of Linux; Python has it from 3.13 on


def spread(
    array: np.ndarray[Any, Any], stride: int, axis: int, device: str, dtype: str | None = None
) -> Tensor:
    """A tensor that holds an array, of which two neighbors along an axis are ``stride`` elements
    apart. What lies between them is nobody's: on a CPU it takes addresses, and no memory.

    Raises:
        ValueError: what lies within the axis does not fit between two neighbors.
    """
    import torch

    values = torch.from_numpy(np.array(array, order="C"))
    values = values.to(getattr(torch, dtype) if dtype else values.dtype)
    inner = math.prod(array.shape[axis + 1 :])
    if stride < inner:
        raise ValueError(f"stride {stride} is less than the {inner} elements of one entry")
    strides = list(values.stride())
    for outer in range(axis + 1):
        strides[outer] = stride * math.prod(array.shape[outer + 1 : axis + 1])
    size = stride * (math.prod(array.shape[: axis + 1]) - 1) + inner
    view = _zeros(size, values.dtype, device).as_strided(values.shape, strides)
    view.copy_(values)
    return view


def _zeros(size: int, dtype: Any, device: str) -> Tensor:
    import torch

    if device != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # Shared with nobody, but for the limit on a worker's memory shared pages do not count until
    # they are written to.
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, size * torch.empty(0, dtype=dtype).element_size(), flags)
    return torch.frombuffer(memory, dtype=dtype)


class OneSequence:
    """A sequence with one head of one dimension: a key, a value and an output are a number each.

    Attributes:
        num_tokens: so many are in its cache.
    """

    def __init__(self, decode: Callable[..., Tensor], block_size: int) -> None:
        """
        Args:
            decode: as :func:`minipaged.kernels.paged_decode_v0.paged_decode_v0`.
        """
        self.decode, self.block_size = decode, block_size
        self.num_tokens = 0
        self._keys: list[float] = []
        self._values: list[float] = []

    def append(self, key: int, value: int) -> None:
        """One token more."""
        self._keys.append(float(key))
        self._values.append(float(value))
        self.num_tokens += 1

    def attend(self, query: int) -> float:
        """The output for this query, with scale 1, to four digits behind the point. Slots that
        hold no token hold zeros."""
        import torch
        import triton

        from minipaged.course.judge.kernel_lab import launch

        device = "cpu" if triton.knobs.runtime.interpret else "cuda"
        blocks = -(-self.num_tokens // self.block_size)
        caches = []
        for numbers in (self._keys, self._values):
            cache = torch.zeros(max(1, blocks) * self.block_size)
            cache[: self.num_tokens] = torch.tensor(numbers)
            caches.append(cache.view(-1, 1, self.block_size, 1).to(device))
        q = torch.full((1, 1, 1), float(query), device=device)
        table = torch.arange(max(1, blocks), dtype=torch.int32, device=device)[None]
        context_lens = torch.tensor([self.num_tokens], dtype=torch.int32, device=device)
        out = launch((self.decode, (q, *caches, table, context_lens, 1.0), {}))
        return round(float(out), 4)
