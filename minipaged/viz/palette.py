"""The look that all renderers share: a color and a letter for each sequence."""

from __future__ import annotations

import re
import string

#: Told apart with any of the common color blindnesses (after Okabe and Ito, and Tol).
COLORS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7",
    "#56B4E9", "#D55E00", "#999933", "#882255",
)  # fmt: skip

LETTERS = string.ascii_lowercase + string.ascii_uppercase


def owner_number(seq: str) -> int:
    """A number that stays with a sequence as others come and go: the one that its name ends in,
    or one made of its letters."""
    digits = re.search(r"\d+$", seq)
    return int(digits[0]) if digits else sum(map(ord, seq))


def color_of(seq: str) -> str:
    """``#RRGGBB``"""
    return COLORS[owner_number(seq) % len(COLORS)]


def letter_of(seq: str) -> str:
    """One letter: colors repeat sooner than letters do, and not everyone sees them. A name such
    as ``A`` or ``B2`` has its own."""
    if re.fullmatch(r"[A-Za-z]\d*", seq):
        return seq[0]
    return LETTERS[owner_number(seq) % len(LETTERS)]
