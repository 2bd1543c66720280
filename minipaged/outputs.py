"""What a request gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from minipaged.sequence import TokenLogprob


@dataclass(slots=True)
class CompletionOutput:
    """One of the ``n`` outputs of a request, as far as it has come.

    Attributes:
        index: which of the outputs it is.
        text: all text released so far; empty where the engine has no tokenizer.
        delta: the text released since the last output of this request. The deltas add up to
            the final ``text`` for requests whose outputs are streamed (not beams, nor
            ``best_of > n``, whose outputs are only known at the end).
        token_ids: all output tokens, the one that ended it included.
        cumulative_logprob: sum over the tokens, in nats; None where nothing asked for it.
        logprobs: one entry a token, where asked for.
        finish_reason: ``stop``, ``length``, ``abort``, ``error``; None while it runs.
        stop_reason: the stop string or id that matched, or a sentence that says why the
            engine ended it.
    """

    index: int
    text: str
    delta: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[TokenLogprob] | None
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(slots=True)
class RequestMetrics:
    """Times on the engine's clock, in seconds; None for what has not happened."""

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float | None
    num_preemptions: int


@dataclass(slots=True)
class RequestOutput:
    """The state of a request after a step. Exactly one output a request has ``finished``."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprob | None] | None = field(default=None)
    num_cached_tokens: int = 0
    """Tokens of the prompt that were found in the prefix cache, and not computed."""
