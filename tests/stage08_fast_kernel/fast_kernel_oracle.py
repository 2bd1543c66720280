"""The oracle of stage 8: attention by its definition, in float64, of numbers as the cache's type
has rounded them, for decodes and for chunks of prompts; and bytes by counting them one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        raise AssertionError(
            f"{why}: at {list(first)} expected {want[first] + 0.0:.4g}, got {got[first] + 0.0:.4g}"
        )


def attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """By the definition: one query token over all keys that it is given, a head at a time.

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
class Batch:
    """Sequences over one pool, each with a context and the queries that are its last tokens.

    Attributes:
        q: ``[T, num_heads, head_dim]``: the queries of all sequences, one after the other.
        query_lens: of each sequence; for decodes all are 1, and a context of 0 is padding.
        keys, values: of each sequence, ``[L, num_kv_heads, head_dim]``.
        block_tables: ``[S, max_blocks]`` int32; entries past a context name blocks of nobody.
        nobody: numbers of the blocks that no sequence holds.
    """

    lab: Any
    q: np.ndarray
    query_lens: list[int]
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
        lengths: Sequence[int],
        query_lens: Sequence[int] = (),
        *,
        heads: int = 1,
        kv_heads: int = 1,
        head_dim: int = 128,
        block_size: int = 4,
        dtype: str = "float32",
        size: float = 1.0,
        order: int = 0,
        spare: int = 3,
    ) -> Batch:
        """Random queries, keys and values, over tables in which no block is in its place.

        Args:
            lengths: of the contexts.
            query_lens: by default one query each.
            size: of queries and keys; values are about 1. With 0 all scores are equal.
            order: the tokens are sorted by the scores of the first query's first head: -1 for the
                largest first, 1 for the largest last, 0 for none.
            spare: blocks of nobody.
        """

        def normal(*shape: int, size: float = 1.0) -> np.ndarray:
            return rounded(lab, size * rng.standard_normal(shape), dtype)

        query_lens = list(query_lens or [1] * len(lengths))
        q = normal(sum(query_lens), heads, head_dim, size=size)
        keys, values, first = [], [], 0
        for length, queries in zip(lengths, query_lens, strict=True):
            key = normal(length, kv_heads, head_dim, size=size)
            keys.append(key[np.argsort(order * (key[:, 0] @ q[first, 0]))] if order else key)
            values.append(normal(length, kv_heads, head_dim))
            first += queries
        counts = [blocks_for(length, block_size) for length in lengths]
        num_blocks = sum(counts) + spare
        blocks = rng.permutation(num_blocks).tolist()
        nobody = [blocks.pop() for _ in range(spare)]
        shape = (len(lengths), max(1, *counts) + 1)
        tables = rng.choice(nobody, size=shape).astype(np.int32)
        for row, count in zip(tables, counts):
            row[:count] = [blocks.pop() for _ in range(count)]
        return cls(
            lab, q, query_lens, keys, values, tables, nobody, num_blocks, block_size, dtype
        )  # fmt: skip

    @property
    def lengths(self) -> list[int]:
        return [len(key) for key in self.keys]

    def told(self) -> str:
        """``contexts 5, 1; blocks of 4; 2 heads, 1 of keys, 16 dims; float16``"""
        heads, dims = self.q.shape[1:]
        lengths = ", ".join(map(str, self.lengths))
        told = f"context{'s' * (len(self.keys) > 1)} {lengths}"
        if any(queries != 1 for queries in self.query_lens):
            told += f" with {', '.join(map(str, self.query_lens))} queries"
        sizes = f"{heads} head{'s' * (heads > 1)}, {self.keys[0].shape[1]} of keys, {dims} dims"
        return f"{told}; blocks of {self.block_size}; {sizes}; {self.dtype}"

    def caches(self, outside: np.ndarray | float) -> list[np.ndarray]:
        """Keys and values in their blocks, ``[num_blocks, num_kv_heads, block_size, head_dim]``;
        all other slots hold numbers of ``outside``."""
        heads, dims = self.keys[0].shape[1:]
        shape = (self.num_blocks, heads, self.block_size, dims)
        found = []
        for rows in (self.keys, self.values):
            cache = np.resize(np.asarray(outside, np.float64), shape)
            for table, row in zip(self.block_tables, rows):
                for position, entry in enumerate(row):
                    block, place = divmod(position, self.block_size)
                    cache[table[block], :, place] = entry
            found.append(cache)
        return found

    def want(self, scale: float) -> np.ndarray:
        """``[T, num_heads, head_dim]``: each query sees its context up to its own position."""
        rows, queries = [], iter(self.q)
        for count, keys, values in zip(self.query_lens, self.keys, self.values):
            for i in range(count):
                seen = max(0, len(keys) - count + 1 + i)
                rows.append(attention(next(queries), keys[:seen], values[:seen], scale))
        return np.array(rows)

    def tensors(self, outside: np.ndarray | float = 5.0, **changes: Any) -> dict[str, Any]:
        """What a kernel is given, by name, the output filled with NaN.

        Args:
            outside: what the slots hold that hold no token of any sequence.
            changes: tensors in the place of those that this batch makes.
        """
        lab = self.lab
        k_cache, v_cache = self.caches(outside)
        given = {
            "q": lambda: lab.tensor(self.q, self.dtype),
            "k_cache": lambda: lab.tensor(k_cache, self.dtype),
            "v_cache": lambda: lab.tensor(v_cache, self.dtype),
            "block_tables": lambda: lab.tensor(self.block_tables),
            "context_lens": lambda: lab.tensor(np.array(self.lengths, np.int32)),
            "out": lambda: lab.tensor(np.full(self.q.shape, math.nan), self.dtype),
        }
        return {name: changes[name] if name in changes else make() for name, make in given.items()}

    def decode(
        self,
        function: Any,
        *,
        splits: int | None = None,
        scale: float | None = None,
        outside: np.ndarray | float = 5.0,
        why: str = "decode",
        tolerance: float | None = None,
        **changes: Any,
    ) -> None:
        """Run a decode kernel of the submission, and compare all of its output.

        Args:
            splits: of version 2: parts of each context; None: version 1.
            scale: by default one over the root of the head's dimensions.
            tolerance: by default that of the type.
            outside, changes: as of :meth:`tensors`.
        """
        scale = self.q.shape[2] ** -0.5 if scale is None else scale
        tensors = self.tensors(outside, **changes)
        out = tensors.pop("out")
        if splits is None:
            self.lab.launch(function, *tensors.values(), scale, out)
        else:
            self.lab.launch(function, *tensors.values(), scale, max(self.lengths), out, splits)
            why = f"{why}, {splits} part{'s' * (splits > 1)}"
        self._expect(self.lab.read(out), self.want(scale), why, tolerance)

    def prefill(
        self,
        function: Any,
        *,
        begin: int = 0,
        untouched: bool = False,
        outside: np.ndarray | float = 5.0,
        why: str = "prefill",
        **changes: Any,
    ) -> None:
        """The same for the prefill kernel.

        Args:
            begin: rows of nobody before the first query; there are 64 behind the last.
            untouched: compare the rows of nobody too, which must be left alone.
        """
        lab, scale = self.lab, self.q.shape[2] ** -0.5
        count = len(self.q)
        rows = [np.full((n, *self.q.shape[1:]), math.nan) for n in (begin, 64)]
        q = np.concatenate([rows[0], self.q, rows[1]])
        out = lab.tensor(np.full(q.shape, 7.0), self.dtype)
        tensors = self.tensors(outside, q=lab.tensor(q, self.dtype), out=out, **changes)
        out = tensors.pop("out")
        starts = np.array([begin, *self.query_lens], np.int32).cumsum(dtype=np.int32)
        lengths = tensors.pop("context_lens")
        lab.launch(
            function, *tensors.values(), lab.tensor(starts), lengths, scale,
            max(self.query_lens), out,
        )  # fmt: skip
        got = lab.read(out)
        self._expect(got[begin : begin + count], self.want(scale), why, None)
        if untouched:
            others = np.concatenate([got[:begin], got[begin + count :]]).astype(np.float64)
            where = f"{why}; {self.told()}: rows of the output that are nobody's"
            expect_array(others, np.full(others.shape, 7.0), where)

    def _expect(self, got: np.ndarray, want: np.ndarray, why: str, tolerance: float | None) -> None:
        row = "sequence" if self.query_lens == [1] * len(self.keys) else "query"
        where = f"{why}; {self.told()}: out[{row}, head, i]"
        expect_array(got, want, where, tolerance or TOLERANCE[self.dtype])


