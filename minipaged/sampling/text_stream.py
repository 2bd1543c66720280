"""The text of one sequence: detokenizer and stop strings, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from minipaged.sampling.detokenizer import IncrementalDetokenizer
from minipaged.sampling.stopping import StopMatch, StopMatcher

if TYPE_CHECKING:
    from minipaged.contracts import Tokenizer
    from minipaged.sampling_params import SamplingParams


class TextStream:
    """Turns the output tokens of a sequence into the text that its user sees.

    Args:
        prompt_token_ids: context of the first output token.
        detokenizer, stop_matcher: the parts to build it from.
    """

    __slots__ = (
        "_delta", "_detokenizer", "_eos_token_ids", "_finished", "_matcher", "_num_tokens",
        "_params", "_shown",
    )  # fmt: skip

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        detokenizer: Callable[..., IncrementalDetokenizer] = IncrementalDetokenizer,
        stop_matcher: Callable[..., StopMatcher] = StopMatcher,
    ) -> None:
        self._params = params
        self._eos_token_ids = tokenizer.eos_token_ids
        self._detokenizer = detokenizer(tokenizer, prompt_token_ids, params.skip_special_tokens)
        self._matcher = stop_matcher(params.stop, params.include_stop_str_in_output)
        self._num_tokens = 0
        self._finished = False
        self._shown = ""  # given out by delta()
        self._delta: list[str] = []

    def push(self, token_id: int, finish: str | None = None) -> StopMatch | None:
        """Take the next output token.

        Args:
            token_id: an id below 0 is no token.
            finish: why the sequence ends with this token, if it does. A token that is itself
                the reason (``stop``) has no text; a stop token id has with
                ``include_stop_str_in_output``, the end-of-sequence token never.

        Returns:
            the stop string that this token's text completes. Stop strings are looked for from
            the ``min_tokens``-th token on.
        """
        self._num_tokens += 1
        if token_id < 0 or (finish == "stop" and not self._shows_stop(token_id)):
            return None
        search = self._num_tokens >= self._params.min_tokens
        # A stop id ends the sequence by itself, whatever its text completes.
        search = search and finish != "stop"
        self._show(self._matcher.push(self._detokenizer.push(token_id), search))
        return self._matcher.match

    def finish(self, reason: str | None = None) -> None:
        """The sequence is over, for whatever ``reason``: release what was held back. A character
        that is incomplete becomes one U+FFFD. Doing it again changes nothing."""
        if self._finished:
            return
        self._finished = True
        self._show(self._matcher.push(self._detokenizer.finish(), search=False))
        self._show(self._matcher.flush())

    @property
    def text(self) -> str:
        """All text released so far."""
        return self._shown + "".join(self._delta)

    def delta(self) -> str:
        """The text released since the last call. All deltas add up to :attr:`text`."""
        delta = "".join(self._delta)
        self._delta.clear()
        self._shown += delta
        return delta

    def clone(self) -> TextStream:
        """The text of a fork, whose future is its own."""
        copy = type(self).__new__(type(self))
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        copy._detokenizer = self._detokenizer.clone()
        copy._matcher = self._matcher.clone()
        copy._delta = ["".join(self._delta)]
        return copy

    def _show(self, text: str) -> None:
        if text:
            self._delta.append(text)

    def _shows_stop(self, token_id: int) -> bool:
        return self._params.include_stop_str_in_output and token_id not in self._eos_token_ids
