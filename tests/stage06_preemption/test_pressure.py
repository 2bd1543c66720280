"""All of it together: groups that are too many for the pool, and a scheduler that is a script."""

from __future__ import annotations

import pytest
from pressure_model import Family, Memory, booked, draw_tokens, status_of

from minipaged.course.testing import expect

GPU, HOST = 12, 7


class Script:
    """A scheduler with the three queues, as lists in the order of arrival, and the bytes."""

    def __init__(self, parts, lab, rng, mode):
        self.lab, self.rng = lab, rng
        self.block_size = int(rng.integers(3, 5))
        self.kv = lab.paged_kv(
            gpu=GPU,
            cpu=HOST,
            block_size=self.block_size,
            unique_blocks=parts.unique_blocks,
            move=parts.move,
        )
        self.preemption = parts.Preemption(self.kv, mode)
        self.device, self.host = Memory(self.block_size), Memory(self.block_size)
        self.running, self.swapped, self.waiting = [], [], []
        self.tokens = {}
        self.step_number = self.preemptions = 0

    def start(self, first_id, count):
        cached = int(self.rng.integers(2, 2 * self.block_size))
        family = Family.of(self.rng, self.block_size, count, cached, own=int(self.rng.integers(2)))
        group = family.run(self.lab, self.kv, first_id)
        group.shape = None
        self.tokens |= {first_id + i: list(tokens) for i, tokens in enumerate(family.tokens)}
        self.device.fill(self.kv, group)
        self.running.append(group)

    def step(self):
        plan, self.step_number = self.lab.step_plan(), self.step_number + 1
        copies, evicted = [], []
        decoding = self.make_room(plan, copies, evicted)
        if not plan.swap_out:
            decoding += self.resume(plan, copies)
        refills = [] if self.swapped else self.admit(evicted)
        self.running.sort(key=lambda group: group.order)
        got = [booked(entry) for entry in plan.preempted]
        expect([name for name, _ in got], evicted, f"step {self.step_number}: preempted")
        self.preemptions += len(evicted)
        self.execute(plan, copies, decoding, refills)

    def make_room(self, plan, copies, evicted):
        pending, kept = self.running, []
        while pending:
            group, *pending = pending
            victim = None
            while victim is not group and not self.kv.can_append(group):
                victim = [group, *pending][-1]
                name = victim.request_id
                self.preemption.preempt(victim, plan)
                evicted.append(name)
                status = status_of(victim.live[0])
                why = f"step {self.step_number}: is {name} swapped or waiting, not {status}?"
                expect(status in ("swapped", "waiting"), True, why)
                (self.swapped if status == "swapped" else self.waiting).append(victim)
                pending = [other for other in pending if other is not victim]
            if victim is not group:
                copies += self.kv.append([group])
                kept.append(group)
        self.running = kept
        return list(kept)

    def resume(self, plan, copies):
        back = []
        self.swapped.sort(key=lambda group: group.order)
        while self.swapped and self.preemption.resume(self.swapped[0], plan, 0):
            back.append(self.swapped.pop(0))
            copies += self.kv.append(back[-1:])
        self.running += back
        return back

    def admit(self, evicted):
        refills = []
        self.waiting.sort(key=lambda group: group.order)
        while self.waiting and self.waiting[0].request_id not in evicted:
            group = self.waiting[0]
            if not self.kv.fits(group):
                break
            starts = [0]
            if group.shape is not None:
                tables = [group.shape[seq.seq_id] for seq in group.live]
                lengths = [seq.num_tokens for seq in group.live]
                starts = self.preemption.refill_starts(tables, lengths)
            self.kv.allocate(group)
            refills.append((self.waiting.pop(0), starts))
        self.running += [group for group, _ in refills]
        return refills

    def execute(self, plan, copies, decoding, refills):
        """In the order of a step: swap in, swap out, copy, forward. Then each gets a token."""
        self.device.blocks(plan.swap_in, self.host)
        self.host.blocks(plan.swap_out, self.device)
        self.device.blocks(copies, self.device)
        for group in decoding:
            for seq in group.live:
                self.compute(seq, len(self.tokens[seq.seq_id]) - 1)
                self.sample(seq)
        for group, starts in refills:
            alone = len(starts) == 1
            for seq, start in zip(group.live, starts):
                self.compute(seq, start, len(self.tokens[seq.seq_id]) - (not alone))
                if alone:
                    self.sample(seq)

    def compute(self, seq, start, stop=None):
        """Tokens from ``start`` on; all before them must be in the cache."""
        table, tokens = self.kv.block_table(seq.seq_id), self.tokens[seq.seq_id]
        expect(seq.token_ids, tokens, f"step {self.step_number}: the tokens of {seq.seq_id}")
        when = f"step {self.step_number}, sequence {seq.seq_id} computes from token {start} on"
        self.device.check(table, tokens, start, when)
        for position in range(start, len(tokens) if stop is None else stop):
            self.device.write(table, tokens, position)
        seq.num_computed = len(tokens) - 1

    def sample(self, seq):
        self.tokens[seq.seq_id] += draw_tokens(self.rng, 1)
        seq.token_ids = self.tokens[seq.seq_id]
        seq.num_computed = len(self.tokens[seq.seq_id]) - 1

    def end(self, longest):
        """Whoever is that long has ended."""
        running, self.running = self.running, []
        for group in running:
            if group.live[0].num_tokens < longest:
                self.running.append(group)
                continue
            for seq in group.live:
                self.kv.free(seq)


@pytest.mark.parametrize("mode", ["auto", "swap", "recompute"])
def test_under_pressure_no_token_is_lost(parts, lab, rng, mode):
    script = Script(parts, lab, rng, mode)
    for i, count in enumerate(rng.permutation([3, 1, 2])):
        script.start(10 * i, int(count))
    for _ in range(60):
        if not (script.running or script.swapped or script.waiting):
            break
        script.step()
        script.end(longest=4 * script.block_size)
    left = len(script.running), len(script.swapped), len(script.waiting)
    expect(left, (0, 0, 0), f"mode {mode}, after 60 steps: groups running, swapped, waiting")
    free = script.kv.num_free_gpu_blocks, script.kv.num_free_cpu_blocks
    expect(
        free, (GPU, HOST), f"mode {mode}, all have ended: free blocks on the device and the host"
    )
