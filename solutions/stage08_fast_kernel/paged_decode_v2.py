"""Stage 8, split contexts: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kernels/paged_decode_v2.py`` beside this.

**Why parts.** One sequence and 8 KV heads are 8 programs, and an A100 has 108 multiprocessors: 100
of them do nothing, however long the context is. Cut into 54 parts it is 432 programs.

**Why a logarithm.** A part's sums are relative to its maximum. Whoever merges two parts needs
both numbers, or one that says the same: ``maximum + log2(total)``, the logarithm of the sum of
all weights relative to nothing. The sum itself, ``2 ** 430``, is no number of float32; its
logarithm always is. The result of the part is divided by its own sum, so its size says nothing of
its weight.

**Why the reduction is a softmax.** The weight of part ``i`` is ``2 ** lse[i]`` over the sum of
these. It is the same formula as attention, with one score a part and a result in place of a
value. The same rule keeps it in range: subtract the largest.

**Why the largest is made finite.** A row of padding has no position in any part: all are -inf,
and ``-inf - -inf`` is NaN. ``tl.maximum(..., LOWEST)`` makes it ``-inf - LOWEST``, a weight of 0.
For the same reason a part without a position stores no result, and the reduction loads none: 0 *
NaN is NaN.

**Why parts are whole tiles.** Then no tile is cut in two, each of which would load under a mask,
and all parts but the last are equally long.

**Why the number of parts depends on shapes alone.** ``max_context_len`` is a number of the host.
To look at the lengths the host would have to wait for the device; and a CUDA graph is recorded
once for all lengths.

**Why one kernel for GROUP 1 and more.** ``GROUP`` is known when the kernel is compiled: the ``if``
leaves one branch. Both have the loops of version 1, from ``begin`` to ``end``.

Usual mistakes
--------------

* The average of the parts. It is right for parts of equal length and equal scores.
* ``log2(total)`` without the maximum: right as long as all parts have the same one.
* Tiles of a part rounded down. The rest of the context belongs to nobody.
* ``end`` that is the context's end: later positions count several times.
* Parts that hold nothing. They cost a launch of a program and a place in the workspace.

Cost
----

A part leaves ``head_dim + 1`` float32 numbers a query head, which are written and read once: 1,032
bytes, against 512 bytes for each of its positions in half precision without groups. With parts of
128 positions that is less than 2 %; with groups of 8 it is 13 %. The second launch takes some
microseconds. So where sequences and heads fill the card there is one part, and no reduction.
"""

from minipaged.kernels.paged_decode_v2 import (
    choose_num_splits,
    paged_decode_v2,
    paged_decode_v2_kernel,
    paged_decode_v2_reduce_kernel,
)

__all__ = [
    "choose_num_splits",
    "paged_decode_v2",
    "paged_decode_v2_kernel",
    "paged_decode_v2_reduce_kernel",
]
