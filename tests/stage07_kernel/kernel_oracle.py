"""The oracle of stage 7: what lies in a paged cache by a plain walk over the tokens, and attention
by its definition, in float64, of the numbers as the cache's type has rounded them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minipaged.course.testing import expect

#: How far off a result may be, as a part of the largest number that is expected.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def rounded(lab: Any, array: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest numbers that a type has."""
    return lab.read(lab.tensor(array, dtype)).astype(np.float64)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens, counted by filling them."""
    return len(range(0, num_tokens, block_size))


def put(cache: np.ndarray, slots: list[int], rows: np.ndarray) -> None:
    """``cache: [num_blocks, num_kv_heads, block_size, head_dim]``, ``rows: [T, num_kv_heads,
    head_dim]``: token by token, head by head; slot -1 is skipped."""
    block_size = cache.shape[2]
    for slot, row in zip(slots, rows, strict=True):
        if slot >= 0:
            block, place = divmod(slot, block_size)
            for head in range(cache.shape[1]):
                cache[block, head, place] = row[head]


def expect_array(got: np.ndarray, want: np.ndarray, why: str, tolerance: float = 0.0) -> None:
    """Fail with the first element that is further off than ``tolerance`` times the largest of
    ``want``. With a tolerance of 0 NaN is expected where ``want`` has it."""
    expect(got.shape, want.shape, f"{why}: the shape")
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        right = np.abs(got - want) <= tolerance * np.abs(want).max(initial=0.0)
    if not tolerance:
        right |= np.isnan(got) & np.isnan(want)
    if not right.all():
        first = tuple(int(i) for i in np.argwhere(~right)[0])
        pair = want[first] + 0.0, got[first] + 0.0
        texts = [f"{x:.4g}" for x in pair]
        if texts[0] == texts[1]:
            texts = [f"{x:.7g}" for x in pair]
        raise AssertionError(f"{why}: at {list(first)} expected {texts[0]}, got {texts[1]}")


def attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """By the definition: one query token over its whole context, a head at a time.

    Args:
        q: ``[num_heads, head_dim]``.
        keys, values: ``[L, num_kv_heads, head_dim]``; without a token the output is zero.
    """
    out = np.zeros(q.shape)
    group = q.shape[0] // keys.shape[1]
    for head in range(q.shape[0]):
        if len(keys):
            scores = scale * (keys[:, head // group] @ q[head])
            weights = np.exp(scores - scores.max())
            out[head] = weights / weights.sum() @ values[:, head // group]
    return out


@dataclass
class Decodes:
    """A batch of decodes over one pool.

    Attributes:
        q: ``[S, num_heads, head_dim]``.
        keys, values: of each sequence, ``[L, num_kv_heads, head_dim]``.
        block_tables: ``[S, max_blocks]`` int32; entries past a context name blocks of nobody.
        nobody: numbers of the blocks that no sequence holds.
    """

    lab: Any
    q: np.ndarray
    keys: list[np.ndarray]
    values: list[np.ndarray]
    block_tables: np.ndarray
    nobody: list[int]
    num_blocks: int
    block_size: int
    dtype: str = "float32"

    @classmethod
    def random(
        cls,
        lab: Any,
        rng: np.random.Generator,
        lengths: list[int],
        *,
        heads: int = 1,
        kv_heads: int = 1,
        head_dim: int = 16,
        block_size: int = 4,
        dtype: str = "float32",
        size: float = 1.0,
        order: int = 0,
        spare: int = 3,
    ) -> Decodes:
        """Random queries, keys and values, over tables in which no block is in its place.

        Args:
            size: of queries and keys; values are about 1.
            order: of one head alone, the tokens are sorted by their scores: -1 for the largest
                first, 1 for the largest last, 0 for none.
            spare: blocks of nobody.
        """

        def normal(*shape: int) -> np.ndarray:
            return rounded(lab, rng.standard_normal(shape), dtype)

        q = rounded(lab, size * rng.standard_normal((len(lengths), heads, head_dim)), dtype)
        keys, values = [], []
        for s, length in enumerate(lengths):
            raw = size * rng.standard_normal((length, kv_heads, head_dim))
            key = rounded(lab, raw, dtype)
            if order:
                key = key[np.argsort(order * (key[:, 0] @ q[s, 0]))]
            keys.append(key)
            values.append(normal(length, kv_heads, head_dim))
        counts = [blocks_for(length, block_size) for length in lengths]
        width = max(1, *counts) + 1
        num_blocks = sum(counts) + spare
        blocks = rng.permutation(num_blocks).tolist()
        nobody = [blocks.pop() for _ in range(spare)]
        tables = rng.choice(nobody, size=(len(lengths), width)).astype(np.int32)
        for row, count in zip(tables, counts):
            row[:count] = [blocks.pop() for _ in range(count)]
        return cls(lab, q, keys, values, tables, nobody, num_blocks, block_size, dtype)

    def shift(self, level: float) -> None:
        """Move all scores of the first head by so much, at the usual scale: what tells them apart
        stays, and is a small part of them."""
        for q, keys in zip(self.q[:, 0], self.keys):
            moved = keys[:, 0] + level * len(q) ** 0.5 / (q @ q) * q
            keys[:, 0] = rounded(self.lab, moved, self.dtype)

    @property
    def lengths(self) -> list[int]:
        return [len(key) for key in self.keys]

    def told(self) -> str:
        """``contexts 5, 1; blocks of 4; 2 heads, 1 of keys, 16 dimensions; float16``"""
        heads, dims = self.q.shape[1:]
        lengths = ", ".join(map(str, self.lengths))
        contexts = f"context{'s' * (len(self.keys) > 1)} {lengths}"
        sizes = f"{heads} head{'s' * (heads > 1)}, {self.keys[0].shape[1]} of keys, {dims} dims"
        return f"{contexts}; blocks of {self.block_size}; {sizes}; {self.dtype}"

    def caches(self, outside: np.ndarray | float) -> list[np.ndarray]:
        """Keys and values in their blocks; all other slots hold numbers of ``outside``."""
        heads, dims = self.keys[0].shape[1:]
        shape = (self.num_blocks, heads, self.block_size, dims)
        found = []
        for rows in (self.keys, self.values):
            cache = np.resize(np.asarray(outside, np.float64), shape)
            for table, row in zip(self.block_tables, rows):
                count = blocks_for(len(row), self.block_size)
                slots = [
                    block * self.block_size + place
                    for block in table[:count].tolist()
                    for place in range(self.block_size)
                ]
                put(cache, slots[: len(row)], row)
            found.append(cache)
        return found

    def want(self, scale: float) -> np.ndarray:
        """``[S, num_heads, head_dim]``."""
        pairs = zip(self.q, self.keys, self.values)
        return np.array([attention(q, keys, values, scale) for q, keys, values in pairs])

    def check(
        self,
        parts: Any,
        *,
        scale: float | None = None,
        outside: np.ndarray | float = 5.0,
        why: str = "",
        tolerance: float | None = None,
        **changes: Any,
    ) -> None:
        """Run the submission, and compare all of its output.

        Args:
            scale: by default one over the root of the head's dimensions.
            outside: what the slots hold that hold no token of any sequence.
            tolerance: by default that of the type.
            changes: tensors in the place of those that this batch makes.
        """
        lab = self.lab
        scale = self.q.shape[2] ** -0.5 if scale is None else scale
        k_cache, v_cache = self.caches(outside)
        given = {
            "q": lambda: lab.tensor(self.q, self.dtype),
            "k_cache": lambda: lab.tensor(k_cache, self.dtype),
            "v_cache": lambda: lab.tensor(v_cache, self.dtype),
            "block_tables": lambda: lab.tensor(self.block_tables),
            "context_lens": lambda: lab.tensor(np.array(self.lengths, np.int32)),
            "out": lambda: lab.tensor(np.full(self.q.shape, math.nan), self.dtype),
        }
        tensors = {
            name: changes[name] if name in changes else make() for name, make in given.items()
        }
        out = tensors.pop("out")
        lab.launch(parts.paged_decode_v0, *tensors.values(), scale, out)
        where = f"{why or 'decode'}; {self.told()}: out[sequence, head, i]"
        expect_array(lab.read(out), self.want(scale), where, tolerance or TOLERANCE[self.dtype])
