"""Moves blocks between the device and the host beside what the device computes (paper, section
4.5).

A swapped block waits for the link to the host, which is some fifty times slower than the device's
own memory. So both directions have a queue of their own, the *side stream*, and their order
against the computation is kept by two rules:

- A move begins when all that was computed before it is done: a block that goes out is complete,
  and a block that comes in overwrites nothing that is still read.
- Nothing is computed after :meth:`BlockMover.join` before the moves are done: no block that went
  out is overwritten before it was read, and no block that comes in is read before it is there.

Within the stream one move follows the other, so that a block may go out and come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from minipaged.contracts import BlockPair
from minipaged.device import to_device


class SideStream(Protocol):
    """A queue of work beside that of the computation."""

    def run(self, task: Callable[[], None]) -> None:
        """Queue what the task does."""

    def wait_for_compute(self) -> None:
        """What is queued from here on begins when all that is computed up to here is done."""

    def join(self) -> None:
        """What is computed from here on begins when all that is queued up to here is done."""


class InlineStream:
    """No second queue: everything is done when it is asked for."""

    def run(self, task: Callable[[], None]) -> None:
        task()

    def wait_for_compute(self) -> None:
        pass

    def join(self) -> None:
        pass


class CudaSideStream:
    """A CUDA stream beside the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, task: Callable[[], None]) -> None:
        with torch.cuda.stream(self._stream):
            task()

    def wait_for_compute(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class BlockKernels(NamedTuple):
    """What moves blocks of all layers within the device, in one launch each.

    ``pool`` is ``[layers, 2, num_blocks, …]``, ``staging`` ``[n, layers, 2, …]``.

    Attributes:
        copy: ``copy(pool, pairs)``: ``pairs: [P, 2]`` int64, source and target.
        gather: ``gather(pool, blocks, staging)``: ``blocks: [n]`` int64.
        scatter: ``scatter(staging, pool, blocks)``.
    """

    copy: Callable[[Tensor, Tensor], None]
    gather: Callable[[Tensor, Tensor, Tensor], None]
    scatter: Callable[[Tensor, Tensor, Tensor], None]


class BlockMover:
    """Swaps blocks through a staging buffer on the device, in which, as on the host, one block is
    one piece of memory over all layers."""

    def __init__(
        self,
        device_blocks: Tensor,
        host_blocks: Tensor,
        staging: Tensor,
        stream: SideStream,
        kernels: BlockKernels | None = None,
    ) -> None:
        """
        Args:
            device_blocks: ``[layers, 2, num_gpu_blocks, …]``.
            host_blocks: ``[num_cpu_blocks, layers, 2, …]``, pinned where the device is a GPU.
            staging: ``[n, layers, 2, …]`` on the device: so many blocks move at a time.
            kernels: None: PyTorch's operations gather and scatter.
        """
        self._device_blocks = device_blocks
        self._host_blocks = host_blocks
        self._staging = staging
        self._stream = stream
        self._gather = kernels.gather if kernels is not None else gather_blocks
        self._scatter = kernels.scatter if kernels is not None else scatter_blocks
        self._moving = False

    def swap_out(self, pairs: list[BlockPair]) -> None:
        """Begin to move (device, host) pairs."""
        self._move(pairs, self._out)

    def swap_in(self, pairs: list[BlockPair]) -> None:
        """Begin to move (host, device) pairs."""
        self._move(pairs, self._in)

    def join(self) -> None:
        """What is computed from here on sees all moves as done."""
        if self._moving:
            self._stream.join()
            self._moving = False

    def _move(self, pairs: list[BlockPair], move: Callable[[list[BlockPair]], None]) -> None:
        if not pairs:
            return
        self._stream.wait_for_compute()
        self._moving = True
        # The parts use one staging buffer, one after the other, as they stand in the stream.
        for start in range(0, len(pairs), len(self._staging)):
            part = pairs[start : start + len(self._staging)]
            self._stream.run(lambda part=part: move(part))  # type: ignore[misc]

    def _out(self, pairs: list[BlockPair]) -> None:
        staging = self._staging[: len(pairs)]
        self._gather(self._device_blocks, self._numbers(source for source, _ in pairs), staging)
        for piece, (_, target) in zip(staging, pairs):
            self._host_blocks[target].copy_(piece, non_blocking=True)

    def _in(self, pairs: list[BlockPair]) -> None:
        staging = self._staging[: len(pairs)]
        for piece, (source, _) in zip(staging, pairs):
            piece.copy_(self._host_blocks[source], non_blocking=True)
        self._scatter(staging, self._device_blocks, self._numbers(target for _, target in pairs))

    def _numbers(self, blocks: Iterable[int]) -> Tensor:
        (numbers,) = to_device([np.fromiter(blocks, np.int64)], self._staging.device)
        return numbers


def gather_blocks(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """``staging[i]`` becomes block ``blocks[i]`` of every layer."""
    staging.copy_(pool.index_select(2, blocks).movedim(2, 0))


def scatter_blocks(staging: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """Block ``blocks[i]`` of every layer becomes ``staging[i]``."""
    pool.index_copy_(2, blocks, staging.movedim(0, 2))
