"""Sharing blocks, and writing to them."""

from __future__ import annotations

import numpy as np
import pytest

from minipaged.errors import OutOfBlocks
from minipaged.kvcache.block_allocator import BlockAllocator
from minipaged.kvcache.block_table import BlockTable
from minipaged.kvcache.copy_on_write import (
    blocks_for_next_token,
    copy_blocks,
    fork,
    make_writable,
)


def family(tokens, count, blocks=16):
    pool = BlockAllocator(blocks)
    first = BlockTable(pool, 4)
    first.append(tokens)
    return pool, [first, *(fork(first) for _ in range(count - 1))]


def next_token(tables):
    copies = []
    for table in tables:
        pair = make_writable(table)
        copies += [pair] if pair else []
        table.append(1)
    return copies


def test_fork_shares_every_block_and_allocates_none():
    pool, tables = family(6, 3)
    assert pool.num_free == 14
    assert all(t.blocks == [0, 1] and t.num_tokens == 6 for t in tables)
    assert pool.ref_count(0) == pool.ref_count(1) == 3


def test_b01_copy_on_write_replaces_the_shared_block():
    pool, tables = family(6, 3)
    copies = next_token(tables)
    assert [len(t.blocks) for t in tables] == [2, 2, 2]
    assert [t.blocks[0] for t in tables] == [0, 0, 0]
    assert len({t.blocks[1] for t in tables}) == 3
    assert pool.num_blocks - pool.num_free == 2 + 2
    assert [source for source, _ in copies] == [1, 1]
    assert tables[2].blocks[1] == 1, "the last holder writes in place"
    for table in tables:
        table.free()
    assert pool.num_free == pool.num_blocks


def test_nothing_is_copied_on_a_block_boundary():
    pool, tables = family(8, 3)
    assert next_token(tables) == []
    assert len({t.blocks[2] for t in tables}) == 3
    assert pool.ref_count(0) == 3


def test_a_block_of_ones_own_is_written_in_place():
    _, (table,) = family(6, 1)
    assert make_writable(table) is None


def test_out_of_blocks_leaves_the_table_shared():
    pool, tables = family(6, 2, blocks=2)
    with pytest.raises(OutOfBlocks):
        make_writable(tables[0])
    assert tables[0].blocks == tables[1].blocks
    assert pool.ref_count(1) == 2


@pytest.mark.parametrize("tokens", range(1, 10))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_need_is_what_the_next_token_takes(tokens, count):
    pool, tables = family(tokens, count)
    for _ in range(6):
        before, need = pool.num_free, blocks_for_next_token(tables)
        next_token(tables)
        assert before - pool.num_free == need
        if len(tables) > 1:
            tables.append(fork(tables[0]))  # a beam that branches again
            tables.pop(1).free()


def test_a_reader_outside_the_group_keeps_its_block():
    pool, tables = family(6, 3)
    prefix, *group = tables
    assert blocks_for_next_token(group) == 2
    assert len(next_token(group)) == 2
    assert prefix.blocks == [0, 1]
    assert pool.ref_count(1) == 1


def test_readers_in_other_groups_are_not_counted_as_writers():
    """Three groups of one, forked from a prefix that stays: each copies once."""
    pool, (_, *readers) = family(6, 4)
    for table in readers:
        assert blocks_for_next_token([table]) == 1
    before = pool.num_free
    next_token(readers)
    assert before - pool.num_free == 3


def test_the_bytes_are_copied_and_the_source_stays():
    cache = np.arange(4 * 2 * 3).reshape(4, 2, 3)
    before = cache.copy()
    copy_blocks(cache, [(0, 2), (0, 3)])
    assert (cache[2] == before[0]).all()
    assert (cache[3] == before[0]).all()
    assert (cache[:2] == before[:2]).all()
    copy_blocks(cache, [])
