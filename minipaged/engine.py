"""The engine: requests in, one step at a time, outputs out (paper, section 4).

Everything that it is made of comes in through the constructor. It knows neither devices nor
models: a model on a GPU, a simulation on a virtual clock and the tests' hash function are
executors to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from operator import index
from typing import TYPE_CHECKING

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.contracts import StepPlan
from minipaged.errors import ConfigError, RequestError
from minipaged.invariants import InvariantMonitor
from minipaged.kvcache.manager import PagedKVManager
from minipaged.kvcache.prefix_manager import PrefixKVManager
from minipaged.outputs import CompletionOutput, RequestMetrics, RequestOutput
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup, Status

if TYPE_CHECKING:
    from minipaged.contracts import (
        Clock,
        Executor,
        GroupDecision,
        KVManager,
        Sampling,
        Tokenizer,
    )
    from minipaged.trace import TraceWriter


class Engine:
    """Serves requests from one KV cache.

    Attributes:
        kv: the block manager.
        scheduler: the queues, and the decisions about them.
        executor: what computes logits.
        num_steps: steps taken.
        last_plan: the plan of the last step.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        executor: Executor,
        sampling: Sampling,
        *,
        parts: Parts | None = None,
        tokenizer: Tokenizer | None = None,
        vocab_size: int | None = None,
        clock: Clock = time.monotonic,
        check: bool = False,
        trace: TraceWriter | None = None,
    ) -> None:
        """
        Args:
            cache_config: with ``num_gpu_blocks`` and ``num_cpu_blocks`` settled.
            vocab_size: prompts with token ids past it are refused.
            check: verify the invariants in every step.
            trace: gets a record of every step.
        """
        self.parts = parts or Parts()
        self.kv = make_kv_manager(cache_config, scheduler_config, self.parts)
        watermark = self.parts.watermark_blocks(self.kv.num_gpu_blocks, cache_config.watermark)
        self.scheduler = self.parts.Scheduler(
            scheduler_config,
            self.kv,
            self.parts.Admission(scheduler_config, self.kv, watermark),
            self.parts.Preemption(self.kv, scheduler_config.preemption),
        )
        self.executor = executor
        self.sampling = sampling
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.clock = clock
        self.trace = trace
        self.num_steps = 0
        self.last_plan = StepPlan()
        self._requests: dict[str, _Request] = {}
        self._num_added = 0
        self._monitor: InvariantMonitor | None = None
        if check:
            prefixes = self.scheduler.prefixes
            cached = prefixes.cached if prefixes is not None else ()
            self._monitor = InvariantMonitor(self.kv, exact=self.kv.preemptible, cached=cached)

    # -- requests ----------------------------------------------------------------------------
    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Seq[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
        expected_output_len: int | None = None,
        arrival_time: float | None = None,
        cache_salt: str = "",
        stream: bool = False,
    ) -> None:
        """Queue a request. It ends with exactly one output that is ``finished``.

        Args:
            priority: lower runs first.
            expected_output_len: what a contiguous reservation with an oracle is told.
            arrival_time: on the engine's clock; None: now.
            cache_salt: where prefixes are shared, only with requests that have the same.
            stream: also return an output for every step that changes the request.

        Raises:
            RequestError: the request cannot be served as it is written; the message names the
                value and the limit. Nothing has been queued.
        """
        tokens = _as_token_ids(prompt_token_ids)
        self._check(request_id, tokens, params)
        seq = Sequence(self.scheduler.new_seq_id(), tokens)
        if self.tokenizer is not None:
            from minipaged.sampling.text_stream import TextStream

            seq.text = TextStream(self.tokenizer, tokens, params)
        group = SequenceGroup(
            request_id,
            seq,
            params,
            arrival_time=self.clock() if arrival_time is None else arrival_time,
            arrival_index=self._num_added,
            priority=priority,
            expected_output_len=expected_output_len,
            cache_salt=cache_salt,
        )
        self._num_added += 1
        self._requests[request_id] = _Request(group, prompt, stream)
        self.scheduler.add(group)

    def _check(self, request_id: str, tokens: Seq[int], params: SamplingParams) -> None:
        if request_id in self._requests:
            raise RequestError(f"request {request_id!r} is already being served")
        if not tokens:
            raise RequestError("the prompt is empty: it must have at least one token")
        if params.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this engine has none")
        self._check_ids("the prompt", tokens)
        self._check_ids("logit_bias", params.logit_bias or ())
        self._check_ids("stop_token_ids", params.stop_token_ids)

    def _check_ids(self, name: str, ids: Iterable[int]) -> None:
        if self.vocab_size is None:
            return
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise RequestError(
                    f"{name} has token id {token}; the model's ids are 0 to {self.vocab_size - 1}"
                )

    def register_prefix(self, token_ids: Seq[int]) -> int:
        """Share the beginning of requests to come (paper, section 4.4). The first that begins
        with it computes it; from then on its blocks stay, and the pool is smaller by them.

        Registered prefixes are for requests without a ``cache_salt``.

        Returns:
            The tokens that are shared: whole blocks only. The rest of the prefix is computed by
            each request.

        Raises:
            ConfigError: the engine shares no prefixes.
            RequestError: a token id does not exist, or no block would be left beside the prefixes.
        """
        prefixes = self.scheduler.prefixes
        if prefixes is None:
            raise ConfigError(
                "the engine shares no prefixes: CacheConfig.prefix_caching must be True or "
                "'registered'"
            )
        tokens = _as_token_ids(token_ids)
        self._check_ids("the prefix", tokens)
        return prefixes.register(tokens)

    def abort(self, request_id: str) -> bool:
        """End a request, wherever it is. Its blocks are free at once; its last output comes
        with the next step, or from :meth:`take_ended`.

        Returns:
            False if no such request is unfinished.
        """
        if self.scheduler.abort(request_id):
            return True
        request = self._requests.get(request_id)
        if request is None or request.group in self.scheduler.ended:
            return False
        # It ended in a step whose outputs never arrived (an interrupt): here they come.
        self.scheduler.ended.append(request.group)
        return True

    def take_ended(self) -> list[RequestOutput]:
        """The last outputs of requests that ended since the last step, without a step."""
        outputs = self._outputs(())
        if self._monitor is not None:
            self._monitor.ended(self.scheduler.groups, outputs)
        return outputs

    def has_unfinished(self) -> bool:
        """Is there a request that has not had its last output?"""
        return bool(self._requests)

    # -- the step ----------------------------------------------------------------------------
    def step(self) -> list[RequestOutput]:
        """Compute one token for every sequence that has memory, and return what came of it.

        Returns:
            The last output of each request that ended, and one of each streamed request that
            got a token.

        Raises:
            Exception: what the executor raised. Every request is as it was before the step, but
                for its keys and values, which will be computed again: stepping on is safe.
        """
        start = self.clock()
        self.last_plan = plan = self.scheduler.schedule()
        if self._monitor is not None:
            self._monitor.planned(plan, self.scheduler.groups)
        for request_id in plan.admitted:
            group = self._requests[request_id].group
            if group.first_scheduled_time is None:
                group.first_scheduled_time = start
        decisions: list[GroupDecision] = []
        if not plan.idle:
            try:
                logits = self.executor.execute(plan)
                decisions = self.sampling.decide(plan, logits, self.scheduler.running)
            except BaseException:
                self.scheduler.abandon(plan)
                raise
            self._read(decisions)
        changed = self.scheduler.commit(decisions)
        self.num_steps += 1
        outputs = self._outputs(changed)
        if self._monitor is not None:
            self._monitor.committed(plan, self.scheduler.groups, outputs)
        if self.trace is not None:
            self.trace.write(plan, self, start, outputs)
        return outputs

    def _read(self, decisions: Iterable[GroupDecision]) -> None:
        """Turn tokens into text, in which a stop string may end a sequence."""
        if self.tokenizer is None:
            return
        for decision in decisions:
            children = decision.children
            # A parent with several continuations lends its text to each.
            forks = len({child.parent.seq_id for child in children}) < len(children)
            for child in children:
                child.text = child.parent.text.clone() if forks else child.parent.text
            for child in children:
                match = child.text.push(child.token_id, child.finish)
                if match is not None:
                    child.finish, child.stop_reason = "stop", match.stop

    # -- outputs -----------------------------------------------------------------------------
    def _outputs(self, changed: Iterable[SequenceGroup]) -> list[RequestOutput]:
        now = self.clock()
        ended, streamed = self.scheduler.ended, []
        for group in changed:
            if group.first_token_time is None:
                group.first_token_time = now
            if not group.seqs:
                ended.append(group)
            elif self._requests[group.request_id].stream:
                streamed.append(group)
        outputs = [self._output(group, now) for group in (*ended, *streamed)]
        # Not before all are made: an interrupt until here loses no request's last output.
        self.scheduler.ended = []
        for group in ended:
            del self._requests[group.request_id]
        return outputs

    def _output(self, group: SequenceGroup, now: float) -> RequestOutput:
        request = self._requests[group.request_id]
        return RequestOutput(
            request_id=group.request_id,
            prompt=request.prompt,
            prompt_token_ids=group.prompt_token_ids,
            outputs=[
                self._completion(i, seq, group)
                for i, seq in enumerate(self.sampling.select_outputs(group))
            ],
            finished=group.finished,
            metrics=RequestMetrics(
                group.arrival_time,
                group.first_scheduled_time,
                group.first_token_time,
                now if group.finished else None,
                group.num_preemptions,
            ),
            prompt_logprobs=group.prompt_logprobs,
            num_cached_tokens=group.num_cached_tokens,
        )

    def _completion(self, index: int, seq: Sequence, group: SequenceGroup) -> CompletionOutput:
        params = group.params
        scored = params.logprobs is not None or params.width > params.n or params.use_beam_search
        text = delta = ""
        if seq.text is not None:
            if seq.status is Status.FINISHED:
                seq.text.finish(seq.finish_reason)
            text, delta = seq.text.text, seq.text.delta()
        return CompletionOutput(
            index=index,
            text=text,
            delta=delta,
            token_ids=seq.output_token_ids,
            cumulative_logprob=seq.cumulative_logprob if scored else None,
            logprobs=list(seq.logprobs) if params.logprobs is not None else None,
            finish_reason=seq.finish_reason,
            stop_reason=seq.stop_reason,
        )


