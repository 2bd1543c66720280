"""The memory behind the block numbers: keys and values on the device, and the host memory that
blocks are swapped to (paper, sections 4.2 and 4.5).

With :mod:`~minipaged.kvcache.block_mover` all of this package that knows torch: the managers deal
in numbers of blocks, and an executor applies what they decided here.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minipaged.config import ModelConfig
from minipaged.contracts import BlockPair
from minipaged.device import to_device
from minipaged.errors import MinipagedError
from minipaged.kvcache.block_mover import BlockKernels, BlockMover, CudaSideStream, InlineStream
from minipaged.kvcache.copy_on_write import copy_blocks
from minipaged.kvcache.sizing import blocks_that_fit, kv_bytes_per_block

#: Of the memory that is free on a machine without a GPU, the share that a pool takes by default,
#: and the most that it takes.
CPU_POOL_SHARE = 0.25
CPU_POOL_BYTES = 4 << 30

#: Memory on the device through which blocks are moved to the host and back, at least one block.
STAGING_BYTES = 256 << 20


class PoolMemoryError(MinipagedError):
    """The memory for a pool cannot be had; the message says what was asked and what there is."""


class KVPool:
    """Keys and values of all layers, in blocks, on the device and in host memory.

    A block number means the same block in every layer.

    Attributes:
        k_cache, v_cache: for each layer ``[num_gpu_blocks, num_kv_heads, block_size, head_dim]``,
            contiguous. Slot ``s`` of head ``h`` is ``cache[s // block_size, h, s % block_size]``;
            what it holds before it is written is not defined.
        device_blocks: the same as one tensor,
            ``[layers, 2, num_gpu_blocks, num_kv_heads, block_size, head_dim]``.
        host_blocks: ``[num_cpu_blocks, layers, 2, num_kv_heads, block_size, head_dim]``: one block
            is one piece, which travels in one transfer.
        device: where ``k_cache`` and ``v_cache`` are.
        num_gpu_blocks, num_cpu_blocks, block_size: of the pool.
        gpu_bytes, cpu_bytes: size of the two sides, all layers together. On a CPU the operating
            system lends pages only as they are first written.
    """

    def __init__(
        self,
        config: ModelConfig,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int = 0,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        copy: Callable[[Any, list[BlockPair]], None] = copy_blocks,
        kernels: BlockKernels | None = None,
    ) -> None:
        """
        Args:
            copy: copies blocks within one cache ``[num_blocks, …]``.
            kernels: what copies, gathers and scatters blocks on the device, one launch for all
                layers, in place of ``copy`` and of PyTorch's operations.

        Raises:
            PoolMemoryError: one of the sides does not fit into memory.
        """
        self.block_size = block_size
        self.num_gpu_blocks = num_gpu_blocks
        self.num_cpu_blocks = num_cpu_blocks
        self._copy = copy
        self._kernels = kernels
        self.device = device = torch.device(device)
        block_bytes = kv_bytes_per_block(config, dtype.itemsize, block_size)
        self.gpu_bytes = num_gpu_blocks * block_bytes
        self.cpu_bytes = num_cpu_blocks * block_bytes
        _demand_memory(self.gpu_bytes, device, f"{num_gpu_blocks} blocks of KV cache")

        # Contiguous caches, and yet one tensor, so that a block is moved in all layers at once.
        block = (config.num_kv_heads, block_size, config.head_dim)
        self.device_blocks = _allocate(
            (config.num_layers, 2, num_gpu_blocks, *block), dtype, device, num_gpu_blocks
        )
        self.k_cache: list[Tensor] = [layer[0] for layer in self.device_blocks]
        self.v_cache: list[Tensor] = [layer[1] for layer in self.device_blocks]

        _demand_memory(
            self.cpu_bytes + (self.gpu_bytes if device.type == "cpu" else 0),
            torch.device("cpu"),
            f"swap space of {num_cpu_blocks} blocks",
        )
        shape = (config.num_layers, 2, *block)
        host = torch.device("cpu")
        self.host_blocks = _allocate((num_cpu_blocks, *shape), dtype, host, num_cpu_blocks)
        if device.type == "cuda":
            _pin(self, self.host_blocks)
        at_once = staging_blocks(block_bytes, num_cpu_blocks)
        self._mover = BlockMover(
            self.device_blocks,
            self.host_blocks,
            _allocate((at_once, *shape), dtype, device, at_once),
            CudaSideStream(device) if device.type == "cuda" else InlineStream(),
            kernels,
        )

    def swap_in(self, pairs: list[BlockPair]) -> None:
        """Move the bytes of (host, device) pairs, in all layers. On a GPU this is begun here,
        beside what the device computes, and :meth:`join` ends it."""
        self._mover.swap_in(pairs)

    def swap_out(self, pairs: list[BlockPair]) -> None:
        """Move the bytes of (device, host) pairs, in all layers; begun here, as
        :meth:`swap_in`. Nothing may be written to the device's blocks before :meth:`join`."""
        self._mover.swap_out(pairs)

    def join(self) -> None:
        """What is computed from here on sees all moves as done. The host does not wait."""
        self._mover.join()

    def copy(self, pairs: list[BlockPair]) -> None:
        """Copy (source, target) pairs on the device, in all layers. Targets are distinct, and none
        of them is a source (I15)."""
        if pairs and self._kernels is not None:
            (on_device,) = to_device([np.array(pairs, np.int64)], self.device)
            self._kernels.copy(self.device_blocks, on_device)
        elif pairs:
            self._copy(self.device_blocks.movedim(2, 0), pairs)

    def poison(self, device_blocks: Iterable[int], host_blocks: Iterable[int] = ()) -> None:
        """Fill blocks that no one holds with NaN, so that whoever still reads them shows it."""
        if self.device.type == "cuda":  # or the host would write to blocks that still travel
            torch.cuda.synchronize(self.device)
        self.device_blocks[:, :, list(device_blocks)] = math.nan
        self.host_blocks[list(host_blocks)] = math.nan


# --------------------------------------------------------------------------- how much memory
def default_num_blocks(
    config: ModelConfig,
    block_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> int:
    """Blocks of a pool in main memory whose size the user leaves open: a quarter of what is free,
    at most 4 GiB. Call it when the model is loaded.

    Returns:
        At least 1.

    Raises:
        PoolMemoryError: there is no room for a single block.
    """
    free = available_memory(device)
    budget = min(int(free * CPU_POOL_SHARE), CPU_POOL_BYTES)
    block_bytes = kv_bytes_per_block(config, dtype.itemsize, block_size)
    return blocks_within(budget, block_bytes, free, device)


def blocks_within(budget: int, block_bytes: int, free: int, device: torch.device | str) -> int:
    """Blocks that fit into ``budget`` bytes, at least 1.

    Args:
        free: bytes that are free on the device, for the message.

    Raises:
        PoolMemoryError: not one fits.
    """
    blocks = blocks_that_fit(budget, block_bytes)
    if blocks < 1:
        raise PoolMemoryError(
            f"a block of KV cache takes {_mib(block_bytes)}, but of {_mib(free)} that are free on "
            f"{device} a pool may take {_mib(max(0, budget))}: use a smaller model or data type"
        )
    return blocks


def available_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that this process could still get: of the device, or of main memory, where the
    limit of a container counts."""
    device = torch.device(device)
    if device.type == "cuda":
        # What PyTorch keeps for later is free to whoever asks PyTorch.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    left = _container_memory_left()
    return _machine_memory_left() if left is None else min(left, _machine_memory_left())


def _machine_memory_left(meminfo: Path = Path("/proc/meminfo")) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _container_memory_left(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the control group (version 2, or 1) leaves; None without a limit."""
    for limit, used, stat, cache in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat",
         "total_inactive_file"),
    ):  # fmt: skip
        try:
            most = (root / limit).read_text().strip()
            if most == "max":
                return None
            counts = dict(line.split() for line in (root / stat).read_text().splitlines())
            taken = int((root / used).read_text()) - int(counts.get(cache, 0))
            return max(0, int(most) - taken)
        except (OSError, ValueError):
            continue
    return None


