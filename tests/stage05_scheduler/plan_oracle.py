"""The judge's own model of a scheduler and its pool, and a world in which both run side by side.

Blocks are names here, and whether one is free is found by looking through all tables. Each step is
worked out anew from the queues. What the submission's scheduler plans is compared with it as plain
data, the block tables of the plan included.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from minipaged.course.testing import expect

DEFAULTS = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "max_model_len": 64}


@dataclass
class Stream:
    """A sequence. Its blocks are names that nobody else has, but for those who share them."""

    index: int
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    ended: str | None = None


@dataclass
class Group:
    name: str
    order: tuple[int, int]
    n: int
    beam: bool
    streams: list[Stream]
    finished: list[Stream] = field(default_factory=list)
    started: bool = False
    prefilling: bool = False

    def places(self, count_max: bool) -> int:
        return len(self.streams) if self.started and not self.beam and not count_max else self.n

    def finish(self, stream: Stream, why: str) -> None:
        stream.ended, stream.blocks = why, []
        self.streams.remove(stream)
        self.finished.append(stream)

    def __str__(self) -> str:
        sizes = [len(stream.tokens) for stream in self.streams]
        return f"{self.name}({'+'.join(map(str, sizes))})"


@dataclass
class Step:
    """What a step should be."""

    spans: list[tuple[Group, Stream, int, int, bool]] = field(default_factory=list)
    preempted: list[tuple[str, str]] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    swapped: tuple[int, int] = (0, 0)

    @property
    def num_tokens(self) -> int:
        return sum(stop - start for _, _, start, stop, _ in self.spans)

    def __str__(self) -> str:
        told = []
        for group, stream, start, stop, sampled in self.spans:
            place = f"{start}" if stop == start + 1 else f"{start}-{stop - 1}"
            told.append(f"{group.name}{stream.index}[{place}]{'' if sampled else '…'}")
        parts = [" ".join(told)]
        for verb, names in (
            ("preempts", [f"{name} ({mode})" for name, mode in self.preempted]),
            ("resumes", self.resumed),
            ("admits", self.admitted),
            ("ends", [f"{name} ({why})" for name, why in self.ended]),
        ):
            parts += [f"{verb} {', '.join(names)}"] if names else []
        return "; ".join(part for part in parts if part) or "nothing"


class Model:
    """A scheduler over a pool of paged blocks, by the rules of the docstrings."""

    def __init__(self, scripted: bool, options: dict[str, Any]) -> None:
        rules = {**DEFAULTS, **options}
        self.scripted = scripted
        self.num_blocks, self.block_size = rules["blocks"], rules.get("block_size", 4)
        self.watermark = rules.get("watermark", 0)
        self.preemptible = rules.get("preemptible", True)
        self.verdicts = dict(rules.get("verdicts", {}))
        self.victims, self.modes = rules.get("victims", ()), rules.get("modes", {})
        self.needs = rules.get("needs", {})
        self.max_seqs = rules["max_num_seqs"]
        self.max_tokens = rules["max_num_batched_tokens"]
        self.max_len = rules["max_model_len"]
        self.request_level = rules.get("batching") == "request"
        self.prompts_first = rules.get("prefill_first", False)
        self.chunked = rules.get("chunked_prefill", False)
        self.count_max = rules.get("count_max_seqs", False)
        self.demanding = rules.get("demand_free_block_per_seq", False)
        self.names = count()
        self.groups: dict[str, Group] = {}
        self.running: list[Group] = []
        self.swapped: list[Group] = []
        self.waiting: list[Group] = []
        self.step = Step()

    # -- requests ----------------------------------------------------------------------------
    def new(self, name: str, prompt: int, n: int, beam: bool, priority: int) -> Group:
        number = len(self.groups)
        tokens = [1000 * number + position for position in range(prompt)]
        group = Group(name, (priority, number), n, beam, [Stream(0, tokens)])
        self.groups[name] = group
        return group

    def put(self, group: Group, queue: str) -> None:
        """A group that has computed its prompt, in a queue."""
        (first,) = group.streams
        blocks = self._new_blocks(self._blocks_of(group))
        number = group.order[1]
        group.streams = [
            Stream(index, [*first.tokens, 1000 * number + 500 + index], list(blocks))
            for index in range(group.n)
        ]
        for stream in group.streams:
            stream.computed = len(first.tokens)
        group.started = True
        self.enqueue(queue, group)

    def enqueue(self, queue: str, group: Group) -> None:
        groups = [*getattr(self, queue), group]
        setattr(self, queue, sorted(groups, key=lambda one: one.order))

    # -- blocks ------------------------------------------------------------------------------
    def _new_blocks(self, number: int) -> list[int]:
        return [next(self.names) for _ in range(number)]

    def _blocks_of(self, group: Group) -> int:
        tokens = max(len(stream.tokens) for stream in group.streams)
        return self.needs.get(group.name, -(-tokens // self.block_size))

    @property
    def free(self) -> int:
        held = {block for group in self.running for s in group.streams for block in s.blocks}
        return self.num_blocks - len(held)

    def _holders(self, block: int) -> int:
        everyone = [s for group in self.running + self.swapped for s in group.streams]
        return sum(stream.blocks.count(block) for stream in everyone)

    def _take_slots(self, group: Group) -> list[tuple[int, int]]:
        """A slot for the last token of each. Returns the copies."""
        copies = []
        for stream in group.streams:
            logical = (len(stream.tokens) - 1) // self.block_size
            if logical >= len(stream.blocks):
                stream.blocks += self._new_blocks(1)
            elif self._holders(stream.blocks[logical]) > 1:
                (fresh,) = self._new_blocks(1)
                copies.append((stream.blocks[logical], fresh))
                stream.blocks[logical] = fresh
        return copies

    def _need(self, group: Group) -> int:
        """Blocks that slots for the group take: tried out, and undone."""
        before = [list(stream.blocks) for stream in group.streams]
        old = {block for blocks in before for block in blocks}
        self._take_slots(group)
        new = {block for stream in group.streams for block in stream.blocks} - old
        for stream, blocks in zip(group.streams, before):
            stream.blocks = blocks
        return len(new)

    # -- a step ------------------------------------------------------------------------------
    def schedule(self) -> Step:
        self.step = step = Step()
        if self.prompts_first and not self.swapped:
            self._admit(step)
            if step.spans:
                return step
        self._run(step)
        if not any(mode == "swap" for _, mode in step.preempted):
            self._resume(step)
        if not self.swapped and not self.prompts_first:
            self._admit(step)
        return step

    def _run(self, step: Step) -> None:
        kept: list[Group] = []
        chosen: list[Group] = []
        rest = list(self.running)
        while rest:
            group = rest.pop(0)
            if group.prefilling:
                kept.append(group)
            elif self._room_for(group, kept, rest, step):
                step.copies += self._take_slots(group)
                kept.append(group)
                chosen.append(group)
        for group in chosen:
            self._feed(group, step)
        for group in kept:
            if group.prefilling:
                self._chunk(group, step)

    def _room_for(self, group: Group, kept: list[Group], rest: list[Group], step: Step) -> bool:
        while self._lacks_room(group, alone=not (kept or rest)):
            if not self.preemptible or not (kept or rest):
                self._give_up(group, step)
                if not group.streams:
                    self.running.remove(group)
                    return False
                continue
            candidates = [group, *rest]
            step.asked.append(f"evict({', '.join(one.name for one in candidates)})")
            named = [one for one in candidates if one.name in self.victims]
            victim = (named or candidates)[-1]
            self._preempt(victim, step)
            if victim is group:
                return False
            rest.remove(victim)
        return True

    def _lacks_room(self, group: Group, alone: bool) -> bool:
        if self.demanding and self.preemptible and not alone:
            return len(group.streams) > self.free
        has_region = not self.preemptible and group.name in self.needs
        return self._need(group) > (0 if has_region else self.free)

    def _feed(self, group: Group, step: Step) -> None:
        for stream in group.streams:
            last = len(stream.tokens)
            step.spans.append((group, stream, last - 1, last, True))

    def _chunk(self, group: Group, step: Step) -> None:
        budget = self.max_tokens - step.num_tokens if self.chunked else sys.maxsize
        (stream,) = group.streams
        missing = len(stream.tokens) - stream.computed
        size = min(missing, budget)
        if size > 0:
            stop = stream.computed + size
            step.spans.append((group, stream, stream.computed, stop, size == missing))

    def _preempt(self, group: Group, step: Step) -> None:
        several = len(group.streams) > 1
        mode = self.modes.get(group.name) or ("swap" if several else "recompute")
        self.running.remove(group)
        if mode == "swap":
            held = {block for stream in group.streams for block in stream.blocks}
            step.swapped = step.swapped[0], step.swapped[1] + len(held)
            self.enqueue("swapped", group)
        else:
            for stream in group.streams:
                stream.blocks, stream.computed = [], 0
            group.prefilling = False
            self.enqueue("waiting", group)
        step.preempted.append((group.name, mode))

    def _give_up(self, group: Group, step: Step) -> None:
        for stream in group.streams[:] if group.beam else group.streams[-1:]:
            group.finish(stream, "length")
        if not group.streams:
            step.ended.append((group.name, "length"))

    def _batch(self, step: Step) -> tuple[int, int]:
        return step.num_tokens, sum(group.places(self.count_max) for group in self.running)

    def _limit(self, group: Group, tokens: int, batch: tuple[int, int]) -> str:
        if batch[1] + group.places(self.count_max) > self.max_seqs:
            return "sequence limit"
        if batch[1] and batch[0] + tokens > self.max_tokens:
            return "token budget"
        return ""

    def _resume(self, step: Step) -> None:
        while self.swapped:
            group = self.swapped[0]
            batch, tokens = self._batch(step), len(group.streams)
            said = self._limit(group, tokens, batch)
            if self.scripted:
                self._ask(step, "over_limit", group, tokens, batch)
                said = self.verdicts.get(group.name, "")
            if said:
                return
            headroom = self.watermark if batch[1] else 0
            step.asked.append(f"resume({group.name}, headroom={headroom})")
            held = {block for stream in group.streams for block in stream.blocks}
            if len(held) + self._need(group) + headroom <= self.free:
                self.swapped.remove(group)
                self.enqueue("running", group)
                step.swapped = step.swapped[0] + len(held), step.swapped[1]
                step.resumed.append(group.name)
                step.copies += self._take_slots(group)
                self._feed(group, step)
            elif batch[1]:
                return
            else:
                self._give_up(group, step)
                if not group.streams:
                    self.swapped.remove(group)

    def _admit(self, step: Step) -> None:
        if self.request_level and self.running:
            return
        while self.waiting:
            group = self.waiting[0]
            if group.name in [name for name, _ in step.preempted]:
                return
            verdict = self._decide(group, step)
            if verdict == "never":
                group.finish(group.streams[0], "error")
                step.ended.append((group.name, "error"))
            elif verdict == "later" and self.running:
                return
            elif verdict == "later":
                self._give_up(group, step)
            else:
                self._start(group, step)
                continue
            if not group.streams:
                self.waiting.remove(group)

    def _decide(self, group: Group, step: Step) -> str:
        batch, tokens = self._batch(step), len(group.streams[0].tokens)
        need = self._blocks_of(group)
        if self.scripted:
            self._ask(step, "decide", group, tokens, batch)
            said = self.verdicts.get(group.name, "")
            return "never" if said == "never" else "later" if said or need > self.free else "ok"
        impossible = group.n > self.max_seqs or tokens >= self.max_len or need > self.num_blocks
        if impossible and not group.started:
            return "never"
        if self._limit(group, 1 if self.chunked else tokens, batch):
            return "later"
        return "later" if need + (self.watermark if batch[1] else 0) > self.free else "ok"

    def _ask(
        self, step: Step, what: str, group: Group, tokens: int, batch: tuple[int, int]
    ) -> None:
        step.asked.append(
            f"{what}({group.name}, {tokens} tokens, to {batch[0]} and {batch[1]} places)"
        )

    def _start(self, group: Group, step: Step) -> None:
        self.waiting.remove(group)
        self.enqueue("running", group)
        (stream,) = group.streams
        stream.blocks = self._new_blocks(self._blocks_of(group))
        group.prefilling = True
        step.admitted.append(group.name)
        self._chunk(group, step)

    # -- booking -----------------------------------------------------------------------------
    @property
    def sampled(self) -> list[Group]:
        return list({g.name: g for g, _, _, _, sampled in self.step.spans if sampled}.values())

    def book(self, decisions: dict[str, list[tuple[Any, ...]]], done: tuple[str, ...] = ()) -> None:
        """Continuations, as rows of (parent, index, token) and why it ends, if it does."""
        for group, stream, _, stop, sampled in self.step.spans:
            stream.computed = stop
            group.prefilling = group.prefilling and not sampled
        for name, rows in decisions.items():
            group = self.groups[name]
            parents = {stream.index: stream for stream in group.streams}
            alive = []
            for parent, index, token, *why in rows:
                old = parents[parent]
                stream = Stream(index, [*old.tokens, token], list(old.blocks), old.computed)
                if why:
                    stream.ended, stream.blocks = why[0], []
                    group.finished.append(stream)
                else:
                    alive.append(stream)
            group.streams = sorted(alive, key=lambda stream: stream.index)
            group.finished.sort(key=lambda stream: stream.index)
            group.started = True
            if name in done:
                group.streams = []
        self.running = [group for group in self.running if group.streams]

    # -- in words ----------------------------------------------------------------------------
    def queues(self) -> str:
        rows = [(q, getattr(self, q)) for q in ("running", "swapped", "waiting")]
        told = [f"{name} {' '.join(g.name for g in queue)}" for name, queue in rows if queue]
        return "; ".join(told) or "empty"

    def situation(self) -> str:
        """The queues with the tokens of each sequence, and the pool."""
        rows = [(q, getattr(self, q)) for q in ("running", "swapped", "waiting")]
        told = [f"{name} {' '.join(map(str, queue))}" for name, queue in rows if queue]
        pool = f"{self.free} of {self.num_blocks} blocks of {self.block_size} free"
        return f"{pool}, {', '.join(told) or 'nobody there'}"


class World:
    """The scheduler under test and the model of it, in lockstep.

    Args:
        admission: the class; None for the scripted one.
        options: of the pool and the scheduler's configuration.
    """

    def __init__(self, lab: Any, scheduler: Any, admission: Any = None, **options: Any) -> None:
        self.trial = lab.scheduling(scheduler, admission, **options)
        self.model = Model(admission is None, options)
        self.blocks: dict[int, int] = {}
        self.rules = ", ".join(
            f"{name}={value}"
            for name, value in options.items()
            if name not in ("blocks", "block_size")
        )

    def add(self, prompt: int, n: int = 1, *, beam: bool = False, priority: int = 0) -> str:
        name = self.trial.add(prompt, n, beam=beam, priority=priority)
        group = self.model.new(name, prompt, n, beam, priority)
        self.model.enqueue("waiting", group)
        return str(name)

    def put(
        self, queue: str, tokens: int, n: int = 1, *, beam: bool = False, priority: int = 0
    ) -> str:
        name = self.trial.put(queue, tokens, n, beam=beam, priority=priority)
        self.model.put(self.model.new(name, tokens - 1, n, beam, priority), queue)
        return str(name)

    def say(self, request: str, verdict: str) -> None:
        self.trial.say(request, verdict)
        self.model.verdicts[request] = verdict

    # -- steps -------------------------------------------------------------------------------
    def plan(self, *, asked: bool = False) -> Step:
        """Both plan a step, which must be the same.

        Args:
            asked: compare what admission and preemption were asked, too.
        """
        before = self.model.situation()
        why = f"{before}{' (' + self.rules + ')' if self.rules else ''}: "
        self.trial.asked()
        step = self.model.schedule()
        expect(self.trial.schedule(), str(step), f"{why}the step")
        if asked:
            expect(self.trial.asked(), step.asked, f"{why}what is asked of others")
        self._check_blocks(step, why)
        expect(self.trial.queues(), self.model.queues(), f"{why}the queues after planning")
        return step

    def _check_blocks(self, step: Step, why: str) -> None:
        """The tables of the plan are the model's: as long, shared by the same, and a block stays
        the block that it is."""
        told = self.trial.blocks()
        names = [f"{group.name}{stream.index}" for group, stream, *_ in step.spans]
        lengths = {n: len(stream.blocks) for n, (_, stream, *_) in zip(names, step.spans)}
        got = {name: len(table) for name, table in told["tables"].items()}
        expect(got, lengths, f"{why}blocks in the table of each sequence")
        fed = {n: stream.tokens[stop - 1] for n, (_, stream, _, stop, _) in zip(names, step.spans)}
        expect(told["fed"], fed, f"{why}the last token that each sequence feeds")
        expect(told["swapped"], step.swapped, f"{why}how many blocks are swapped in, and out")
        held = {block for g in self.model.running for s in g.streams for block in s.blocks}
        self.blocks = {name: block for name, block in self.blocks.items() if name in held}
        for sequence, (_, stream, *_) in zip(names, step.spans):
            for name, block in zip(stream.blocks, told["tables"][sequence]):
                self.blocks.setdefault(name, block)
                expect(block, self.blocks[name], f"{why}a block in the table of {sequence}")
        numbers = list(self.blocks.values())
        twice = sorted({block for block in numbers if numbers.count(block) > 1})
        expect(twice, [], f"{why}blocks that two sequences have without sharing them")
        outside = [block for block in numbers if not 0 <= block < self.model.num_blocks]
        expect(outside, [], f"{why}blocks that are not in the pool")
        copies = [(self.blocks[source], self.blocks[target]) for source, target in step.copies]
        expect(sorted(told["copies"]), sorted(copies), f"{why}the copies")

    def advance(self, token: int = 1, ends: tuple[str, ...] = ()) -> None:
        """Book the step without the scheduler's commit: each that was sampled gets the token."""
        self.trial.advance(token, ends=list(ends))
        decisions = {
            group.name: [
                (s.index, s.index, token, *["stop"][: f"{group.name}{s.index}" in ends])
                for s in group.streams
            ]
            for group in self.model.sampled
        }
        self.model.book(decisions)

    def commit(
        self, decisions: dict[str, list[tuple[Any, ...]]], done: tuple[str, ...] = ()
    ) -> None:
        """Both book the step; the sequences and the queues must be the same afterwards."""
        before = self.model.situation()
        got = self.trial.commit(decisions, done=list(done))
        self.model.book(decisions, done)
        told = ", ".join(f"{name}: {rows}" for name, rows in decisions.items())
        why = f"{before}: after commit of {{{told}}}"
        for name in decisions:
            expect(
                self.trial.sequences(name),
                sequences(self.model.groups[name]),
                f"{why}, the sequences of {name} as (name, tokens, last token, why it ended)",
            )
        expect(self.trial.queues(), self.model.queues(), f"{why}, the queues")
        expect(got, list(decisions), f"{why}, the groups that are returned")

    def decisions(self, ends: tuple[str, ...] = (), token: int = 7) -> dict[str, list[Any]]:
        """What sampling would say: each goes on by a token of its own, and a group that has its
        prompt computed forks into its outputs."""
        found = {}
        for group in self.model.sampled:
            rows = [(s.index, s.index) for s in group.streams]
            if not group.started:
                rows = [(0, index) for index in range(group.n)]
            found[group.name] = [
                (parent, index, token + index, *["stop"][: f"{group.name}{index}" in ends])
                for parent, index in rows
            ]
        return found

    def step(self, ends: tuple[str, ...] = (), token: int = 7) -> Step:
        """A step from plan to commit."""
        step = self.plan()
        self.commit(self.decisions(ends, token))
        return step


def sequences(group: Group) -> list[tuple[str, int, int, str | None]]:
    """(name, tokens, last token, why it ended) of each, in the order of their index; of two with
    the same, the one that has ended comes first."""
    rows = [
        (s.index, s.ended is None, len(s.tokens), s.tokens[-1], s.ended)
        for s in (*group.streams, *group.finished)
    ]
    rows.sort(key=lambda row: (row[:4], str(row[4])))
    return [(f"{group.name}{index}", tokens, last, why) for index, _, tokens, last, why in rows]
