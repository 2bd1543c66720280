"""Stage 4, copy-on-write: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/copy_on_write.py`` beside this. It is 25 lines of code. What makes it right
is not in the lines but in what they leave alone.

**Why fork copies nothing.** A full block is never written again: the only write that there is goes
to the slot of the next token. So full blocks can be shared for good, and of all blocks of a table
only the last can ever be in the way. To fork is to copy a list of numbers, and to say so to the
pool: one reference a block, the last one included. *Above all* the last one: its count is what
make_writable() reads.

**Why "is it full?" comes first.** ``num_tokens % block_size == 0`` says that the next token goes
into a block that is not there yet. It covers the empty table too, which has no last block to ask
about. Only then is the count worth a look.

**Why the last holder writes in place.** When all others have taken a copy, or have ended, nobody is
left to protect. Without this rule a group of n would take n copies, the last one of a block that is
free from that moment on: another sequence may get it, and write to it, before it is copied.

**Why allocate comes before free.** The shared block has at least two references, so to free it
first would not give it back anyway. But if the pool is exhausted, the error must come before
anything has changed: the scheduler preempts somebody, and then asks again.

**Why there is a pair at all.** The table lives on the CPU and the bytes on the device. Deciding and
doing are two things: the manager collects the pairs of a step, and the executor copies them all, in
every layer, before the first token of the step is written. Between the two, the table says
something that is not true yet. A pair that is dropped on the way is not seen by any count: the pool
is right, the tables are right, and the sequence has forgotten its last tokens.

**Why the need is found table by table.** A scheduler must know *before* the step whether the pool
will do. blocks_for_next_token() plays the step with one number for each shared block: the
references that will be left. The short form "references - 1" is right while the group is all who
hold the block, which is so after a prompt. It is wrong for a prefix that is kept, and for two
groups that were forked from it: the other readers' references are in the count, but they do not
write now. In one formula: of w writers and r references, ``min(w, r - 1)`` take a copy.

**Why the copies can be done in any order.** Targets are fresh blocks, and sources are still held by
somebody (invariant I15). So no pair reads what another one writes.

Usual mistakes
--------------

* To append the new block instead of putting it in place. The table has an entry too many, and the
  next token still lands in the shared block (vLLM had this on its way to the paper).
* To leave the last block without a reference in fork(), because "it will be copied anyway". Its
  count is 1 then, and both write in place.
* ``child.blocks = parent.blocks``: that is one list with two names.
* To keep the reference to the old block: everybody copies, and it is never free again.
* ``dict(pairs)``: two children of one block have the same source.
* ``cache.reshape(num_blocks, -1)[target] = …``: in the pool of all layers a block is not
  contiguous, so reshape() makes a copy, and that copy is what you write to.

Cost
----

``fork`` is O(blocks): a reference for each. ``make_writable`` is O(1), and runs for every token of
every sequence; nearly always it looks at one or two numbers and returns None. A copy happens at
most once for each sequence and fork, whatever the length of the prompt.

What does that one copy cost? A block of OPT-13B is 13,107,200 bytes of keys and values, which are
read once and written once: 26.2 MB, or 17 µs on an A100 that moves 1,555 GB a second. To copy a
prompt of 1,024 tokens instead, as a contiguous cache must for each further sample, is 64 times
that, and 64 times the memory for as long as the sample lives.

``copy_blocks`` is a loop over pairs. Indexing with two lists, ``cache[targets] = cache[sources]``,
is shorter, reads everything before it writes, and is slow on a CPU where blocks are not contiguous:
for three blocks of SmolLM2-135M's pool it takes 8 ms, the loop 0.15 ms. On a GPU each pair is a
launch; stage 7 replaces the loop by one kernel for all pairs and layers.
"""

from minipaged.kvcache.copy_on_write import (
    blocks_for_next_token,
    copy_blocks,
    fork,
    make_writable,
)

__all__ = ["blocks_for_next_token", "copy_blocks", "fork", "make_writable"]
