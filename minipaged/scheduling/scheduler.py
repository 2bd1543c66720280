"""Who runs in the next step (paper, section 4.5; iteration-level batching is Orca's).

Requests are scheduled first come, first served: who came first gets memory first, and who came
last gives it back first. :class:`minipaged.scheduling.queues.Queues` keeps the queues in order and
does what has been decided; the decisions are here.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from minipaged.contracts import Decision, GroupDecision, StepPlan, Verdict
from minipaged.scheduling.queues import Queues

if TYPE_CHECKING:
    from minipaged.sequence import Sequence, SequenceGroup


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
        plan = self.begin()
        if self.config.prefill_first and not self.swapped:
            self.admit(plan)
            if plan.spans:
                return plan
        self.force_preemption(plan)
        self.run(plan)
        if not plan.swap_out:
            self.resume(plan)
        if not self.swapped and not self.config.prefill_first:
            self.admit(plan)
        return plan

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
        decoding = self._give_slots(plan)
        self.decode(decoding, plan)
        # Chunks get what the decodes leave of the budget.
        for group in self.running:
            if group.prefilling:
                self.prefill(group, plan)

    def _give_slots(self, plan: StepPlan) -> list[SequenceGroup]:
        """Slots for one group after the other, while there is memory.

        Returns:
            The groups that got them. Preempted and ended ones have left :attr:`running`.
        """
        pending, kept, decoding = self.running, [], []
        # A sequence takes one block at most. Groups for which there is room even so are sure to
        # get their slots, and get them together.
        sure: list[SequenceGroup] = []
        room = self._sure_room()
        position = 0
        while position < len(pending):  # its end moves when a group is preempted
            group = pending[position]
            position += 1
            if group.prefilling:
                kept.append(group)
                continue
            need = len(group.seqs)
            if need > room:
                plan.copies += self.kv.append(sure)
                sure = []
                if not self._make_room(group, pending, position, plan, alone=not kept):
                    room = self._sure_room()
                    continue
                room = self._sure_room()
            sure.append(group)
            room -= need
            kept.append(group)
            decoding.append(group)
        plan.copies += self.kv.append(sure)
        self.running = kept
        return decoding

    def _sure_room(self) -> int:
        """Sequences that can go on whatever they need; 0 where each has a region of its own."""
        return self.kv.num_free_gpu_blocks if self.kv.preemptible else 0

    def _make_room(
        self,
        group: SequenceGroup,
        pending: list[SequenceGroup],
        position: int,
        plan: StepPlan,
        alone: bool,
    ) -> bool:
        """Slots for the group's next token, at the expense of those behind it.

        Args:
            pending: the running groups; those from ``position`` on have not got their slots
                in this step, and victims are taken from them.
            alone: has no group before this one kept its blocks?

        Returns:
            Is there room now? If not, the group has been preempted or has ended.
        """
        while not self.has_slots(group, alone=alone and position == len(pending)):
            if (alone and position == len(pending)) or not self.kv.preemptible:
                self.give_up(group)
                if group.finished:
                    return False
                continue
            victim = self.preemption.evict([group, *pending[position:]], plan)
            self.requeue(victim)
            if victim is group:
                return False
            pending.remove(victim)
        return True

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
        while self.swapped:
            group = self.swapped[0]
            batch = self.batch(plan)
            if self.admission.over_limit(group, len(group.seqs), batch):
                return
            headroom = 0 if batch.empty else self.admission.watermark_blocks
            if self.preemption.resume(group, plan, headroom):
                self.swapped.pop(0)
                self.enqueue(self.running, group)
                plan.copies += self.kv.append([group])
                self.decode([group], plan)
            elif batch.empty:
                # The whole pool is free and still too small.
                self.give_up(group)
                if group.finished:
                    self.swapped.pop(0)
            else:
                return

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
        if self.config.batching == "request" and self.running:
            return
        preempted = {p.request_id for p in plan.preempted}
        while self.waiting and self.waiting[0].request_id not in preempted:
            group = self.waiting[0]
            decision = self.admission.decide(group, self.tokens_to_compute(group), self.batch(plan))
            if decision.verdict is Verdict.NEVER:
                self.waiting.pop(0)
                self.end(group, "error", decision.reason)
                continue
            if decision.verdict is Verdict.LATER:
                if self.running:
                    return
                # Nothing runs, so it is memory, and waiting would be for ever.
                self.give_up(group)
                if group.finished:
                    self.waiting.pop(0)
                continue
            self.waiting.pop(0)
            self.start(group, plan)

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
        self.book_computed()
        for decision in decisions:
            self._apply(decision)
        self.remove_finished()
        return [decision.group for decision in decisions]

    def _apply(self, decision: GroupDecision) -> None:
        group, children = decision.group, decision.children
        if len(children) == len(group.seqs) == 1:
            self.append(group, children[0].parent, children[0])
        else:
            self._branch(group, children)
        group.started = True
        if decision.done:
            for seq in group.live:
                self.drop(group, seq)

    def _branch(self, group: SequenceGroup, children: Seq[Decision]) -> None:
        """Several continuations, or none of some sequence: fork, drop, and then append."""
        by_parent: dict[int, list[Decision]] = {seq_id: [] for seq_id in group.seqs}
        for child in children:
            by_parent[child.parent.seq_id].append(child)
        parents = group.live
        # First the memory of those that nobody continues, so that a contiguous manager has
        # their regions for the forks.
        for seq in parents:
            if not by_parent[seq.seq_id]:
                self.drop(group, seq)
            elif all(map(_ends, by_parent[seq.seq_id])):
                self.kv.free(seq)
        continued: list[tuple[Sequence, Decision]] = []
        for seq in parents:
            # The parent itself takes on a continuation that lives, if there is one.
            mine = sorted(by_parent[seq.seq_id], key=_ends)
            continued += [(self.fork(group, seq, child), child) for child in mine[1:]]
            continued += [(seq, child) for child in mine[:1]]
        for seq, child in continued:
            self.append(group, seq, child)
        self.sort_siblings(group)


def _ends(decision: Decision) -> bool:
    return decision.finish is not None
