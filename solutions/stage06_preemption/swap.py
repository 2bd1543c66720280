"""Stage 6, swap with sharing: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/swap.py`` beside this.

**Why one function for both directions.** A table knows its pool. To go out is to move to the host's
pool, to come back is to move to the device's. Whatever holds for one way holds for the other, and
there is one place to get it right.

**Why allocate_many comes first.** It is all or nothing (stage 02). With the new blocks in hand,
nothing can fail any more; without them nothing has changed, and the manager can recompute instead.

**Why a dict.** ``old -> new`` is the shape of the tables: whoever finds the same old block gets the
same new one. It keeps the order in which the blocks were first seen, so its items are the pairs,
each once. A list of pairs made table by table has a shared block once for each holder, and it is
copied over itself, or worse, to several places.

**Why ``held``.** A block from allocate_many has one reference. That is the first holder's. Each
further holder among these tables adds one. After the move the count on the other side is the number
of these tables that hold the block, and it is no matter what it was before.

**Why not the old count.** It counts everybody. A registered prefix, or another group that was
forked from it, holds the block as well, and stays. References that were taken for those would never
be dropped: a leak on the host, one block a swap, which no test of contents sees.

**Why each table frees for itself.** The same reason, on the side that was left: as many references
go as there are tables that leave. A block that others hold stays theirs. Its bytes travel all the
same: the group needs a copy of its own on the host, since the other holders may end before it is
back.

**Why the table's blocks are replaced in place.** ``blocks`` is a list that the manager and the plan
know. The order is the order of the tokens; ``num_tokens`` stays, and so the last block is as partly
filled as it was. Copy-on-write after the return does just what it would have done without the trip.

Usual mistakes
--------------

* Sharing lost on the way: each table gets fresh blocks of its own, more than had been counted, so
  the pool may be exhausted halfway (can_swap_in() had said yes).
* Count lost on the way: the blocks are shared, their count is 1. The first sibling that ends frees
  them for all; and the first that writes sees count 1 and writes in place. vLLM had both.
* A shared block freed once, in the pool that was left: it has references of nobody.
* ``table.allocator`` left as it was: the next append takes a block number of one pool, and the
  table has those of the other.
* ``sorted(set(...))`` in unique_blocks(): all is right, but nobody can follow a pair through a
  trace.

Cost
----

Linear in the entries of the tables. The bytes are what costs: 13,107,200 for a block of OPT-13B, a
millisecond over the paper's link. That a shared block travels once is therefore not a matter of
taste: three samples of a prompt of 1,024 tokens share 64 blocks, and to move each three times would
take 150 ms more on the way out, and 170 ms on the way in.
"""

from minipaged.kvcache.swap import move, unique_blocks

__all__ = ["move", "unique_blocks"]
