"""Stage 7, the cache write: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kernels/cache_write.py`` beside this.

**Why a slot and not a table.** The step's inputs hold a slot for each token already (stage 3). So
the kernel knows nothing of sequences: a prompt, a chunk and a decode are written by the same
launch, in any order.

**Why one program stores several heads.** A program that stores one head of 128 half-precision
numbers moves 256 bytes, and four warps could move 2048 at once. So the host function gives it as
many heads as make 1024 elements. A tile has to be a power of two in both directions; heads and
dimensions need not be. Whatever sticks out is masked, in both directions, for the load and for the
store.

**Why an early return.** The slot is one number, the same for all of a program's lanes. An ``if`` on
it costs nothing. The other way, a mask ``slot >= 0`` for all lanes, is right too.

**Why 64 bits.** A slot is int64, and so is all that is computed from it. The number of the token is
made wide as well: ``token * k_token_stride`` passes 2 ** 31 where long prompts meet wide models.

Usual mistakes
--------------

* No look at the sign. Division in Triton goes toward zero, as in C: ``-1 // 4`` is 0, ``-1 % 4``
  is -1. In Python the same expressions give -1 and 3. Both are wrong here, in different places.
* ``token * NUM_KV_HEADS * HEAD_DIM``: right for a tensor of its own. The model's keys are a piece
  of one product, and a row of it is as wide as queries, keys and values together.
* The strides of ``k`` for ``v``. They are equal in all simple tests.
* ``arange(0, HEADS)`` without ``program_id(1) * HEADS``: right as long as one program is enough.

Cost
----

Each key and value is read once and written once. For OPT-13B that is 2 * 40 * 128 * 2 B = 20,480 B
read and as many written, a token and layer; a prompt of 2,048 tokens moves 84 MB a layer, about
0.05 ms at 1,555 GB/s. What one launch saves is the other 79 of a layer that writes each head by
itself.
"""

from minipaged.kernels.cache_write import cache_write, cache_write_kernel

__all__ = ["cache_write", "cache_write_kernel"]
