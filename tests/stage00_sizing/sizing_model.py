"""The judge's own arithmetic: heads are counted one by one, and batches live step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minipaged.course.testing import expect

HEAD_DIMS = (16, 32, 64, 80, 128)


@dataclass(frozen=True)
class Shape:
    """Of a model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def make(self, lab: Any, **others: Any) -> Any:
        """The model's configuration, where the submission lives."""
        return lab.model_config(
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            **others,
        )

    def heads_of_a_rank(self, ranks: int = 1) -> int:
        """Each query head of the first rank reads the KV head of its group."""
        group = self.heads // self.kv_heads
        return len({head // group for head in range(self.heads // ranks)})

    def token_bytes(self, number_bytes: int, ranks: int = 1) -> int:
        keys = self.layers * self.heads_of_a_rank(ranks) * self.head_dim
        return (keys + keys) * number_bytes

    def ranks(self) -> list[int]:
        """Numbers of ranks that go: KV heads spread, one each, and repeated."""
        spread = [n for n in range(1, self.kv_heads + 1) if self.kv_heads % n == 0]
        group = self.heads // self.kv_heads
        return spread + [n * self.kv_heads for n in range(2, group + 1) if group % n == 0]

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, {self.heads} query heads of {self.head_dim}, "
            f"KV heads: {self.kv_heads}"
        )


def random_shape(rng: np.random.Generator, kv_heads: int, group: int) -> Shape:
    """A model whose groups of ``group`` query heads share a KV head."""
    layers, head_dim = int(rng.integers(2, 50)), int(rng.choice(HEAD_DIMS))
    return Shape(layers, kv_heads * group, kv_heads, head_dim)


class Batch:
    """Sequences that start together, and what they occupy after each step."""

    def __init__(self, prompts: Sequence[int], outputs: Sequence[int], token_bytes: int,
                 block_size: int, max_model_len: int) -> None:  # fmt: skip
        self.given = list(prompts), list(outputs), token_bytes, block_size, max_model_len
        self.rows: dict[str, list[int]] = {
            "step": [],
            "needed_bytes": [],
            "paged_bytes": [],
            "reserved_bytes": [],
        }
        alive = [[0] * prompt for prompt in prompts]
        left = list(outputs)
        for step in range(max(outputs) + 1):
            slots = sum(map(len, alive))
            blocks = sum(len(seq[::block_size]) for seq in alive)
            self.rows["step"].append(step)
            self.rows["needed_bytes"].append(slots * token_bytes)
            self.rows["paged_bytes"].append(blocks * block_size * token_bytes)
            self.rows["reserved_bytes"].append(len(alive) * max_model_len * token_bytes)
            alive = [[*seq, 0] for seq, more in zip(alive, left) if more]
            left = [more - 1 for more in left if more]

    def compare(self, parts: Any, *fields: str) -> None:
        """What the submission says of some fields, against this."""
        got = parts.kv_growth(*self.given)
        why = f"of kv_growth{self.given}"
        if not isinstance(got, list):
            expect(type(got).__name__, "list", f"the type {why}")
        for field in fields:
            values = [getattr(entry, field, None) for entry in got]
            expect(values, self.rows[field], f"{field}, entry by entry, {why}")