class _Request:
    """What the engine keeps of a request beside its group."""

    __slots__ = ("group", "prompt", "stream")

    def __init__(self, group: SequenceGroup, prompt: str | None, stream: bool) -> None:
        self.group = group
        self.prompt = prompt
        self.stream = stream


def _as_token_ids(tokens: Iterable[object]) -> list[int]:
    """Python's own integers, whichever kind they come as (NumPy's, say)."""
    result = []
    for token in tokens:
        try:
            result.append(index(token))  # type: ignore[arg-type]
        except TypeError:
            raise RequestError(
                f"the prompt has {token!r} where a token id should be: ids are integers"
            ) from None
    return result


def make_kv_manager(cache: CacheConfig, scheduler: SchedulerConfig, parts: Parts) -> KVManager:
    """The block manager that a configuration asks for: paged, or a contiguous baseline."""
    assert cache.num_gpu_blocks is not None, "the pool's size must be settled first"
    if cache.reservation == "paged":
        cpu_blocks = cache.num_cpu_blocks or 0
        sizes = (cache.num_gpu_blocks, cpu_blocks, cache.block_size)
        if cache.prefix_caching:
            automatic = cache.prefix_caching is True
            return PrefixKVManager(*sizes, parts, automatic=automatic)
        return PagedKVManager(*sizes, parts)
    max_chunk = -(-scheduler.max_model_len // cache.block_size)
    return parts.ContiguousKVManager(
        parts.BuddyAllocator(cache.num_gpu_blocks, max_chunk=1 << (max_chunk - 1).bit_length()),
        cache.block_size,
        scheduler.max_model_len,
        cache.reservation,
    )
