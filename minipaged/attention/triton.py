"""Attention over the paged cache by Triton kernels: on a GPU, or in Triton's interpreter.

Nothing here waits for the device or looks at what a tensor holds, so a decode step can be captured
in a CUDA graph. This module imports no Triton: it is given the kernels' host functions.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from minipaged.attention import AttentionBatch


class CacheWrite(Protocol):
    """See ``minipaged.kernels.cache_write``."""

    def __call__(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
    ) -> None: ...


class PagedDecode(Protocol):
    """See ``minipaged.kernels.paged_decode_v2``."""

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        context_lens: Tensor,
        scale: float,
        max_context_len: int,
        out: Tensor,
    ) -> Tensor: ...


class PagedPrefill(Protocol):
    """See ``minipaged.kernels.paged_prefill``."""

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        scale: float,
        max_query_len: int,
        out: Tensor,
    ) -> Tensor: ...


class RotateAndWrite(Protocol):
    """See ``minipaged.kernels.rotary``."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None: ...


class TritonAttention:
    """The :class:`~minipaged.attention.AttentionBackend` made of kernels: one launch for all the
    decodes of a step, one for all its prompts and chunks."""

    capturable = True

    def __init__(
        self, cache_write: CacheWrite, paged_decode: PagedDecode, paged_prefill: PagedPrefill
    ) -> None:
        self._cache_write = cache_write
        self._paged_decode = paged_decode
        self._paged_prefill = paged_prefill

    def write(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch
    ) -> None:
        self._cache_write(k, v, k_cache, v_cache, batch.slot_mapping)

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float
    ) -> Tensor:
        decodes, num_seqs = batch.num_decodes, len(batch.context_lens)
        # Where padding begins is known on the device only: all rows begin as zeros.
        out = q.new_empty(q.shape) if decodes == len(q) else q.new_zeros(q.shape)
        if decodes:
            self._paged_decode(
                q[:decodes],
                k_cache,
                v_cache,
                batch.block_tables[:decodes],
                batch.context_lens[:decodes],
                scale,
                batch.max_context_len,
                out[:decodes],
            )
        if decodes < num_seqs:
            self._paged_prefill(
                q,
                k_cache,
                v_cache,
                batch.block_tables[decodes:],
                batch.query_start[decodes:],
                batch.context_lens[decodes:],
                scale,
                batch.max_query_len,
                out,
            )
        return out


class FusedTritonAttention(TritonAttention):
    """A :class:`TritonAttention` that rotates keys on their way into the cache."""

    def __init__(
        self,
        cache_write: CacheWrite,
        paged_decode: PagedDecode,
        paged_prefill: PagedPrefill,
        rotate_and_write: RotateAndWrite,
    ) -> None:
        super().__init__(cache_write, paged_decode, paged_prefill)
        self._rotate_and_write = rotate_and_write

    def rotate_and_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        batch: AttentionBatch,
    ) -> Tensor:
        """In place of rotating queries and keys, and then :meth:`write`.

        Args:
            q: ``[T, num_heads, d]``, rotated in place.
            k, v: ``[T, num_kv_heads, d]``, stored at ``batch.slot_mapping``, ``k`` rotated.
            cos, sin: ``[T, 1, >= d/2]``: of the angles of each token's pairs.

        Returns:
            ``q``. Its rows of padding are not rotated.
        """
        angles = cos.squeeze(1), sin.squeeze(1)
        self._rotate_and_write(q, k, v, *angles, k_cache, v_cache, batch.slot_mapping)
        return q
