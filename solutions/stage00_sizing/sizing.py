"""Stage 0, sizing: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/sizing.py`` beside this. It is a page of arithmetic, and nearly everything
that can go wrong in it is a question of *whose* and *which way round*: whose heads, whose memory,
whose blocks; down or up.

**Why KV heads, and why max.** What is kept is what a later token will read again: keys and values.
A query is used once. So query heads matter for one thing only, how they are spread, and KV heads
for the bytes. Where there are fewer KV heads than ranks, the alternative to a copy would be to cut
a head into pieces and add up partial scores over the network in every layer of every step. A copy
costs memory that the ranks have; the sum would cost time that they do not.

**Why the refusals.** 6 KV heads on 4 ranks would give 12 query heads in threes: the first rank
reads heads 0 and 1, the second 1 and 2. Two heads a rank would hold it, but the ranks' pools would
no longer be each other's mirror in an obvious way, and no model of the paper is like that. To
refuse it by name is better than a number that nobody has thought through.

**Why slots and blocks are separate functions.** ``budget // token`` and ``budget // block`` are the
same division, and the second loses up to a block's worth of slots. Table 1 of the paper counts
slots (12 GiB are 15,728 of OPT-13B); a pool can only be cut into whole blocks (983, which are
15,728 again, by luck: 16 divides it).

**Why the budget is rounded before the weights are taken off.** ``int()`` cuts towards zero. That is
down for what may be used of a card, which is positive, and *up* for a budget that is negative. The
budget is negative for a model that is too large, and by how much is what the error message says.

**Why the watermark is rounded down.** A pool of 99 blocks with a watermark of 1 % keeps none free.
It could be argued that one would be better; vLLM's first release rounded down, and an engine that
keeps a block back which its user did not ask for has to explain where it went.

**Why -(-n // b).** Python's ``//`` rounds down on both sides of zero, so this rounds up, exactly,
for any size. ``(n + b - 1) // b`` is as good. ``math.ceil(n / b)`` goes through a float, and is
wrong above 2^53.

Usual mistakes
--------------

* ``hidden_size`` in place of ``num_kv_heads * head_dim``. It is the same in OPT and in the first
  LLaMA, and four to eight times too much for a model with grouped queries. In 2024 an engine took
  ``hidden_size // num_heads`` for the width of a head of a model that says its own; the cache was
  too narrow, and the kernel wrote keys over the model's weights.
* The 2 forgotten, or counted twice because "float16 has 2" is in the same line.
* A fraction of *free* memory where a fraction of the card was meant. Then two engines on one card
  do not fit, though each asked for 0.45.
* ``n // b + 1`` blocks. It agrees with the right number unless a sequence ends with its block: once
  in ``b`` lengths, which is why it lives long.
* The slots of the pool divided by the length. For 2,048 tokens in blocks of 16 it is even right.

Cost
----

All of this runs once, when an engine starts; ``kv_growth`` is O(steps x sequences), for pictures.
So clarity is the only thing to optimize here. The numbers decide everything after: at 800 KB a
token, one sequence of 2,048 tokens is 1.6 GB, and a card of 40 GB holds seven.
"""

from minipaged.kvcache.sizing import (
    KVGrowth,
    blocks_for_tokens,
    blocks_that_fit,
    kv_budget_bytes,
    kv_bytes_per_block,
    kv_bytes_per_token,
    kv_growth,
    kv_heads_per_rank,
    sequences_that_fit,
    slots_that_fit,
    watermark_blocks,
)

__all__ = [
    "KVGrowth",
    "blocks_for_tokens",
    "blocks_that_fit",
    "kv_budget_bytes",
    "kv_bytes_per_block",
    "kv_bytes_per_token",
    "kv_growth",
    "kv_heads_per_rank",
    "sequences_that_fit",
    "slots_that_fit",
    "watermark_blocks",
]
