"""Stage 5, admission: the answer is the engine's own, and here is why it is so.

Read ``minipaged/scheduling/admission.py`` beside this. It is four methods of a few lines. None of
the comparisons is hard; what is easy to get wrong is *when* each of them holds.

**Why the watermark.** A prompt is admitted once, and then it grows by a token a step. So does
everybody else. If admission filled the pool to the last block, the very next step would find no
block for somebody, and preempt the group that was just admitted: its whole prompt was computed for
nothing. The watermark (1 % of the pool) is what the running groups can grow into before that
happens. It does not prevent preemption, it only makes it rare.

**Why neither watermark nor budget holds where nothing runs.** Both protect those that run: their
growth, and the time to their next token. If nobody runs there is nobody to protect, and nobody who
could give anything back. A prompt of 99 blocks in a pool of 100 would wait for ever, and with it
all that come behind. That is the deadlock of a whole server, and it was seen in real ones.

**Why places, and not sequences.** A group has one sequence until its prompt is computed, and n from
the step after on. By then it is too late to find that the step has no room for them: the limit is
on what a step runs, and a group runs whole. So a group takes its places when it comes. A beam
search may branch again whenever a beam ends, and keeps its places to the end; parallel samples give
theirs back one by one. ``group.places()`` knows all that, and ``count_max_seqs`` is the way in
which the paper's own scheduler counted.

**Why a limit may be reached.** ``max_num_seqs = 8`` means that eight may run. With ``>=`` in place
of ``>`` the eighth waits, and one that asks for all eight waits for ever.

**Why NEVER is not LATER.** Each cause of LATER goes away by itself: steps end, sequences end,
blocks come back. The causes of NEVER do not: nothing that others do makes the pool larger. The
first who is in the way of all others has to be told so, with the number that is wrong and the
limit, since whoever sent it can do something about it.

**Why only before the first start.** A group that has run here fits here, or did. When it comes back
after a preemption it brings what it has generated, and its length may have reached
``max_model_len`` with its last token on the way. To refuse it then would take back what was
promised. If it no longer fits, that is for the scheduler to find out, which gives up and keeps what
was generated.

**Why the manager is asked.** ``kv.fits`` and ``kv.blocks_needed``, and no arithmetic with tokens: a
contiguous manager reserves for the longest output there can be, and a group that was recomputed
brings the shape of its tables. The admission works with all of them.

Usual mistakes
--------------

* The watermark in all cases, and a pool that is nearly as large as one prompt.
* The budget in all cases, and a prompt longer than it (the defaults: 2560 tokens a step).
* ``len(group.seqs)`` for places: 1, of a request that asks for 64 outputs.
* ``prompt > max_model_len``: the limit is for prompt *and* output.
* To test the limits before the refusal: then it depends on the moment whether the request is told.

Cost
----

O(1) a group and step. Only the head of the queue is asked about, so a queue of ten thousand costs
no more than a queue of one.
"""

from minipaged.scheduling.admission import Admission

__all__ = ["Admission"]
