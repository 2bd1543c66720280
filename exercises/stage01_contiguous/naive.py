"""The KV cache that everyone writes first: one contiguous array for each sequence
(paper, section 3.1).

It is right, and so it is what later stages are compared with. What it costs is visible in
three numbers: ``bytes_used``, ``bytes_reserved`` and ``bytes_copied``.

Stage 1, contiguous memory::

    read    lessons/01-contiguous.md
    write   1.1  The naive cache   8 points
    also    robustness 9 points, counterexample.toml 5 points
    check   minipaged grade 1
    stuck   minipaged hint 1.1
    use it  minipaged generate --parts mine --reservation max --model opt-stories --raw "Once"
    next    buddy.py, beside this file
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(slots=True)
class _Stored:
    """``k[:num_tokens]`` and ``v[:num_tokens]`` hold the sequence; the rest is reserved."""

    k: Array
    v: Array
    num_tokens: int = 0


class NaiveKVCache:
    """Keys and values of one attention layer, each sequence in two arrays of its own.

    Args:
        num_kv_heads, head_dim: shape of one token's key (and of its value).
        dtype: a numpy floating-point type; what is appended is converted to it.
        max_model_len: None: an array has exactly the size of its sequence, so each append
            moves the sequence to a larger one. A number: room for that many tokens is reserved
            at a sequence's first append, and nothing ever moves.

    Attributes:
        bytes_copied: bytes of keys and values that were moved from one array to a larger one,
            since the cache was made. Storing a new token for the first time is not a move.

    Example, with 16 bytes a token (a key and a value of two float32)::

        cache = NaiveKVCache(num_kv_heads=1, head_dim=2)
        prompt, token = np.ones((3, 1, 2)), np.ones((1, 1, 2))
        cache.append(7, prompt, prompt)
        cache.append(7, token, token)   # bytes_copied 48
        cache.bytes_used                # 64
        cache.bytes_reserved            # 64

    With ``max_model_len=10`` the same life gives 0, 64 and 160.
    """

    def __init__(
        self,
        num_kv_heads: int,
        head_dim: int,
        dtype: npt.DTypeLike = np.float32,
        max_model_len: int | None = None,
    ) -> None:
        self.token_shape = (num_kv_heads, head_dim)
        self.dtype = np.dtype(dtype)
        self.max_model_len = max_model_len
        self.bytes_copied = 0
        #: seq_id -> what is stored of it; a sequence that is not in the cache is not here
        self._sequences: dict[int, _Stored] = {}

    def append(self, seq_id: int, k: Array, v: Array) -> None:
        """Add tokens at the end of a sequence; the first append of an id starts it, even if it
        adds none.

        What is stored is a copy: the caller may change ``k`` and ``v`` afterwards.

        Args:
            k, v: ``[num_new, num_kv_heads, head_dim]`` each, ``num_new`` 0 or more.

        Raises:
            ValueError: a shape is wrong, ``k`` and ``v`` have different lengths, or the sequence
                would outgrow ``max_model_len``; nothing is changed.
        """
        raise NotImplementedError("stage 1, task 1.1: see lessons/01-contiguous.md")

    def gather(self, seq_id: int) -> tuple[Array, Array]:
        """All keys and all values of a sequence, in order: ``[num_tokens, num_kv_heads,
        head_dim]`` each. They are copies: changing them does not change the cache.

        Raises:
            KeyError: the sequence is not in the cache.
        """
        raise NotImplementedError("stage 1, task 1.1: see lessons/01-contiguous.md")

    def free(self, seq_id: int) -> None:
        """Forget a sequence and give its memory back.

        Raises:
            KeyError: the sequence is not in the cache (or no longer).
        """
        raise NotImplementedError("stage 1, task 1.1: see lessons/01-contiguous.md")

    def num_tokens(self, seq_id: int) -> int:
        """Tokens of a sequence; 0 for one that is not in the cache."""
        return self._sequences[seq_id].num_tokens if seq_id in self._sequences else 0

    @property
    def bytes_used(self) -> int:
        """Bytes that hold keys and values of tokens."""
        raise NotImplementedError("stage 1, task 1.1: see lessons/01-contiguous.md")

    @property
    def bytes_reserved(self) -> int:
        """Bytes of the arrays, whether or not a token is in them yet."""
        raise NotImplementedError("stage 1, task 1.1: see lessons/01-contiguous.md")

    @property
    def _token_bytes(self) -> int:
        heads, dim = self.token_shape
        return 2 * heads * dim * self.dtype.itemsize
