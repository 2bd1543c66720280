"""Task 3.1: where a token lives."""

from dense_oracle import blocks_for, places_of

from minipaged.course.testing import expect, expect_error


def table_of(parts, rng, num_tokens, block_size):
    """A table with blocks in no order. Growth is the next task: so the state is put into it."""
    count = blocks_for(num_tokens, block_size)
    table = parts.BlockTable(parts.BlockAllocator(count + 3), block_size)
    blocks = rng.permutation(count + 3)[:count].tolist()
    table.blocks = blocks
    table.num_tokens = num_tokens
    return table, blocks


def test_a_token_lives_in_the_slot_of_its_block(parts, rng):
    size = int(rng.integers(3, 7))
    for block_size in (size, 4, 1):
        for num_tokens in (3 * size, 3 * size + 1, 4 * size - 1, 1):
            table, blocks = table_of(parts, rng, num_tokens, block_size)
            places = places_of(blocks, block_size)
            for token in range(num_tokens):
                expect(
                    table.slot(token),
                    places[token],
                    f"the slot of token {token} in blocks {blocks} of {block_size} tokens",
                )


def test_slots_are_those_of_a_span_of_tokens(parts, rng):
    block_size = int(rng.integers(3, 7))
    num_tokens = 3 * block_size + 2
    table, blocks = table_of(parts, rng, num_tokens, block_size)
    places = places_of(blocks, block_size)
    where = f"of {num_tokens} tokens in blocks {blocks} of {block_size} tokens"
    starts = [0, block_size, *rng.integers(1, num_tokens - 1, 4).tolist()]
    for start in starts:
        for stop in (start + 1, int(rng.integers(start + 1, num_tokens + 1)), num_tokens, start):
            expect(
                table.slots(start, stop),
                places[start:stop],
                f"the slots from token {start} up to, but not with, token {stop} {where}",
            )
    with expect_error(
        IndexError,
        str(num_tokens),
        why=f"the slots from token 0 up to, but not with, token {num_tokens + 1} {where}",
    ):
        table.slots(0, num_tokens + 1)


def test_tokens_outside_the_table_are_errors(parts, rng):
    block_size = int(rng.integers(5, 9))
    num_tokens = block_size - 1
    table, blocks = table_of(parts, rng, num_tokens, block_size)
    places = places_of(blocks, block_size)
    for token in (0, num_tokens - 1):
        expect(table.slot(token), places[token], f"token {token} of {num_tokens}, in {blocks}")
    for token in (-1, -num_tokens, num_tokens, num_tokens + int(rng.integers(2, 90))):
        why = f"a table of {num_tokens} tokens in blocks of {block_size} has no token {token}"
        with expect_error(IndexError, str(token), str(num_tokens), why=why):
            table.slot(token)
    empty = parts.BlockTable(parts.BlockAllocator(2), block_size)
    with expect_error(IndexError, "0", why="an empty table has no token 0"):
        empty.slot(0)
