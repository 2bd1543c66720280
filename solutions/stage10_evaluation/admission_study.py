"""Stage 10, admission: the answer is the engine's own, and here is why it is so.

Read ``minipaged/sim/admission_study.py`` beside this.

**What it leaves out.** The model, the time that a step takes, chunks and neighbors. What is left is
one number, the free slots, and the question who may take them when. It is enough for the paper's
main result: with ShareGPT's lengths, a pool of OPT-13B's 15,728 slots and steps of 45 ms, ``max``
runs 7 requests at a time, and ``paged`` four times as many. Nothing about kernels is in it.

**Why the order of the four points.** Growing comes before admission: who runs has been promised an
answer, who waits has not. If the last free block went to a newcomer, somebody who runs would be
thrown out for it in the next step.

**Why the last one admitted.** It has made the fewest tokens, so the least is computed twice. And it
is fair: with it at the head of the queue, requests are still served in the order of their arrival.

**Why no admission in a step that has preempted.** The victim stands at the head of the queue, and
often its own blocks are what is free now. It would come right back, be preempted in the next step,
and compute its prompt again each time.

**Why the tokens are kept.** What is lost is keys and values. The tokens are known: fed as one
prompt they make the same keys and values in one step. That is why recomputing is much cheaper than
having served the request once more.

**Why a request can be refused at the door.** The largest number of slots that it can ever need is
known: for ``paged`` it is the last token's block. If that is more than the pool has, then it would
run until it is alone, preempt itself, come back, and never end. And everybody behind it would wait.

**Why the share is over slots that are held.** Over all slots of the pool it would say how busy the
system is. Over those that are held it says what the reservation is worth: a fifth for ``max``,
three fifths for ``oracle``, which knows every length, and more than nine tenths for blocks of 16.
Of the oracle's loss nothing is a wrong guess. It is all room for tokens that are yet to come, held
from the first step on.

**Why large blocks lose.** A block is a small reservation: on average half of the last one is empty.
With blocks of 16 that is 8 slots a request, with 256 it is 128, which is the output of a short one.

Usual mistakes
--------------

* ``prompt_len // block_size`` blocks, or blocks for the prompt alone: then the first token has no
  slot.
* To look for a request that fits further back in the queue. The large one at its head waits for
  ever, as long as small ones arrive.
* To take a victim out of the list that a ``for`` runs over: the one behind it is skipped.
* A request that preempts itself and then still takes a block.
* A batch that is counted when those that are done have left.
* ``now += step_seconds``: after 100,000 steps of 0.1 s it is off by a microsecond, and one arrival
  falls into another step.

Cost
----

O(requests that run) a step. An hour of ShareGPT at 2 requests a second takes about two seconds.
"""

from minipaged.sim.admission_study import POLICIES, Policy, Study, slots_reserved, study

__all__ = ["POLICIES", "Policy", "Study", "slots_reserved", "study"]
