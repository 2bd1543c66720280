"""Attention in plain PyTorch that looks at no values: slow, and fit for a CUDA graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class StaticAttention:
    """An ``AttentionBackend`` whose operations depend on the batch's host numbers alone.

    Each query attends to all that its block table leads to, up to ``max_context_len`` positions,
    under a mask.
    """

    capturable = True

    def write(self, k, v, k_cache, v_cache, batch):
        num_blocks, _, block_size, _ = k_cache.shape
        slots = torch.arange(num_blocks * block_size)
        match = slots[:, None] == batch.slot_mapping  # [slots, T]
        written = match.any(1).view(num_blocks, 1, block_size, 1)
        source = match.to(torch.uint8).argmax(1)
        for new, cache in ((k, k_cache), (v, v_cache)):
            rows = new[source].view(num_blocks, block_size, *new.shape[1:]).transpose(1, 2)
            cache.copy_(torch.where(written, rows, cache))

    def attend(self, q, k_cache, v_cache, batch, scale):
        length = batch.max_context_len
        rows = torch.arange(len(q))
        starts = batch.query_start
        owner = (rows[:, None] >= starts[1:]).sum(1).clamp(max=len(starts) - 2)  # [T]
        place = rows - starts[owner]
        position = batch.context_lens[owner] - (starts[owner + 1] - starts[owner]) + place
        columns = torch.arange(length)
        blocks = batch.block_tables[:, columns // batch.block_size].long()  # [S, L]
        visible = columns <= position[:, None]  # [T, L]

        def gathered(cache):  # [T, KVH, L, d], 0 where nothing is to be seen
            found = cache[blocks, :, columns % batch.block_size][owner]  # [T, L, KVH, d]
            return torch.where(visible[:, :, None, None], found, 0.0).transpose(1, 2)

        out = F.scaled_dot_product_attention(
            q[:, :, None],
            gathered(k_cache),
            gathered(v_cache),
            visible[:, None, None],
            scale=scale,
            enable_gqa=True,
        )
        return torch.nan_to_num(out[:, :, 0])  # [T, H, d]
