"""Stage 6, swap or recompute: the answer is the engine's own, and here is why it is so.

Read ``minipaged/scheduling/transfer_cost.py`` beside this. It is a model with five constants, and
what it is good for is to say what depends on what.

**Why the block size is in the swap.** Bytes are bytes, in whatever blocks. But a block of one
layer's keys is a piece of memory for itself, and the host starts a transfer for each piece: 2 x
layers of them a block. OPT-13B with blocks of one token: 80 transfers for 800 KB, 10 KB each, which
the link has done before the next one is launched. The curve over the block size B is ``a + b / B``,
and that is all that there is to the left half of figure 19a.

**Why the block size is not in the recompute.** A prefill computes keys and values in one go and
writes them to slots. Where the slots lie is nothing to the matrices.

**Why a sum there and a maximum here.** On the link, launching and moving do not overlap in this
model: from blocks of 2 on the measured points lie on a sum, within 4 %. In a prefill the host
launches the next layer while the card computes this one and reads weights as it goes: the slowest
decides.

**Why KV heads on one side and query heads on the other.** What is kept is what travels: keys and
values, of KV heads. What is computed is attention of all query heads. With 8 query heads a KV head,
the bytes are an eighth and the FLOPs nearly the same. But the number of *transfers* is what it was:
GQA does not help where blocks are small. Forgetting it is a factor of 8 in the time for bytes.

**Why both ways.** A block that goes out must come in again. Swap-in alone is cheaper than a
recompute from blocks of 4 on, the two together from blocks of 32 on.

**Why the ceiling.** 257 tokens in blocks of 256 are two blocks, one of them nearly empty, and it
travels.

**Why attention is n (n + 1) / 2.** Token i looks at i keys, itself included. For 256 tokens of
OPT-13B that is 0.4 % of the FLOPs; for 30,000 tokens it is a third, and a long context is what
swapping is better for.

**What figure 19a says, and what the text says.** "Recomputation overhead is never higher than 20%
of swapping's latency": from the figure's numbers, recompute over swap is 0.26, 0.42, 0.60, 0.82,
0.96, 1.07, 1.10, 1.13, 1.17 for blocks of 1 to 256. So it is at most 17 % *more* than swapping. The
overhead is not 20 % of it.

Usual mistakes
--------------

* ``num_heads`` in swap_bytes(): right for OPT, and eight times too much for a model with GQA.
* One direction only.
* ``num_tokens // block_size`` blocks.
* The weights read once for every token. A prefill reads them once, and that is the point of a
  batch.
* ``min`` in the roofline, or a sum.

Cost
----

Nothing here runs in a step. The engine's rule, one sequence or several, takes no time and needs no
constants; a scheduler that would ask cheaper() for each victim would have to measure its own
machine first.
"""

from minipaged.scheduling.transfer_cost import (
    A100_2023,
    Link,
    Machine,
    cheaper,
    crossover_block_size,
    crossover_tokens,
    matrix_weights,
    recompute_flops,
    recompute_seconds,
    swap_bytes,
    swap_seconds,
    swap_transfers,
)

__all__ = [
    "A100_2023",
    "Link",
    "Machine",
    "cheaper",
    "crossover_block_size",
    "crossover_tokens",
    "matrix_weights",
    "recompute_flops",
    "recompute_seconds",
    "swap_bytes",
    "swap_seconds",
    "swap_transfers",
]
