"""All of it together, as an engine uses it: tables, pool and bytes over many steps."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from sharing_model import Model, World

from minipaged.course.testing import expect

HEADS, HEAD_DIM = 2, 3


class Life:
    """Sequences that fork, go on and end. What each has written is kept in a list of its own, and
    its blocks must hold just that."""

    def __init__(self, parts, lab, rng, block_size):
        self.parts, self.lab, self.rng = parts, lab, rng
        self.world = World(parts, Model.of(rng, block_size, {"s0": ""}, 0, spare=16))
        self.model = self.world.model
        self.names = (f"s{i}" for i in count(1))
        self.written = {"s0": []}
        shape = (self.model.num_blocks, HEADS, block_size, HEAD_DIM)
        self.before = [rng.standard_normal(shape).astype(np.float32) for _ in "kv"]
        self.caches = [lab.tensor(cache) for cache in self.before]

    def any_of(self):
        names = list(self.model.tables)
        return names[int(self.rng.integers(len(names)))]

    def fork(self):
        parent, child = self.any_of(), next(self.names)
        self.world.fork(parent, child)
        self.written[child] = list(self.written[parent])
        self.compare(f"after {child} = fork({parent})")

    def end(self):
        name = self.any_of()
        self.world.end(name)
        del self.written[name]
        self.compare(f"after {name}.free()")

    def step(self, names):
        """One token more for each: CoW, the copies, and only then the writes."""
        pairs = [pair for name in names if (pair := self.advance(name)) is not None]
        if pairs:
            for cache in self.caches:
                self.parts.copy_blocks(cache, pairs)
        rows = [self.rng.standard_normal((len(names), HEADS, HEAD_DIM)) for _ in "kv"]
        rows = [row.astype(np.float32) for row in rows]
        slots = [self.world.tables[name].slot(len(self.written[name])) for name in names]
        tensors = [self.lab.tensor(row) for row in rows]
        self.parts.write_kv(*tensors, *self.caches, self.lab.tensor(np.array(slots)))
        for i, name in enumerate(names):
            self.written[name].append([row[i] for row in rows])
        self.compare(f"after a step of {' '.join(names)}, with copies {pairs}")

    def advance(self, name):
        pair = self.world.make_writable(name)
        self.world.append(name)
        return pair

    def compare(self, when):
        self.world.compare(when)
        for kind, cache in enumerate(self.caches):
            got = self.lab.read(cache)
            for name, tokens in self.written.items():
                for token, both in enumerate(tokens):
                    block, place = self.model.slot(name, token)
                    same = np.array_equal(got[block, :, place], both[kind])
                    what = f"{('key', 'value')[kind]} of token {token} of {name}"
                    expect(same, True, f"{when}: is the {what} its own?")


@pytest.mark.parametrize("case", range(2))
def test_a_long_life_loses_no_block_and_no_token(parts, lab, rng, case):
    life = Life(parts, lab, rng, block_size=(4, 3)[case])
    for _ in range(int(rng.integers(5, 8))):
        life.step(["s0"])
    for _ in range(14):
        names = list(life.model.tables)
        if len(names) < 4:
            life.fork()
        elif len(names) > 4 and rng.integers(3) == 0:
            life.end()
        names = list(life.model.tables)
        some = names if rng.integers(3) else names[: int(rng.integers(1, len(names) + 1))]
        while life.model.need(some) > len(life.model.free):
            life.end()
            some = [name for name in some if name in life.model.tables]
        if some:
            life.step(some)
    while life.model.tables:
        life.end()
    expect(life.world.pool.num_free, life.model.num_blocks, "free blocks when all have ended")
