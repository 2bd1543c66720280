"""Prompts for the model opt-stories, as token ids."""

from __future__ import annotations

from typing import Any

#: "Once upon a time, there was a little girl named Anna. She" and "Tom and his mother went to the
#: river to look for fish. The".
BEGINNINGS = (
    [2, 365, 361, 261, 352, 14, 347, 284, 261, 356, 569, 399, 556, 80, 80, 67, 16, 291],
    [2, 488, 282, 402, 977, 604, 270, 266, 332, 75, 345, 270, 901, 455, 727, 16, 343],
)


def prompt_of(rng: Any, length: int) -> list[int]:
    """So many tokens: a beginning of a story, and then whatever words."""
    words = [*BEGINNINGS[int(rng.integers(2))], *rng.integers(16, 1000, size=length).tolist()]
    return [int(word) for word in words[:length]]
