"""Attention over a paged cache: one interface, several backends.

A step's batch is flat: prompts, chunks and decodes stand one after the other, and one call
takes them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


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
