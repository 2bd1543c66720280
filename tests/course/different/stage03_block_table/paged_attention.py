"""A right answer that has nothing in common with the reference's: all rows at once, one logical
block after the other, with a running maximum and a running sum, as a kernel does it."""

from __future__ import annotations

import torch


def write_kv(k, v, k_cache, v_cache, slot_mapping):
    block_size = k_cache.shape[2]
    for new, cache in ((k, k_cache), (v, v_cache)):
        for row, slot in zip(new, slot_mapping.tolist()):
            if slot != -1:
                cache[slot // block_size, :, slot % block_size] = row


def gather_kv(cache, block_table, length):
    position = torch.arange(length)
    block = block_table.long()[position // cache.shape[2]]
    return cache.permute(0, 2, 1, 3)[block, position % cache.shape[2]]


def paged_attention(q, k_cache, v_cache, batch, scale):
    _, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1:3]
    starts = batch.query_start.long()
    queries = starts.diff()
    sequence = torch.arange(len(queries)).repeat_interleave(queries)  # [rows]: whose each is
    rows = len(sequence)
    from_the_end = starts[1:][sequence] - torch.arange(rows)
    position = batch.context_lens.long()[sequence] - from_the_end

    grouped = q[:rows].float().view(rows, num_kv_heads, -1, head_dim)  # [rows, KVH, group, d]
    highest = torch.full(grouped.shape[:3], -torch.inf)
    total = torch.zeros(grouped.shape[:3])
    mixed = torch.zeros_like(grouped)
    for i in range(batch.block_tables.shape[1]):
        block = batch.block_tables[sequence, i].long()
        seen = i * block_size + torch.arange(block_size) <= position[:, None]  # [rows, B]
        seen = seen[:, None, None, :]
        keys, values = k_cache[block].float(), v_cache[block].float()  # [rows, KVH, B, d]
        values = torch.where(seen.transpose(2, 3), values, 0.0)
        scores = scale * grouped @ keys.transpose(2, 3)  # [rows, KVH, group, B]
        scores = torch.where(seen, scores, -torch.inf)
        higher = torch.maximum(highest, scores.amax(-1))
        weights = (scores - higher[..., None]).exp()
        shrink = (highest - higher).exp()
        total = total * shrink + weights.sum(-1)
        mixed = mixed * shrink[..., None] + weights @ values
        highest = higher
    out = torch.zeros_like(q)
    out[:rows] = (mixed / total[..., None]).reshape(rows, num_heads, head_dim).to(q.dtype)
    return out


class ReferenceAttention:
    def write(self, k, v, k_cache, v_cache, batch):
        write_kv(k, v, k_cache, v_cache, batch.slot_mapping)

    def attend(self, q, k_cache, v_cache, batch, scale):
        return paged_attention(q, k_cache, v_cache, batch, scale)