def _demand_memory(num_bytes: int, device: torch.device, what: str) -> None:
    free = available_memory(device) if device.type in ("cpu", "cuda") else num_bytes
    if num_bytes > free:
        raise PoolMemoryError(
            f"{what} takes {_mib(num_bytes)}, but only {_mib(free)} are free on {device}: "
            "ask for fewer blocks"
        )


def staging_blocks(block_bytes: int, num_cpu_blocks: int) -> int:
    """Blocks that are moved to the host or back at a time."""
    return min(max(1, STAGING_BYTES // block_bytes), num_cpu_blocks)


def _allocate(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, num_blocks: int
) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        num_bytes = math.prod(shape) * dtype.itemsize
        raise PoolMemoryError(
            f"a pool of {num_blocks} blocks takes {_mib(num_bytes)} on {device}, "
            f"of which {_mib(available_memory(device))} are free: {str(error).splitlines()[0]}"
        ) from error


def _pin(owner: object, memory: Tensor) -> None:
    """Pin host memory for as long as ``owner`` lives.

    Not ``torch.empty(pin_memory=True)``: that rounds up to a power of two, 20 GiB to 32.
    """
    if memory.numel() == 0:
        return
    cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.data_ptr()
    error = int(cuda.cudaHostRegister(address, memory.nbytes, 0))
    if error:
        raise PoolMemoryError(
            f"{_mib(memory.nbytes)} of swap space cannot be pinned (CUDA error {error}): ask for "
            "less swap space"
        )

    def unpin() -> None:
        torch.cuda.synchronize()  # copies may be under way
        cuda.cudaHostUnregister(address)

    weakref.finalize(owner, unpin).atexit = False  # at exit the driver does it


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
