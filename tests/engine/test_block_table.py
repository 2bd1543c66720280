"""Slots and growth of one sequence's table."""

from __future__ import annotations

import pytest

from minipaged.errors import OutOfBlocks
from minipaged.kvcache.block_allocator import BlockAllocator
from minipaged.kvcache.block_table import BlockTable


def table_of(tokens, block_size=4, blocks=8):
    table = BlockTable(BlockAllocator(blocks), block_size)
    table.append(tokens)
    return table


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)]
)
def test_holds_exactly_the_blocks_it_needs(tokens, blocks):
    assert len(table_of(tokens).blocks) == blocks


def test_growing_by_one_equals_growing_at_once():
    one = table_of(0)
    for tokens in range(1, 20):
        assert one.blocks_to_append(1) == (1 if (tokens - 1) % 4 == 0 else 0)
        one.append(1)
        assert len(one.blocks) == -(-tokens // 4)
        assert one.num_free_slots == len(one.blocks) * 4 - tokens


def test_slots_follow_the_table_and_not_the_order_of_blocks():
    table = table_of(6)
    table.blocks = [7, 2]
    assert table.slots(0, 6) == [28, 29, 30, 31, 8, 9]
    for token in (-1, 6):
        with pytest.raises(IndexError, match=f"token {token} is not in a table of 6"):
            table.slot(token)


def test_a_failed_append_changes_nothing():
    table = table_of(6, blocks=2)
    with pytest.raises(OutOfBlocks):
        table.append(3)
    assert table.num_tokens == 6
    assert len(table.blocks) == 2
    table.append(2)


def test_freeing_gives_everything_back_and_may_be_repeated():
    table = table_of(9)
    table.free()
    table.free()
    assert table.allocator.num_free == 8
    assert table.num_tokens == 0


def test_a_clone_has_its_own_list():
    table = table_of(6)
    twin = table.clone()
    twin.blocks[0] = 5
    assert table.blocks == [0, 1]
    assert (twin.num_tokens, twin.block_size) == (6, 4)
