"""The engine on the hash executor: tiny pools, invariants and poison at every step, a count of
what happened, and an undisturbed engine to compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.contracts import Span, StepLogits, StepPlan
from minipaged.engine import Engine
from minipaged.executor.hash_executor import HashExecutor
from minipaged.invariants import check_idle
from minipaged.outputs import CompletionOutput, RequestOutput
from minipaged.parts import Parts
from minipaged.sampling.decide import TorchSampling
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import SequenceGroup, Status

VOCAB_SIZE = 64
_LETTERS = "abcdefgh"
BLOCK_SIZE = 4
MAX_MODEL_LEN = 64
STEP_LIMIT = 3000
HUGE_POOL = CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=1 << 14, num_cpu_blocks=0)


class ToyTokenizer:
    """Every id is one or two letters; the last three end a sequence."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = (61, 62, 63)

    _pieces = (*_LETTERS, *(a + b for a in _LETTERS for b in _LETTERS))[:VOCAB_SIZE]

    def encode(self, text: str) -> list[int]:
        return [self._pieces.index(letter) for letter in text]

    def decode(self, token_ids, skip_special_tokens: bool = True) -> str:
        hidden = self.eos_token_ids if skip_special_tokens else ()
        return "".join(self._pieces[token] for token in token_ids if token not in hidden)


@dataclass(frozen=True)
class Request:
    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""


class Stuck(AssertionError):
    """The engine makes no progress."""


class DeviceFailure(RuntimeError):
    """What a test's executor raises in the middle of a step."""


