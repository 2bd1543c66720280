"""From the host to a device: which device, and how what was computed on the host gets there.

A copy from ordinary (pageable) memory makes the host wait for everything that the device still
has to do. From pinned memory it is one more entry in the device's queue, and the host goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Array = npt.NDArray[np.generic]

#: Where an array begins in a packed buffer: Triton compiles another kernel for a pointer that is
#: not a multiple of 16.
_ALIGNMENT = 16

_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


def choose_device(name: str) -> str:
    """``auto`` is a GPU if there is one, else the CPU; other names are their own."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the current one, which is where kernels are launched; a thread of its own starts
    with the first. Nothing for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Packing:
    """Several arrays in one piece of memory, so that one transfer moves them all.

    Attributes:
        nbytes: size of the piece.
    """

    def __init__(self, shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """
        Args:
            shapes: shape and type (int32, int64, float32, float64) of each array.
        """
        self._places: list[tuple[int, int, torch.dtype, tuple[int, ...]]] = []
        end = 0
        for shape, dtype in shapes:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + math.prod(shape) * dtype.itemsize
            self._places.append((start, end, _DTYPES[dtype], shape))
        self.nbytes = end

    def views(self, memory: Tensor) -> list[Tensor]:
        """The arrays, as views of ``memory: [>= nbytes]`` uint8."""
        return [
            memory[start:end].view(dtype).view(shape) for start, end, dtype, shape in self._places
        ]


def host_memory(nbytes: int, device: torch.device) -> Tensor:
    """``[nbytes]`` uint8 on the host, pinned where ``device`` is a GPU; not initialized.

    Not to be kept from step to step: torch lends the memory out again only when the copies from
    it are done, which its owner could not know without waiting.
    """
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def to_device(arrays: Sequence[_Array], device: torch.device) -> list[Tensor]:
    """The arrays on ``device``: on a CPU they themselves, on a GPU copies, which one transfer
    brings there. The host does not wait for it.

    Args:
        arrays: of type int32, int64, float32 or float64; they may be views.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packing = Packing([(array.shape, array.dtype) for array in arrays])
    memory = host_memory(packing.nbytes, device)
    for view, array in zip(packing.views(memory), arrays):
        view.numpy()[...] = array
    return packing.views(memory.to(device, non_blocking=True))


def take_rows(rows: Tensor, index: Sequence[int]) -> Tensor:
    """``rows[index]``; a list as an index would make the host wait for the device."""
    return rows.index_select(0, *to_device([np.array(index, np.int64)], rows.device))
