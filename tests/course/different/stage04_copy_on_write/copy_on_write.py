"""A right answer that has nothing in common with the reference's: a table is forked through its
attributes, the need is counted block by block and not table by table, and blocks are copied singly.
"""

from __future__ import annotations

from collections import Counter


def fork(parent):
    child = type(parent)(parent.allocator, parent.block_size)
    for block in parent.blocks:
        parent.allocator.share(block)
        child.blocks.append(block)
    child.num_tokens = parent.num_tokens
    return child


def make_writable(table):
    pool, last = table.allocator, len(table.blocks) - 1
    if table.num_free_slots and pool.ref_count(table.blocks[last]) > 1:
        (own,) = pool.allocate_many(1)
        shared, table.blocks[last] = table.blocks[last], own
        pool.free(shared)
        return shared, own
    return None


def blocks_for_next_token(tables):
    tables = list(tables)
    writers = Counter(table.blocks[-1] for table in tables if table.num_tokens % table.block_size)
    need = len(tables) - writers.total()
    if writers:
        pool = tables[0].allocator
        need += sum(min(n, pool.ref_count(block) - 1) for block, n in writers.items())
    return need


def copy_blocks(cache, pairs):
    for source, target in pairs:
        cache[target] = cache[source]
