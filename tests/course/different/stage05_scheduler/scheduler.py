"""Another design: the queue of those that run is taken apart and put together again, the phases
share one loop, and a commit makes a plan of its own before it does anything."""

from __future__ import annotations

from collections import defaultdict, deque

from minipaged.contracts import Verdict
from minipaged.scheduling.queues import Queues


class Scheduler(Queues):
    def schedule(self):
        plan = self.begin()
        prompts_apart = self.config.prefill_first
        if prompts_apart and len(self.swapped) == 0:
            self.admit(plan)
            if len(plan.spans) > 0:
                return plan
        self.force_preemption(plan)
        self.run(plan)
        swapped_out = any(victim.mode == "swap" for victim in plan.preempted)
        if not swapped_out:
            self.resume(plan)
            if not prompts_apart and not self.swapped:
                self.admit(plan)
        return plan

    def run(self, plan):
        todo, stay = deque(self.running), []
        while todo:
            group = todo[0]
            if not group.prefilling and not self._squeeze(todo, stay, plan):
                continue  # the head has gone
            todo.popleft()
            if not group.prefilling:
                plan.copies.extend(self.kv.append((group,)))
            stay.append(group)
        self.running[:] = stay
        decoding = [group for group in stay if not group.prefilling]
        self.decode(decoding, plan)
        for group in stay:
            if group not in decoding:
                self.prefill(group, plan)

    def _squeeze(self, todo, stay, plan):
        """Room for the head of ``todo``; False if it had to leave."""
        head = todo[0]
        while True:
            alone = len(todo) == 1 and not stay
            if self.has_slots(head, alone):
                return True
            if alone or not self.kv.preemptible:
                self.give_up(head)
                if not head.seqs:
                    todo.popleft()
                    return False
            else:
                victim = self.preemption.evict(tuple(todo), plan)
                todo.remove(victim)
                self.requeue(victim)
                if victim is head:
                    return False

    def _try_each(self, queue, attempt):
        """Take groups from the head of a queue. The attempt says: "came", "no" or "try harder"."""
        while queue:
            answer = attempt(queue[0])
            if answer == "no":
                return
            if answer == "try harder":
                self.give_up(queue[0])
            if answer != "try harder" or queue[0].finished:
                del queue[0]

    def resume(self, plan):
        def attempt(group):
            batch = self.batch(plan)
            if self.admission.over_limit(group, len(group.live), batch):
                return "no"
            keep = self.admission.watermark_blocks if self.running else 0
            if not self.preemption.resume(group, plan, headroom=keep):
                return "no" if self.running else "try harder"
            self.enqueue(self.running, group)
            plan.copies.extend(self.kv.append([group]))
            self.decode([group], plan)
            return "came"

        self._try_each(self.swapped, attempt)

    def admit(self, plan):
        if self.config.batching == "request" and len(self.running):
            return
        started = []

        def attempt(group):
            if any(victim.request_id == group.request_id for victim in plan.preempted):
                return "no"
            said = self.admission.decide(group, self.tokens_to_compute(group), self.batch(plan))
            if said.verdict is Verdict.OK:
                started.append(group)
                self.start(group, plan)
                return "came"
            if said.verdict is Verdict.NEVER:
                self.end(group, "error", said.reason)
                return "came"
            return "no" if self.running else "try harder"

        self._try_each(self.waiting, attempt)

    def commit(self, decisions):
        self.book_computed()
        booked = []
        for decision in decisions:
            group = decision.group
            of = defaultdict(list)
            for child in decision.children:
                of[child.parent.seq_id].append(child)
            heirs = {}  # parent -> the continuation that it takes on itself
            for seq in group.live:
                mine = of[seq.seq_id]
                if not mine:
                    self.drop(group, seq)
                    continue
                living = [child for child in mine if child.finish is None]
                heirs[seq.seq_id] = (living or mine)[-1]
                if not living:
                    self.kv.free(seq)
            pairs = []
            for seq in group.live:
                for child in of[seq.seq_id]:
                    same = child is heirs[seq.seq_id]
                    pairs.append((seq if same else self.fork(group, seq, child), child))
            for seq, child in pairs:
                self.append(group, seq, child)
            self.sort_siblings(group)
            group.started = True
            if decision.done:
                while group.live:
                    self.drop(group, group.live[-1])
            booked.append(group)
        self.remove_finished()
        return booked
