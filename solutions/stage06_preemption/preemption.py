"""Stage 6, the victim and recompute: the answer is the engine's own, and here is why it is so.

Read ``minipaged/scheduling/preemption.py`` beside this. There are seven methods of a few lines; all
the care is in their order.

**Why the last.** Order is arrival. Who came last has been served for the shortest time, and nobody
who came before is overtaken: the scan gives slots from the front, and takes them from the back. A
victim that is chosen by its size or its progress may be a group that is older than the one that
needs the block; then two groups can throw each other out for ever.

**Why whole.** Siblings are sampled together, and share blocks. To take the blocks of one of three
gives back its private ones, the other two cannot go on without it, and the shared blocks are still
held. All or nothing is what makes preemption simple: a group's blocks are either all here, or none.

**Why choose() is asked before anything changes.** It is the only place that can say no to swap. If
the host were asked after the first block has moved, there would be a group in two places.

**Why one live sequence is recomputed.** What it computes again is one prefill over a prompt that
got longer; on the paper's machine that is about as fast as two ways over the link (task 6.4), and
it needs no host memory. With several, the price of a recompute grows with what each has written for
itself, and sharing has to be rebuilt; swapping just keeps it.

**Why num_computed is the whole difference.** After a swap the cache is what it was, elsewhere. So
``num_computed`` stays, and the next step feeds one token. After a recompute the cache is empty:
``num_computed = 0`` and nothing else. The tokens stay, sampled ones too: they were shown to the
user. ``num_prompt_tokens`` stays: the prompt is what was asked, however much is fed in one go.

**Why resume() wants room for the next token.** A group that came back into exactly its blocks would
be the first to ask for one more, in the same step, with none free: out again, at the cost of both
ways. That is thrashing, and it can go on for ever.

**Why refill_starts() stops one token short.** The token sampled last has not been fed yet, and
siblings must be sampled together, in a step of their own. So the cache is refilled with all that
was in it, which is ``num_tokens - 1`` tokens, nothing is sampled meanwhile, and then an ordinary
decode step follows. A twin that shares even the last, partly filled block has nothing to compute at
all: ``min(shared * B, num_tokens - 1)``.

**Why its own blocks come into the set last.** Otherwise a table would find its own blocks computed
already, and begin at its end. And all tables up front would be worse: the second of two would wait
for what nobody computes.

Usual mistakes
--------------

* ``candidates[0]``, or the largest, or the one with the least progress.
* ``group.all_seqs()`` where ``group.live`` is meant: who has ended comes alive again, and gets
  blocks (vLLM had this).
* ``len(group.seqs) == 1`` forgotten: two of three siblings have ended, and the last is swapped.
* ``num_computed`` left as it was by recompute(): the scheduler believes the cache, and the sequence
  reads blocks that somebody else has filled.
* ``plan.swap_out = …`` in place of ``+=``: the second victim of a step takes the first one's pairs
  off the plan, and its bytes are lost.
* To forget ``prefilling``: a chunked prompt that was thrown out looks as if it were still running.

Cost
----

evict() and choose() look at a handful of numbers, and resume() asks once a step. refill_starts() is
linear in the blocks of the group, and runs only when a group of several starts again.
"""

from minipaged.scheduling.preemption import Preemption

__all__ = ["Preemption"]
