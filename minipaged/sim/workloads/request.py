"""A request as the simulator knows it: lengths and shared text, no words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from minipaged.errors import RequestError
from minipaged.sim.workloads.checks import require_positive

#: A piece of text: (content id, tokens).
Piece = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        arrival_time: seconds from the start of the workload.
        prompt_len: tokens of the prompt.
        output_len: tokens that it generates; it stops there and nowhere else, as in the authors'
            experiments.
        num_sequences: outputs that it asks for, or the beam width.
        beam: are they found by beam search?
        content: the pieces of text that the prompt begins with. Equal ids at equal places are
            equal text. What follows them is the request's own text, and no other prompt has it.
        reply: content id of the output, if a later prompt goes on from it; None: its own text.
    """

    arrival_time: float
    prompt_len: int
    output_len: int
    num_sequences: int = 1
    beam: bool = False
    content: tuple[Piece, ...] = ()
    reply: int | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            RequestError: a value is out of its range; the message names both.
        """
        if not 0 <= self.arrival_time < math.inf:
            raise RequestError(f"arrival_time must be 0 s or later, not {self.arrival_time}")
        if self.prompt_len < 1 or self.output_len < 1 or self.num_sequences < 1:
            for name in ("prompt_len", "output_len", "num_sequences"):
                if (value := getattr(self, name)) < 1:
                    raise RequestError(f"{name} must be at least 1, not {value}")
        if self.content:
            self._check_content()

    def _check_content(self) -> None:
        shared = 0
        for content_id, tokens in self.content:
            if content_id < 0 or tokens < 1:
                raise RequestError(
                    f"content ({content_id}, {tokens}): an id is at least 0 and a piece has at "
                    "least 1 token"
                )
            shared += tokens
        if shared > self.prompt_len:
            raise RequestError(
                f"content of {shared} tokens is longer than the prompt of {self.prompt_len}"
            )

    @property
    def total_len(self) -> int:
        """Tokens of the prompt and of one output."""
        return self.prompt_len + self.output_len

    def token_ids(self, own: int) -> list[int]:
        """The prompt, as tokens that are equal where texts are: each token of a piece is the
        piece's content id.

        Made on each call, for a workload of long prompts need not hold them all.

        Args:
            own: the token of the request's own text: :attr:`Workload.own_ids` has one for each.

        Returns:
            ``prompt_len`` tokens.
        """
        ids: list[int] = []
        for content_id, tokens in self.content:
            ids += [content_id] * tokens
        ids += [own] * (self.prompt_len - len(ids))
        return ids


@dataclass(frozen=True)
class Workload:
    """Requests in the order in which they arrive.

    Attributes:
        name: what it is, for tables and figures.
        requests: at least one, sorted by arrival.
        max_model_len: tokens that no request is longer than, prompt and output together.
        prefix: a text that is in the cache before the first request (paper, section 4.4, "shared
            prefix"); prompts that begin with these pieces use it.
        notes: what was left out or changed in making it; one sentence each, to be shown.
    """

    name: str
    requests: tuple[Request, ...]
    max_model_len: int = 2048
    prefix: tuple[Piece, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """
        Raises:
            RequestError: there is no request, they are out of order, or one is too long.
        """
        if not self.requests:
            raise RequestError(f"the workload {self.name} has no requests")
        former = 0.0
        for number, request in enumerate(self.requests):
            if request.arrival_time < former:
                raise RequestError(
                    f"request {number} of {self.name} arrives at {request.arrival_time} s, before "
                    f"the one ahead of it ({former} s)"
                )
            if request.prompt_len + request.output_len > self.max_model_len:
                raise RequestError(
                    f"request {number} of {self.name} has {request.prompt_len} + "
                    f"{request.output_len} tokens: max_model_len is {self.max_model_len}"
                )
            former = request.arrival_time

    # ------------------------------------------------------------------ what it amounts to
    @property
    def num_requests(self) -> int:
        return len(self.requests)

    @property
    def duration(self) -> float:
        """Seconds until the last arrival."""
        return self.requests[-1].arrival_time

    @property
    def request_rate(self) -> float:
        """Arrivals a second from the first to the last; 0 where all arrive at once."""
        seconds = self.duration - self.requests[0].arrival_time
        return (self.num_requests - 1) / seconds if seconds else 0.0

    @cached_property
    def mean_prompt_len(self) -> float:
        """Tokens."""
        return fmean(request.prompt_len for request in self.requests)

    @cached_property
    def mean_output_len(self) -> float:
        """Tokens of one output."""
        return fmean(request.output_len for request in self.requests)

    @cached_property
    def own_ids(self) -> range:
        """For each request a number that is nobody's content id, for
        :meth:`Request.token_ids`."""
        first = 1 + max(self._content_ids(), default=-1)
        return range(first, first + self.num_requests)

    def _content_ids(self) -> Iterator[int]:
        yield from (content_id for content_id, _ in self.prefix)
        for request in self.requests:
            yield from (content_id for content_id, _ in request.content)
            if request.reply is not None:
                yield request.reply

    # ------------------------------------------------------------------ the same, otherwise
    def scaled(self, factor: float) -> Workload:
        """The same requests, arriving ``factor`` times as fast.

        Raises:
            ConfigError: the factor is not above 0.
        """
        require_positive(factor=factor)
        return self._arriving([request.arrival_time / factor for request in self.requests])

    def redrawn(self, rate: float, seed: int = 0, burstiness: float = 1.0) -> Workload:
        """The same requests in the same order, at random times instead of their own.

        Args:
            rate: requests a second, on average.
            burstiness: shape of the gamma distribution of the times between arrivals; 1: they
                are a Poisson process, and below 1 they come in bursts.

        Raises:
            ConfigError: an argument is not above 0.
        """
        require_positive(rate=rate, burstiness=burstiness)
        gaps = np.random.default_rng(seed).gamma(
            shape=burstiness, scale=1 / (rate * burstiness), size=self.num_requests
        )
        return self._arriving(np.cumsum(gaps).tolist())

    def _arriving(self, times: list[float]) -> Workload:
        pairs = zip(self.requests, times, strict=True)
        return replace(self, requests=tuple(replace(r, arrival_time=time) for r, time in pairs))
