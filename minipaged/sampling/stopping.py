"""Stop strings, found in text that arrives in pieces.

A stop string is a matter of text, not of tokens: it can begin in the middle of one token and
end in the middle of another. And what was shown cannot be taken back, so text that may still
turn out to be the beginning of a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string was found.

    Attributes:
        stop: which.
    """

    stop: str


class StopMatcher:
    """Watches the text of one sequence for stop strings.

    Args:
        stops: non-empty strings.
        include: is the stop string itself shown?

    The stop string that is *complete* first wins, and of several that are complete at the same
    character the longest. So the result does not depend on how the text is cut into pieces.

    The pieces that :meth:`push` and :meth:`flush` return add up to what may be shown: the text
    up to the stop string (or through it, with ``include``), or all of it if there is none. No
    piece holds a part of what may still become a stop string. The cost of a character does not
    depend on the length of the text or of the stop strings.

    Example: ``m = StopMatcher(["STOP"])``; ``m.push("abcST")`` is ``"abc"``, ``m.push("OPde")``
    is ``""`` and ``m.match`` is ``StopMatch("STOP")``.
    """

    __slots__ = ("_fallbacks", "_held", "_include", "_matched", "_stops", "match")

    def __init__(self, stops: Seq[str], include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._fallbacks = tuple(_fallback(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)  # characters of each stop that the text ends with
        self._held = ""
        self.match: StopMatch | None = None

    def push(self, text: str, search: bool = True) -> str:
        """Take the next piece of text.

        Args:
            search: may a stop string end in this piece? If not, one that does is ordinary text;
                one that only begins in it may still match later.

        Returns:
            the text that can be shown now. After a match it is always ``""``.
        """
        if self.match is not None or not text:
            return ""
        if not self._stops:
            return text
        whole = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            found = self._step(character)
            if found and search:
                self.match = StopMatch(found)
                self._held = ""
                return whole[: end if self._include else end - len(found)]
        held = max(self._matched)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held]

    def flush(self) -> str:
        """The text is over: what was held back is no stop string, and can be shown."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def clone(self) -> StopMatcher:
        """An independent copy, at a cost that does not depend on the length of the text."""
        copy = type(self).__new__(type(self))
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        copy._matched = list(self._matched)
        return copy

    def _step(self, character: str) -> str:
        """Feed one character to every automaton; the longest stop that it completes, or ""."""
        found = ""
        for i, stop in enumerate(self._stops):
            fallback, matched = self._fallbacks[i], self._matched[i]
            while matched and stop[matched] != character:
                matched = fallback[matched]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                if len(stop) > len(found):
                    found = stop
                matched = fallback[matched]
            self._matched[i] = matched
        return found


def _fallback(stop: str) -> list[int]:
    """Knuth, Morris and Pratt's failure function: entry k is the length of the longest proper
    prefix of ``stop`` that its first k characters end with."""
    table = [0] * (len(stop) + 1)
    length = 0
    for k in range(1, len(stop)):
        while length and stop[length] != stop[k]:
            length = table[length]
        if stop[length] == stop[k]:
            length += 1
        table[k + 1] = length
    return table
