"""Slots instead of blocks, and what is booked comes before what is done."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from minipaged.contracts import Preempted
from minipaged.sequence import Status

if TYPE_CHECKING:
    from typing import Literal

    from minipaged.config import PreemptionMode
    from minipaged.contracts import KVManager, StepPlan
    from minipaged.sequence import SequenceGroup


class Preemption:
    def __init__(self, kv: KVManager, mode: PreemptionMode) -> None:
        self.kv = kv
        self.mode = mode

    def evict(self, candidates: Seq[SequenceGroup], plan: StepPlan) -> SequenceGroup:
        *_, group = candidates
        self.preempt(group, plan)
        return group

    def preempt(self, group: SequenceGroup, plan: StepPlan) -> None:
        how = self.choose(group)
        plan.preempted = [*plan.preempted, Preempted(group.request_id, how)]
        group.num_preemptions = group.num_preemptions + 1
        if how == "recompute":
            return self.recompute(group)
        for seq in group.seqs.values():
            seq.status = Status.SWAPPED
        plan.swap_out.extend(self.kv.swap_out(group))

    def recompute(self, group: SequenceGroup) -> None:
        for seq in group.live:
            seq.num_computed, seq.status = 0, Status.WAITING
        group.prefilling = False
        self.kv.release(group)

    def choose(self, group: SequenceGroup) -> Literal["swap", "recompute"]:
        least = {"auto": 2, "swap": 1, "recompute": 1 << 30}[self.mode]
        allowed = len(group.live) >= least and not group.prefilling
        return "swap" if allowed and self.kv.can_swap_out(group) else "recompute"

    def resume(self, group: SequenceGroup, plan: StepPlan, headroom: int) -> bool:
        fits = bool(self.kv.can_swap_in(group, headroom))
        if fits:
            for seq in group.live:
                seq.status = Status.RUNNING
            plan.resumed = [*plan.resumed, group.request_id]
            plan.swap_in = [*plan.swap_in, *self.kv.swap_in(group)]
        return fits

    def refill_starts(self, tables: Seq[list[int]], num_tokens: Seq[int]) -> list[int]:
        size = self.kv.block_size
        written: set[tuple[int, int]] = set()
        starts = []
        for table, tokens in zip(tables, num_tokens):
            start = 0
            while start < tokens - 1 and (table[start // size], start % size) in written:
                start += 1
            starts.append(start)
            written |= {(table[at // size], at % size) for at in range(start, tokens - 1)}
        return starts
