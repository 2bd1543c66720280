"""Attention over the paged cache in PyTorch: the definition that every other backend must meet
(paper, section 4.3), fast enough to serve a small model on a CPU.

Half types are computed in float32: products, softmax and sums.

Stage 3, the block table::

    read    lessons/03-block-table.md
    write   3.3  Write and gather  10 points
            3.4  Ragged attention  14 points
    also    robustness 11 points, counterexample.toml 5 points
    check   minipaged grade 3
    stuck   minipaged hint 3.3
    use it  minipaged generate --parts mine --model opt-stories --raw "Once upon a time"
    next    lessons/04-copy-on-write.md
"""

from __future__ import annotations

import torch
from torch import Tensor

from minipaged.attention import AttentionBatch


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store the key and value of each token at its slot; all other slots stay as they are.

    Args:
        k, v: ``[T, num_kv_heads, head_dim]``, converted to the caches' type.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``, written in place.
            Slot ``s`` of head ``h`` is ``cache[s // block_size, h, s % block_size]``.
        slot_mapping: ``[T]``, in no order. A token with slot -1 is padding, wherever it stands:
            nothing is written for it. The other slots are distinct.
    """
    raise NotImplementedError("stage 3, task 3.3: see lessons/03-block-table.md")


def gather_kv(cache: Tensor, block_table: Tensor, length: int) -> Tensor:
    """What one sequence holds in a cache, in the order of its positions.

    Args:
        cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``.
        block_table: ``[>= ceil(length / block_size)]`` int32: entry ``i`` is the block of
            positions ``i * block_size`` and on. Further entries are valid block numbers, and
            do not matter.
        length: tokens wanted, from position 0.

    Returns:
        ``[length, num_kv_heads, head_dim]`` in the cache's type: a copy, which does not change
        when the cache does.
    """
    raise NotImplementedError("stage 3, task 3.3: see lessons/03-block-table.md")


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float
) -> Tensor:
    """Causal attention of every token of a ragged batch to its own sequence.

    The token at position ``p`` (the last ``query_len`` positions of a context are the
    queries) attends to positions ``0 .. p``, whose keys and values are in the cache already::

        out[t, h] = sum_j softmax_j(scale * q[t, h] . K[j, g]) V[j, g]

    with ``g = h // group``: ``group = num_heads // num_kv_heads`` query heads share a KV head.

    Args:
        q: ``[T, num_heads, head_dim]``. Half types, here or in the caches, are converted to
            float32 before anything is computed.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``.
        batch: which tokens belong to which sequence, and where its blocks are. Several layers
            use the same one, each with ``q`` and caches of its own.
        scale: multiplies the scores; whatever it is, nothing else does.

    Returns:
        ``[T, num_heads, head_dim]`` in ``q``'s type; rows of padding are zero. Slots past a
        context, and blocks of others, may hold anything (NaN, Inf): they do not show.
    """
    raise NotImplementedError("stage 3, task 3.4: see lessons/03-block-table.md")


class ReferenceAttention:
    """The :class:`~minipaged.attention.AttentionBackend` made of the functions above."""

    def write(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch
    ) -> None:
        slots = batch.cache.get("reference.slots")
        if slots is None:  # padding comes last: once a step it is cut off
            slots = batch.slot_mapping[: int(batch.query_start[-1])]
            batch.cache["reference.slots"] = slots
        write_kv(k[: len(slots)], v[: len(slots)], k_cache, v_cache, slots)

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float
    ) -> Tensor:
        return paged_attention(q, k_cache, v_cache, batch, scale)
