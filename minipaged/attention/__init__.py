"""Attention over a paged cache: one interface, several backends.

A step's batch is flat: prompts, chunks and decodes stand one after the other, and one call
takes them all.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from minipaged.errors import ConfigError


@dataclass
class AttentionBatch:
    """Where the tokens of one step stand and what each may see. The same for every layer.

    ``S`` sequences are in the batch, and ``T`` rows: their tokens, then padding up to a multiple
    of 8. Rows from ``query_start[S]`` on are padding and belong to no sequence.

    Attributes:
        slot_mapping: ``[T]`` int64, the slot that each token's key and value go to; -1 for
            padding, which is written nowhere.
        query_start: ``[S + 1]`` int32: the rows of sequence ``s`` are ``query_start[s]`` up to,
            but not with, ``query_start[s + 1]``; at least one.
        context_lens: ``[S]`` int32: tokens in the cache after this step, the new ones included;
            these stand at the last positions.
        block_tables: ``[S, max_blocks]`` int32: entry ``i`` holds positions ``i*B .. i*B+B-1``.
            Entries past ``ceil(context_len / B)`` are arbitrary, but valid block numbers.
        num_decodes: the first that many sequences have exactly one query token. The others may
            have any number from 1.
        max_query_len, max_context_len: over the whole batch, as Python numbers.
        block_size: ``B``.
        cache: what a backend prepared for this step (index tensors, masks), shared by layers.
    """

    slot_mapping: Tensor
    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor
    num_decodes: int
    max_query_len: int
    max_context_len: int
    block_size: int
    cache: dict[str, Any] = field(default_factory=dict)


class AttentionBackend(Protocol):
    """Writes new keys and values into the paged cache, and attends through the block tables.

    A layer's ``k_cache`` and ``v_cache`` are ``[num_blocks, num_kv_heads, block_size, head_dim]``,
    contiguous: what one head holds in one block is one piece of memory. Slot ``s`` of head ``h``
    is ``cache[s // block_size, h, s % block_size]``.

    Two things more are a backend's own choice. One with a method ``rotate_and_write`` also rotates
    queries and keys (see :class:`~minipaged.attention.triton.FusedTritonAttention`). One whose
    attribute ``capturable`` is true does not look at what tensors hold and never waits for the
    device, so a CUDA graph can hold its launches.
    """

    def write(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch
    ) -> None:
        """Store ``k, v: [T, num_kv_heads, head_dim]`` at ``batch.slot_mapping``."""

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float
    ) -> Tensor:
        """``q: [T, num_heads, head_dim]`` -> ``[T, num_heads, head_dim]``, causal; rows of
        padding are arbitrary, but finite. Query head ``h`` reads KV head
        ``h // (num_heads // num_kv_heads)``. Slots past a context are never seen, whatever
        they hold (NaN included)."""


# --------------------------------------------------------------------------- which backend
AttentionKind = Literal["reference", "triton"]


def choose_attention(
    wish: str, device: str, *, why_not_triton: str = ""
) -> tuple[AttentionKind, str]:
    """Which backend serves.

    Args:
        wish: ``auto``: ``triton`` on a GPU, where it can be used, else ``reference``;
            ``reference``: PyTorch, on any device; ``triton``: on a CPU that is Triton's
            interpreter, for which this process is then set up.
        device: of the model: ``cpu``, ``cuda``, ``cuda:1``, …
        why_not_triton: a reason for ``auto`` to pass Triton over.

    Returns:
        The backend, and a sentence about it where it is not what one would expect of the device.

    Raises:
        ConfigError: there is no such backend, or Triton cannot be used.
    """
    if wish not in ("auto", "reference", "triton"):
        raise ConfigError(f"attention must be auto, reference or triton, not {wish!r}")
    on_gpu = device.startswith("cuda")
    if wish == "triton":
        if reason := why_triton_cannot_run(device):
            raise ConfigError(f"attention triton is not possible: {reason}")
        slow = "attention runs in Triton's interpreter: to check kernels, not to serve"
        return "triton", "" if on_gpu else slow
    if wish == "auto" and on_gpu:
        reason = why_not_triton or why_triton_cannot_run(device)
        if not reason:
            return "triton", ""
        return "reference", f"attention runs in PyTorch, not in Triton kernels: {reason}"
    return "reference", "attention runs in PyTorch, not in Triton kernels" if on_gpu else ""


def why_triton_cannot_run(device: str) -> str:
    """Empty if kernels run on tensors of this device. Where Triton is not imported yet, it is now,
    for a GPU or, on a CPU, to interpret kernels; this process then does so for good."""
    on_gpu = device.startswith("cuda")
    if not on_gpu and device != "cpu":
        return f"kernels run on a GPU of CUDA or in the interpreter on a CPU, not on {device!r}"
    if "triton" not in sys.modules and not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        return f"Triton cannot be imported here ({error})"
    # Triton decorates its own functions when it is imported.
    compiles = isinstance(triton.language.zeros, triton.JITFunction)
    if compiles and not on_gpu:
        return (
            "Triton was imported before, to compile kernels for a GPU: set TRITON_INTERPRET=1 in "
            "the environment before Python starts"
        )
    if not compiles and on_gpu:
        return "Triton interprets kernels in this process, for TRITON_INTERPRET is set"
    return ""
