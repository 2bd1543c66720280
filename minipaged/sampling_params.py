"""What a request asks for, beyond its prompt. All values are checked here, before a request
enters the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from minipaged.errors import RequestError

MAX_N = 256


def _bad(name: str, value: object, limit: str) -> RequestError:
    return RequestError(f"{name} must be {limit}, not {value!r}")


@dataclass(frozen=True)
class SamplingParams:
    """Decoding options of one request, under the names that OpenAI and vLLM use.

    Raises:
        RequestError: a value is out of range; the message names the value and the limit.
    """

    n: int = 1
    """Outputs to return."""
    best_of: int | None = None
    """Sequences to sample, of which the ``n`` with the highest mean log-probability are
    returned; None: ``n``."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 (or -1): no limit."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    """Output ``k`` of sibling ``i`` is a pure function of (seed, i, k) and the logits."""
    max_tokens: int | None = 16
    """None: up to the model's length."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    """Strings that end a sequence; a single string is taken too."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    """Log-probabilities of that many likeliest tokens, and of the sampled one; 0 is the
    sampled one alone."""
    prompt_logprobs: int | None = None
    use_beam_search: bool = False
    """Beam search of width ``best_of`` (or ``n``); ``temperature`` plays no part."""
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if isinstance(self.stop, str):
            set_(self, "stop", (self.stop,))
        set_(self, "stop", tuple(self.stop or ()))
        set_(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        if self.top_k == -1:
            set_(self, "top_k", 0)
        self._check()

    def _check(self) -> None:
        def integer(name: str, low: int, high: int | None = None) -> None:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise _bad(name, value, f"an integer of at least {low}")
            if high is not None and value > high:
                raise _bad(name, value, f"at most {high}")

        def number(name: str, low: float, high: float, open_low: bool = False) -> None:
            value = getattr(self, name)
            fine = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not fine or not math.isfinite(value) or not low <= value <= high or (
                open_low and value == low
            ):  # fmt: skip
                raise _bad(name, value, f"in {'(' if open_low else '['}{low:g}, {high:g}]")

        integer("n", 1, MAX_N)
        if self.best_of is not None:
            integer("best_of", 1, MAX_N)
            if self.best_of < self.n:
                raise _bad("best_of", self.best_of, f"at least n ({self.n})")
        number("temperature", 0.0, 100.0)
        integer("top_k", 0)
        number("top_p", 0.0, 1.0, open_low=True)
        number("min_p", 0.0, 1.0)
        number("repetition_penalty", 0.0, 100.0, open_low=True)
        number("presence_penalty", -2.0, 2.0)
        number("frequency_penalty", -2.0, 2.0)
        if self.seed is not None:
            integer("seed", -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            integer("max_tokens", 1)
        integer("min_tokens", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _bad("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                integer(name, 0)
        for token, bias in (self.logit_bias or {}).items():
            if not isinstance(token, int) or token < 0:
                raise _bad("logit_bias", token, "a map from token ids of at least 0")
            if not -100 <= bias <= 100:
                raise _bad(f"logit_bias[{token}]", bias, "in [-100, 100]")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise _bad("stop", text, "non-empty strings")
        for token in self.stop_token_ids:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise _bad("stop_token_ids", token, "token ids of at least 0")
        if self.early_stopping not in (True, False, "never"):
            raise _bad("early_stopping", self.early_stopping, "True, False or 'never'")
        number("length_penalty", -100.0, 100.0)
        if self.use_beam_search:
            if self.stop:
                raise _bad("stop", self.stop, "empty with beam search (use stop_token_ids)")
            if self.width < 2:
                raise _bad("beam width (best_of or n)", self.width, "at least 2")
        elif self.width > 1 and self.temperature == 0:
            raise _bad(
                "temperature", self.temperature, f"above 0 for {self.width} sequences: "
                "greedy siblings would all be the same"
            )  # fmt: skip

    @property
    def width(self) -> int:
        """Sequences of the group that run at the same time: siblings, or the beam width."""
        return self.best_of or self.n

    @property
    def greedy(self) -> bool:
        return self.temperature == 0