@dataclass(frozen=True)
class Bytes:
    """Global memory that attention of a batch cannot do without, counted one thing at a time.

    Attributes:
        heads, kv_heads, head_dim, block_size, element: of attention; bytes of an element.
    """

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    element: int

    def decode(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Bytes loaded and stored."""
        loaded = stored = 0
        for length in lengths:
            loaded += 4  # its length
            for position in range(length):
                loaded += 2 * self.kv_heads * self.head_dim * self.element
                loaded += 4 * (position % self.block_size == 0)
            loaded += (length > 0) * self.heads * self.head_dim * self.element
            stored += self.heads * self.head_dim * self.element
        return loaded, stored

    def split(self, lengths: Sequence[int], splits: int, tile: int) -> tuple[int, int]:
        """Of the workspace alone."""
        if splits == 1:
            return 0, 0
        numbers = 0
        for length in lengths:
            tiles = list(range(0, length, tile))
            each = next(n for n in range(1, len(tiles) + 2) if n * splits >= len(tiles))
            parts = [tiles[i * each : (i + 1) * each] for i in range(splits)]
            full = sum(bool(part) for part in parts)
            numbers += self.heads * (full * self.head_dim + splits)
        return 4 * numbers, 4 * numbers

    def prefill(
        self, query_lens: Sequence[int], lengths: Sequence[int], rows: int | None
    ) -> tuple[int, int]:
        """With tiles of so many rows; None: a tile is a chunk."""
        loaded, stored = 4 * (len(lengths) + 1), 0
        group = self.heads // self.kv_heads
        for queries, length in zip(query_lens, lengths, strict=True):
            loaded += 4
            if not queries:
                continue
            loaded += 4 * blocks_for(length, self.block_size)
            moved = queries * self.heads * self.head_dim * self.element
            loaded, stored = loaded + moved, stored + moved
            of_query = [length - queries + q for q in range(queries) for _ in range(group)]
            for first in range(0, len(of_query), rows or len(of_query)):
                tile = of_query[first : first + (rows or len(of_query))]
                loaded += (tile[-1] + 1) * 2 * self.kv_heads * self.head_dim * self.element
        return loaded, stored