class RuleError(AssertionError):
    """The engine has done what it should not, though no invariant of a single step is broken."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


def _demand(condition: bool, rule: str, message: str) -> None:
    if not condition:
        raise RuleError(rule, message)


class TestedEngine:
    """An engine that is checked at every step, and whose events are counted.

    Attributes:
        events: how often each thing happened, by name; may be shared by many engines.
        finished: the terminal output of each request that has ended.
        streamed: for each request the text deltas of each of its outputs.
    """

    __test__ = False  # not a class of tests, whatever pytest thinks of its name

    def __init__(
        self,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        *,
        text: bool = False,
        events: Counter[str] | None = None,
        check: bool = True,
        prefix: tuple[int, ...] = (),
        parts: Parts | None = None,
    ) -> None:
        self.check = check
        self.scheduler_config = scheduler
        self.cache_config = cache
        self.text = text
        self.model = HashExecutor(
            cache.num_gpu_blocks, cache.num_cpu_blocks or 0, cache.block_size, VOCAB_SIZE
        )
        tokenizer = ToyTokenizer() if text else None
        eos = ToyTokenizer.eos_token_ids if text else ()
        self.engine = Engine(
            scheduler,
            cache,
            self,
            TorchSampling(scheduler.max_model_len, vocab_size=VOCAB_SIZE, eos_token_ids=eos),
            parts=parts,
            tokenizer=tokenizer,
            vocab_size=VOCAB_SIZE,
            clock=lambda: 0.0,
            check=check,
        )
        self.num_registered_blocks = 0
        if prefix:
            self.num_registered_blocks = self.engine.register_prefix(prefix) // cache.block_size
        self.requests: dict[str, Request] = {}
        self.groups: dict[str, SequenceGroup] = {}
        self.finished: dict[str, RequestOutput] = {}
        self.aborted: set[str] = set()
        self.events: Counter[str] = Counter() if events is None else events
        self.fail_next = False
        """Shall the next step fail on the device?"""
        self._before: dict[str, _State] = {}
        self._worked = False
        self._admitted: set[str] = set()
        self._deltas: dict[tuple[str, int], str] = {}
        self._cached_before: set[int] = set()

    # -- driving -----------------------------------------------------------------------------
    def add(self, request: Request) -> None:
        self.engine.add_request(
            request.request_id,
            request.prompt,
            request.params,
            priority=request.priority,
            cache_salt=request.cache_salt,
            stream=True,
        )
        self.requests[request.request_id] = request
        for group in self.engine.scheduler.waiting:
            self.groups[group.request_id] = group

    def step(self) -> list[RequestOutput]:
        self.events["steps"] += 1
        self._before = {g.request_id: _State.of(g) for g in self.engine.scheduler.groups}
        self._worked = False
        self._cached_before = self.cached()
        try:
            outputs = self.engine.step()
        except DeviceFailure:
            self.events["failed step"] += 1
            outputs = []
        else:
            self._check_progress(outputs)
        self.fail_next = False
        self.poison()
        for output in outputs:
            self._read(output)
        self._count_ends(outputs)
        return outputs

    def abort_any(self, state: str) -> bool:
        """Abort the first request in that state, if there is one."""
        for group in self.engine.scheduler.groups:
            if _State.of(group).name == state:
                self.abort(group.request_id)
                return True
        return False

    def abort(self, request_id: str) -> None:
        if request_id not in self.requests:
            state = "of an unknown request"
        elif request_id in self.aborted:
            state = "twice"
        elif request_id in self.finished:
            state = "of a finished request"
        else:
            state = _State.of(self.groups[request_id]).name
        known = self.engine.abort(request_id)
        alive = request_id in self.requests and request_id not in self.finished
        expected = alive and request_id not in self.aborted
        _demand(known == expected, "abort", f"abort of {request_id!r} ({state}) gave {known}")
        if known:
            self.aborted.add(request_id)
        self.events[f"abort {state}"] += 1
        self.poison()

    def run(self) -> dict[str, RequestOutput]:
        """Step until nothing is left; the engine is idle afterwards."""
        for _ in range(STEP_LIMIT):
            if not self.engine.has_unfinished():
                self.check_idle()
                return self.finished
            self.step()
        raise Stuck(f"unfinished after {STEP_LIMIT} steps: {self.engine.scheduler.groups}")

    def cached(self) -> set[int]:
        """The blocks that a later request may find."""
        prefixes = self.engine.scheduler.prefixes
        if prefixes is None:
            return set()
        return {b for b in range(prefixes.num_gpu_blocks) if b in prefixes.cached}

    def poison(self) -> None:
        """Spoil every block that no live sequence holds and nobody may find."""
        if not self.check:
            return
        held: dict[bool, set[int]] = {True: set(), False: self.cached()}
        for group in self.engine.scheduler.groups:
            for seq in group.live:
                held[seq.status is Status.SWAPPED].update(self.engine.kv.block_table(seq.seq_id))
        self.model.poison(
            set(range(self.engine.kv.num_gpu_blocks)) - held[False],
            set(range(self.engine.kv.num_cpu_blocks)) - held[True],
        )

    def check_idle(self) -> None:
        scheduler, kv = self.engine.scheduler, self.engine.kv
        check_idle(kv)
        assert not scheduler.groups
        assert not scheduler.ended
        for group in self.groups.values():
            for seq in group.all_seqs():
                assert not kv.block_table(seq.seq_id), f"{seq} still holds a table"
        assert self.finished.keys() == self.requests.keys()

    def _read(self, output: RequestOutput) -> None:
        name = output.request_id
        streamed = _is_streamed(self.requests[name].params)
        for completion in output.outputs if streamed else ():
            key = (name, completion.index)
            self._deltas[key] = self._deltas.get(key, "") + completion.delta
            same = self._deltas[key] == completion.text
            _demand(
                same, "I13", f"{name!r} streamed {self._deltas[key]!r}, not {completion.text!r}"
            )
        if output.finished:
            _demand(name not in self.finished, "I11", f"{name!r} ended twice")
            self.finished[name] = output

    # -- looking: the engine's executor is this object, which passes the plan on --------------
    def execute(self, plan: StepPlan) -> StepLogits:
        self._worked = bool(plan.spans)
        self._check_policy(plan)
        self._count(plan)
        if self.fail_next:
            # Nothing of what the step touched can be relied on.
            self.model.poison(
                range(self.engine.kv.num_gpu_blocks), [target for _, target in plan.swap_out]
            )
            raise DeviceFailure
        return self.model.execute(plan)

    def _check_progress(self, outputs: list[RequestOutput]) -> None:
        """I8, where no forced preemption excuses an empty step."""
        idle = not self._worked and not any(output.finished for output in outputs)
        if idle and self._before and not self.scheduler_config.forced_preemption:
            raise Stuck(f"a step scheduled no token: {self.engine.scheduler.groups}")

    def _check_policy(self, plan: StepPlan) -> None:
        config, scheduler = self.scheduler_config, self.engine.scheduler
        running = [g for g in scheduler.running if g.live[0].status is Status.RUNNING]
        places = sum(group.places(config.count_max_seqs) for group in running)
        one = len(running) == 1
        _demand(
            places <= config.max_num_seqs or one,
            "sequence limit",
            f"{places} places are taken, the limit is {config.max_num_seqs}",
        )
        _demand(
            plan.num_tokens <= config.max_num_batched_tokens or one,
            "token budget",
            f"{plan.num_tokens} tokens, the limit is {config.max_num_batched_tokens}",
        )
        paged = self.cache_config.reservation == "paged"
        watermark = int(self.cache_config.watermark * self.cache_config.num_gpu_blocks) * paged
        free = self.engine.kv.num_free_gpu_blocks
        _demand(
            not plan.admitted or one or free >= watermark,
            "watermark",
            f"{plan.admitted} were admitted and {free} blocks left free, fewer than {watermark}",
        )
        kept = [group for group in running if self._before[group.request_id].name == "running"]
        for victim in plan.preempted if not config.forced_preemption else ():
            earlier = [g for g in kept if g.order > self.groups[victim.request_id].order]
            _demand(
                not earlier,
                "victim",
                f"{victim.request_id!r} was preempted, though {earlier} come after it",
            )
        for name in plan.resumed:
            passed = [g for g in scheduler.swapped if g.order < self.groups[name].order]
            _demand(not passed, "resume order", f"{name!r} came back before {passed}")

    def _count(self, plan: StepPlan) -> None:
        events, kv = self.events, self.engine.kv
        alive = {g.request_id: g for g in self.engine.scheduler.groups}
        scheduled = {span.seq_id: span for span in plan.spans}

        def table(seq):
            return kv.block_table(seq.seq_id)

        def references(group):
            return Counter(block for seq in group.live for block in table(seq))

        events["swap out"] += bool(plan.swap_out)
        events["swap in"] += bool(plan.swap_in)
        paged = self.cache_config.reservation == "paged"
        events["copy-on-write" if paged else "copy at a contiguous fork"] += bool(plan.copies)
        swapped_in = {block for _, block in plan.swap_in}
        swapped_out = {block for block, _ in plan.swap_out}
        for source, target in plan.copies:
            events["copy-on-write right after swap-in"] += source in swapped_in
            events["copy-on-write into a block swapped out in this step"] += target in swapped_out
            events["last holder writes in place"] += any(
                source == span.block_table[(span.context_len - 1) // kv.block_size]
                for span in plan.spans
            )
        for preempted in plan.preempted:
            group = alive[preempted.request_id]
            before = self._before[group.request_id]
            several = len(group.live) > 1
            kind = "group" if several else "sequence"
            events[f"{preempted.mode} of a {kind}"] += 1
            if group.params.use_beam_search:
                events[f"{preempted.mode} of beams"] += 1
            if before.prefilling and before.computed:
                what = "refill" if before.started else "chunked prefill"
                events[f"{what} preempted midway"] += 1
            if group.finished_seqs:
                events["preemption after a sibling finished"] += 1
            if before.started and not several and preempted.mode == "recompute":
                events["recompute of generated tokens"] += 1
            if preempted.mode == "swap" and max(references(group).values()) > 1:
                events["swap-out of shared blocks"] += 1
            if several and preempted.mode == "recompute":
                auto = self.scheduler_config.preemption != "recompute"
                events["group recompute for want of swap space"] += auto
                shared = group.shape and Counter(b for t in group.shape.values() for b in t)
                events["group recompute of shared blocks"] += max(shared.values()) > 1
            others = [g for g in alive.values() if g.live[0].seq_id in scheduled]
            events["preempted for an earlier group"] += any(g.order < group.order for g in others)
        for name in plan.admitted:
            group = alive[name]
            if name in self._admitted:
                kind = "group" if len(group.live) > 1 else "sequence"
                events[f"readmission of a {kind}"] += 1
            self._count_hits(group, scheduled, again=name in self._admitted)
            self._admitted.add(name)
            later = [g for g in alive.values() if g.arrival_index > group.arrival_index]
            waiting = [g for g in later if g.live[0].status is not Status.WAITING]
            earlier = [g for g in alive.values() if g.arrival_index < group.arrival_index]
            events["overtaking by priority"] += any(
                g.live[0].status is Status.WAITING for g in earlier
            )
            events["admission behind a later arrival"] += bool(waiting)
        for group in alive.values():
            if group.live[0].status is Status.RUNNING:
                most = max(references(group).values())
                if group.params.use_beam_search and group.started and most > 2:
                    events["beam fork with more than two references"] += 1
                mine = [scheduled[s.seq_id] for s in group.live if s.seq_id in scheduled]
                if group.prefilling and mine and any(span.start for span in mine):
                    what = "refill" if group.started and len(group.live) > 1 else "chunk"
                    events[f"{what} that continues"] += not plan.admitted.count(group.request_id)
        events["eviction"] += bool(self._cached_before - self.cached())
        events["swap-out of a cached block"] += bool(swapped_out & self._cached_before)
        lengths = {len(span.token_ids) > 1 for span in plan.spans}
        events["prefill and decode in one step"] += lengths == {True, False}
        events["tokens past the budget, alone"] += (
            plan.num_tokens > self.scheduler_config.max_num_batched_tokens
        )

    def _count_hits(self, group: SequenceGroup, scheduled: dict[int, Span], *, again: bool) -> None:
        """What a group that has just been admitted found in the cache."""
        prefixes, (first, *more) = self.engine.scheduler.prefixes, group.live
        if prefixes is None or more or first.seq_id not in scheduled:
            return
        start = scheduled[first.seq_id].start
        found = prefixes.block_table(first.seq_id)[: start // prefixes.block_size]
        pinned = Counter(prefixes._pinned())
        references = [prefixes.gpu.ref_count(block) - pinned[block] for block in found]
        events = self.events
        events["cache hit"] += bool(found)
        events["cache hit on an idle block"] += any(
            count == 1 and block not in pinned for block, count in zip(found, references)
        )
        events["cache hit beside its holder"] += any(count > 1 for count in references)
        events["cache hit on a registered block"] += any(block in pinned for block in found)
        events["cache hit after a preemption"] += bool(found) and again
        events["cache hit of all that may be found"] += (
            start == (first.num_tokens - 1) // prefixes.block_size * prefixes.block_size > 0
        )

    def _count_ends(self, outputs: Iterable[RequestOutput]) -> None:
        alive = {g.request_id for g in self.engine.scheduler.groups}
        for name, before in self._before.items():
            group = self.groups[name]
            for seq in group.finished_seqs[before.num_finished :]:
                if gave_up(seq):
                    younger = [s for s in group.live if s.index > seq.index]
                    _demand(not younger, "give-up", f"{seq} ended before the younger {younger}")
                    what = "beams" if group.params.use_beam_search else "sibling"
                    events = "the rest goes on" if name in alive else "the last one"
                    self.events[f"give-up: {what}, {events}"] += 1
        for output in outputs:
            if not output.finished:
                continue
            for completion in output.outputs:
                reason = completion.stop_reason
                kind = type(reason).__name__ if completion.finish_reason == "stop" else "end"
                self.events[f"{completion.finish_reason}: {kind}"] += 1


@dataclass(frozen=True)
class _State:
    """Where a group was before a step."""

    name: str
    started: bool
    prefilling: bool
    computed: int
    num_finished: int

    @classmethod
    def of(cls, group: SequenceGroup) -> _State:
        status = group.live[0].status.value if group.live else "just finished"
        if group.prefilling:
            status = "prefilling"
        elif status == "waiting" and group.num_preemptions:
            status = "waiting after a preemption"
        return cls(
            status,
            group.started,
            group.prefilling,
            sum(seq.num_computed for seq in group.live),
            len(group.finished_seqs),
        )


def _is_streamed(params: SamplingParams) -> bool:
    return not params.use_beam_search and params.width == params.n


def gave_up(ending) -> bool:
    """Did a sequence or an output end because the pool is too small for it alone?"""
    reason = ending.stop_reason
    return ending.finish_reason == "length" and isinstance(reason, str) and "the pool" in reason


# ------------------------------------------------------------------------------ comparing
class Reference:
    """What requests give undisturbed: in an engine with a huge pool.

    The results are kept, so that many disturbed runs can be compared with one undisturbed."""

    def __init__(self) -> None:
        self._results: dict[str, RequestOutput] = {}

    def of(self, request: Request, text: bool) -> RequestOutput:
        """Its output; where it is not known yet, that of a run of its own."""
        if self._key(request, text) not in self._results:
            self._run([request], text)
        return self._results[self._key(request, text)]

    def prepare(self, requests: Iterable[Request], text: bool) -> None:
        """Find out at once all that comparing these requests may need."""
        possible = [r for r in requests if len(r.prompt) < MAX_MODEL_LEN]
        siblings = [_every_sibling(r) for r in possible if not r.params.use_beam_search]
        self._run([*possible, *siblings], text)

    def _run(self, requests: list[Request], text: bool) -> None:
        config = SchedulerConfig(max_model_len=MAX_MODEL_LEN)
        engine = TestedEngine(config, HUGE_POOL, text=text, check=False)
        new = {self._key(r, text): r for r in requests}
        new = {key: request for key, request in new.items() if key not in self._results}
        for key, request in new.items():
            engine.add(replace(request, request_id=key))
        self._results.update(engine.run())
        disturbed = [r for r, output in engine.finished.items() if output.metrics.num_preemptions]
        assert not disturbed, "the reference's pool must be larger"

    @staticmethod
    def _key(request: Request, text: bool) -> str:
        return repr((request.prompt, request.params, text))

    def compare(self, engine: TestedEngine) -> None:
        """Every request of a finished engine gave what it gives alone (I7, I12)."""
        for name, output in engine.finished.items():
            self._compare(engine, engine.requests[name], output)

    def _compare(self, engine: TestedEngine, request: Request, output: RequestOutput) -> None:
        name, params = request.request_id, request.params
        reasons = {completion.finish_reason for completion in output.outputs}
        impossible = _is_impossible(engine, request, reserved=0)
        if impossible or "error" in reasons:
            # A registered prefix may have taken its blocks by then, or not.
            fine = _is_impossible(engine, request, reserved=engine.num_registered_blocks)
            fine = fine and reasons <= {"error", "abort"}
            _demand(fine, "refusal", f"{name!r} ended with {output.outputs}")
            return
        group = engine.groups[name]
        cut = [seq for seq in group.finished_seqs if gave_up(seq)]
        if name in engine.aborted or cut:
            if not params.use_beam_search:
                self._compare_beginnings(request, group, engine.text)
            return
        expected = self.of(request, engine.text)
        ours, theirs = output.outputs, expected.outputs
        _demand(len(ours) == params.n == len(theirs), "I7", f"{name!r} has {len(ours)} outputs")
        for a, b in zip(ours, theirs):
            _same_completion(f"output {a.index} of {name!r}", a, b)
        _same_logprobs(f"the prompt of {name!r}", output.prompt_logprobs, expected.prompt_logprobs)

    def _compare_beginnings(self, request: Request, group: SequenceGroup, text: bool) -> None:
        """Siblings that were cut short are beginnings of what they would have been."""
        whole = self.of(_every_sibling(request), text)
        for seq in group.all_seqs():
            expected, tokens = whole.outputs[seq.index].token_ids, seq.output_token_ids
            if gave_up(seq) or seq.finish_reason == "abort":
                expected = expected[: len(tokens)]
            _same(f"tokens of sibling {seq.index} of {request.request_id!r}", tokens, expected)


def _every_sibling(request: Request) -> Request:
    """The same request, with an output for each of its siblings."""
    if request.params.width == request.params.n:
        return request
    every = replace(request.params, n=request.params.width, best_of=None)
    return replace(request, params=every)


def _is_impossible(engine: TestedEngine, request: Request, reserved: int) -> bool:
    cache, config = engine.cache_config, engine.scheduler_config
    return (
        len(request.prompt) > (cache.num_gpu_blocks - reserved) * cache.block_size
        or request.params.width > config.max_num_seqs
        or len(request.prompt) >= config.max_model_len
    )


def _same(what: str, ours: object, theirs: object) -> None:
    _demand(ours == theirs, "I7", f"{what}: {ours}, undisturbed {theirs}")


def _same_completion(what: str, ours: CompletionOutput, theirs: CompletionOutput) -> None:
    for attribute in ("token_ids", "finish_reason", "stop_reason", "text"):
        _same(f"{attribute} of {what}", getattr(ours, attribute), getattr(theirs, attribute))
    a, b = ours.cumulative_logprob, theirs.cumulative_logprob
    _demand(a == b or abs(a - b) < 1e-4, "I7", f"log-probability of {what}: {a}, undisturbed {b}")
    _same_logprobs(what, ours.logprobs, theirs.logprobs)


def _same_logprobs(what: str, ours, theirs) -> None:
    def shape(entries):
        return entries and [entry and (entry.token_id, list(entry.top)) for entry in entries]

    _same(f"logprobs of {what}", shape(ours), shape(theirs))
    for a, b in zip(ours or (), theirs or ()):
        close = a is None or abs(a.logprob - b.logprob) < 1e-4
        _demand(close, "I7", f"logprob of {what}: {a}, undisturbed {b}")
