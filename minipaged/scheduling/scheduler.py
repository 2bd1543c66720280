"""Who runs in the next step (paper, section 4.5; iteration-level batching is Orca's).

The scheduler owns the three queues. All are kept in the one order, (priority, arrival), so that
"back to the front of the queue" needs no rule of its own.
"""

from __future__ import annotations

import bisect
import random
import sys
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import TYPE_CHECKING

from minipaged.contracts import Batch, Decision, GroupDecision, Span, StepPlan, Verdict
from minipaged.sequence import Sequence, SequenceGroup, Status

if TYPE_CHECKING:
    from minipaged.config import SchedulerConfig
    from minipaged.contracts import KVManager
    from minipaged.scheduling.admission import Admission
    from minipaged.scheduling.preemption import Preemption


class Scheduler:
    """Plans a step, and books what came of it.

    Attributes:
        waiting, running, swapped: the queues, each in order.
        sampled: groups that are sampled in the step that was planned last, in its order.
        ended: groups that ended outside of :meth:`commit`, since the caller last took them:
            refused, aborted, or out of memory for good.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        admission: Admission,
        preemption: Preemption,
    ) -> None:
        self.config = config
        self.kv = kv
        self.admission = admission
        self.preemption = preemption
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []
        self.swapped: list[SequenceGroup] = []
        self.sampled: list[SequenceGroup] = []
        self.ended: list[SequenceGroup] = []
        self._step = 0
        self._refilling: list[tuple[SequenceGroup, list[Span]]] = []
        self._next_seq_id = 0
        self._some_ended = False
        self._dice = random.Random(config.forced_preemption_seed)

    # -- requests ----------------------------------------------------------------------------
    def new_seq_id(self) -> int:
        self._next_seq_id += 1
        return self._next_seq_id - 1

    def add(self, group: SequenceGroup) -> None:
        """Queue a new group. It is looked at in the next step, if its turn comes."""
        self._enqueue(self.waiting, group)

    def abort(self, request_id: str) -> bool:
        """End a request wherever it is; its blocks are free at once.

        Returns:
            False if no such request is unfinished.
        """
        for queue in (self.waiting, self.running, self.swapped):
            for group in queue:
                if group.request_id == request_id:
                    queue.remove(group)
                    self._end(group, "abort", None)
                    return True
        return False

    @property
    def groups(self) -> list[SequenceGroup]:
        """Every unfinished group."""
        return [*self.running, *self.swapped, *self.waiting]

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running or self.swapped)

    # -- planning ----------------------------------------------------------------------------
    def schedule(self) -> StepPlan:
        """Plan the next step, and give every sequence in it the blocks that it needs.

        1. Running groups, in order, get slots for their next token. When the pool is empty, the
           last group that has none yet is preempted.
        2. If nothing was swapped out, swapped groups come back, in order.
        3. If none is left swapped, waiting groups are admitted, in order, until the first that
           does not fit, or that was preempted in this step.

        Groups that end here, because they can never run or the pool is too small for them even
        when empty, are in :attr:`ended`.
        """
        plan = StepPlan(step=self._step)
        self._step += 1
        self.sampled, self._refilling = [], []
        plan.copies += self.kv.take_copies()
        if self.config.prefill_first and not self.swapped:
            self._admit(plan)
            if plan.spans:
                return plan
        self._force_preemption(plan)
        self._run(plan)
        if not plan.swap_out:
            self._resume(plan)
        if not self.swapped and not self.config.prefill_first:
            self._admit(plan)
        return plan

    def _run(self, plan: StepPlan) -> None:
        """Phase 1: slots for the groups that run."""
        if self.kv.preemptible and self.kv.num_free_gpu_blocks >= self.config.max_num_seqs:
            # A sequence takes one block at most, so there is room for all of them.
            decoding = [group for group in self.running if not group.prefilling]
            plan.copies += self.kv.append(decoding)
        else:
            decoding = self._run_in_turn(plan)
        self._decode(decoding, plan)
        # Chunks get what the decodes leave of the budget.
        for group in self.running:
            if group.prefilling:
                self._prefill(group, plan)

    def _run_in_turn(self, plan: StepPlan) -> list[SequenceGroup]:
        """Slots for one group after the other, while there is memory.

        Returns:
            The groups that got them. Preempted and ended ones have left :attr:`running`.
        """
        pending, kept, decoding = self.running, [], []
        position = 0
        while position < len(pending):  # its end moves when a group is preempted
            group = pending[position]
            position += 1
            if group.prefilling:
                kept.append(group)
            elif self._make_room(group, pending, position, plan, alone=not kept):
                plan.copies += self.kv.append([group])
                kept.append(group)
                decoding.append(group)
        self.running = kept
        return decoding

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
                in this step, and victims are taken from its end.
            alone: has no group before this one kept its blocks?

        Returns:
            Is there room now? If not, the group has been preempted or has ended.
        """
        while not self._has_room(group, alone=alone and position == len(pending)):
            if (alone and position == len(pending)) or not self.kv.preemptible:
                self._give_up(group)
                if group.finished:
                    return False
                continue
            victim = self.preemption.evict([group, *pending[position:]], plan)
            self._requeue(victim)
            if victim is group:
                return False
            pending.remove(victim)
        return True

    def _has_room(self, group: SequenceGroup, alone: bool) -> bool:
        if self.config.demand_free_block_per_seq and self.kv.preemptible and not alone:
            return self.kv.num_free_gpu_blocks >= len(group.seqs)
        return self.kv.can_append(group)

    def _resume(self, plan: StepPlan) -> None:
        """Phase 2: swapped groups come back."""
        while self.swapped:
            group = self.swapped[0]
            batch = self._batch(plan)
            if not batch.empty and (
                batch.num_seqs + group.places(self.config.count_max_seqs) > self.config.max_num_seqs
                or batch.num_tokens + len(group.seqs) > self.config.max_num_batched_tokens
            ):
                return
            headroom = 0 if batch.empty else self.admission.watermark_blocks
            if self.preemption.resume(group, plan, headroom):
                self.swapped.pop(0)
                self._enqueue(self.running, group)
                plan.copies += self.kv.append([group])
                self._decode([group], plan)
            elif batch.empty:
                # The whole pool is free and still too small.
                self._give_up(group)
                if group.finished:
                    self.swapped.pop(0)
            else:
                return

    def _admit(self, plan: StepPlan) -> None:
        """Phase 3: waiting groups start."""
        if self.config.batching == "request" and self.running:
            return
        preempted = {p.request_id for p in plan.preempted}
        while self.waiting and self.waiting[0].request_id not in preempted:
            group = self.waiting[0]
            batch = self._batch(plan)
            decision = self.admission.decide(group, self._tokens_to_compute(group), batch)
            if decision.verdict is Verdict.NEVER:
                self.waiting.pop(0)
                self._end(group, "error", decision.reason)
                continue
            if decision.verdict is Verdict.LATER:
                if not batch.empty or self.running:
                    return
                # Nothing runs, so it is memory, and waiting would be for ever.
                self._give_up(group)
                if group.finished:
                    self.waiting.pop(0)
                continue
            self.waiting.pop(0)
            self._start(group, plan)

    def _start(self, group: SequenceGroup, plan: StepPlan) -> None:
        live = group.live
        starts = self._starts(group)
        self.kv.allocate(group)
        for seq, start in zip(live, starts):
            seq.num_computed = start
            seq.status = Status.RUNNING
        group.prefilling = True
        self._enqueue(self.running, group)
        plan.admitted.append(group.request_id)
        self._prefill(group, plan)

    def _starts(self, group: SequenceGroup) -> list[int]:
        """The position from which each sequence of a waiting group computes."""
        if group.shape is None:
            return [0]
        tables = [group.shape[seq_id] for seq_id in group.seqs]
        return self.preemption.refill_starts(tables, [s.num_tokens for s in group.live])

    def _tokens_to_compute(self, group: SequenceGroup) -> int:
        if group.shape is None:
            return group.live[0].num_tokens
        return sum(s.num_tokens - 1 - at for s, at in zip(group.live, self._starts(group)))

    def _batch(self, plan: StepPlan) -> Batch:
        places = sum(group.places(self.config.count_max_seqs) for group in self.running)
        return Batch(plan.num_tokens, places)

    def _decode(self, groups: list[SequenceGroup], plan: StepPlan) -> None:
        """Every live sequence of the groups feeds its last token, and is sampled."""
        self.sampled += groups
        block_table, spans = self.kv.block_table, plan.spans
        for group in groups:
            for seq_id, seq in group.seqs.items():
                tokens = seq.token_ids
                spans.append(Span(seq_id, len(tokens) - 1, [tokens[-1]], block_table(seq_id)))

    def _prefill(self, group: SequenceGroup, plan: StepPlan) -> None:
        """The next chunk of a group whose tokens are not all in the cache; all that is left
        unless prefill is chunked.

        One sequence is computed to its last token, and sampled. Several, after a recompute,
        are computed to the last token but one, and decode together from the next step on.
        """
        budget = sys.maxsize
        if self.config.chunked_prefill:
            budget = self.config.max_num_batched_tokens - plan.num_tokens
        several = len(group.seqs) > 1
        wants_logprobs = group.params.prompt_logprobs is not None and not group.started
        spans = []
        for seq in group.live:
            missing = seq.num_tokens - several - seq.num_computed
            count = min(missing, budget)
            if count <= 0:
                continue
            budget -= count
            start, stop = seq.num_computed, seq.num_computed + count
            sample = not several and count == missing
            tokens, table = seq.token_ids[start:stop], self.kv.block_table(seq.seq_id)
            spans.append(Span(seq.seq_id, start, tokens, table, sample, wants_logprobs))
            if sample:
                self.sampled.append(group)
        plan.spans += spans
        self._refilling.append((group, spans))

    def _force_preemption(self, plan: StepPlan) -> None:
        """For tests: throw out a random running group."""
        chance = self.config.forced_preemption
        if chance and self.running and self.kv.preemptible and self._dice.random() < chance:
            group = self._dice.choice(self.running)
            self.running.remove(group)
            self.preemption.preempt(group, plan)
            self._requeue(group)

    # -- booking -----------------------------------------------------------------------------
    def commit(self, decisions: Seq[GroupDecision]) -> list[SequenceGroup]:
        """Book a step that was executed: tokens computed, sampled, forked and ended.

        Forks start from the tables as they were in the step: no sequence is appended to before
        all forks of its group are made. Blocks of sequences that end are free at once.

        Returns:
            The groups that got a token.
        """
        for group in self.sampled:
            for seq in group.seqs.values():
                seq.num_computed = len(seq.token_ids)
        for group, spans in self._refilling:
            for span in spans:
                group.seqs[span.seq_id].num_computed = span.context_len
            several = len(group.seqs) > 1
            group.prefilling = any(s.num_computed < s.num_tokens - several for s in group.live)
        changed = [decision.group for decision in decisions]
        for decision in decisions:
            self._apply(decision)
        if self._some_ended:
            self._some_ended = False
            self.running = [group for group in self.running if group.seqs]
        return changed

    def _apply(self, decision: GroupDecision) -> None:
        group, children = decision.group, decision.children
        if len(children) == len(group.seqs) == 1:
            self._append(group, children[0].parent, children[0])
        else:
            self._branch(group, children)
        group.started = True
        if decision.done:
            for seq in group.live:
                self._drop(group, seq)

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
                self._drop(group, seq)
            elif all(map(_ends, by_parent[seq.seq_id])):
                self.kv.free(seq)
        continued: list[tuple[Sequence, Decision]] = []
        for seq in parents:
            # The parent itself takes on a continuation that lives, if there is one.
            mine = sorted(by_parent[seq.seq_id], key=_ends)
            continued += [(self._fork(group, seq, child), child) for child in mine[1:]]
            continued += [(seq, child) for child in mine[:1]]
        for seq, child in continued:
            self._append(group, seq, child)
        group.seqs = dict(sorted(group.seqs.items(), key=lambda item: item[1].index))
        group.finished_seqs.sort(key=attrgetter("index"))

    def _fork(self, group: SequenceGroup, parent: Sequence, child: Decision) -> Sequence:
        seq = parent.fork(self.new_seq_id(), child.index)
        group.seqs[seq.seq_id] = seq
        if child.finish is None:
            self.kv.fork(parent, seq)
        return seq

    def _append(self, group: SequenceGroup, seq: Sequence, decision: Decision) -> None:
        if decision.token_id >= 0:
            seq.token_ids.append(decision.token_id)
        seq.index = decision.index
        seq.cumulative_logprob += decision.logprob
        seq.text = decision.text
        if decision.top is not None:
            seq.logprobs.append(decision.top)
        if decision.finish is not None:
            self._finish(group, seq, decision.finish, decision.stop_reason)

    def abandon(self, plan: StepPlan) -> None:
        """Undo a step that was planned and failed before its commit: what its blocks hold is
        not known, on either side. The groups that it touched are computed again."""
        left = {victim.request_id for victim in plan.preempted}
        touched = self.running + [group for group in self.swapped if group.request_id in left]
        for group in touched:
            (self.running if group in self.running else self.swapped).remove(group)
            if self.kv.preemptible:
                self.preemption.recompute(group)
                self._requeue(group)
            else:
                self._end(group, "error", "the step failed, and the cache is lost")
        self.sampled, self._refilling = [], []

    # -- ends --------------------------------------------------------------------------------
    def _give_up(self, group: SequenceGroup) -> None:
        """No room will ever come for this group as it is: its youngest sibling ends, or all its
        beams, whose hypotheses are its result."""
        pool = f"the pool of {self.kv.num_usable_gpu_blocks} blocks of {self.kv.block_size} tokens"
        reason = (
            f"{pool} has no room for the next token, though nothing else is in it"
            if self.kv.preemptible
            else f"the region reserved for it in {pool} is full"
        )
        for seq in group.live if group.params.use_beam_search else group.live[-1:]:
            self._finish(group, seq, "length", reason)
            if group.shape is not None:
                del group.shape[seq.seq_id]
        if group.shape is not None and len(group.seqs) == 1:
            group.shape = None
        if group.finished:
            self.ended.append(group)

    def _end(self, group: SequenceGroup, finish: str, reason: str | None) -> None:
        for seq in group.live:
            self._finish(group, seq, finish, reason)
        self.ended.append(group)

    def _finish(
        self, group: SequenceGroup, seq: Sequence, finish: str, reason: str | int | None
    ) -> None:
        self._drop(group, seq)
        seq.finish_reason = finish
        seq.stop_reason = reason
        group.finished_seqs.append(seq)

    def _drop(self, group: SequenceGroup, seq: Sequence) -> None:
        """The sequence is over; what it held is free."""
        self.kv.free(seq)
        seq.status = Status.FINISHED
        del group.seqs[seq.seq_id]
        self._some_ended = True

    # -- queues ------------------------------------------------------------------------------
    @staticmethod
    def _enqueue(queue: list[SequenceGroup], group: SequenceGroup) -> None:
        bisect.insort(queue, group, key=attrgetter("order"))

    def _requeue(self, victim: SequenceGroup) -> None:
        swapped = victim.live[0].status is Status.SWAPPED
        self._enqueue(self.swapped if swapped else self.waiting, victim)


def _ends(decision: Decision) -> bool:
    return decision.finish is not None
