"""From token ids back to text, one token at a time.

A token is not a piece of text: a character may spread over several tokens (byte-level BPE, byte
fallback), and SentencePiece writes a word's leading space only where the word does not come
first. So tokens are decoded in a window, whose older tokens are there only as context.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.contracts import Tokenizer

REPLACEMENT = "\ufffd"
"""What decoding gives in place of bytes that are no character (yet)."""

_MAX_WINDOW = 12
_MAX_WAIT = 16
_CHARACTER = 3  # tokens that the last, incomplete character of a text can have at most
_CONTEXT = 6


class IncrementalDetokenizer:
    """Decodes the output of one sequence as it grows.

    Args:
        tokenizer: its ``decode`` is called on windows of a few tokens.
        prompt_token_ids: the context of the first output token; their own text is not given out.
        skip_special_tokens: special tokens have no text.

    The pieces that :meth:`push` and :meth:`finish` return add up to the text of the output, as it
    reads after the prompt: a leading space that the prompt makes necessary is kept. No piece
    holds a part of a character. Bytes that never become a character give U+FFFD. The cost of a
    token does not depend on how many came before.

    Example: a byte-level tokenizer has "é" as the ids 10, 11. ``push(10)`` is ``""`` and
    ``push(11)`` is ``"é"``.
    """

    __slots__ = ("_boundary", "_context_len", "_shown", "_skip", "_tokenizer", "_window")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Seq[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        # The window is context up to _boundary, where the text so far ended in a whole
        # character, and new tokens behind it. Of its text, _shown is out already; the first
        # _context_len characters of that are the context's.
        self._window = list(prompt_token_ids[-_CONTEXT:])
        self._shown = self._decode(self._window)
        self._boundary = len(self._window)
        self._context_len = len(self._shown)

    def push(self, token_id: int) -> str:
        """Take the next output token.

        Returns:
            the text that can be given out now: ``""`` while a character is incomplete.
        """
        window = self._window
        window.append(token_id)
        text = self._decode(window)
        waits = text.endswith(REPLACEMENT)
        if self._boundary and (waits or not text.startswith(self._shown)):
            text = self._leave_context(text)
            waits = text.endswith(REPLACEMENT)
        if waits and len(self._window) - self._boundary > _MAX_WAIT:
            return self._give_up_waiting()
        piece = self._show(text.rstrip(REPLACEMENT) if waits else text)
        if not waits:
            self._advance()
        return piece

    def finish(self) -> str:
        """End the text.

        Returns:
            the rest of it. A character that is still incomplete becomes one U+FFFD.
        """
        text = self._decode(self._window)
        piece = self._show(text.rstrip(REPLACEMENT))
        if text.endswith(REPLACEMENT) and len(self._window) > self._boundary:
            piece += REPLACEMENT
        self._window, self._boundary = [], 0
        self._shown, self._context_len = "", 0
        return piece

    def clone(self) -> IncrementalDetokenizer:
        """An independent copy, at a cost that does not depend on the length of the text."""
        copy = type(self).__new__(type(self))
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        copy._window = list(self._window)
        return copy

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip) if token_ids else ""

    def _show(self, text: str) -> str:
        """Give out what ``text`` has beyond what is out."""
        if len(text) <= len(self._shown):
            return ""
        piece = text[len(self._shown) :]
        self._shown = text
        return piece

    def _advance(self) -> None:
        """The text ends in a whole character: its tokens can be context from here on."""
        if len(self._window) > _MAX_WINDOW:
            del self._window[: self._boundary]
            self._shown = self._decode(self._window)
        self._boundary = len(self._window)
        self._context_len = len(self._shown)

    def _leave_context(self, text: str) -> str:
        """Decode the new tokens by themselves, if the context is what spoils them.

        Byte fallback decodes a whole run of bytes or nothing of it, so that one bad byte turns
        characters into U+FFFD that are out already. New tokens that go on with such a run are
        bytes, and need no context.
        """
        alone = self._decode(self._window[self._boundary :])
        if text.startswith(self._shown) and alone.endswith(REPLACEMENT):
            return text
        self._shown = self._shown[self._context_len :]
        del self._window[: self._boundary]
        self._boundary = self._context_len = 0
        return alone

    def _give_up_waiting(self) -> str:
        """So many tokens are no beginning of a character: all but the last few are out."""
        piece = self._show(self._decode(self._window[:-_CHARACTER]))
        self._window = self._window[-_CHARACTER:]
        self._shown = ""
        self._boundary = self._context_len = 0
        return piece
