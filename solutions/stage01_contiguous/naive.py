"""Stage 1, the naive cache: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/naive.py`` beside this.

**Why one question decides.** "Are the arrays long enough for the new length?" is all that append
needs to know. It settles the first append of a sequence (there are no arrays), the growing cache
(they are one token too short, each time) and the reserved one (they are long enough, always). Two
code paths for the two modes would be two places for the same off-by-one.

**Why new arrays and not a longer view.** numpy cannot lengthen an array in place: behind it lies
somebody else's memory. Nor can a GPU. That is the whole trouble with contiguous memory, in one
line: to grow is to move.

**Why the errors come first.** Whoever makes room and refuses afterwards leaves a sequence behind
that nobody has heard of. It holds memory, nobody will free it, and after some thousand bad requests
the server is full of it.

**Why gather copies.** A slice of a numpy array is a view of the same memory. A caller that scales
the keys in place would change the cache, and a later reader would find numbers that were never
appended. A copy costs time; that a cache can be trusted is worth it in code that others are
compared with.

Usual mistakes
--------------

* To return ``k`` whole from gather: with a reservation, zeros follow the tokens.
* To count what is stored as moved. A prompt that is stored for the first time moves nothing.
* To reserve ``max_model_len`` per append instead of per sequence.
* To keep a freed sequence with 0 tokens: ``bytes_reserved`` still counts its arrays.
* To check ``k`` alone. Values of another length are stored in part, and nobody notices.

Cost
----

Without a reservation an append moves all that was there: growing to n tokens one by one moves
n (n - 1) / 2 of them. With OPT-13B, at 819,200 bytes a token, the way to 2,048 tokens moves
2,096,128 tokens, 1.7 TB. An A100-40GB that reads and writes 1.555 TB/s needs 2.2 s for nothing but
moving.

With a reservation an append moves nothing, and a request of 2,048 tokens holds 1.6 GiB from its
first token on. Time or memory: a contiguous cache pays in one or the other. Growing by doubling is
between the two: less than two moves a token in the mean, and up to half of the memory empty. Paging
(stage 3) pays neither: a block more is a number more in a list.
"""

from minipaged.kvcache.naive import NaiveKVCache

__all__ = ["NaiveKVCache"]
