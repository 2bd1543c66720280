"""Task 4.2: who is about to write to a shared block takes a copy, but for the last holder."""

from __future__ import annotations

from sharing_model import Model, World, expect_copy, siblings

from minipaged.course.testing import expect, expect_error
from minipaged.errors import OutOfBlocks


def group(parts, lab, rng, block_size, count, spare=6):
    """Siblings that share two full blocks and a partly filled one."""
    num_tokens = 2 * block_size + int(rng.integers(1, block_size))
    return World(parts, lab, Model.of(rng, block_size, siblings(count, "pqr"), num_tokens, spare))


def in_any_order(rng, world):
    return [str(name) for name in rng.permutation(list(world.tables))]


def test_the_copy_takes_the_place_of_the_shared_block(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 9)), 2):
        world = group(parts, lab, rng, block_size, 2)
        writer, _ = in_any_order(rng, world)
        what = f"after make_writable({writer}) in {world.model}"
        parts.make_writable(world.tables[writer])
        world.model.make_writable(writer)
        for name, table in world.tables.items():
            expect(table.blocks, world.model.tables[name], f"{what}: the blocks of {name}")
            expect(table.num_tokens, world.model.num_tokens[name], f"{what}: the tokens of {name}")


def test_the_pair_says_what_to_copy_and_where_to(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 9))):
        for count in (3, 4):
            world = group(parts, lab, rng, block_size, count)
            for writer in in_any_order(rng, world)[: count - 1]:
                world.make_writable(writer)


def test_the_writer_gives_up_its_reference(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 9))):
        world = group(parts, lab, rng, block_size, int(rng.integers(4, 6)))
        for writer in in_any_order(rng, world)[:2]:
            what = f"after make_writable({writer}) in {world.model}"
            parts.make_writable(world.tables[writer])
            world.model.make_writable(writer)
            refs = {block: world.pool.ref_count(block) for block in world.model.refs}
            expect(refs, world.model.refs, f"{what}: the references of each block that is held")
            expect(world.pool.num_free, len(world.model.free), f"{what}: free blocks")


def test_the_last_holder_writes_in_place(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 9))):
        for count in (2, int(rng.integers(3, 5))):
            world = group(parts, lab, rng, block_size, count)
            order = in_any_order(rng, world)
            for writer in order:
                what = f"make_writable({writer}) in {world.model}"
                table = world.tables[writer]
                expect_copy(parts.make_writable(table), writer != order[-1], what)
                world.model.make_writable(writer)
                expect(table.blocks[-1], world.model.tables[writer][-1], f"last block after {what}")
                again = f"make_writable({writer}) once more, in {world.model}"
                expect_copy(parts.make_writable(table), False, again)


def test_a_full_block_is_never_copied(parts, lab, rng):
    """Whoever shares it: no token will be written to it."""
    for block_size in (4, int(rng.integers(3, 9)), 1):
        for num_tokens in range(1, 2 * block_size + 2):
            blocks = "pqr"[: len(range(0, num_tokens, block_size))]
            model = Model.of(rng, block_size, siblings(2, blocks), num_tokens)
            world = World(parts, lab, model)
            size = f"{num_tokens} tokens in blocks of {block_size}"
            what = f"make_writable(a) with {size}, in {model}"
            full = num_tokens % block_size == 0
            pair = parts.make_writable(world.tables["a"])
            expect_copy(pair, not full, what)
            expect(world.pool.num_free, len(model.free) - (not full), f"free blocks after {what}")


def test_a_copy_that_finds_no_block_changes_nothing(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 9))):
        world = group(parts, lab, rng, block_size, 3, spare=1)
        world.make_writable("a")  # takes the only free block
        why = f"make_writable(b) with no free block, in {world.model}"
        with expect_error(OutOfBlocks, why=why):
            parts.make_writable(world.tables["b"])
        world.compare(f"after {why}")
        world.make_writable("a")
        world.end("b")
        world.make_writable("c")
        world.compare("b has ended, and c is the last holder; after make_writable(c)")

        full = World(
            parts, lab, Model.of(rng, block_size, siblings(2, "pq"), 2 * block_size, spare=0)
        )
        full.make_writable("a")
        full.compare("after make_writable(a), with full blocks and no free one")


def test_an_empty_table_has_nothing_to_share_or_copy(parts, lab, rng):
    block_size = int(rng.integers(2, 9))
    world = World(parts, lab, Model.of(rng, block_size, {"parent": ""}, 0))
    world.fork("parent", "child")
    for name in ("parent", "child"):
        world.make_writable(name)
        world.compare(f"two empty tables; after make_writable({name})")
        world.append(name)
        world.compare(f"after {name}.append(1)")
    world.fork("child", "other")
    world.make_writable("child")
    world.compare("a fork of the child, and make_writable(child)")
