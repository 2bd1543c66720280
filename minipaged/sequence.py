"""Sequences and sequence groups: what the scheduler queues and the block manager maps.

Two numbers of a sequence must never be mixed up:

* ``num_tokens``: the tokens that it consists of, prompt and output;
* ``num_computed``: those whose keys and values are in the cache. The token sampled last is
  not: it is fed to the model in the next step, so a decoding sequence has
  ``num_computed == num_tokens - 1``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from minipaged.sampling_params import SamplingParams


class Status(enum.Enum):
    """Where a sequence is. Siblings of a group that are not finished share one status."""

    WAITING = "waiting"
    """Holds no blocks."""
    RUNNING = "running"
    """Its blocks are on the device."""
    SWAPPED = "swapped"
    """Its blocks are in host memory."""
    FINISHED = "finished"
    """Holds nothing, for ever."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token, and of the likeliest ones in its place."""

    token_id: int
    logprob: float
    top: dict[int, float]
    """token id -> log-probability, likeliest first; holds ``token_id`` too."""


class Sequence:
    """One stream of tokens.

    Attributes:
        seq_id: unique in the engine.
        index: which sibling of its group it is (0-based); part of its seed.
        token_ids: prompt and output.
        num_prompt_tokens: how many of them are the prompt.
        num_computed: tokens whose keys and values are in the cache.
        cumulative_logprob: sum over the output tokens (units: nats).
        finish_reason: ``stop``, ``length``, ``abort``, ``error``, or None while it lives.
        stop_reason: the stop string or stop token id that ended it, or a sentence that says
            why the engine did; None for the end-of-sequence token and ``max_tokens``.
        text: the incremental detokenizer and stop matcher, owned by the engine; None where
            a request has no tokenizer.
    """

    __slots__ = (
        "cumulative_logprob", "finish_reason", "index", "logprobs", "num_computed",
        "num_prompt_tokens", "seq_id", "status", "stop_reason", "text", "token_ids",
    )  # fmt: skip

    def __init__(self, seq_id: int, token_ids: Iterable[int], index: int = 0) -> None:
        self.seq_id = seq_id
        self.index = index
        self.token_ids: list[int] = list(token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed = 0
        self.status = Status.WAITING
        self.cumulative_logprob = 0.0
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.text: Any = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def finished(self) -> bool:
        return self.status is Status.FINISHED

    def fork(self, seq_id: int, index: int) -> Sequence:
        """A sibling with the same tokens, whose future is its own."""
        child = Sequence(seq_id, self.token_ids, index)
        child.num_prompt_tokens = self.num_prompt_tokens
        child.num_computed = self.num_computed
        child.status = self.status
        child.cumulative_logprob = self.cumulative_logprob
        child.logprobs = list(self.logprobs)
        child.text = self.text.clone() if self.text is not None else None
        return child

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, {self.status.value}, tokens={self.num_tokens}, "
            f"computed={self.num_computed})"
        )


class SequenceGroup:
    """The sequences of one request: scheduled, preempted and resumed together
    (paper, section 4.5: gang-scheduled)."""

    def __init__(
        self,
        request_id: str,
        seq: Sequence,
        params: SamplingParams,
        arrival_time: float = 0.0,
        arrival_index: int = 0,
        priority: int = 0,
        expected_output_len: int | None = None,
        cache_salt: str = "",
    ) -> None:
        """
        Args:
            arrival_time: seconds on the engine's clock.
            arrival_index: breaks ties: the number of requests added before this one.
            priority: lower runs first.
            expected_output_len: what a contiguous reservation with an oracle is told;
                None: ``params.max_tokens``.
            cache_salt: blocks are shared only with groups that have the same.
        """
        self.request_id = request_id
        self.params = params
        self.arrival_time = arrival_time
        self.arrival_index = arrival_index
        self.priority = priority
        self.expected_output_len = expected_output_len
        self.cache_salt = cache_salt
        self.seqs: dict[int, Sequence] = {seq.seq_id: seq}
        self.finished_seqs: list[Sequence] = []
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        """Tokens of the prompt whose keys and values were there when the group started."""
        self.started = False
        """Has the group sampled its first token, and forked into its siblings?"""
        self.prefilling = False
        """Are keys and values of tokens before the last one still being computed?"""
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.last_token_time: float | None = None
        #: the tables' shape at a recompute preemption of several sequences: for each sequence
        #: the labels of its blocks, equal labels being one physical block
        self.shape: dict[int, list[int]] | None = None
        #: the beam search of the group, if it has one
        self.beam: Any = None

    @property
    def order(self) -> tuple[int, float, int]:
        """The one order of the scheduler: (priority, arrival)."""
        return (self.priority, self.arrival_time, self.arrival_index)

    @property
    def live(self) -> list[Sequence]:
        """Sequences that are not finished, by sibling."""
        return list(self.seqs.values())

    @property
    def prompt_token_ids(self) -> list[int]:
        first = next(self.all_seqs())
        return first.token_ids[: first.num_prompt_tokens]

    @property
    def finished(self) -> bool:
        return not self.seqs

    def all_seqs(self) -> Iterator[Sequence]:
        yield from self.seqs.values()
        yield from self.finished_seqs

    def places(self, count_finished: bool = False) -> int:
        """Places that the group takes under the engine's sequence limit: the most sequences
        that it can have from now on; with ``count_finished`` those that it ever had, too."""
        if self.started and not self.params.use_beam_search and not count_finished:
            return len(self.seqs)
        return self.params.width

    def __repr__(self) -> str:
        return f"SequenceGroup({self.request_id!r}, {self.live})"
