"""Many steps of sequences that fork, go on and end: of their blocks, and of their bytes."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from sharing_model import Model, World

from minipaged.course.testing import expect

HEADS, HEAD_DIM = 2, 3


def life(rng, model):
    """What happens to the sequences of a model, one thing after the other. Whoever is told does it
    to the model before the next is asked for."""
    names = (f"s{i}" for i in count(1))
    for _ in range(int(rng.integers(5, 8))):
        yield "step", ["s0"]
    for _ in range(14):
        alive = list(model.tables)
        if len(alive) < 4:
            yield "fork", [_any_of(rng, alive), next(names)]
        elif len(alive) > 4 and rng.integers(3) == 0:
            yield "end", [_any_of(rng, alive)]
        alive = list(model.tables)
        some = alive if rng.integers(3) else alive[: int(rng.integers(1, len(alive) + 1))]
        while model.need(some) > len(model.free):
            yield "end", [_any_of(rng, list(model.tables))]
            some = [name for name in some if name in model.tables]
        if some:
            yield "step", some
    while model.tables:
        yield "end", [_any_of(rng, list(model.tables))]


def _any_of(rng, names):
    return names[int(rng.integers(len(names)))]


@pytest.mark.parametrize("case", range(2))
def test_a_long_life_loses_no_block(parts, lab, rng, case):
    model = Model.of(rng, (4, 3)[case], {"s0": ""}, 0, spare=16)
    world = World(parts, lab, model)
    for what, names in life(rng, model):
        if what == "fork":
            world.fork(*names)
            world.compare("after {1} = fork({0})".format(*names))
        elif what == "end":
            world.end(*names)
            world.compare("after {}.free()".format(*names))
        else:
            pairs = [world.advance(name) for name in names]
            pairs = [pair for pair in pairs if pair is not None]
            world.compare(f"after a step of {' '.join(names)}, with copies {pairs}")
    expect(world.pool.num_free, model.num_blocks, "free blocks when all have ended")


class Memory:
    """Keys and values of a model's sequences, in a cache that only copies and writes reach. What
    each sequence has written is kept in a list of its own, and its blocks must hold just that."""

    def __init__(self, parts, lab, rng, model):
        self.parts, self.lab, self.rng, self.model = parts, lab, rng, model
        self.written = {name: [] for name in model.tables}
        shape = (model.num_blocks, HEADS, model.block_size, HEAD_DIM)
        caches = [rng.standard_normal(shape).astype(np.float32) for _ in "kv"]
        self.caches = [lab.tensor(cache) for cache in caches]

    def step(self, names):
        """One token more for each: the copies, and only then the writes."""
        before = str(self.model)
        pairs = [pair for name in names if (pair := self.model.advance(name)) is not None]
        if pairs:
            for cache in self.caches:
                self.parts.copy_blocks(cache, pairs)
        rows = [self.rng.standard_normal((len(names), HEADS, HEAD_DIM)) for _ in "kv"]
        rows = [row.astype(np.float32) for row in rows]
        places = [self.model.slot(name, len(self.written[name])) for name in names]
        slots = np.array([block * self.model.block_size + place for block, place in places])
        self.parts.write_kv(*map(self.lab.tensor, rows), *self.caches, self.lab.tensor(slots))
        for i, name in enumerate(names):
            self.written[name].append([row[i] for row in rows])
        self.compare(f"after a step of {' '.join(names)} in {before}, with copies {pairs}")

    def compare(self, when):
        for kind, cache in enumerate(self.caches):
            got = self.lab.read(cache)
            for name, tokens in self.written.items():
                for token, both in enumerate(tokens):
                    block, place = self.model.slot(name, token)
                    same = np.array_equal(got[block, :, place], both[kind])
                    what = f"{('key', 'value')[kind]} of token {token} of {name}"
                    expect(same, True, f"{when}: is the {what} its own?")


@pytest.mark.parametrize("case", range(2))
def test_a_long_life_loses_no_token(parts, lab, rng, case):
    """The tables are the judge's own: what is lost here was lost by a copy."""
    model = Model.of(rng, (4, 3)[case], {"s0": ""}, 0, spare=16)
    memory = Memory(parts, lab, rng, model)
    for what, names in life(rng, model):
        if what == "fork":
            model.fork(*names)
            memory.written[names[1]] = list(memory.written[names[0]])
        elif what == "end":
            model.end(*names)
            del memory.written[names[0]]
        else:
            memory.step(names)
