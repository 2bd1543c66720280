"""Where a submission's admission and scheduler are tried: real queues and groups, over a small
pool, with everything else as the test says.

What comes out is plain data. A sequence is named after its request and its index: ``b1``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, Literal

from minipaged.config import SchedulerConfig
from minipaged.contracts import (
    AdmissionDecision,
    Batch,
    BlockPair,
    Decision,
    GroupDecision,
    Preempted,
    Span,
    StepPlan,
    Verdict,
)
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence as Stream
from minipaged.sequence import SequenceGroup, Status

Mode = Literal["swap", "recompute"]


class BlockPool:
    """A small block manager (:class:`minipaged.contracts.KVManager`): tables are lists of blocks,
    and who holds a block is counted."""

    def __init__(
        self,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        block_size: int,
        *,
        preemptible: bool = True,
        copying: bool = False,
        needs: Mapping[str, int] | None = None,
    ) -> None:
        """
        Args:
            copying: a fork shares nothing, and takes as many blocks as its parent holds.
            needs: request -> blocks that admitting it takes, whatever its tokens say. Where nobody
                can be preempted they are a region of its own, which does not grow.
        """
        self._copying = copying
        self.num_gpu_blocks, self.num_cpu_blocks = num_gpu_blocks, num_cpu_blocks
        self.block_size, self.preemptible = block_size, preemptible
        self._needs = dict(needs or {})
        self._free = {
            "gpu": list(reversed(range(num_gpu_blocks))),
            "cpu": list(reversed(range(num_cpu_blocks))),
        }
        self._holders: dict[str, Counter[int]] = {"gpu": Counter(), "cpu": Counter()}
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._side: dict[int, str] = {}

    @property
    def num_free_gpu_blocks(self) -> int:
        return len(self._free["gpu"])

    @property
    def num_free_cpu_blocks(self) -> int:
        return len(self._free["cpu"])

    @property
    def num_usable_gpu_blocks(self) -> int:
        return self.num_gpu_blocks

    # -- admission ---------------------------------------------------------------------------
    def blocks_needed(self, group: SequenceGroup) -> int:
        tokens = max(stream.num_tokens for stream in group.live)
        return self._needs.get(group.request_id, -(-tokens // self.block_size))

    def fits(self, group: SequenceGroup, headroom: int = 0) -> bool:
        return self.num_free_gpu_blocks - headroom >= self.blocks_needed(group)

    def fits_ever(self, group: SequenceGroup) -> bool:
        return self.num_gpu_blocks >= self.blocks_needed(group)

    def allocate(self, group: SequenceGroup) -> None:
        (stream,) = group.live
        blocks = [self._take("gpu") for _ in range(self.blocks_needed(group))]
        self._open(stream.seq_id, blocks, stream.num_tokens)

    # -- growth ------------------------------------------------------------------------------
    def can_append(self, group: SequenceGroup) -> bool:
        is_region = not self.preemptible and group.request_id in self._needs
        return self._next_blocks(group) <= (0 if is_region else self.num_free_gpu_blocks)

    def append(self, groups: Iterable[SequenceGroup]) -> list[BlockPair]:
        pairs = []
        for group in groups:
            for seq_id in group.seqs:
                pairs += self._grow(seq_id)
        return pairs

    def fork(self, parent: Stream, child: Stream) -> None:
        blocks = self._held_by(parent.seq_id)
        if self._copying:
            blocks = [self._take("gpu") for _ in blocks]
        else:
            self._holders["gpu"].update(blocks)
        self._open(child.seq_id, list(blocks), self._lengths[parent.seq_id])

    def free(self, stream: Stream) -> None:
        if stream.seq_id in self._tables:
            side = self._side[stream.seq_id]
            for block in self._tables.pop(stream.seq_id):
                self._put_back(side, block)

    def take_copies(self) -> list[BlockPair]:
        return []

    # -- preemption --------------------------------------------------------------------------
    def release(self, group: SequenceGroup) -> None:
        for stream in group.live:
            self.free(stream)

    def can_swap_out(self, group: SequenceGroup) -> bool:
        return len(self._unique(group)) <= self.num_free_cpu_blocks

    def swap_out(self, group: SequenceGroup) -> list[BlockPair]:
        return self._carry(group, "gpu", "cpu")

    def can_swap_in(self, group: SequenceGroup, headroom: int = 0) -> bool:
        need = len(self._unique(group)) + self._next_blocks(group)
        return self.num_free_gpu_blocks - headroom >= need

    def swap_in(self, group: SequenceGroup) -> list[BlockPair]:
        return self._carry(group, "cpu", "gpu")

    # -- looking -----------------------------------------------------------------------------
    def block_table(self, seq_id: int) -> list[int]:
        return self._tables.get(seq_id, [])

    def check(self, groups: Sequence[SequenceGroup]) -> None:
        """Whoever tries a scheduler here looks at its plans instead."""

    # -- blocks ------------------------------------------------------------------------------
    def _open(self, seq_id: int, blocks: list[int], length: int) -> None:
        self._tables[seq_id], self._lengths[seq_id] = blocks, length
        self._side[seq_id] = "gpu"

    def _held_by(self, seq_id: int) -> list[int]:
        if seq_id not in self._tables:
            raise RuntimeError("a sequence that holds no blocks can neither be forked nor grow")
        return self._tables[seq_id]

    def _take(self, side: str) -> int:
        if not self._free[side]:
            raise RuntimeError(f"the {side.upper()} pool is exhausted: a block was asked for")
        block = self._free[side].pop()
        self._holders[side][block] = 1
        return block

    def _put_back(self, side: str, block: int) -> None:
        self._holders[side][block] -= 1
        if not self._holders[side][block]:
            self._free[side].append(block)

    def _grow(self, seq_id: int) -> list[BlockPair]:
        """A slot for one more token, and the copy that it takes."""
        blocks, length = self._held_by(seq_id), self._lengths[seq_id]
        self._lengths[seq_id] = length + 1
        if length >= len(blocks) * self.block_size:
            blocks.append(self._take("gpu"))
            return []
        last = length // self.block_size
        shared = blocks[last]
        if self._holders["gpu"][shared] < 2:
            return []
        blocks[last] = self._take("gpu")
        self._put_back("gpu", shared)
        return [(shared, blocks[last])]

    def _next_blocks(self, group: SequenceGroup) -> int:
        """Blocks that the next token of each of its sequences takes."""
        left = Counter(self._holders[self._side[next(iter(group.seqs))]])
        need = 0
        for seq_id in group.seqs:
            blocks, length = self._tables[seq_id], self._lengths[seq_id]
            opens = length >= len(blocks) * self.block_size
            if opens or left[blocks[length // self.block_size]] > 1:
                need += 1
            if not opens:
                left[blocks[length // self.block_size]] -= 1
        return need

    def _unique(self, group: SequenceGroup) -> list[int]:
        return sorted({block for seq_id in group.seqs for block in self._tables[seq_id]})

    def _carry(self, group: SequenceGroup, origin: str, goal: str) -> list[BlockPair]:
        pairs = {block: self._take(goal) for block in self._unique(group)}
        self._holders[goal].subtract(pairs.values())
        for seq_id in group.seqs:
            for place, block in enumerate(self._tables[seq_id]):
                self._put_back(origin, block)
                self._tables[seq_id][place] = pairs[block]
                self._holders[goal][pairs[block]] += 1
            self._side[seq_id] = goal
        return list(pairs.items())


class ScriptedAdmission:
    """Admits who fits, but for those of whom the test has said otherwise."""

    def __init__(
        self, kv: BlockPool, watermark_blocks: int, verdicts: Mapping[str, str], asked: list[str]
    ) -> None:
        """
        Args:
            verdicts: request -> ``never``, or what it has to wait for.
        """
        self.kv, self.watermark_blocks = kv, watermark_blocks
        self._verdicts, self._asked = verdicts, asked

    def over_limit(self, group: SequenceGroup, tokens: int, batch: Batch) -> str:
        self._asked.append(f"over_limit({_asked_with(group, tokens, batch)})")
        return self._verdicts.get(group.request_id, "")

    def decide(self, group: SequenceGroup, tokens: int, batch: Batch) -> AdmissionDecision:
        self._asked.append(f"decide({_asked_with(group, tokens, batch)})")
        said = self._verdicts.get(group.request_id, "")
        if said == "never":
            return AdmissionDecision(Verdict.NEVER, f"{group.request_id} can never run here")
        if said or not self.kv.fits(group):
            return AdmissionDecision(Verdict.LATER, said or "memory")
        return AdmissionDecision(Verdict.OK)


class ScriptedPreemption:
    """Preempts whom the test has named, or else the last; and how it said: by swap if the group
    has several sequences, else by recompute, unless it is told."""

    def __init__(
        self, kv: BlockPool, victims: Collection[str], modes: Mapping[str, Mode], asked: list[str]
    ) -> None:
        self.kv = kv
        self._victims, self._modes, self._asked = victims, modes, asked

    def evict(self, candidates: Sequence[SequenceGroup], plan: StepPlan) -> SequenceGroup:
        candidates = list(candidates)
        self._asked.append(f"evict({', '.join(group.request_id for group in candidates)})")
        named = [group for group in candidates if group.request_id in self._victims]
        chosen = (named or candidates)[-1]
        self.preempt(chosen, plan)
        return chosen

    def preempt(self, group: SequenceGroup, plan: StepPlan) -> None:
        mode = self._modes.get(group.request_id) or ("swap" if len(group.seqs) > 1 else "recompute")
        if mode == "swap":
            plan.swap_out.extend(self.kv.swap_out(group))
            _mark(group, Status.SWAPPED)
        else:
            self.recompute(group)
        plan.preempted.append(Preempted(group.request_id, mode))

    def recompute(self, group: SequenceGroup) -> None:
        self.kv.release(group)
        group.prefilling = False
        _mark(group, Status.WAITING)
        for stream in group.live:
            stream.num_computed = 0

    def resume(self, group: SequenceGroup, plan: StepPlan, headroom: int) -> bool:
        self._asked.append(f"resume({group.request_id}, headroom={headroom})")
        fits = self.kv.can_swap_in(group, headroom)
        if fits:
            plan.swap_in.extend(self.kv.swap_in(group))
            plan.resumed.append(group.request_id)
            _mark(group, Status.RUNNING)
        return fits


class Desk:
    """An admission, and groups to ask it about, one at a time."""

    def __init__(
        self,
        admission: Any,
        *,
        blocks: int = 100,
        used: int = 0,
        block_size: int = 4,
        watermark: int = 0,
        needs: int | None = None,
        **config: Any,
    ) -> None:
        """
        Args:
            admission: the class.
            used: blocks of the pool that are not free.
            needs: blocks that the manager asks for, whatever the tokens say.
        """
        self._kv = BlockPool(
            blocks, 0, block_size, needs={} if needs is None else {"request": needs}
        )
        hog = SequenceGroup("hog", Stream(0, [0] * used * block_size), SamplingParams())
        self._kv.allocate(hog)
        self._admission = admission(_config(config), self._kv, watermark)

    def over_limit(self, *, tokens: int, batch: tuple[int, int], **group: Any) -> Any:
        """
        Args:
            batch: (tokens, places) that the step has.
            group: as :func:`_group` has it.
        """
        return self._admission.over_limit(_group(**group), tokens, Batch(*batch))

    def shortage(self, *, tokens: int, batch: tuple[int, int], **group: Any) -> Any:
        return self._admission.shortage(_group(**group), tokens, Batch(*batch))

    def refusal(self, **group: Any) -> Any:
        return self._admission.refusal(_group(**group))

    def decide(self, *, tokens: int, batch: tuple[int, int], **group: Any) -> tuple[Any, Any]:
        """(verdict, reason)"""
        decision = self._admission.decide(_group(**group), tokens, Batch(*batch))
        if not isinstance(decision, AdmissionDecision):
            raise TypeError(
                f"decide() must return an AdmissionDecision, not {type(decision).__name__}"
            )
        return decision.verdict.value, decision.reason


class Trial:
    """A scheduler at work: requests come, steps are planned, and what was sampled is booked.

    Requests are called a, b, c, … in the order in which they come.
    """

    def __init__(
        self,
        scheduler: Any,
        admission: Any = None,
        *,
        blocks: int,
        host_blocks: int = 64,
        block_size: int = 4,
        watermark: int = 0,
        preemptible: bool = True,
        copying: bool = False,
        verdicts: Mapping[str, str] | None = None,
        victims: Collection[str] = (),
        modes: Mapping[str, Mode] | None = None,
        needs: Mapping[str, int] | None = None,
        **config: Any,
    ) -> None:
        """
        Args:
            scheduler, admission: the classes; None for a scripted admission.
            verdicts: what that one says of a request, if not that it may come as soon as it fits.
            victims: requests that are preempted rather than the last candidate.
            modes: request -> how it is preempted.
            preemptible, copying, needs: as :class:`BlockPool` has them.
        """
        self._asked: list[str] = []
        self._kv = BlockPool(
            blocks, host_blocks, block_size, preemptible=preemptible, copying=copying, needs=needs
        )
        self._verdicts = dict(verdicts or {})
        settings = _config(config)
        judge = (
            ScriptedAdmission(self._kv, watermark, self._verdicts, self._asked)
            if admission is None
            else admission(settings, self._kv, watermark)
        )
        preemption = ScriptedPreemption(self._kv, victims, modes or {}, self._asked)
        self._scheduler = scheduler(settings, self._kv, judge, preemption)
        self._groups: dict[str, SequenceGroup] = {}
        self._plan = StepPlan()

    # -- requests ----------------------------------------------------------------------------
    def add(
        self,
        prompt: int,
        n: int = 1,
        *,
        beam: bool = False,
        priority: int = 0,
        max_tokens: int | None = None,
    ) -> str:
        """A request with a prompt of so many tokens comes. Its name."""
        group = self._new(prompt, n, beam, priority, max_tokens)
        self._scheduler.add(group)
        return group.request_id

    def put(
        self,
        queue: Literal["running", "swapped"],
        tokens: int,
        n: int = 1,
        *,
        beam: bool = False,
        priority: int = 0,
    ) -> str:
        """A request that is under way: its n sequences have so many tokens, of which the last is
        sampled and not in the cache. They share all their blocks. Its name."""
        group = self._new(tokens - 1, n, beam, priority, None)
        (first,) = group.live
        self._kv.allocate(group)
        for index in range(n):
            stream = first
            if index:
                stream = first.fork(self._scheduler.new_seq_id(), index)
                self._kv.fork(first, stream)
            group.seqs[stream.seq_id] = stream
            stream.num_computed = tokens - 1
        for stream in group.live:
            stream.token_ids.append(_first_token(group, stream.index))
        group.started = True
        _mark(group, Status.RUNNING)
        if queue == "swapped":
            self._kv.swap_out(group)
            _mark(group, Status.SWAPPED)
        self._scheduler.enqueue(getattr(self._scheduler, queue), group)
        return group.request_id

    def _new(
        self, prompt: int, n: int, beam: bool, priority: int, max_tokens: int | None
    ) -> SequenceGroup:
        count = len(self._groups)
        name = ascii_lowercase[count % 26] * (1 + count // 26)
        tokens = [count * 1000 + position for position in range(prompt)]
        params = SamplingParams(n=n, use_beam_search=beam, max_tokens=max_tokens)
        group = SequenceGroup(
            name,
            Stream(self._scheduler.new_seq_id(), tokens),
            params,
            arrival_index=count,
            priority=priority,
        )
        self._groups[name] = group
        return group

    def say(self, request: str, verdict: str) -> None:
        """From now on the scripted admission has this to say of a request; "" for nothing."""
        self._verdicts[request] = verdict

    # -- steps -------------------------------------------------------------------------------
    def schedule(self) -> str:
        """Plan a step, and tell what is in it: ``a0[4] b0[0-2]; admits b``."""
        plan = self._scheduler.schedule()
        if not isinstance(plan, StepPlan):
            raise TypeError(f"schedule() must return a StepPlan, not {type(plan).__name__}")
        self._plan = plan
        victims = [f"{one.request_id} ({one.mode})" for one in plan.preempted]
        parts = [
            " ".join(map(self._told, plan.spans)),
            *_clause("preempts", victims),
            *_clause("resumes", plan.resumed),
            *_clause("admits", plan.admitted),
            *_clause("ends", self._take_ended()),
        ]
        return "; ".join(part for part in parts if part) or "nothing"

    def blocks(self) -> dict[str, Any]:
        """Of the step that was planned last: the table and the last token of each span, the
        copies, and how many blocks are swapped in and out."""
        plan = self._plan
        return {
            "tables": {self._name(span): list(span.block_table) for span in plan.spans},
            "fed": {self._name(span): span.token_ids[-1] for span in plan.spans},
            "copies": [tuple(pair) for pair in plan.copies],
            "swapped": (len(plan.swap_in), len(plan.swap_out)),
        }

    def asked(self) -> list[str]:
        """What the scripted admission and preemption were asked since the last call."""
        asked = list(self._asked)
        self._asked.clear()
        return asked

    def advance(self, token: int = 1, ends: Collection[str] = ()) -> None:
        """Book the step without the scheduler's own commit: every sequence that was sampled gets
        a token; those that are named end with it."""
        scheduler = self._scheduler
        scheduler.book_computed()
        for group in scheduler.sampled:
            group.started = True
            for stream in group.live:
                finish = "stop" if f"{group.request_id}{stream.index}" in ends else None
                decision = Decision(stream, token, 0.0, stream.index, finish=finish)
                scheduler.append(group, stream, decision)
        scheduler.remove_finished()

    def commit(
        self,
        decisions: Mapping[str, Sequence[tuple[Any, ...]]],
        done: Collection[str] = (),
    ) -> list[str]:
        """Book the step.

        Args:
            decisions: request -> its continuations: (index of the parent, own index, token), and
                why it ends, if it does.
            done: requests that are over, whatever these say.

        Returns:
            The requests that the scheduler says it has booked.
        """
        booked = self._scheduler.commit(
            [self._decision(name, rows, name in done) for name, rows in decisions.items()]
        )
        if not isinstance(booked, list):
            raise TypeError(f"commit() must return a list of groups, not {type(booked).__name__}")
        return [group.request_id for group in booked]

    def _decision(self, name: str, rows: Sequence[tuple[Any, ...]], done: bool) -> GroupDecision:
        group = self._groups[name]
        parents = {stream.index: stream for stream in group.live}
        children = []
        for parent, index, token, *finish in rows:
            ends = finish[0] if finish else None
            children.append(Decision(parents[parent], token, 0.0, index, finish=ends))
        return GroupDecision(group, children, done)

    def step(self) -> str:
        """Plan a step and book it: whoever was sampled gets a token, and forks after its prompt
        into the outputs that were asked for."""
        told = self.schedule()
        decisions = []
        for group in self._scheduler.sampled:
            parents = group.live if group.started else group.live * group.params.width
            children = []
            for place, parent in enumerate(parents):
                last = parent.num_output_tokens + 1 == group.params.max_tokens
                index = parent.index if group.started else place
                finish = "length" if last else None
                children.append(Decision(parent, 1, 0.0, index, finish=finish))
            decisions.append(GroupDecision(group, children))
        self._scheduler.commit(decisions)
        return told

    # -- looking -----------------------------------------------------------------------------
    @property
    def waiting(self) -> list[str]:
        return _names(self._scheduler.waiting)

    @property
    def running(self) -> list[str]:
        return _names(self._scheduler.running)

    @property
    def swapped(self) -> list[str]:
        return _names(self._scheduler.swapped)

    def queues(self) -> str:
        """``running a b; waiting c``"""
        rows = (("running", self.running), ("swapped", self.swapped), ("waiting", self.waiting))
        return "; ".join(f"{name} {' '.join(queue)}" for name, queue in rows if queue) or "empty"

    def sequences(self, request: str) -> list[tuple[str, int, int, str | None]]:
        """(name, tokens, last token, why it ended) of each, in the order of their index; of
        two with the same, the one that has ended comes first."""
        rows = [
            (s.index, s.finish_reason is None, s.num_tokens, s.token_ids[-1], s.finish_reason)
            for s in self._groups[request].all_seqs()
        ]
        rows.sort(key=lambda row: (row[:4], str(row[4])))
        return [(f"{request}{index}", tokens, last, why) for index, _, tokens, last, why in rows]

    def reason(self, request: str) -> str | None:
        """Why the sequence of a request that ended last did."""
        ended = self._groups[request].finished_seqs
        reason = ended[-1].stop_reason if ended else None
        return None if reason is None else str(reason)

    def _take_ended(self) -> list[str]:
        ended, self._scheduler.ended = self._scheduler.ended, []
        return [f"{g.request_id} ({_how(g)})" for g in ended]

    def _told(self, span: Span) -> str:
        first, last = span.start, span.context_len - 1
        place = f"{first}" if first == last else f"{first}-{last}"
        return f"{self._name(span)}[{place}]{'' if span.sample else '…'}"

    def _name(self, span: Span) -> str:
        for name, group in self._groups.items():
            for stream in group.all_seqs():
                if stream.seq_id == span.seq_id:
                    return f"{name}{stream.index}"
        return f"?{span.seq_id}"


def _group(
    *,
    prompt: int,
    n: int = 1,
    beam: bool = False,
    live: int = 0,
) -> SequenceGroup:
    """A request.

    Args:
        live: sequences that it still has, if it has started.
    """
    params = SamplingParams(n=n, use_beam_search=beam)
    group = SequenceGroup("request", Stream(1, range(prompt)), params)
    if live:
        (first,) = group.live
        group.started = True
        for index in range(n):
            stream = first if not index else first.fork(1 + index, index)
            group.seqs[stream.seq_id] = stream
        for stream in group.live:
            stream.token_ids.append(0)
        for stream in group.live[live:]:
            stream.status = Status.FINISHED
            group.finished_seqs.append(group.seqs.pop(stream.seq_id))
    return group


def _config(options: Mapping[str, Any]) -> SchedulerConfig:
    defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "max_model_len": 64}
    return SchedulerConfig(**(defaults | dict(options)))


def _asked_with(group: SequenceGroup, tokens: int, batch: Batch) -> str:
    return f"{group.request_id}, {tokens} tokens, to {batch.num_tokens} and {batch.num_seqs} places"


def _mark(group: SequenceGroup, status: Status) -> None:
    for stream in group.live:
        stream.status = status


def _names(queue: Iterable[SequenceGroup]) -> list[str]:
    return [group.request_id for group in queue]


def _clause(verb: str, names: Sequence[str]) -> list[str]:
    return [f"{verb} {', '.join(names)}"] if names else []


def _how(group: SequenceGroup) -> str:
    if not group.finished_seqs:
        return "nothing of it has ended"
    return str(group.finished_seqs[-1].finish_reason)


def _first_token(group: SequenceGroup, index: int) -> int:
    return group.arrival_index * 1000 + 500 + index
