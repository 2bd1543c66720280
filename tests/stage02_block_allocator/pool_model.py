"""The judge's own model of a pool, and what else the tests of this stage share.

The model is as plain as can be: a stack of free blocks and a dictionary of counts. It answers what
:func:`minipaged.course.testing.state_of` asks, so that a submission's state and the model's are
compared in one notation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minipaged.course.testing import expect, state_of

NAMES = ("GPU", "CPU", "HBM", "DRAM")


class PoolModel:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = list(reversed(range(num_blocks)))
        self.counts: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return len(self.free_blocks)

    @property
    def held(self) -> list[int]:
        return sorted(self.counts)

    def ref_count(self, block: int) -> int:
        return self.counts.get(block, 0)

    def allocate(self) -> int:
        block = self.free_blocks.pop()
        self.counts[block] = 1
        return block

    def allocate_many(self, count: int) -> list[int]:
        return [self.allocate() for _ in [None] * count]

    def share(self, block: int) -> None:
        self.counts[block] += 1

    def free(self, block: int) -> bool:
        self.counts[block] -= 1
        if self.counts[block] > 0:
            return False
        del self.counts[block]
        self.free_blocks.append(block)
        return True

    def free_many(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.free(block)


class Twins:
    """The pool under test and the model, which live the same life and are compared after every
    step."""

    def __init__(self, parts: Any, num_blocks: int) -> None:
        self.pool, self.model = parts.BlockAllocator(num_blocks), PoolModel(num_blocks)

    def do(self, method: str, *arguments: Any) -> Any:
        call = f"{method}({', '.join(map(repr, arguments))})"
        got = getattr(self.pool, method)(*arguments)
        want = getattr(self.model, method)(*arguments)
        if want is not None:
            expect(got, want, call)
        self.compare(f"after {call}")
        return want

    def compare(self, when: str) -> None:
        expect(state_of(self.pool), state_of(self.model), f"{when}, the pool")
        expect(self.pool.num_free, self.model.num_free, f"{when}, num_free")


def random_step(rng: np.random.Generator, model: PoolModel) -> tuple[str, Any]:
    """A method that is allowed now, and its argument (None: it takes none)."""
    moves: list[tuple[str, Any]] = []
    if model.num_free:
        moves.append(("allocate", None))
        moves.append(("allocate_many", int(rng.integers(0, min(3, model.num_free) + 1))))
    if model.held:
        some = rng.permutation(model.held)[: int(rng.integers(1, 4))].tolist()
        moves.append(("share", int(rng.choice(model.held))))
        moves.append(("free", int(rng.choice(model.held))))
        moves.append(("free_many", some))
    return moves[int(rng.integers(len(moves)))]
