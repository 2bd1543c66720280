"""Stage 1, reservations: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/contiguous.py`` beside this; your part of it is the section *admission*.

**Why everything at admission.** A region cannot grow, since somebody else's begins behind it. So
the whole future of a request has to be paid for when it enters, and the only question left is how
well the future is known. That is all that the three systems differ in.

**Why only the output is rounded.** The prompt lies on the table; its length is a fact. The output
is what has to be guessed. A guess that is a power of two is at most twice too much: it stands for
a system that predicts lengths roughly.

**Why prompt and output are capped together.** The model cannot read a position beyond
``max_model_len``. A request for a billion tokens may be a mistake or an attack; it reserves what
the model can use.

**Why two roundings.** From slots to blocks we round up because a block is the unit of the pool.
From blocks to a region the allocator rounds up, because it deals in powers of two. The first
belongs to the reservation, the second to the allocator: ``blocks_needed`` has both,
``requested_tokens`` neither. Task 1.4 keeps them apart too, and so does the paper.

**Why fits asks for regions and not for blocks.** 40 free blocks are no region of 32 if they lie
scattered. The paged manager of later stages compares two numbers here. That one line is what paging
buys.

**Why fits_ever is another question.** "Not now" means that the request waits until others have
ended. "Never" means that waiting is of no use, and that it must be refused at once: a queue whose
first request can never be served stands still for ever.

Usual mistakes
--------------

* ``next_power_of_two(prompt + output)`` for pow2.
* ``group.params.max_tokens or group.expected_output_len``: what is known about a request comes
  before what it allows.
* ``tokens // block_size``: the last, partly filled block has no place.
* To ask for one region in a group of n. The siblings write different tokens.
* To rank ``headroom`` with the regions. It is for blocks that running sequences will need, and here
  they have all that they will ever need.

Cost
----

O(log) of the chunk lengths for each question. In a pool of 983 blocks of 16 (OPT-13B, A100-40GB)
*max* runs 7 requests at a time, whatever they ask for. In the paper's experiment the mean number
that ran together was 7.00 for Max, 9.81 for Pow2, 13.62 for Oracle, and 30.42 with paging.
"""

from minipaged.kvcache.contiguous import ContiguousKVManager, Reservation

__all__ = ["ContiguousKVManager", "Reservation"]
