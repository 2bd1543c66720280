"""Task 4.4: how many blocks a group takes for its next token."""

from __future__ import annotations

from itertools import count, islice

from sharing_model import Model, World, siblings


def test_siblings_that_share_a_block_copy_it_but_for_the_last(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 9)), 2):
        num_tokens = block_size + int(rng.integers(1, block_size))
        for n in (4, 1, 2, int(rng.integers(3, 7))):
            shape = siblings(n, "pq")
            World(parts, lab, Model.of(rng, block_size, shape, num_tokens)).need(shape)


def test_each_shared_block_has_a_last_holder_of_its_own(parts, lab, rng):
    """As in a beam search: some share a parent, some have gone their own way."""
    for block_size in (4, int(rng.integers(3, 9))):
        num_tokens = block_size + int(rng.integers(1, block_size))
        for blocks in (("pq", "pr", "pq", "pr", "pq"), ("pq", "pr"), ("pq", "xy", "pq")):
            shape = dict(zip("abcde", blocks))
            World(parts, lab, Model.of(rng, block_size, shape, num_tokens)).need(shape)


def test_a_sequence_at_a_block_boundary_takes_a_block(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 9)), 1):
        for n in (3, 1, int(rng.integers(4, 7))):
            shape = siblings(n, "pq")
            World(parts, lab, Model.of(rng, block_size, shape, 2 * block_size)).need(shape)
        shape = {"a": "pq", "b": "pq", "c": "pr", "d": ""}
        tokens = dict.fromkeys(shape, 2 * block_size) | {"d": 0}
        if block_size > 1:
            tokens["c"] = int(rng.integers(block_size + 1, 2 * block_size))
        World(parts, lab, Model.of(rng, block_size, shape, tokens)).need(shape)


def life(rng, block_size, steps):
    """Model states of a group on its way: it forks, goes on and loses sequences."""
    model = Model(60, block_size)
    model.tables["s0"], model.num_tokens["s0"] = [], 0
    names = (f"s{i}" for i in count(1))
    for _ in range(int(rng.integers(1, 2 * block_size + 2))):
        model.append("s0")
    for _ in range(steps):
        for _ in range(int(rng.integers(0, 3))):
            alive = list(model.tables)
            if len(alive) < 6:
                model.fork(alive[int(rng.integers(len(alive)))], next(names))
        yield model
        for name in list(model.tables):
            model.advance(name)
        if len(model.tables) > 3:
            model.end(list(model.tables)[int(rng.integers(len(model.tables)))])


def test_the_need_is_what_the_next_step_takes(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 6))):
        for model in life(rng, block_size, 8):
            world = World(parts, lab, model)
            world.need(model.tables)
            world.compare("after blocks_for_next_token()")


def test_the_tables_may_come_as_an_iterator(parts, lab, rng):
    """It can be gone through once: shared and not, partly filled and full."""
    for block_size in (4, int(rng.integers(3, 9))):
        some = block_size + int(rng.integers(1, block_size))
        for shape in (siblings(int(rng.integers(2, 5)), "pq"), {"a": "pq", "b": "pr", "c": "pr"}):
            World(parts, lab, Model.of(rng, block_size, shape, some)).need(shape, once=True)
        mixed = siblings(2, "pq") | {"c": "p"}
        tokens = dict.fromkeys(mixed, some) | {"c": block_size}
        World(parts, lab, Model.of(rng, block_size, mixed, tokens)).need(mixed, once=True)


def test_all_of_a_group_copy_from_a_prefix_that_stays(parts, lab, rng):
    """The prefix keeps the block, and gets no token itself; nor do other forks of it that wait."""
    for block_size in (4, int(rng.integers(3, 9))):
        num_tokens = block_size + int(rng.integers(1, block_size))
        for n, waiting in ((3, 0), (1, 2), (2, 1), (int(rng.integers(2, 5)), 2)):
            group = siblings(n, "pq")
            others = dict.fromkeys(["prefix", "y", "z"][: 1 + waiting], "pq")
            world = World(parts, lab, Model.of(rng, block_size, group | others, num_tokens))
            world.need(group)


def test_readers_in_other_groups_take_no_copy(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 9))):
        num_tokens = block_size + int(rng.integers(1, block_size))
        for sizes in ((1, 1, 1), (2, 3), (int(rng.integers(2, 5)), 2, 1)):
            shape = siblings(sum(sizes), "pq")
            world = World(parts, lab, Model.of(rng, block_size, shape, num_tokens))
            names = iter(shape)
            for size in sizes:
                world.need(islice(names, size))
