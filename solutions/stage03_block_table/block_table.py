"""Stage 3, the block table: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/block_table.py`` beside this: a list of numbers, and one number.

**Why num_tokens and not a fill count a block.** Blocks fill from left to right, so every block but
the last is full. How full the last one is follows from ``num_tokens`` and the length of the list
(invariant I4). A count for each block would be a second truth that has to agree with the first.

**Why rounding up settles the famous off-by-one.** "Is the last block full?" has the answer that you
want only if you know whether the new token is counted yet: with the token counted, a block is
needed where ``num_tokens % B`` is 1; without it, where it is 0; and with ``B = 1`` neither rule
works as it is written. "How many blocks do all these tokens need, and how many are there?" has one
answer, before and after, for one token and for a prompt of thousands::

    missing = ceil((num_tokens + count) / B) - len(blocks)

In Python, ``-(-n // B)`` is that ceiling in whole numbers. ``math.ceil(n / B)`` goes through a
float, and is wrong for some numbers above 2 ** 53; nobody has that many tokens, but a habit that is
always right costs nothing.

**Why all blocks are taken at once.** ``allocate_many`` gives all or none, and the table changes
after it. So an append that fails has changed nothing, and needs no code that undoes anything. The
scheduler relies on it: it preempts somebody, and then appends again.

**Why free() goes from the end to the start.** The pool hands out what was freed last. Given up in
this order, the next sequence gets the blocks in the order in which this one held them, first block
first: a run that repeats itself is then the same, block by block.

**Why slot() looks at num_tokens and not at the list.** A position past the last token may well have
a place in the last block. To answer for it would hide exactly the fault that costs the most to
find: a token that is read before it was written.

**Why clone() takes no reference.** The table does not know whether it is copied to be shared
(stage 4), to be moved to the host (stage 6) or to be looked at. Who clones knows, and accounts for
it.

Usual mistakes
--------------

* ``blocks[token // B] * B + token``: right for the first block, and for no other.
* ``B - num_tokens % B`` for the free slots: a full block has B of them, it says.
* ``num_tokens += count`` before the blocks are there: after an error the table claims tokens that
  have no slot.
* ``free()`` that keeps the list: the second call gives up blocks that are somebody else's by then.
* To free only blocks with one reference. Each table gives up its own reference; the pool counts.

Cost
----

``slot`` and ``num_free_slots`` are O(1), ``append`` is O(new blocks), ``free`` O(blocks). ``slots``
is a Python call for each token. The engine's executor needs the slots of all tokens of a step, so
it keeps the tables in one numpy array and does the same division on all of them at once
(``minipaged/executor/inputs.py``).

A table costs four bytes a block on the device. For OPT-13B a block of 16 tokens is 13,107,200 bytes
of keys and values: the map is one part in three million of the territory.
"""

from minipaged.kvcache.block_table import BlockTable

__all__ = ["BlockTable"]
