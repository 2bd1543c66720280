"""Task 4.1: a child holds its parent's blocks, and each block has one holder more."""

from __future__ import annotations

from sharing_model import Model, World

from minipaged.course.testing import expect


def edges(block_size):
    """Numbers of tokens around a full block, in tables of two or three blocks."""
    return [2 * block_size - 1, 2 * block_size, 2 * block_size + 1]


def family(parts, lab, rng, block_size, num_tokens):
    """A parent of so many tokens in blocks of no order."""
    blocks = "pqr"[: len(range(0, num_tokens, block_size))]
    return World(parts, lab, Model.of(rng, block_size, {"parent": blocks}, num_tokens))


def test_a_fork_holds_the_same_tokens_in_the_same_blocks(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 8))):
        for num_tokens in edges(block_size):
            world = family(parts, lab, rng, block_size, num_tokens)
            parent = world.tables["parent"]
            before = parent.blocks, num_tokens
            child = parts.fork(parent)
            what = f"fork of a table of {num_tokens} tokens in blocks {before[0]} of {block_size}"
            expect(child.block_size, block_size, f"{what}: the child's block size")
            expect((child.blocks, child.num_tokens), before, f"{what}: the child's blocks, tokens")
            after = parent.blocks, parent.num_tokens
            expect(after, before, f"{what}: the parent's blocks, tokens")
            slots = parent.slots(0, num_tokens)
            parent.free()
            got = child.slots(0, num_tokens)
            expect(got, slots, f"{what}: the child's slots when the parent has ended")


def test_a_fork_adds_one_reference_to_each_block_and_allocates_none(parts, lab, rng):
    for block_size in (4, int(rng.integers(3, 8)), 1):
        for num_tokens in edges(block_size):
            world = family(parts, lab, rng, block_size, num_tokens)
            names = ["parent"]
            for child in ("b", "c", "d"):
                parent = names[int(rng.integers(len(names)))]
                world.fork(parent, child)
                names.append(child)
                world.compare(f"after {child} = fork({parent})")


def test_parent_and_child_grow_and_end_apart(parts, lab, rng):
    """On a block boundary, so that no one writes to what is shared."""
    for block_size in (4, int(rng.integers(2, 8)), 1):
        model = Model.of(rng, block_size, {"parent": "pq"}, 2 * block_size, spare=6)
        world = World(parts, lab, model)
        world.fork("parent", "child")
        for name in ("child", "parent", "child"):
            for _ in range(block_size):
                world.append(name)
            world.compare(f"parent and child share two full blocks; once {name} has grown by one")
        first = ["parent", "child"][int(rng.integers(2))]
        world.end(first)
        world.compare(f"after {first}.free()")
        world.end("child" if first == "parent" else "parent")
        world.compare("when both have ended")
