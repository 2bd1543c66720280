"""Attention over the paged cache in PyTorch: the definition that every other backend must meet
(paper, section 4.3), fast enough to serve a small model on a CPU.

Half types are computed in float32: products, softmax and sums.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from minipaged.attention import AttentionBatch

#: Queries of a chunk that attend at a time: bounds the mask to this many rows.
_QUERY_TILE = 256

#: From this share of live places on, padding the decodes costs less than leaving it out.
_NEARLY_FULL = 0.85


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store the key and value of each token at its slot; all other slots stay as they are.

    Args:
        k, v: ``[T, num_kv_heads, head_dim]``, converted to the caches' type.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``, written in place.
            Slot ``s`` of head ``h`` is ``cache[s // block_size, h, s % block_size]``.
        slot_mapping: ``[T]``, in no order. A token with slot -1 is padding, wherever it stands:
            nothing is written for it. The other slots are distinct.
    """
    live = slot_mapping >= 0
    if not live.all():
        k, v, slot_mapping = k[live], v[live], slot_mapping[live]
    block_size = k_cache.shape[2]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    k_cache[blocks, :, offsets] = k.to(k_cache.dtype)
    v_cache[blocks, :, offsets] = v.to(v_cache.dtype)


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
    num_blocks = -(-length // cache.shape[2])
    blocks = cache.index_select(0, block_table[:num_blocks])
    return blocks.transpose(1, 2).flatten(0, 1)[:length]


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
    decodes = batch.num_decodes
    if decodes == len(q):
        return _decode(q, k_cache, v_cache, batch, scale)
    out = q.new_zeros(q.shape)
    if decodes:
        out[:decodes] = _decode(q[:decodes], k_cache, v_cache, batch, scale)
    if decodes < len(batch.context_lens):
        _prefill(q, k_cache, v_cache, batch, scale, out)
    return out


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


# --------------------------------------------------------------------------- prompts and chunks
def _prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, out: Tensor
) -> None:
    """Sequences with several queries, one after the other: each is a product large enough to
    keep the machine busy, so there is nothing to win by padding them to one shape."""
    starts = batch.query_start.tolist()
    lengths = batch.context_lens.tolist()
    for s, (start, end) in list(enumerate(pairwise(starts)))[batch.num_decodes :]:
        k = gather_kv(k_cache, batch.block_tables[s], lengths[s])
        v = gather_kv(v_cache, batch.block_tables[s], lengths[s])
        out[start:end] = _causal(q[start:end], k, v, scale)


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """``q: [Lq, H, d]`` at the last ``Lq`` positions of ``k, v: [L, KVH, d]`` -> ``[Lq, H, d]``."""
    # [1, heads, length, d]
    q4, k4, v4 = (x.float().transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    gqa = q.shape[1] != k.shape[1]
    if len(q) == len(k):
        out = F.scaled_dot_product_attention(
            q4, k4, v4, is_causal=True, scale=scale, enable_gqa=gqa
        )
        return out[0].transpose(0, 1)

    history = len(k) - len(q)
    key_positions = torch.arange(len(k), device=q.device)
    tiles = []
    for first in range(0, len(q), _QUERY_TILE):
        tile = q4[:, :, first : first + _QUERY_TILE]
        end = history + first + tile.shape[2]  # keys that the last query of the tile sees
        visible = key_positions[:end] <= key_positions[history + first : end, None]
        tiles.append(
            F.scaled_dot_product_attention(
                tile, k4[:, :, :end], v4[:, :, :end], visible, scale=scale, enable_gqa=gqa
            )
        )
    return torch.cat(tiles, dim=2)[0].transpose(0, 1)


# --------------------------------------------------------------------------- decodes
@dataclass(frozen=True)
class _DecodeIndex:
    """The block tables of a step's decodes, as the sparse matrix that they are.

    A row is one query (head ``h`` of sequence ``s`` is row ``s * H + h``: heads that share keys
    follow each other, while these are in the processor's cache); a column is one row of the
    pool seen as ``[num_blocks * num_kv_heads * block_size, head_dim]``. With ``C``, the sum of
    the context lengths, it has ``E = C * H`` entries, and attention touches nothing else: no slot
    past a context is ever read.

    Where the contexts have nearly the same length ``L``, every row has ``L`` entries instead, so
    that the values of the matrix are the padded scores: past a context an entry is the row's
    first once more, and the mask takes it out.

    Attributes:
        blocks: the blocks of all contexts, one context after the other.
        scores: CSR ``[S * H, rows of the pool]``: its values are overwritten by each layer.
        row_start: ``[S * H]``: where the entries of a row begin.
        mask: ``[S, 1, L]``: 0 within a context, -inf past it.
        padded: ``[S, H, L]`` scratch, for the padded scores.
        pad: ``[S * H * L]``: the entry at each place of the padded scores. Past a context it is
            the row's first: finite if the row is. None where the rows have ``L`` entries.
        unpad: ``[E]``: the place of each entry in the padded scores; None likewise.
    """

    blocks: Tensor
    scores: Tensor
    row_start: Tensor
    mask: Tensor
    padded: Tensor
    pad: Tensor | None
    unpad: Tensor | None

    @staticmethod
    def build(
        batch: AttentionBatch, num_heads: int, num_kv_heads: int, num_blocks: int | None
    ) -> _DecodeIndex:
        """``num_blocks``: of the pool; None where the columns are not the rows of the pool, but
        those of a copy of ``blocks``."""
        block_size = batch.block_size
        decodes, device = batch.num_decodes, batch.context_lens.device
        lengths = batch.context_lens[:decodes].long()
        longest = int(lengths.max())
        positions = torch.arange(longest, device=device)
        heads = torch.arange(num_heads, device=device)
        inside = positions < lengths[:, None]  # [S, L]

        held = inside[:, ::block_size]  # [S, blocks of the longest]
        tables = batch.block_tables[:decodes, : held.shape[1]].long()
        blocks = tables[held]
        if num_blocks is None:
            num_blocks = len(blocks)
            tables = held.flatten().cumsum(0).view_as(held) - 1
        rows = tables.repeat_interleave(block_size, dim=1)[:, :longest]
        rows = rows * (num_kv_heads * block_size) + positions % block_size  # [S, L], of KV head 0
        kv_heads = heads * num_kv_heads // num_heads

        shape = (decodes, num_heads, longest)
        places = (positions * inside)[:, None].expand(shape)  # past a context: the row's first
        columns = rows[:, None] + (kv_heads * block_size)[:, None]  # [S, H, L]
        starts = lengths.cumsum(0) - lengths  # [S]
        pad = unpad = None
        if int(lengths.sum()) >= _NEARLY_FULL * inside.numel():
            columns = columns.gather(2, places).flatten()
            row_start = torch.arange(0, len(columns), longest, device=device)
        else:
            unpad = inside[:, None].expand(shape).flatten().nonzero().squeeze(1)
            columns = columns.flatten().index_select(0, unpad)
            row_start = (starts[:, None] * num_heads + heads * lengths[:, None]).flatten()
            pad = (row_start.view(decodes, num_heads, 1) + places).flatten()
        with warnings.catch_warnings():  # "Sparse CSR tensor support is in beta state"
            warnings.simplefilter("ignore", UserWarning)
            scores = torch.sparse_csr_tensor(
                torch.cat([row_start, row_start.new_tensor([len(columns)])]),
                columns,
                torch.zeros(len(columns), device=device),
                size=(decodes * num_heads, num_blocks * num_kv_heads * block_size),
                check_invariants=False,
            )
        return _DecodeIndex(
            blocks=blocks,
            scores=scores,
            row_start=row_start,
            mask=torch.where(inside, 0.0, -torch.inf)[:, None],
            padded=torch.empty(shape, device=device),
            pad=pad,
            unpad=unpad,
        )


def _decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float
) -> Tensor:
    """One query a sequence, all sequences at once. ``q: [S, H, d]`` -> ``[S, H, d]``."""
    _, num_heads, head_dim = q.shape
    num_blocks, num_kv_heads, _, _ = k_cache.shape
    # A half-precision pool is not read in place: the blocks are copied to float32 first.
    in_pool = k_cache.dtype == torch.float32
    index = batch.cache.get("reference.decode")
    if index is None:
        index = _DecodeIndex.build(batch, num_heads, num_kv_heads, num_blocks if in_pool else None)
        batch.cache["reference.decode"] = index

    def rows(cache: Tensor) -> Tensor:
        if not in_pool:
            cache = cache.index_select(0, index.blocks).float()
        return cache.view(-1, head_dim)

    torch.sparse.sampled_addmm(
        index.scores,
        q.float().reshape(-1, head_dim),
        rows(k_cache).t(),
        beta=0.0,
        alpha=scale,
        out=index.scores,
    )
    # The softmax needs rows of one length: [S, H, L], and back to the entries of the matrix.
    scores = index.scores.values()
    if index.pad is not None:
        torch.index_select(scores, 0, index.pad, out=index.padded.view(-1))
        weights = index.padded.add_(index.mask).softmax(-1).view(-1)
    else:
        torch.add(scores.view(index.padded.shape), index.mask, out=index.padded)
        weights = index.padded.softmax(-1).view(-1)
    if index.unpad is not None:
        weights = weights.index_select(0, index.unpad)
    out = F.embedding_bag(
        index.scores.col_indices(),
        rows(v_cache),
        index.row_start,
        mode="sum",
        per_sample_weights=weights,
    )
    return out.view_as(q).to(q.dtype)
