"""The three queues, and what happens to the groups in them: the given half of the scheduler.

:class:`minipaged.scheduling.scheduler.Scheduler` decides; here is what it decides with. All queues
are kept in the one order, (priority, arrival), so that "back to the front of the queue" needs no
rule of its own.
"""

from __future__ import annotations

import bisect
import random
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from minipaged.contracts import Batch, Decision, Span, StepPlan
from minipaged.sequence import Sequence, SequenceGroup, Status

if TYPE_CHECKING:
    from minipaged.config import SchedulerConfig
    from minipaged.contracts import KVManager, PrefixSharing
    from minipaged.scheduling.admission import Admission
    from minipaged.scheduling.preemption import Preemption


class Queues:
    """Requests on their way through the engine.

    Attributes:
        waiting, running, swapped: the queues, each in order.
        sampled: groups that are sampled in the step that was planned last, in its order.
        ended: groups that ended outside of a step's decisions, since the caller last took them:
            refused, aborted, or out of memory for good.
        prefixes: the block manager, if its sequences share what they begin with; else None.
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
        self.prefixes: PrefixSharing | None = None
        if getattr(kv, "shares_prefixes", False):
            self.prefixes = cast("PrefixSharing", kv)
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
        self.enqueue(self.waiting, group)

    def abort(self, request_id: str) -> bool:
        """End a request wherever it is; its blocks are free at once.

        Returns:
            False if no such request is unfinished.
        """
        for queue in (self.waiting, self.running, self.swapped):
            for group in queue:
                if group.request_id == request_id:
                    queue.remove(group)
                    self.end(group, "abort", None)
                    return True
        return False

    @property
    def groups(self) -> list[SequenceGroup]:
        """Every unfinished group."""
        return [*self.running, *self.swapped, *self.waiting]

    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running or self.swapped)

    @staticmethod
    def enqueue(queue: list[SequenceGroup], group: SequenceGroup) -> None:
        """Put a group into a queue, at its place in the order."""
        bisect.insort(queue, group, key=attrgetter("order"))

    def requeue(self, victim: SequenceGroup) -> None:
        """Put a group that was preempted, and is in no queue, where it will come back from:
        among the swapped if it was swapped out, else among the waiting."""
        out = victim.live[0].status is Status.SWAPPED
        self.enqueue(self.swapped if out else self.waiting, victim)

    # -- planning ----------------------------------------------------------------------------
    def begin(self) -> StepPlan:
        """The plan of a new step, with nothing in it but the copies that forks have left to do.
        What was noted of the step before is forgotten."""
        plan = StepPlan(step=self._step)
        self._step += 1
        self.sampled, self._refilling = [], []
        plan.copies += self.kv.take_copies()
        return plan

    def force_preemption(self, plan: StepPlan) -> None:
        """For tests of the engine: now and then, throw out a random running group. Does nothing
        unless the configuration asks for it (``forced_preemption``)."""
        chance = self.config.forced_preemption
        if chance and self.running and self.kv.preemptible and self._dice.random() < chance:
            group = self._dice.choice(self.running)
            self.running.remove(group)
            self.preemption.preempt(group, plan)
            self.requeue(group)

    def batch(self, plan: StepPlan) -> Batch:
        """What the step holds by now: the tokens that are planned, and the places that all
        running groups take."""
        count_max = self.config.count_max_seqs
        places = sum([group.places(count_max) for group in self.running])
        return Batch(plan.num_tokens, places)

    def has_slots(self, group: SequenceGroup, alone: bool) -> bool:
        """Is there room for the next token of each live sequence of a running group?

        Args:
            alone: does no other group hold device blocks? (The authors' experiments demand a free
                block for each sequence of a group that is not alone.)
        """
        if self.config.demand_free_block_per_seq and self.kv.preemptible and not alone:
            return self.kv.num_free_gpu_blocks >= len(group.seqs)
        return self.kv.can_append(group)

    def decode(self, groups: list[SequenceGroup], plan: StepPlan) -> None:
        """Plan one token for every live sequence of the groups: each feeds its last token, and is
        sampled. They must have their slots already (``kv.append``)."""
        self.sampled += groups
        block_table, spans = self.kv.block_table, plan.spans
        for group in groups:
            for seq_id, seq in group.seqs.items():
                tokens = seq.token_ids
                spans.append(Span(seq_id, len(tokens) - 1, [tokens[-1]], block_table(seq_id)))

    def tokens_to_compute(self, group: SequenceGroup) -> int:
        """Tokens that a waiting group must compute before it can be sampled: its prompt, and
        after a recompute preemption what it has generated, too; but nothing that is cached."""
        if group.shape is None:
            return group.live[0].num_tokens - self._starts(group)[0]
        return sum(s.num_tokens - 1 - at for s, at in zip(group.live, self._starts(group)))

    def start(self, group: SequenceGroup, plan: StepPlan) -> None:
        """Admit a group, which has left :attr:`waiting`: it gets the blocks of all its tokens,
        runs from now on, and computes in this step all of them or, where prefill is chunked, what
        the budget leaves."""
        live = group.live
        starts = self._starts(group)
        self.kv.allocate(group)
        if not (group.started or group.num_preemptions):
            group.num_cached_tokens = starts[0]
        for seq, start in zip(live, starts):
            seq.num_computed = start
            seq.status = Status.RUNNING
        group.prefilling = True
        self.enqueue(self.running, group)
        plan.admitted.append(group.request_id)
        self.prefill(group, plan)

    def _starts(self, group: SequenceGroup) -> list[int]:
        """The position from which each sequence of a waiting group computes."""
        if group.shape is None:
            return [self.prefixes.cached_tokens(group) if self.prefixes is not None else 0]
        tables = [group.shape[seq_id] for seq_id in group.seqs]
        return self.preemption.refill_starts(tables, [s.num_tokens for s in group.live])

    def prefill(self, group: SequenceGroup, plan: StepPlan) -> None:
        """Plan the next chunk of a group whose tokens are not all in the cache
        (``group.prefilling``): all that is left, unless prefill is chunked. It needs no slots: the
        blocks of all its tokens are there from its admission on.

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

    # -- booking -----------------------------------------------------------------------------
    def book_computed(self) -> None:
        """Note which keys and values the step that was planned last has put into the cache."""
        for group in self.sampled:
            for seq in group.seqs.values():
                seq.num_computed = len(seq.token_ids)
        for group, spans in self._refilling:
            for span in spans:
                group.seqs[span.seq_id].num_computed = span.context_len
            several = len(group.seqs) > 1
            group.prefilling = any(s.num_computed < s.num_tokens - several for s in group.live)
        if self.prefixes is not None:
            self.prefixes.publish(self.sampled)
            self.prefixes.publish(group for group, _ in self._refilling)

    def fork(self, group: SequenceGroup, parent: Sequence, child: Decision) -> Sequence:
        """A new live sequence of the group, with the tokens of ``parent`` as they are now: it will
        be the sibling that ``child`` says. It shares the parent's blocks, or holds none if the
        decision ends it; the decision's token is not appended yet."""
        seq = parent.fork(self.new_seq_id(), child.index)
        group.seqs[seq.seq_id] = seq
        if child.finish is None:
            self.kv.fork(parent, seq)
        return seq

    def append(self, group: SequenceGroup, seq: Sequence, decision: Decision) -> None:
        """Book a decision for a live sequence: it gets the token (if there is one), the log
        probability and the index, and ends if the decision says so."""
        if decision.token_id >= 0:
            seq.token_ids.append(decision.token_id)
        seq.index = decision.index
        seq.cumulative_logprob += decision.logprob
        seq.text = decision.text
        if decision.top is not None:
            seq.logprobs.append(decision.top)
        if decision.finish is not None:
            self.finish(group, seq, decision.finish, decision.stop_reason)

    def sort_siblings(self, group: SequenceGroup) -> None:
        """Put the sequences of a group, live and finished, into the order of their index."""
        group.seqs = dict(sorted(group.seqs.items(), key=lambda item: item[1].index))
        group.finished_seqs.sort(key=attrgetter("index"))

    def remove_finished(self) -> None:
        """Groups without a live sequence leave :attr:`running`."""
        if self._some_ended:
            self._some_ended = False
            self.running = [group for group in self.running if group.seqs]

    def abandon(self, plan: StepPlan) -> None:
        """Undo a step that was planned and failed before its commit: what its blocks hold is
        not known, on either side. The groups that it touched are computed again."""
        left = {victim.request_id for victim in plan.preempted}
        touched = self.running + [group for group in self.swapped if group.request_id in left]
        if self.prefixes is not None:
            self.prefixes.forget()
        for group in touched:
            (self.running if group in self.running else self.swapped).remove(group)
            if self.kv.preemptible:
                self.preemption.recompute(group)
                self.requeue(group)
            else:
                self.end(group, "error", "the step failed, and the cache is lost")
        self.sampled, self._refilling = [], []

    # -- ends --------------------------------------------------------------------------------
    def give_up(self, group: SequenceGroup) -> None:
        """No room will ever come for this group as it is: its youngest sibling ends, or all its
        beams, whose hypotheses are its result. If none is left, the group is in :attr:`ended`; it
        is not taken out of its queue."""
        pool = f"the pool of {self.kv.num_usable_gpu_blocks} blocks of {self.kv.block_size} tokens"
        reason = (
            f"{pool} has no room for the next token, though nothing else is in it"
            if self.kv.preemptible
            else f"the region reserved for it in {pool} is full"
        )
        for seq in group.live if group.params.use_beam_search else group.live[-1:]:
            self.finish(group, seq, "length", reason)
            if group.shape is not None:
                del group.shape[seq.seq_id]
        if group.shape is not None and len(group.seqs) == 1:
            group.shape = None
        if group.finished:
            self.ended.append(group)

    def end(self, group: SequenceGroup, finish: str, reason: str | None) -> None:
        """End a whole group, outside of a step's decisions: it is in :attr:`ended` afterwards. It
        is not taken out of its queue.

        Args:
            finish, reason: ``finish_reason`` and ``stop_reason`` of its live sequences.
        """
        for seq in group.live:
            self.finish(group, seq, finish, reason)
        self.ended.append(group)

    def finish(
        self, group: SequenceGroup, seq: Sequence, finish: str, reason: str | int | None
    ) -> None:
        """End one sequence. Its blocks are free; it is among ``group.finished_seqs``."""
        self.drop(group, seq)
        seq.finish_reason = finish
        seq.stop_reason = reason
        group.finished_seqs.append(seq)

    def drop(self, group: SequenceGroup, seq: Sequence) -> None:
        """The sequence is over, and is no output of its group: a beam that lost. Its blocks are
        free."""
        self.kv.free(seq)
        seq.status = Status.FINISHED
        del group.seqs[seq.seq_id]
        self._some_ended = True
