"""Task 6.3: the tables of a group move to another pool, and share there what they shared."""

from __future__ import annotations

from pressure_model import Family, Memory, Pools, same_sharing

from minipaged.course.testing import expect, expect_error
from minipaged.errors import OutOfBlocks

SHAPES = (
    {"a": "pq", "b": "pr"},
    {"a": "pqr", "b": "pqr", "c": "pqr"},
    {"a": "pqs", "b": "pt", "c": "pqu", "d": "pqu"},
    {"a": "pq"},
    {"a": "p", "b": "q", "c": "pr"},
)


def tokens_of(rng, block_size, shape):
    """Tables whose last block is partly filled or full."""
    fill = int(rng.integers(1, block_size + 1))
    return {name: (len(word) - 1) * block_size + fill for name, word in shape.items()}


def pools(parts, rng, shape, *, spare=3, busy=2, block_size=None):
    """The tables of such a shape, and a host that has room for them."""
    block_size = block_size or int(rng.integers(2, 9))
    unique = len(set("".join(shape.values())))
    num_tokens = tokens_of(rng, block_size, shape)
    return Pools(parts, rng, block_size, shape, num_tokens, host=unique + spare, busy=busy)


def test_a_shared_block_is_listed_once(parts, rng):
    for shape in SHAPES:
        world = pools(parts, rng, shape)
        for names in (list(shape), list(shape)[::-1], [*shape][:1]):
            got = parts.unique_blocks(world.some(names))
            expect(got, world.unique(names), f"unique_blocks() of {world.told(names)}")
        world.expect_unchanged("after unique_blocks()")
    expect(parts.unique_blocks([]), [], "unique_blocks() of no table")


def test_each_block_travels_once(parts, lab, rng):
    for number, shape in enumerate(SHAPES):
        world = pools(parts, rng, shape)
        tables, told = world.some(shape), world.told(shape)
        if number % 2:
            tables, told = lab.iterator(tables), f"an iterator over {told}"
        pairs = parts.move(tables, world.cpu)
        why = f"move() of {told} to a pool with the free blocks {world.cpu_free}"
        expect([old for old, _ in pairs], world.unique(shape), f"{why}: the old blocks")
        new = [block for _, block in pairs]
        expect(len(set(new)), len(new), f"{why}: distinct new blocks")
        expect(set(new) <= set(world.cpu_free), True, f"{why}: were the new blocks {new} free?")
        for name, table in world.tables.items():
            want = [dict(pairs)[block] for block in world.before[name]]
            expect(table.blocks, want, f"{why}: the blocks of {name}, by the pairs {pairs}")


def test_the_tables_hold_the_new_blocks_in_the_old_order(parts, rng):
    for shape in SHAPES:
        world = pools(parts, rng, shape, spare=8)
        parts.move(world.some(shape), world.cpu)
        why = f"move() of {world.told(shape)}"
        blocks = [table.blocks for table in world.tables.values()]
        want = same_sharing(list(world.before.values()))
        expect(same_sharing(blocks), want, f"{why}: the new tables, their blocks numbered anew")
        for name, table in world.tables.items():
            expect(table.allocator.name, "CPU", f"{why}: the pool of {name}")
            expect(table.num_tokens, world.num_tokens[name], f"{why}: the tokens of {name}")
        free = world.cpu.num_free
        for name, table in world.tables.items():
            table.append(world.block_size)  # a block more for each
            free -= 1
            expect(world.cpu.num_free, free, f"{why}, then {name} grows: free blocks of its pool")


def test_siblings_share_what_they_shared(parts, rng):
    for shape in SHAPES:
        world = pools(parts, rng, shape)
        parts.move(world.some(shape), world.cpu)
        why = f"move() of {world.told(shape)}"
        tables = {name: table.blocks for name, table in world.tables.items()}
        left = list(shape)
        free = len(world.cpu_free) - len(world.unique(shape))
        while True:
            held = {block for name in left for block in tables[name]}
            refs = {block: world.cpu.ref_count(block) for block in sorted(held)}
            want = {block: sum(block in tables[name] for name in left) for block in refs}
            expect(refs, want, f"{why} to {tables}: references while {', '.join(left)} live")
            free = len(world.cpu_free) - len(held)
            expect(world.cpu.num_free, free, f"{why}: free blocks while {', '.join(left)} live")
            if not left:
                break
            world.tables[left.pop(int(rng.integers(len(left))))].free()


def test_the_blocks_they_left_are_free(parts, rng):
    for shape in SHAPES:
        world = pools(parts, rng, shape)
        parts.move(world.some(shape), world.cpu)
        world.expect_old_pool(shape, f"move() of {world.told(shape)}")


def copies_of(tables, cached, block_size):
    """Copies that the next token of each takes: of a shared, partly filled block all holders but
    the last one take one."""
    if cached % block_size == 0:
        return 0
    last = [table[-1] for table in tables]
    return len(last) - len(set(last))


