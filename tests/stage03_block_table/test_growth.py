"""Task 3.2: a table grows by just the blocks that its tokens need."""

from dense_oracle import blocks_for

from minipaged.course.testing import expect, expect_error
from minipaged.errors import OutOfBlocks


def edges(block_size):
    """Numbers of tokens around a full block: nothing in the last one, one token, all but one."""
    return sorted({0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size - 1})


def table_with(parts, rng, num_tokens, block_size):
    """A table that holds so many tokens, whoever wrote ``append``."""
    pool = parts.BlockAllocator(blocks_for(num_tokens, block_size) + int(rng.integers(4, 9)))
    table = parts.BlockTable(pool, block_size)
    table.blocks = pool.allocate_many(blocks_for(num_tokens, block_size))
    table.num_tokens = num_tokens
    return pool, table


def test_a_table_holds_just_the_blocks_it_needs(parts, rng):
    for block_size in (4, int(rng.integers(2, 8)), 1):
        pool = parts.BlockAllocator(40)
        pool.allocate_many(int(rng.integers(1, 5)))  # of somebody else
        free = pool.free_blocks  # the next to be handed out last
        table = parts.BlockTable(pool, block_size)
        steps = [1, block_size - 1, 1, 0, block_size, 2 * block_size - 1]
        blocks, total = [], 0
        for count in (*steps, *rng.integers(1, 2 * block_size + 1, 6).tolist()):
            table.append(count)
            total += count
            while len(blocks) < blocks_for(total, block_size):
                blocks.append(free.pop())
            after = f"after append({count}), with {total} tokens in blocks of {block_size}"
            expect(table.blocks, blocks, f"{after}: the table's blocks")
            expect(table.num_tokens, total, f"{after}: num_tokens")
            expect(pool.num_free, len(free), f"{after}: free blocks of the pool")


def test_num_free_slots_is_the_rest_of_the_last_block(parts, rng):
    for block_size in (4, int(rng.integers(3, 12)), 1):
        for num_tokens in (*edges(block_size), int(rng.integers(1, 60))):
            _, table = table_with(parts, rng, num_tokens, block_size)
            room = blocks_for(num_tokens, block_size) * block_size - num_tokens
            expect(
                table.num_free_slots,
                room,
                f"free slots with {num_tokens} tokens in blocks of {block_size}",
            )


def test_blocks_to_append_is_what_an_append_will_take(parts, rng):
    for block_size in (4, int(rng.integers(2, 9)), 1):
        for num_tokens in (*edges(block_size), int(rng.integers(1, 60))):
            pool, table = table_with(parts, rng, num_tokens, block_size)
            before = table.blocks, table.num_tokens, pool.num_free
            held = blocks_for(num_tokens, block_size)
            for count in (*edges(block_size), int(rng.integers(1, 60))):
                expect(
                    table.blocks_to_append(count),
                    blocks_for(num_tokens + count, block_size) - held,
                    f"new blocks for {count} more tokens, with {num_tokens} tokens in blocks of "
                    f"{block_size}",
                )
            after = table.blocks, table.num_tokens, pool.num_free
            expect(after, before, "blocks, tokens and free blocks after blocks_to_append")


def test_free_gives_every_block_back(parts, rng):
    for block_size in (4, int(rng.integers(2, 8)), 1):
        pool = parts.BlockAllocator(30)
        others = [parts.BlockTable(pool, block_size) for _ in range(2)]
        table = parts.BlockTable(pool, block_size)
        for count in rng.integers(1, block_size + 2, 5).tolist():  # so its blocks do not adjoin
            table.append(count)
            others[int(rng.integers(2))].append(count)
        blocks, free = table.blocks, pool.num_free
        shared = blocks[int(rng.integers(len(blocks)))]
        pool.share(shared)
        table.free()
        what = f"after free() of a table of {blocks}, of which {shared} has a second holder"
        expect(pool.ref_count(shared), 1, f"{what}: references of block {shared}")
        expect(pool.num_free, free + len(blocks) - 1, f"{what}: free blocks")
        blocks.remove(shared)
        expect(
            pool.allocate_many(len(blocks)),
            blocks,
            f"{what}: handed out next, the sequence's first block first",
        )


def test_a_failed_append_changes_nothing(parts, rng):
    block_size = int(rng.integers(3, 8))
    pool = parts.BlockAllocator(4)
    table = parts.BlockTable(pool, block_size)
    table.append(block_size + 1)  # two blocks, and two are left
    before = table.blocks, table.num_tokens, pool.free_blocks
    want = [0, 1], block_size + 1, [3, 2]
    expect(before, want, "two blocks of four: blocks, tokens, free blocks")
    for count in (3 * block_size, 4 * block_size + int(rng.integers(50))):
        why = f"append({count}) with room for {3 * block_size - 1}"
        with expect_error(OutOfBlocks, why=why):
            table.append(count)
        after = table.blocks, table.num_tokens, pool.free_blocks
        expect(after, before, f"{why} changes nothing: blocks, tokens, free blocks")
    table.append(3 * block_size - 1)
    expect(table.blocks, [0, 1, 2, 3], "an append that takes all the room there is")
    with expect_error(OutOfBlocks, why="one more token, in a pool that is full"):
        table.append(1)
    expect(table.num_tokens, 4 * block_size, "tokens of a table that holds all blocks")


def test_a_freed_table_can_start_again(parts, rng):
    block_size = int(rng.integers(2, 8))
    pool = parts.BlockAllocator(6)
    table = parts.BlockTable(pool, block_size)
    for count in rng.integers(2, 3 * block_size, 3).tolist():
        table.append(count)
        expect(len(table.blocks), blocks_for(count, block_size), f"blocks for {count} tokens")
        for time in ("free()", "free() once more"):
            table.free()
            state = table.blocks, table.num_tokens, pool.num_free
            expect(state, ([], 0, 6), f"after {time}: blocks, tokens, free blocks")
