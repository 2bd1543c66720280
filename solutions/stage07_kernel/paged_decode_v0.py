"""Stage 7, decode through the table: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kernels/paged_decode_v0.py`` beside this.

**Why one pass.** With two passes, one for the maximum and one for the sums, a kernel is right and
simpler. But it reads the keys twice, and reading is what a decode waits for. The running maximum
costs two multiplications a block.

**Why the mending works.** A weight relative to ``m`` is ``2 ** (s - m)``. Relative to a later
maximum it is ``2 ** (s - m')``, which is ``2 ** (m - m')`` times as much, for every position
alike. So what has been summed is mended by one factor. It is at most 1, so nothing can overflow.

**Why the start is -3e38 and not -inf.** The first factor is ``exp2(LOWEST - m) = 0``, times sums
that are 0: right. With ``-inf`` it is the same, as long as each block has a live slot; with none
it is ``exp2(-inf + inf)``, NaN. This kernel never meets that case, and those of stage 8 do.

**Why both masks.** The score of an empty slot is set to ``-inf``: a key of zero would score 0, and
weigh as much as any token. Its value is loaded as 0: a weight of 0 times a stale NaN is NaN.

**Why exp2.** The hardware's instruction is 2 ** x. ``exp`` is that with a multiplication before it,
for each score; here the factor log2(e) goes into the query once.

**Why the division by 1.** A row of padding has no context. Its sums are 0, and 0 / 0 is NaN; a NaN
in a row that nobody reads still spreads, through the next layer's sums over rows or a test for
NaN.

Usual mistakes
--------------

* ``range(max_blocks)``, with masks for what is too much: right, if not a single load gets by the
  mask. It costs the time of the longest context for all.
* ``table[i * BLOCK_SIZE]``, or a row that is as long as its own context.
* ``h % num_kv_heads``: for one KV head, and for as many as query heads, it is the same as
  ``h // GROUP``.
* To mend ``mixed`` and not ``total``, or the other way round. With equal scores neither shows.
* A tile that ends at ``SLOTS``: with blocks of 5 it has 8 slots, and slot 5 is slot 0 of the next
  head. The mask must ask for ``slots < BLOCK_SIZE`` and for the context, both.
* Products in half precision. Loads come in the type of the cache, and what is computed from two
  halves is a half.

Cost
----

A program reads ``context_len`` keys and values of one head: for OPT-13B 512 B a token, all of
which must be read anyway, since each query head has keys of its own. Where ``GROUP`` heads share,
they are read ``GROUP`` times. One block is in flight at a time, so the memory idles while the
program computes and waits. ``minipaged kernels audit`` shows it in the machine code; versions 1
and 2 are stage 8.
"""

from minipaged.kernels.paged_decode_v0 import paged_decode_v0, paged_decode_v0_kernel

__all__ = ["paged_decode_v0", "paged_decode_v0_kernel"]
