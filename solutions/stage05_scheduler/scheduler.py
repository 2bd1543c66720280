"""Stage 5, the scheduler: the answer is the engine's own, and here is why it is so.

Read ``minipaged/scheduling/scheduler.py`` beside this, and the half that was given,
``minipaged/scheduling/queues.py``.

**Why one order.** (priority, arrival) says who is served first, who loses memory first, and who
comes back first. A group that was preempted needs no place "at the front of the queue": its arrival
is as early as ever, and that *is* its place. Nobody can be overtaken again and again, so everybody
gets done: the group that came first is never a victim as long as another one runs.

**Why victims are looked for behind.** ``run`` walks along the queue and lets go of blocks on the
way. A group that has its slots is in the plan: its table, its copies, its tokens. To preempt it
now, all of this would have to be undone, and the room that it has got was taken from others for
nothing. So the list of candidates begins with the group that is in need, and goes on behind it. The
group itself is one of them: if it is the last, it is the one to go.

**Why the loop asks again after each victim.** A victim may give back one block or twenty, and a
group of n siblings may need n. There is no point in computing how many victims it takes.

**Why swapping in waits for the next step.** Blocks that have just been taken from one group would
be given to another that stands behind it, or the same blocks would travel out and in. And a step in
which the copies go one way only needs no order between them (invariant I5).

**Why nobody is admitted past a swapped group.** A swapped group needs all its blocks at once. New
requests need a few each. If they may pass, they take every block that becomes free, and the swapped
group, which has been promised an answer for longer than any of them, is the last in the house.

**Why the first that does not fit stops the scan.** For the same reason. It costs some memory that
stays unused for some steps, and it buys that nobody waits for ever.

**Why somebody has to give up.** A group that has the pool for itself and finds no room can be
helped by nobody. Of several samples the youngest ends, with ``length`` and the reason: the others
can go on with its blocks. ``resume`` and ``admit`` have the same case: nothing runs, so no block
will ever come back.

**Why forks come before appends.** All continuations of a step start from the same tables. A parent
that has been appended to has a token that is its own; its fork would begin with that, and one ahead
of what is in the cache. And why *drops* come before forks: a paged fork takes no block, but in a
contiguous cache it takes as many as its parent holds, and the losers' are just what is there.

**Why the parent takes a continuation that lives.** With a paged cache it makes no difference. In a
contiguous cache the parent's region would be given back, and copied for the child just before.

Usual mistakes
--------------

* To change a list while a ``for`` goes over it: a group is skipped after each victim.
* To take the last of *all* running groups: it may be one that has its slots (a real engine did).
* ``while self.waiting:`` without a way out where LATER comes and nothing runs: the step never ends.
* To leave a finished group in its queue: ``give_up`` and ``end`` do not take it out.
* To drop what ``kv.append`` returns: the tables are right, the counts are right, and a sequence has
  forgotten the tokens of its last block.
* To let a parent take its first continuation, though that one ends: its blocks are free before the
  next continuation is forked from it.

Cost
----

Planning is O(running groups), whatever their length: for 256 sequences it takes about as long as
ten loops that append a tuple for each. Two things make it so. If there are as many free blocks as
sequences could ever need in one step, ``run`` does not ask at all, and gets all slots in one call.
And a decode, which is nearly every span, is written in one short loop without a call for each
sequence.
"""

from minipaged.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]
