"""Stage 8, tiles and grouped queries: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kernels/paged_decode_v1.py`` beside this.

**Why a tile is not a number of blocks.** Each position of the tile finds its own block and its
own place, ``position // BLOCK_SIZE`` and ``position % BLOCK_SIZE``. So a tile is full whatever
the block size is: with blocks of 8 it is four or eight blocks, with blocks of 256 a piece of one,
with blocks of 5 it begins wherever it begins. It costs an entry of 4 bytes a position, where 256
bytes of key and as many of value follow.

**Why the loads become 128 bits wide.** The dimensions are ``tl.arange``, so the compiler sees
that eight half-precision numbers lie next to each other; pointers and strides are multiples of
16, which the launch tells it. Both are needed. ``dims * stride`` with a stride that happens to be
1 is right, and loads 16 bits at a time.

**Why tl.range and its stages.** A loop without products gets copies that run ahead only if it
asks for them. Three stages: the entries of the tile after the next, the keys and values of the
next, and the arithmetic of this one.

**Why a maximum for each row, without groups.** A maximum over the tile is a number that all warps
must agree on, in each step. Each row can keep a softmax of its own, over every TILE-th position,
and nobody waits for anybody. After the loop there are TILE softmaxes, and they are merged as the
parts of version 2 are. A maximum over the tile, as in version 0, is right too.

**Why two kernels.** With groups the queries are rows of a matrix, both products run on tensor
cores, and a key is loaded once for all rows. Without groups there is one row; a tensor core takes
sixteen, and fifteen would be padding. What it would save, arithmetic, is not what a decode waits
for.

**Why the queries are not scaled in half precision.** The scale goes to the scores, which are
float32. A query times 0.088 would be rounded once more.

**Why input_precision="ieee".** Without it a product of float32 on an A100 is made of numbers of 10
bits, TF32. The interpreter does not show it; the machine code does.

Usual mistakes
--------------

* ``start // BLOCK_SIZE + rows // BLOCK_SIZE``: right as long as each tile begins with a block.
* One maximum for all rows of a group. What is far below it becomes 0 / 0.
* ``h % num_kv_heads``: rows of a program are ``kv_head * GROUP`` and on, side by side.
* ``mixed`` not mended before ``tl.dot`` adds to it.
* A loop over the query heads with the load inside. It is right, and moves what version 0 moves.

Cost
----

Each key and value once: for OPT-13B 20,480 bytes a position and layer, and for 32 heads over 8 KV
heads 4,096. A decode in half precision does 1 operation for each byte without groups, and
``GROUP`` with them; an A100 could do about 200. So memory is all that counts, and what the kernel
has to do is to keep enough bytes in flight: 32 KB a thread block, four thread blocks on a
multiprocessor.
"""

from minipaged.kernels.paged_decode_v1 import (
    paged_decode_v1,
    paged_decode_v1_gqa_kernel,
    paged_decode_v1_kernel,
)

__all__ = ["paged_decode_v1", "paged_decode_v1_gqa_kernel", "paged_decode_v1_kernel"]
