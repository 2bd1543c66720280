"""Decode attention in float64, and cases for it: what the kernels of this folder must meet."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

#: max|difference| / max|reference|, the reference being computed from the rounded inputs.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

_MAP_NORESERVE = 0x4000  # of Linux; Python has it from 3.13 on


@dataclass
class DecodeCase:
    """Arguments of a decode kernel, and what each sequence has in the cache: keys and values by
    sequence, ``[context_len, num_kv_heads, d]``."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    scale: float
    keys: list[Tensor]
    values: list[Tensor]

    def run(self, decode: Callable[..., Tensor], **changes: object) -> Tensor:
        names = ("q", "k_cache", "v_cache", "block_tables", "context_lens", "scale")
        return decode(**({name: getattr(self, name) for name in names} | changes))

    def expected(self) -> Tensor:
        """``[S, num_heads, d]`` float64, from the definition."""
        q = self.q.double().cpu()
        out = torch.zeros_like(q)
        for s, (k, v) in enumerate(zip(self.keys, self.values)):
            group = q.shape[1] // k.shape[1]
            k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
            weights = (torch.einsum("hd,jhd->hj", q[s], k) * self.scale).softmax(-1)
            out[s] = torch.einsum("hj,jhd->hd", weights, v)
        return out

    def check(self, got: Tensor) -> None:
        expected = self.expected()
        assert got.shape == expected.shape
        assert got.dtype == self.q.dtype
        error = (got.double().cpu() - expected).abs().max() / expected.abs().max()
        assert error <= TOLERANCE[self.q.dtype], f"max|difference| / max|reference| is {error:.3g}"


def make_decode_case(
    context_lens: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    d: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    stale: float = math.nan,
    scale: float | None = None,
    seed: int = 0,
) -> DecodeCase:
    """Contexts scattered over a pool by shuffled block tables.

    Slots past a context, blocks of nobody, and the block that the table's entries past a context
    name hold ``stale``.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    counts = [-(-length // block_size) for length in context_lens]
    nobodys, *free = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    shape = (sum(counts) + 3, kv_heads, block_size, d)
    k_cache, v_cache = (torch.full(shape, stale, dtype=dtype) for _ in range(2))
    tables = torch.full((len(context_lens), max(counts, default=0) + 2), nobodys, dtype=torch.int32)
    keys, values = [], []
    for s, (length, count) in enumerate(zip(context_lens, counts)):
        blocks, free = free[:count], free[count:]
        tables[s, :count] = torch.tensor(blocks)
        keys.append(random(length, kv_heads, d))
        values.append(random(length, kv_heads, d))
        for position in range(length):
            block, place = blocks[position // block_size], position % block_size
            k_cache[block, :, place] = keys[-1][position]
            v_cache[block, :, place] = values[-1][position]
    return DecodeCase(
        q=random(len(context_lens), heads, d).to(DEVICE),
        k_cache=k_cache.to(DEVICE),
        v_cache=v_cache.to(DEVICE),
        block_tables=tables.to(DEVICE),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=DEVICE),
        scale=d**-0.5 if scale is None else scale,
        keys=keys,
        values=values,
    )


def address_space(num_elements: int, dtype: torch.dtype) -> Tensor:
    """``[num_elements]``, which on a CPU takes memory only where it is written: room for offsets
    beyond 32 bits."""
    if DEVICE == "cuda":
        return torch.zeros(num_elements, dtype=dtype, device=DEVICE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, num_elements * dtype.itemsize, flags), dtype=dtype)


def far_blocks(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, int]:
    """A pool ``[far + 1, *shape]``, and ``far``, the number of a block whose offset is exactly
    2**31 elements.

    Cut to 32 bits that offset is -2**31; the memory there is the test's too, and zero. So a
    kernel that cuts it is wrong, and does not end the process.
    """
    size = math.prod(shape)
    far, rest = divmod(2**31, size)
    assert rest == 0, f"a block of {size} elements does not end at 2**31"
    memory = address_space(2**32 + size, dtype)
    return memory[2**31 :].view(far + 1, *shape), far
