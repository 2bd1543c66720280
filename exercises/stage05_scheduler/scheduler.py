"""Who runs in the next step (paper, section 4.5; iteration-level batching is Orca's).

Requests are scheduled first come, first served: who came first gets memory first, and who came
last gives it back first. :class:`minipaged.scheduling.queues.Queues` keeps the queues in order and
does what has been decided; the decisions are here.

Stage 5, the scheduler::

    read    lessons/05-scheduler.md
    write   5.2  Iteration  14 points
            5.4  Commit     10 points
    also    robustness 14 points, counterexample.toml 6 points
    check   minipaged grade 5
    stuck   minipaged hint 5.2
    use it  minipaged demo --parts mine --model opt-stories
    next    lessons/06-preemption.md
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from minipaged.contracts import GroupDecision, StepPlan, Verdict
from minipaged.scheduling.queues import Queues

if TYPE_CHECKING:
    from minipaged.sequence import SequenceGroup


class Scheduler(Queues):
    """Plans a step, and books what came of it.

    A group is always scheduled whole: all its live sequences run in a step, or none.
    """

    # -- planning ----------------------------------------------------------------------------
    def schedule(self) -> StepPlan:
        """Plan the next step, and give every sequence in it the blocks that it needs.

        The plan comes from :meth:`begin`, and after :meth:`force_preemption` (which is for tests)
        three phases fill it:

        1. :meth:`run`: running groups get slots for their next token.
        2. :meth:`resume`: swapped groups come back, if nothing was swapped out in this step.
        3. :meth:`admit`: waiting groups start, if none is left swapped.

        With ``config.prefill_first``, prompts have steps of their own: if no group is swapped when
        a step begins, :meth:`admit` comes first, before all else, and if it has planned anything,
        that is the step. Otherwise the step has phases 1 and 2 alone.

        Groups that end here, because they can never run or the pool is too small for them even
        when empty, are in :attr:`ended`, each once.
        """
        raise NotImplementedError("stage 5, task 5.2: see lessons/05-scheduler.md")

    def run(self, plan: StepPlan) -> None:
        """Phase 1: every running group that has memory goes on.

        Groups get slots for their next token (``kv.append``) one after the other, in order. The
        copies that this asks for are in ``plan.copies``. A group that is still prefilling needs no
        slots, and keeps its blocks.

        When there is no room for a group (:meth:`has_slots`), a victim is preempted, and again,
        until there is room or the group itself was the victim. ``preemption.evict`` is given the
        candidates in order: this group, and all groups that come after it, prefilling or not. So
        whoever has got slots in this step is never a victim in it. The victim is in
        :attr:`running` no more: see :meth:`requeue`.

        A group with which nothing else is left, none before it and none behind it, cannot be
        helped by preemption: it gives up (:meth:`give_up`) until there is room or it is finished.
        So does any group of a manager that cannot preempt (``kv.preemptible``).

        Then the groups that got slots :meth:`decode`, in order; and after them, with what they
        leave of the budget, the groups that are prefilling :meth:`prefill`, in order.

        Example (blocks of 4, none free): ``a`` has 5 tokens, ``b`` has 9, ``c`` has 4, where the
        last token of each is to be fed. ``a`` writes position 4, and its second block is missing:
        of ``[a, b, c]`` the last, ``c``, gives back its block, and ``a`` takes it. ``b`` writes
        position 8 and misses a third block: of ``[b]`` the last is ``b`` itself. The step computes
        one token of ``a``.
        """
        raise NotImplementedError("stage 5, task 5.2: see lessons/05-scheduler.md")

    def resume(self, plan: StepPlan) -> None:
        """Phase 2: swapped groups come back, in order, until the first that cannot.

        A group cannot come back if with it the step would break a limit
        (``admission.over_limit``, with a token for each of its sequences), or if
        ``preemption.resume`` finds no room for it that leaves ``admission.watermark_blocks`` free.
        Where nothing runs (:meth:`batch` is empty) nothing has to be left free.

        A group that is back runs: it gets slots, with the copies that this asks for, and
        :meth:`decode` plans its next token in this step. ``preemption.resume`` has seen to it that
        there is room, and has written ``plan.resumed``.

        If nothing runs, and ``preemption.resume`` finds no room all the same, none will ever come:
        the group gives up (:meth:`give_up`) until it can come back or is finished. If it is
        finished it leaves the queue, and the next one is looked at.
        """
        raise NotImplementedError("stage 5, task 5.2: see lessons/05-scheduler.md")

    def admit(self, plan: StepPlan) -> None:
        """Phase 3: waiting groups :meth:`start`, in order, until the first that cannot.

        ``admission.decide`` is asked about each, with its :meth:`tokens_to_compute` and with the
        step as it is by then (:meth:`batch`):

        * OK: it starts.
        * LATER: it stays where it is, and nobody behind it is looked at. But if nothing runs, room
          will never come: it gives up (:meth:`give_up`) until it can start or is finished. If it
          is finished it leaves the queue, and the next one is looked at.
        * NEVER: it leaves the queue and ends with ``"error"`` and the decision's reason
          (:meth:`end`). The next one is looked at.

        A group that was preempted in this step stops the scan too. With ``config.batching ==
        "request"`` nobody is admitted before all who run at the beginning of this phase are done.
        """
        raise NotImplementedError("stage 5, task 5.2: see lessons/05-scheduler.md")

    # -- booking -----------------------------------------------------------------------------
    def commit(self, decisions: Seq[GroupDecision]) -> list[SequenceGroup]:
        """Book a step that was executed: tokens computed, sampled, forked and ended.

        What the step has computed is booked first (:meth:`book_computed`). Then each group gets
        its continuations, ``decision.children``. Each of them goes on from its ``parent``, a live
        sequence of the group, by one token:

        * A parent with one continuation takes it (:meth:`append`).
        * A parent with several takes one of them, and a :meth:`fork` of it takes each of the
          others. One that lives (``finish`` is None) goes to the parent itself, if there is one;
          else it may be any of them.
        * A parent with none has lost: :meth:`drop`.

        Every continuation starts from the group as it was in the step: no sequence of a group is
        appended to before all its forks are made. Memory is given back before it is shared anew: a
        parent that is dropped, or none of whose continuations lives, has freed its blocks before
        the first fork. Afterwards the siblings are in the order of their index
        (:meth:`sort_siblings`).

        A group that was decided on has ``started``. If the decision says ``done``, its sequences
        that still live are dropped. Groups without a live sequence leave :attr:`running`; they are
        not in :attr:`ended`.

        Returns:
            The groups that were decided on, in the order of ``decisions``.

        Example: ``g`` has computed its prompt of 6 tokens and is to have two outputs, ``n = 2``.
        Both continuations have the same parent, say with tokens 71 and 72. Afterwards there are two
        sequences of 7 tokens; both hold the same two blocks of 4, with 6 tokens in them. Whose
        token is written first is for the next step, and so is the copy that it takes.
        """
        raise NotImplementedError("stage 5, task 5.4: see lessons/05-scheduler.md")
