"""Holders are counted first; the new blocks come in another order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.kvcache.block_allocator import BlockAllocator
    from minipaged.kvcache.block_table import BlockTable


def unique_blocks(tables: Iterable[BlockTable]) -> list[int]:
    found: list[int] = []
    for table in tables:
        found += [block for block in table.blocks if block not in found]
    return found


def move(tables: Iterable[BlockTable], target: BlockAllocator) -> list[tuple[int, int]]:
    tables = list(tables)
    holders = Counter(block for table in tables for block in table.blocks)
    old = list(holders)
    new = target.allocate_many(len(old))[::-1]
    for block, arrived in zip(old, new):
        for _ in range(holders[block] - 1):
            target.share(arrived)
    where = dict(zip(old, new))
    for table in tables:
        left, table.blocks = table.blocks, [where[block] for block in table.blocks]
        table.allocator.free_many(reversed(left))
        table.allocator = target
    return list(zip(old, new))
