"""The judge's own model of tables that share blocks, and what else the tests of this stage share.

Tables are lists of numbers, the pool is a stack of free ones, and who holds a block is found by
looking through all tables. Nothing is counted along the way, so nothing can be counted wrongly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any

import numpy as np

from minipaged.course.testing import expect
from minipaged.viz.state import Pool, PoolState, format_state

Pair = tuple[int, int]


class Model:
    """Tables over one pool.

    Attributes:
        tables: name -> its blocks, in the order of the tokens.
        num_tokens: name -> tokens that it holds.
        free: the stack of free blocks; the next to be handed out is the last.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tables: dict[str, list[int]] = {}
        self.num_tokens: dict[str, int] = {}
        self.free = list(reversed(range(num_blocks)))

    @classmethod
    def of(
        cls,
        rng: np.random.Generator,
        block_size: int,
        shape: Mapping[str, str],
        num_tokens: int | Mapping[str, int],
        spare: int = 4,
    ) -> Model:
        """A state in which sharing has begun already.

        Args:
            shape: name -> its blocks, a letter each, as ``{"a": "pq", "b": "pr"}``: the letters
                become blocks in no order.
            num_tokens: of every table, or of each.
            spare: blocks that are free.
        """
        letters = sorted(set("".join(shape.values())))
        model = cls(len(letters) + spare, block_size)
        numbers = [int(n) for n in rng.permutation(model.num_blocks)]
        model.free = numbers[len(letters) :]
        for name, blocks in shape.items():
            model.tables[name] = [numbers[letters.index(letter)] for letter in blocks]
            model.num_tokens[name] = num_tokens if isinstance(num_tokens, int) else num_tokens[name]
        return model

    def holders(self, block: int) -> int:
        return list(chain(*self.tables.values())).count(block)

    def has_room(self, name: str) -> bool:
        """Does the next token of a table go into its last block?"""
        return len(self.tables[name]) * self.block_size > self.num_tokens[name]

    def fork(self, parent: str, child: str) -> None:
        self.tables[child] = list(self.tables[parent])
        self.num_tokens[child] = self.num_tokens[parent]

    def make_writable(self, name: str) -> Pair | None:
        """What the call must return; done."""
        table = self.tables[name]
        if not self.has_room(name) or self.holders(table[-1]) == 1:
            return None
        source, table[-1] = table[-1], self.free.pop()
        return source, table[-1]

    def append(self, name: str) -> None:
        if not self.has_room(name):
            self.tables[name].append(self.free.pop())
        self.num_tokens[name] += 1

    def advance(self, name: str) -> Pair | None:
        """The next token of a table: made writable, and appended. Returns the copy, if any."""
        pair = self.make_writable(name)
        self.append(name)
        return pair

    def end(self, name: str) -> None:
        blocks = self.tables.pop(name)
        del self.num_tokens[name]
        self.free += [block for block in reversed(blocks) if not self.holders(block)]

    def need(self, names: Iterable[str]) -> int:
        """Blocks that the next token of each takes, found by doing it to a copy."""
        trial = deepcopy(self)
        trial.free = list(range(self.num_blocks, 3 * self.num_blocks))  # more than it can take
        before = len(trial.free)
        for name in names:
            trial.advance(name)
        return before - len(trial.free)

    def slot(self, name: str, token: int) -> Pair:
        """(block, place) of a token."""
        return self.tables[name][token // self.block_size], token % self.block_size

    @property
    def refs(self) -> dict[int, int]:
        counts = {block: self.holders(block) for block in range(self.num_blocks)}
        return {block: count for block, count in counts.items() if count}

    def __str__(self) -> str:
        return notation(self, self.tables, self.num_tokens, self.free, self.refs)


def notation(
    model: Model,
    tables: Mapping[str, list[int]],
    num_tokens: Mapping[str, int],
    free: list[int],
    refs: dict[int, int],
) -> str:
    """A state in the course's notation: ``a:[0 1*] b:[0 1*] free:{2 3} refs{0:2 1:2}``."""
    pool = Pool(model.num_blocks, dict(tables), dict(num_tokens), list(free), refs)
    return format_state(PoolState(model.block_size, pool))


class World:
    """The pool and the tables under test, in the state of a model, and the model beside them."""

    def __init__(self, parts: Any, lab: Any, model: Model) -> None:
        self.parts, self.lab, self.model = parts, lab, model
        self.pool = parts.BlockAllocator(model.num_blocks)
        self.pool.allocate_many(model.num_blocks)
        self.pool.free_many(model.free)
        self.tables: dict[str, Any] = {}
        for name, blocks in model.tables.items():
            table = parts.BlockTable(self.pool, model.block_size)
            table.blocks = list(blocks)
            table.num_tokens = model.num_tokens[name]
            self.tables[name] = table
        for block, count in model.refs.items():
            for _ in range(count - 1):
                self.pool.share(block)
        lab.scene(str(model), pool=self.pool, **self.tables)

    def state(self) -> str:
        counts = {block: self.pool.ref_count(block) for block in range(self.model.num_blocks)}
        return notation(
            self.model,
            {name: table.blocks for name, table in self.tables.items()},
            {name: table.num_tokens for name, table in self.tables.items()},
            self.pool.free_blocks,
            {block: count for block, count in counts.items() if count},
        )

    def compare(self, when: str) -> None:
        """The tables, the free blocks and the references are the model's."""
        expect(self.state(), str(self.model), f"{when}, the state")

    def fork(self, parent: str, child: str) -> None:
        self.tables[child] = self.parts.fork(self.tables[parent])
        self.lab.named(**{child: self.tables[child]})
        self.model.fork(parent, child)

    def make_writable(self, name: str) -> Pair | None:
        """The call, whose result must be the model's."""
        why = f"make_writable({name}) in {self.model}"
        pair = self.model.make_writable(name)
        expect(self.parts.make_writable(self.tables[name]), pair, why)
        return pair

    def append(self, name: str) -> None:
        self.tables[name].append(1)
        self.model.append(name)

    def advance(self, name: str) -> Pair | None:
        pair = self.make_writable(name)
        self.append(name)
        return pair

    def end(self, name: str) -> None:
        self.tables.pop(name).free()
        self.model.end(name)

    def need(self, names: Iterable[str], once: bool = False) -> None:
        """blocks_for_next_token for some of the tables, which must be the model's.

        Args:
            once: the tables come as an iterator.
        """
        names = list(names)
        tables: Any = [self.tables[name] for name in names]
        given = f"[{', '.join(names)}]"
        if once:
            tables, given = self.lab.iterator(tables), f"iter({given})"
            self.lab.named(tables=tables)
        got = self.parts.blocks_for_next_token(tables)
        why = f"blocks_for_next_token({given}) with {self._sizes(names)}, in {self.model}"
        expect(got, self.model.need(names), why)

    def _sizes(self, names: list[str]) -> str:
        counts = sorted({self.model.num_tokens[name] for name in names})
        return f"{' or '.join(map(str, counts))} tokens in blocks of {self.model.block_size}"


def siblings(count: int, blocks: str) -> dict[str, str]:
    """The shape of a group that shares all its blocks: ``{"a": "pq", "b": "pq"}``."""
    return dict.fromkeys("abcdefgh"[:count], blocks)


def expect_copy(pair: Any, wanted: bool, call: str) -> None:
    """Fail unless make_writable() asked for a copy where one is wanted, and only there."""
    if wanted:
        expect(pair is None, False, f"does {call} return None?")
    else:
        expect(pair, None, call)


def expect_bits(got: np.ndarray, want: np.ndarray, why: str) -> None:
    """Fail with the first block that is not the same, bit for bit. The first axis is the block."""
    expect((got.dtype.name, got.shape), (want.dtype.name, want.shape), f"{why}: type and shape")
    for block, (ours, theirs) in enumerate(zip(got, want)):
        if ours.tobytes() != theirs.tobytes():
            places = ours.view(f"u{ours.itemsize}") != theirs.view(f"u{theirs.itemsize}")
            first = tuple(int(i) for i in np.argwhere(places)[0])
            where = f"{why}: block {block}, at {list(first)}"
            expect(round(float(ours[first]), 4), round(float(theirs[first]), 4), where)
            raise AssertionError(f"{where}: other bits")
