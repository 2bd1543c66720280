"""Stage 7, block copy: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kernels/block_copy.py`` beside this. The kernel is eight lines, and does three
things.

**Why one launch.** A copy-on-write of one block in OPT-13B is 80 copies of 164 KB: keys and values
of 40 layers. A launch takes some microseconds of the host's time, whatever it copies; so 80 of them
cost more than the bytes do. The second number of a program says which of the 80 it is.

**Why planes.** Layers and the two caches are one dimension for whoever copies: 2 * layers planes at
equal distances. That the pool is ``[layers, 2, ...]`` does not matter to the kernel.

**Why two strides a side.** Within the pool a block's planes lie far apart and blocks lie together;
in the staging buffer it is the other way round. With a block stride and a plane stride for each
side the same lines gather, scatter and copy. In the staging buffer one block is then one piece, so
that it goes over the link to the host in one transfer (stage 6 shows why that matters).

**Why None.** In the staging buffer block ``i`` is simply the ``i``-th. ``x is None`` is known when
the kernel is compiled, so the question costs nothing when it runs.

Usual mistakes
--------------

* 32 bits. Program numbers are int32, and strides that fit are int32 as well: the product wraps
  without a word, at the 32nd plane of a pool of OPT-13B on a 40 GB card. ``.to(tl.int64)`` has to
  come *before* the multiplication.
* ``pairs`` read as if all sources came first. They stand in turns, ``[P, 2]``.
* ``element < TILE`` for the mask, which is always true. The last part of a piece is shorter.
* To copy the pairs one after the other "because the order matters". It does not: no target is a
  source (invariant I15).

Cost
----

Each byte is read once and written once. One block of OPT-13B is 13.1 MB over all layers: 26.2 MB to
move, 0.017 ms at 1,555 GB/s. Copies of several pairs run side by side.
"""

from minipaged.kernels.block_copy import (
    block_copy_kernel,
    copy_blocks_in_pool,
    gather_blocks,
    scatter_blocks,
)

__all__ = ["block_copy_kernel", "copy_blocks_in_pool", "gather_blocks", "scatter_blocks"]
