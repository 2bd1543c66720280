"""The oracle of stage 3: each sequence in dense storage of its own, in float64.

Dense storage is what paging replaces: the keys and values of a sequence lie in one array, by
position, so there is nothing to look up. What a paged cache must hold follows from it by a plain
walk over the tokens, and what attention must give by the definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from minipaged.course.testing import expect

#: The engine rounds the tokens of a step up to a multiple of this.
TOKEN_MULTIPLE = 8


def places_of(blocks: list[int], block_size: int) -> list[int]:
    """The slots of a table's tokens, by walking over its blocks from left to right."""
    return [block * block_size + place for block in blocks for place in range(block_size)]


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens, counted by filling them."""
    return len(range(0, num_tokens, block_size))


def shuffled_tables(
    rng: np.random.Generator, lengths: list[int], block_size: int, spare: int = 2
) -> tuple[list[list[int]], int]:
    """Tables over one pool, no block twice and in no order; and the size of that pool."""
    counts = [blocks_for(length, block_size) for length in lengths]
    blocks = rng.permutation(sum(counts) + spare).tolist()
    return [[blocks.pop() for _ in range(count)] for count in counts], sum(counts) + spare


def put(cache: np.ndarray, slots: list[int], rows: np.ndarray) -> None:
    """``cache: [num_blocks, num_kv_heads, block_size, head_dim]``, ``rows: [T, num_kv_heads,
    head_dim]``: token by token, head by head; slot -1 is skipped."""
    block_size = cache.shape[2]
    for slot, row in zip(slots, rows, strict=True):
        if slot >= 0:
            block, place = divmod(slot, block_size)
            for head in range(cache.shape[1]):
                cache[block, head, place] = row[head]


def attention(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, positions: range
) -> np.ndarray:
    """By the definition, in float64: one query and one head at a time.

    Args:
        q: ``[len(positions), num_heads, head_dim]``: the queries at these positions.
        keys, values: ``[L, num_kv_heads, head_dim]``.
    """
    q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
    group = q.shape[1] // keys.shape[1]
    out = np.zeros(q.shape)
    for row, position in enumerate(positions):
        for head in range(q.shape[1]):
            seen_keys = keys[: position + 1, head // group]
            scores = scale * (seen_keys @ q[row, head])
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ values[: position + 1, head // group]
    return out


def expect_array(got: np.ndarray, want: np.ndarray, why: str, tolerance: float = 0.0) -> None:
    """Fail with the first element that is further off than ``tolerance * max(1, |want|)``."""
    expect(got.shape, want.shape, f"{why}: the shape")
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got - want) <= tolerance * np.maximum(1.0, np.abs(want)))
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{why}: at {list(first)} expected {want[first] + 0.0:.4g}, got {got[first] + 0.0:.4g}"
        )


@dataclass
class Layer:
    """What one layer brings to a step.

    Attributes:
        q: ``[T, num_heads, head_dim]``.
        k_cache, v_cache: what is in the paged cache when attention starts.
        keys, values: of each sequence, ``[L, num_kv_heads, head_dim]``: the dense storage.
    """

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    keys: list[np.ndarray]
    values: list[np.ndarray]


class Step:
    """A ragged batch of sequences, over shuffled tables.

    Args:
        spans: ``(history, queries)`` of each sequence: tokens from earlier steps, and new ones.
            The leading ones with one query are the decodes.
    """

    def __init__(
        self, rng: np.random.Generator, spans: list[tuple[int, int]], block_size: int
    ) -> None:
        self.rng, self.spans, self.block_size = rng, spans, block_size
        self.lengths = [history + queries for history, queries in spans]
        self.tables, self.num_blocks = shuffled_tables(rng, self.lengths, block_size)
        self.starts = [0, *accumulate(queries for _, queries in spans)]
        self.num_rows = -(-self.starts[-1] // TOKEN_MULTIPLE) * TOKEN_MULTIPLE

    @property
    def num_decodes(self) -> int:
        """Leading sequences with one query."""
        queries = [queries for _, queries in self.spans]
        return next((i for i, count in enumerate(queries) if count != 1), len(queries))

    def batch(self, lab: Any) -> Any:
        """As the engine describes the step; entries past a table are any valid block."""
        slots = [
            slot
            for (history, _), table, length in zip(self.spans, self.tables, self.lengths)
            for slot in places_of(table, self.block_size)[history:length]
        ]
        longest = max(self.lengths)
        width = blocks_for(longest, self.block_size)
        tables = self.rng.integers(self.num_blocks, size=(len(self.spans), width))
        for row, table in zip(tables, self.tables):
            row[: len(table)] = table
        return lab.attention_batch(
            slot_mapping=np.array(slots + [-1] * (self.num_rows - len(slots))),
            query_start=np.array(self.starts),
            context_lens=np.array(self.lengths),
            block_tables=tables,
            num_decodes=self.num_decodes,
            max_query_len=max(queries for _, queries in self.spans),
            max_context_len=longest,
            block_size=self.block_size,
        )

    def layer(
        self,
        *,
        heads: int = 2,
        kv_heads: int = 2,
        head_dim: int = 8,
        stale: float = 0.0,
        size: float = 1.0,
        dtype: type = np.float32,
        cache_dtype: type | None = None,
    ) -> Layer:
        """Random queries, keys and values; slots that hold no token hold ``stale``.

        Args:
            size: of queries and keys; values are about 1.
        """
        stored = cache_dtype or dtype
        shape = (self.num_blocks, kv_heads, self.block_size, head_dim)
        caches, dense = [], []
        for factor in (size, 1.0):
            cache = np.full(shape, stale, stored)
            rows = [
                (factor * self.rng.standard_normal((length, kv_heads, head_dim))).astype(stored)
                for length in self.lengths
            ]
            for table, sequence in zip(self.tables, rows):
                put(cache, places_of(table, self.block_size)[: len(sequence)], sequence)
            caches.append(cache)
            dense.append(rows)
        q = size * self.rng.standard_normal((self.num_rows, heads, head_dim))
        return Layer(q.astype(dtype), *caches, *dense)

    def want(self, layer: Layer, scale: float) -> np.ndarray:
        """``[T, num_heads, head_dim]``, rows of padding zero."""
        out = np.zeros(layer.q.shape)
        for s, (history, _) in enumerate(self.spans):
            rows = slice(self.starts[s], self.starts[s + 1])
            positions = range(history, self.lengths[s])
            out[rows] = attention(layer.q[rows], layer.keys[s], layer.values[s], scale, positions)
        return out
