"""Stage 2, the block allocator: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/block_allocator.py`` beside this. It is 50 lines of code: two lists.

**Why two lists.** The free list answers "which block next?", the counts answer "who still needs
it?". Neither can be derived from the other cheaply: the counts do not know in which order blocks
were freed, the free list does not know how many hold what is not in it. Invariant I2 ties them
together: a block is in the free list exactly if its count is 0. Every method starts with I2 true
and ends with I2 true; that sentence is the whole proof that the pool is right.

**Why the list is built from the highest number down.** A Python list is a stack that is cheap at
its end. Built this way, a new pool gives 0, 1, 2, …, which is pleasant to read, and costs nothing
later.

**Why last-in, first-out.** The block freed last was touched last, so on a CPU its bytes are the
likeliest to be in a cache still. On a GPU it hardly matters for speed. What matters everywhere is
that the order is *a contract*: a run can be repeated block by block, and a test can name the
block that it expects.

**Why double free is an error and not a shrug.** Whoever frees a block twice believes that it holds
it. Between the two calls somebody else may have been given the block; then the second free takes
it from an innocent. The pool cannot see that case: the count is 1 and the call looks right. So it
must be loud in the case that it can see.

**Why allocate_many decides first.** A caller that gets an error holds nothing, and so has nothing
to give back. Taking blocks one by one and giving them back on failure would leave the free list in
another order than before: then "nothing has changed" would be false, if only slightly.

Usual mistakes
--------------

* To check ``block >= num_blocks`` alone. ``counts[-1]`` is the last block of the pool in Python.
* To validate inside ``free_many`` first and free afterwards. ``reversed(table)`` is empty the
  second time.
* To keep the count of a freed block at 1, because allocate sets it anyway. Then a free block and a
  held one look the same, and a double free goes unseen.
* To compute ``num_free`` from the sum of the counts. It agrees until something is shared.
* A default argument or a class attribute as the free list: all pools then share it, and the CPU
  pool runs out when the GPU pool does.

Cost
----

``allocate``, ``free``, ``share`` and ``ref_count`` are O(1), ``allocate_many(k)`` and
``free_many`` of k blocks O(k), ``free_blocks`` O(n). One allocate and one free together take about
0.3 µs here. At 256 running sequences and blocks of 16 tokens, a step needs 16 new blocks on
average: 5 µs, against at least 16.7 ms that an A100 needs to read the weights of OPT-13B once.

What else could hold the free blocks? Time of one allocate and one free in a half full pool, as a
ratio to this design (the others were tried without its checks, which flatters them):

================================  ==========  =============  ===================================
design                            820 blocks  61,392 blocks
================================  ==========  =============  ===================================
stack of free numbers (this)      1           1              order of last use
a byte a block, find the first 0  0.9         1.8            fixed memory, a search
one int, its lowest set bit       1.2         14             Python copies the int each time
heap of free numbers              1.3         1.8            lowest number first, O(log n)
list, search for the minimum      40          thousands      what "lowest first" costs untidily
================================  ==========  =============  ===================================

820 blocks are what OPT-13B leaves on an A100-40GB, 61,392 what OPT-125M does: ``minipaged plan``.

A *buddy allocator* (stage 1) hands out runs of 2^k blocks that lie side by side. That is needed
where memory must be contiguous. Paging is the decision that it need not be, and so the allocator
shrinks to a stack: with blocks of one size there is no external fragmentation to fight.
"""

from minipaged.kvcache.block_allocator import BlockAllocator

__all__ = ["BlockAllocator"]