def test_out_and_in_again_the_same_tokens_are_there(parts, lab, rng):
    for block_size, cached in ((4, 10), (4, 8), (int(rng.integers(3, 7)), 13)):
        for own in (0, 2):
            siblings = Family.of(rng, block_size, int(rng.integers(2, 4)), cached, own)
            siblings.fork()  # two of them share all
            kv = manager(parts, lab, block_size)
            group = siblings.run(lab, kv)
            device, host = Memory(block_size), Memory(block_size)
            device.fill(kv, group)
            out = kv.swap_out(group)
            host.blocks(out, device)
            device.wipe()
            back = kv.swap_in(group)
            device.blocks(back, host)
            host.wipe()
            why = f"{siblings.told()} with {cached} tokens, out by {out} and in by {back}"
            expect(len(out), siblings.unique, f"{why}: pairs on the way out")
            expect(len(back), siblings.unique, f"{why}: pairs on the way in")
            expect(kv.num_free_cpu_blocks, 20, f"{why}: free blocks on the host")
            check_contents(kv, group, device, why)
            copies = kv.append([group])
            want = copies_of(siblings.tables, cached, block_size)
            expect(len(copies), want, f"{why}: copies on write for the next token")
            device.blocks(copies, device)
            for seq in group.live:
                device.write(kv.block_table(seq.seq_id), seq.token_ids, cached)
            check_contents(kv, group, device, f"{why}, one token later", more=1)


def manager(parts, lab, block_size, gpu=40, cpu=20):
    return lab.paged_kv(
        gpu=gpu, cpu=cpu, block_size=block_size, unique_blocks=parts.unique_blocks, move=parts.move
    )


def check_contents(kv, group, memory, why, more=0):
    for seq in group.live:
        table, tokens = kv.block_table(seq.seq_id), seq.token_ids
        name = f"{why}; sequence {seq.seq_id}"
        memory.check(table, tokens, len(tokens) - 1 + more, name)


def test_a_move_that_does_not_fit_changes_nothing(parts, rng):
    for shape in SHAPES:
        world = pools(parts, rng, shape, spare=-1)
        unique = len(world.unique(shape))
        why = f"move() of {world.told(shape)}, to a pool with {unique - 1} free blocks"
        with expect_error(OutOfBlocks, "CPU", why=why):
            parts.move(world.some(shape), world.cpu)
        world.expect_unchanged(f"after {why}")
        if len(shape) > 1:
            names = list(shape)[:1]
            if len(world.unique(names)) < unique:
                parts.move(world.some(names), world.cpu)
                world.expect_old_pool(names, f"{why}, and then of {names[0]} alone")


def test_a_block_that_others_hold_stays_theirs(parts, rng):
    for shape, names in (
        ({"a": "pqr", "b": "pqs", "other": "pqt"}, "ab"),
        ({"a": "pq", "b": "pq", "prefix": "p"}, "ab"),
        ({"other": "pqr", "a": "pqr", "another": "pqr"}, "a"),
    ):
        world = pools(parts, rng, shape)
        pairs = parts.move(world.some(names), world.cpu)
        why = f"move() of {' and '.join(names)}, of {world.told(shape)}"
        expect(
            [old for old, _ in pairs], world.unique(names), f"{why}: the old blocks of the pairs"
        )
        world.expect_old_pool(names, why)
        for name in set(shape) - set(names):
            table = world.tables[name]
            got = table.allocator.name, table.blocks
            expect(got, ("GPU", world.before[name]), f"{why}: pool and blocks of {name}")
        refs = {new: world.cpu.ref_count(new) for _, new in pairs}
        want = {new: world.holders(old, names) for old, new in pairs}
        expect(refs, want, f"{why}: references in the new pool, by the pairs {pairs}")
        for table in world.some(names):
            table.free()
        free = len(world.cpu_free)
        expect(world.cpu.num_free, free, f"{why}, and they have ended: free blocks of the new pool")


def test_two_groups_on_the_host_stay_apart(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 7))):
        families = [
            Family.of(rng, block_size, int(rng.integers(1, 4)), int(rng.integers(5, 14)))
            for _ in range(2)
        ]
        kv = manager(parts, lab, block_size)
        groups = [each.run(lab, kv, first_id=10 * i) for i, each in enumerate(families)]
        device, host = Memory(block_size), Memory(block_size)
        for group in groups:
            device.fill(kv, group)
        why = " and ".join(each.told() for each in families)
        for group in groups:
            host.blocks(kv.swap_out(group), device)
        device.wipe()
        want = 20 - sum(each.unique for each in families)
        expect(kv.num_free_cpu_blocks, want, f"{why} are out: free blocks on the host")
        for i in (int(rng.integers(2)), 0, 1):
            if groups[i] is not None:
                device.blocks(kv.swap_in(groups[i]), host)
                check_contents(kv, groups[i], device, f"{why}; group {i + 1} is back")
                groups[i] = None
