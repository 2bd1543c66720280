"""A hidden check of stage 3: tables that grow in turns get blocks that lie apart."""

from minipaged.course.testing import expect


def test_two_tables_in_one_pool_never_meet(parts, rng):
    block_size = int(rng.integers(2, 6))
    pool = parts.BlockAllocator(60)
    tables = [parts.BlockTable(pool, block_size) for _ in range(2)]
    lengths = [0, 0]
    for turn in range(12):
        i, count = turn % 2, int(rng.integers(1, block_size + 2))
        tables[i].append(count)
        lengths[i] += count
    held = []
    for i, table in enumerate(tables):
        blocks = table.blocks
        needed = -(-lengths[i] // block_size)
        expect(len(blocks), needed, f"blocks of table {i} with {lengths[i]} tokens")
        held += blocks
    expect(len(set(held)), len(held), "different blocks that two tables of one pool hold")
    expect(pool.num_free, 60 - len(held), "num_free of the pool of 60 under both tables")
