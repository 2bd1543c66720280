"""What our kernels must move and what they do move, on a ragged batch in the interpreter.

``python -m minipaged.audit.movement`` with TRITON_INTERPRET=1 writes one line of JSON for each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from minipaged.audit.compiler import AuditError
from minipaged.audit.memory_trace import trace_memory
from minipaged.kernels.traffic import (
    AttentionShape,
    Traffic,
    block_copy_traffic,
    cache_write_traffic,
    decode_traffic,
    prefill_traffic,
    split_traffic,
)

MHA = AttentionShape(4, 4, 64, 16, 2)
GQA = AttentionShape(8, 2, 64, 16, 2)
CONTEXT_LENS = (1, 150, 33, 81)
QUERY_LENS = (1, 70, 33, 5)
NUM_SPLITS = 3
SPLIT_TILE = 64
"""Positions of a tile of version 2 at head_dim 64: it says which parts are empty."""
TIME_LIMIT_S = 300.0


@dataclass(frozen=True)
class Movement:
    """Bytes of one host function on one batch.

    Attributes:
        function: its name.
        heads: query heads over KV heads.
        must: bytes that it cannot do without (:mod:`minipaged.kernels.traffic`).
        does: bytes that its programs load and store, masked lanes excluded.
    """

    function: str
    heads: str
    must: int
    does: int

    @property
    def efficiency(self) -> float:
        """must / does: 1 at best."""
        return self.must / self.does


def movements() -> list[Movement]:
    """Run the kernels in an interpreter of their own, and count.

    Raises:
        AuditError: a kernel failed there.
    """
    done = subprocess.run(
        [sys.executable, "-m", "minipaged.audit.movement"],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True,
        timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise AuditError(f"kernels fail in the interpreter: {last}")
    return [Movement(**json.loads(line)) for line in done.stdout.splitlines()]


def count_all() -> Iterator[Movement]:
    """The same, in this process."""
    for heads, shape in {"4 over 4": MHA, "8 over 2": GQA}.items():
        for function, must, call in _runs(shape):
            with trace_memory() as trace:
                call()
            yield Movement(function, heads, must.total, trace.total_bytes)


def _runs(shape: AttentionShape) -> Iterator[tuple[str, Traffic, Callable[[], object]]]:
    from minipaged.kernels.block_copy import copy_blocks_in_pool
    from minipaged.kernels.cache_write import cache_write
    from minipaged.kernels.paged_decode_v0 import paged_decode_v0
    from minipaged.kernels.paged_decode_v1 import paged_decode_v1
    from minipaged.kernels.paged_decode_v2 import paged_decode_v2
    from minipaged.kernels.paged_prefill import paged_prefill

    torch.manual_seed(0)
    size = shape.block_size
    blocks_each = -(-max(CONTEXT_LENS) // size)
    tables = torch.randperm(len(CONTEXT_LENS) * blocks_each, dtype=torch.int32)
    tables = tables.view(len(CONTEXT_LENS), blocks_each)
    pool = torch.randn(2, 2, tables.numel(), shape.num_kv_heads, size, shape.head_dim).half()
    k_cache, v_cache = pool[1]
    context_lens = _int32(CONTEXT_LENS)
    scale = shape.head_dim**-0.5

    def rows(tokens: int, heads: int) -> Tensor:
        return torch.randn(tokens, heads, shape.head_dim).half()

    slots = [5, -1, 70, 71, -1]
    k, v = rows(len(slots), shape.num_kv_heads), rows(len(slots), shape.num_kv_heads)
    yield (
        "cache_write",
        cache_write_traffic(slots, shape),
        lambda: cache_write(k, v, k_cache, v_cache, torch.tensor(slots)),
    )
    pairs = torch.tensor([[3, 7], [0, 1]])
    yield (
        "copy_blocks_in_pool",
        block_copy_traffic(len(pairs), len(pool), shape),
        lambda: copy_blocks_in_pool(pool, pairs),
    )
    must = decode_traffic(CONTEXT_LENS, shape)
    decode = (
        rows(len(CONTEXT_LENS), shape.num_heads), k_cache, v_cache, tables, context_lens, scale
    )  # fmt: skip
    yield "paged_decode_v0", must, lambda: paged_decode_v0(*decode)
    yield "paged_decode_v1", must, lambda: paged_decode_v1(*decode)
    yield (
        "paged_decode_v2",
        must + split_traffic(CONTEXT_LENS, NUM_SPLITS, SPLIT_TILE, shape),
        lambda: paged_decode_v2(*decode, max(CONTEXT_LENS), num_splits=NUM_SPLITS),
    )
    starts = torch.cat([torch.zeros(1), torch.tensor(QUERY_LENS).cumsum(0)]).int()
    queries = rows(sum(QUERY_LENS), shape.num_heads)
    yield (
        "paged_prefill",
        prefill_traffic(QUERY_LENS, CONTEXT_LENS, shape),
        lambda: paged_prefill(
            queries, k_cache, v_cache, tables, starts, context_lens, scale, max(QUERY_LENS)
        ),
    )


def _int32(values: tuple[int, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


if __name__ == "__main__":
    for movement in count_all():
        print(json.dumps(dataclasses.asdict(movement)), flush=True)
