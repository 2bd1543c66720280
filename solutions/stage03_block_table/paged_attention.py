"""Stage 3, attention through the table: a plain answer, and why the engine's own is another.

``write_kv`` and ``gather_kv`` are the engine's. ``paged_attention`` below is the definition,
written down: one sequence after the other, gather its keys and values, then dense attention as in
any textbook. It passes every check, and it is what ``minipaged unstick 3.4`` gives you.

**Why a mask by positions.** A prompt, a chunk and a decode differ in how many of the context's
last positions are queries, and in nothing else. Number the positions, compare, and no case is
special. ``tril`` and ``is_causal`` count both axes from zero instead; they are right only where
there is no history.

**Why gather cuts.** The last block holds slots that no token of this sequence has written. A mask
sets their weight to zero, but zero times NaN is NaN. What is cut off cannot enter the sum.

**Why float32 inside.** In float16, products of queries and keys can overflow, and a softmax over
hundreds of tokens adds up errors. The inputs are exact in float32; the result is rounded once.

**Why padding is dropped before the write.** PyTorch takes index -1 for the last. Nothing fails;
one sequence, the one that owns the pool's last slot, gets a foreign token.

Usual mistakes
--------------

* ``repeat`` for the heads, where ``repeat_interleave`` is meant: heads that share keys stand side
  by side.
* ``reshape`` of the gathered blocks before the two middle axes are swapped: it has the right
  shape, and mixes heads with places.
* To take ``max_context_len`` for everybody's length, or row 0 of the block tables after the
  decodes.
* To scale twice: ``scaled_dot_product_attention`` scales by itself if it is not told otherwise.

Cost
----

For one query in a context of L tokens, with H heads of d numbers: 4 L H d operations, and L d
numbers of each KV head are read twice, once for K and once for V. That reading is what a decode
waits for. Gathering first writes a copy and reads it again, for each KV head; repeating the heads
multiplies that by the group.

The engine's ``paged_attention`` (``minipaged/attention/reference.py``) does neither for decodes. A
block table *is* a sparse matrix: row (sequence, head), columns the slots of its context. So all
decodes of a step are two operations on the pool as it lies there: a product that is computed only
at the entries of that matrix, and a weighted sum of the rows that it names. The matrix is built
once a step and used by every layer, through ``batch.cache``. Prompts it takes one by one, as here,
with PyTorch's fused attention.

Time of the plain answer over that of the engine's, on one core, with the shape of SmolLM2-135M
(9 heads, 3 KV heads, d = 64, blocks of 16) and the matrix built:

==================================  =====
32 decodes, 100 to 500 tokens each  10
32 decodes, 300 tokens each         7
128 decodes, 20 to 180 tokens each  12
a prompt of 512 tokens              2.2
a chunk of 256 after 512            1.7
==================================  =====

None of it changes what is computed: the two differ by less than 2e-6.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from minipaged.attention import AttentionBatch, reference
from minipaged.attention.reference import gather_kv, write_kv

__all__ = ["ReferenceAttention", "gather_kv", "paged_attention", "write_kv"]


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float
) -> Tensor:
    """Causal attention of every token of a ragged batch to its own sequence."""
    out = q.new_zeros(q.shape)  # rows of padding stay as they are
    lengths = batch.context_lens.tolist()
    group = q.shape[1] // k_cache.shape[1]
    for s, (start, end) in enumerate(pairwise(batch.query_start.tolist())):
        # [L, KVH, d] -> [L, H, d]: each KV head stands beside itself, once for each of its group
        k, v = (
            gather_kv(cache, batch.block_tables[s], lengths[s]).float().repeat_interleave(group, 1)
            for cache in (k_cache, v_cache)
        )
        positions = torch.arange(lengths[s], device=q.device)
        queries = positions[lengths[s] - (end - start) :]  # the last ones of the context
        scores = torch.einsum("qhd,khd->hqk", q[start:end].float(), k) * scale
        scores = scores.masked_fill(positions > queries[:, None], -torch.inf)
        out[start:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(q.dtype)
    return out


class ReferenceAttention(reference.ReferenceAttention):
    """The backend that is made of the functions above: writing is the reference's."""

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float
    ) -> Tensor:
        return paged_attention(q, k_cache, v_cache, batch, scale)
