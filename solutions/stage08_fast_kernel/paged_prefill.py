"""Stage 8, prefill: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kernels/paged_prefill.py`` beside this.

**Why the keys come from the cache.** The new keys and values of the step are in the cache before
attention reads. So the keys of a chunk are those of its history and its own, in one order,
through one table. A first chunk and a later one, and a prompt behind a prefix that is shared, are
one case.

**Why rows.** A row is a query and a head: row ``r`` is query ``r // GROUP`` and head ``r %
GROUP``. All heads of a group are in one tile, and keys are loaded once for them. A chunk of 5
tokens and 8 heads is 40 rows.

**Why the loop ends before the context does.** No row of the tile sees a key behind its last
query. For a prompt of n tiles that saves nearly half of the work: ``n (n + 1) / 2`` steps and not
``n * n``.

**Why a mask remains.** In the last steps some rows see a key and others do not. The mask is a
comparison of two vectors, ``key <= position``. Every row sees key 0, which is in the first step:
so from there on its maximum is finite, and a step in which it sees nothing adds zeros.

**Why the order of the tiles is turned around.** The last tiles of a prompt have the most keys to
read. They start first, so that no long one is left over at the end.

**Why nothing is stored past the chunk.** The rows behind it are the next sequence's. Their program
may already have written them.

Usual mistakes
--------------

* ``key < position``. The first token then sees nothing at all, and is NaN.
* ``position`` counted from the chunk's first token: right for whole prompts alone.
* The end of a sequence taken for its length: right for the first sequence.
* Only what is behind the tile is masked, and not what is behind each row.
* ``head = kv_head + row % GROUP * num_kv_heads``.
* Rows past the chunk that are stored, since "they are padding". They are somebody's.

Cost
----

Queries and results move once. A tile of ``R`` rows reads all keys up to its last query, so a
prompt of 2,048 tokens without groups, in tiles of 64, reads its keys 16 times over on average;
most of that comes from the L2 cache, for the tiles of one sequence and head run side by side.
Arithmetic is what a prefill waits for: 4 * d operations for each pair of a query and a key that
it sees.
"""

from minipaged.kernels.paged_prefill import paged_prefill, paged_prefill_kernel, tile_of

__all__ = ["paged_prefill", "paged_prefill_kernel", "tile_of"]
