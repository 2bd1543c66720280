"""What study() must come to: its docstring, worked through step by step over plain numbers.

Arrivals and steps are multiples of 1/64 s, so that no result depends on how times are added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from run_oracle import expect_number

from minipaged.course.testing import expect


@dataclass
class Setting:
    """One call of study()."""

    requests: list[tuple[float, int, int]]
    pool: int
    policy: str
    block: int = 4
    limit: int = 64
    step: float = 0.25

    def run(self, parts):
        return parts.study(
            self.requests,
            self.pool,
            self.policy,
            block_size=self.block,
            max_model_len=self.limit,
            step_seconds=self.step,
        )

    def told(self):
        how = f"paged, blocks of {self.block}" if self.policy == "paged" else self.policy
        rows = ", ".join(f"{prompt}+{output} at {at:g} s" for at, prompt, output in self.requests)
        return f"study(), {self.pool} slots, {how}, steps of {self.step:g} s, requests {rows}"

    def reserved(self, prompt, output):
        if self.policy == "max":
            return self.limit
        if self.policy == "paged":
            return self.in_blocks(prompt + 1)
        if self.policy == "pow2":
            power = 1
            while power < output:
                power *= 2
            output = power
        return min(prompt + output, self.limit)

    def in_blocks(self, tokens):
        return math.ceil(tokens / self.block) * self.block

    def never_fits(self, prompt, output):
        last = prompt + output if self.policy == "paged" else 0
        return max(self.reserved(prompt, output), self.in_blocks(last)) > self.pool


@dataclass
class Outcome:
    """Of all requests, by their number.

    Attributes:
        ended: when; None for one that was refused.
    """

    tokens: list[list[float]]
    ended: list[float | None]
    preempted: list[int]
    refused: list[bool]
    first_wait: dict[int, float] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    full: int = 0
    held: int = 0


def work_out(setting):
    """The outcome of a setting."""
    requests, count = setting.requests, len(setting.requests)
    refused = [setting.never_fits(prompt, output) for _, prompt, output in requests]
    out = Outcome([[] for _ in requests], [None] * count, [0] * count, refused)
    slots = [0] * count
    waiting, running = [], []
    todo = [number for number in range(count) if not refused[number]]
    step = 0
    while any(out.ended[number] is None for number in todo):
        begin, end = step * setting.step, (step + 1) * setting.step
        waiting += [
            number
            for number in todo
            if requests[number][0] <= begin
            and (not step or requests[number][0] > begin - setting.step)
        ]
        in_cache = [requests[n][1] + len(out.tokens[n]) for n in range(count)]
        somebody_left = False
        if setting.policy == "paged":
            for number in list(running):
                while number in running and in_cache[number] == slots[number]:
                    if sum(slots) + setting.block <= setting.pool:
                        slots[number] += setting.block
                        continue
                    last, somebody_left = running.pop(), True
                    slots[last] = 0
                    out.preempted[last] += 1
                    waiting.insert(0, last)
        while waiting and not somebody_left:
            number = waiting[0]
            made = len(out.tokens[number])
            need = setting.reserved(in_cache[number], requests[number][2] - made)
            if sum(slots) + need > setting.pool:
                break
            slots[number] = need
            running.append(waiting.pop(0))
            out.first_wait.setdefault(number, begin - requests[number][0])
        for number in running:
            out.tokens[number].append(end)
            out.full += requests[number][1] + len(out.tokens[number])
            out.held += slots[number]
        if running:
            out.batches.append(len(running))
        for number in list(running):
            if len(out.tokens[number]) == requests[number][2]:
                out.ended[number], slots[number] = end, 0
                running.remove(number)
        step += 1
    return out


def draw_requests(rng, count, prompts=(1, 20), outputs=(1, 14), within=4.0):
    """Random requests in the order of their arrival, some of them at the very same time."""
    ticks = sorted(rng.integers(0, int(within * 8), count).tolist())
    return [(tick / 8, int(rng.integers(*prompts)), int(rng.integers(*outputs))) for tick in ticks]


def check_records(setting, study, want):
    """When each token came, when each request ended, and how often it was preempted."""
    records, why = study.records, setting.told()
    if not isinstance(records, list | tuple):
        raise AssertionError(f"{why}: expected a list of records, got {records!r}")
    expect(len(records), len(setting.requests), f"{why}: records")
    for number, (record, request) in enumerate(zip(records, setting.requests)):
        who = f"{why}: request {number}"
        got = record.arrival_time, record.prompt_len, record.output_len
        expect(got, request, f"{who}: its arrival and lengths")
        expect(bool(record.error), want.refused[number], f"{who}: is it refused?")
        expect(list(record.token_times), want.tokens[number], f"{who}: times of its tokens")
        expect(record.finish_time, want.ended[number], f"{who}: its end")
        expect(record.num_preemptions, want.preempted[number], f"{who}: preemptions")


def check_means(setting, study, want):
    """The three means of a run."""
    waits, why = list(want.first_wait.values()), setting.told()
    for name, mean in (
        ("mean_batch", sum(want.batches) / len(want.batches)),
        ("token_share", want.full / want.held),
        ("mean_wait", sum(waits) / len(waits)),
    ):
        expect_number(getattr(study, name), mean, f"{why}: {name}")
