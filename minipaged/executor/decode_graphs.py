"""Decode steps as CUDA graphs.

A decode step of a 13B model is some five hundred launches, and at small batches the host needs
longer to ask for them than the device to compute them. A graph is recorded once and launched as
one. It repeats the same launches on the same memory, so what changes from step to step must be in
that memory, and nothing else may: the number of sequences is rounded up to a *bucket*, the inputs
are copied to where the graph reads them, and the longest context that kernels reckon with is the
model's limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from minipaged.attention import AttentionBatch
from minipaged.device import Packing, host_memory
from minipaged.executor.inputs import HostInputs, padded_tokens

Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]
"""``capture(work)``: runs ``work``, and returns what does the same on the same memory again."""

HiddenStates = Callable[[Tensor, Tensor, AttentionBatch], Tensor]
"""``(tokens [T], positions [T], batch)`` -> the final hidden states ``[T, hidden]``."""

#: From this size on, buckets are this far apart.
_BUCKET_STEP = 8


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes that get a graph: 1, 2, 4, then multiples of 8, and ``max_num_seqs``."""
    sizes = {1, 2, 4, *range(_BUCKET_STEP, max_num_seqs, _BUCKET_STEP), max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


class CudaCapture:
    """Captures CUDA graphs, all with one pool of memory.

    They can share it whatever order they are launched in, because none reads what another left:
    results are copied to memory outside.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # The library of matrix products keeps a workspace for each stream that it has run in,
        # 32 MiB on Hopper: one stream for all graphs, on the device that is then current.
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, work: Callable[[], None]) -> Replay:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()  # kernels are compiled and libraries set up: neither may happen in a capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads (a server's) may go on using CUDA meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
        ):
            work()
        return graph.replay


class _Bucket(NamedTuple):
    """One graph, and where it reads its inputs."""

    size: int
    packing: Packing
    replay: Replay


class DecodeGraphs:
    """The decode steps of a model for each bucket.

    A step of ``n`` sequences runs in the smallest bucket that holds them. The sequences that fill
    it up are padding: their slot is -1, so they write nothing, and they read one token of block 0.

    Attributes:
        sizes: of the buckets, ascending.
    """

    def __init__(
        self,
        hidden_states: HiddenStates,
        sizes: Sequence[int],
        *,
        block_size: int,
        max_model_len: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        capture: Capture,
    ) -> None:
        """Capture all graphs. Nothing is written to the cache.

        Args:
            hidden_states: what is captured. It must launch the same whatever the tensors hold.
            max_model_len: the longest context.
            dtype: of the hidden states.
        """
        self.sizes = sorted(sizes)
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._device = device
        packings = {size: self._packing(size) for size in self.sizes}
        largest = self.sizes[-1]
        # All buckets read their inputs from the same memory, and leave their results in the same.
        self._memory = torch.empty(packings[largest].nbytes, dtype=torch.uint8, device=device)
        self._hidden = torch.empty(padded_tokens(largest), hidden_size, dtype=dtype, device=device)
        self._query_start = torch.arange(largest + 1, dtype=torch.int32, device=device)
        self._buckets: list[_Bucket] = []
        for size in reversed(self.sizes):  # the largest first: the others fit into its memory
            packing = packings[size]
            self._load(size, packing, None)
            # Not kept: it leads to the executor that has this object.
            replay = capture(partial(self._work, hidden_states, size, packing))
            self._buckets.insert(0, _Bucket(size, packing, replay))

    def run(self, inputs: HostInputs) -> Tensor | None:
        """The final hidden states of a step, ``[n, hidden]``, good until the next; or None where
        the step is not one of ``n`` sampled decodes alone that fit into a bucket."""
        count = len(inputs.context_lens)
        if count > self.sizes[-1] or inputs.prompt_rows or not inputs.decodes_alone:
            return None
        bucket = next(bucket for bucket in self._buckets if bucket.size >= count)
        self._load(bucket.size, bucket.packing, inputs)
        bucket.replay()
        return self._hidden[:count]

    def _packing(self, size: int) -> Packing:
        """Tokens, positions, slots, context lengths, block tables."""
        rows, int32, int64 = padded_tokens(size), np.dtype(np.int32), np.dtype(np.int64)
        # Whole multiples of 16 entries a row, as in every step: the same kernels are compiled.
        width = -(-self._max_model_len // (16 * self._block_size)) * 16
        return Packing(
            [((rows,), int64)] * 3 + [((size,), int32), ((size, width), int32)],
        )

    def _load(self, size: int, packing: Packing, inputs: HostInputs | None) -> None:
        """Copy a step's inputs to where the graph of a bucket reads them; None: padding alone."""
        memory = host_memory(packing.nbytes, self._device).zero_()
        views = [view.numpy() for view in packing.views(memory)]
        tokens, positions, slots, context_lens, tables = views
        slots[:] = -1
        context_lens[:] = 1
        if inputs is not None:
            count = len(inputs.context_lens)
            tokens[:count] = inputs.tokens[:count]
            positions[:count] = inputs.positions[:count]
            slots[:count] = inputs.slots[:count]
            context_lens[:count] = inputs.context_lens
            tables[:count, : inputs.block_tables.shape[1]] = inputs.block_tables
        self._memory[: packing.nbytes].copy_(memory, non_blocking=True)

    def _work(self, hidden_states: HiddenStates, size: int, packing: Packing) -> None:
        """What the graph of a bucket holds."""
        tokens, positions, slots, context_lens, tables = packing.views(self._memory)
        # Made anew each time: what a backend keeps in the batch belongs to one run.
        batch = AttentionBatch(
            slot_mapping=slots,
            query_start=self._query_start[: size + 1],
            context_lens=context_lens,
            block_tables=tables,
            num_decodes=size,
            max_query_len=1,
            max_context_len=self._max_model_len,
            block_size=self._block_size,
        )
        hidden = hidden_states(tokens, positions, batch)  # [T, hidden]
        self._hidden[: len(hidden)].copy_(hidden)
