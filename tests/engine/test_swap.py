"""Moving tables between pools."""

from __future__ import annotations

import pytest

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.engine import make_kv_manager
from minipaged.errors import OutOfBlocks
from minipaged.kvcache.block_allocator import BlockAllocator
from minipaged.kvcache.block_table import BlockTable
from minipaged.kvcache.copy_on_write import fork
from minipaged.kvcache.swap import move, unique_blocks
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup


def siblings(gpu, shared_tokens, tails):
    first = BlockTable(gpu, 4)
    first.append(shared_tokens)
    tables = [first, *(fork(first) for _ in tails[1:])]
    for table, tail in zip(tables, tails):
        table.append(tail)
    return tables


def refs(pool):
    return [pool.ref_count(b) for b in range(pool.num_blocks)]


def test_b02_a_shared_block_travels_once_and_stays_shared():
    gpu, cpu = BlockAllocator(12, "GPU"), BlockAllocator(6, "CPU")
    tables = siblings(gpu, 8, [3, 4, 1])
    shape = [list(t.blocks) for t in tables]
    counts = sorted(refs(gpu))
    pairs = move(tables, cpu)
    assert len(pairs) == len({old for old, _ in pairs}) == 5
    assert gpu.num_free == 12
    assert cpu.num_free == 1
    assert [[dict(pairs)[b] for b in row] for row in shape] == [t.blocks for t in tables]
    assert sorted(refs(cpu))[-2:] == [3, 3]
    back = move(tables, gpu)
    assert len(back) == 5
    assert cpu.num_free == 6
    assert sorted(refs(gpu)) == counts
    assert all(t.allocator is gpu for t in tables)
    for table in tables:
        table.free()
    assert gpu.num_free == 12


def test_a_block_that_others_hold_stays_theirs():
    gpu, cpu = BlockAllocator(8, "GPU"), BlockAllocator(8, "CPU")
    prefix, mine = siblings(gpu, 8, [0, 2])
    move([mine], cpu)
    assert gpu.ref_count(prefix.blocks[0]) == 1
    assert gpu.num_free == 6
    assert cpu.num_free == 5


def test_too_little_room_changes_nothing():
    gpu, cpu = BlockAllocator(8, "GPU"), BlockAllocator(2, "CPU")
    tables = siblings(gpu, 8, [3, 3])
    before = [list(t.blocks) for t in tables], refs(gpu)
    with pytest.raises(OutOfBlocks, match="CPU"):
        move(tables, cpu)
    assert ([t.blocks for t in tables], refs(gpu)) == before
    assert cpu.num_free == 2


def test_unique_blocks_in_order_of_first_use():
    gpu = BlockAllocator(8)
    a, b = siblings(gpu, 4, [1, 1])
    assert unique_blocks([b, a]) == [0, b.blocks[1], a.blocks[1]]


@pytest.mark.parametrize("tail", [0, 2])
def test_b02_swap_in_counts_the_next_token_of_every_sequence(tail):
    """Tails on a block boundary and off it: unique + need blocks are enough, one less is not."""
    kv = make_kv_manager(
        CacheConfig(block_size=4, num_gpu_blocks=16, num_cpu_blocks=16), SchedulerConfig(), Parts()
    )
    first = Sequence(0, range(8 + tail))
    group = SequenceGroup("g", first, SamplingParams(n=3))
    kv.allocate(group)
    for i in (1, 2):
        child = first.fork(i, i)
        kv.fork(first, child)
        group.seqs[i] = child
    unique, need = (2, 3) if tail == 0 else (3, 2)
    kv.swap_out(group)
    hold = [kv.gpu.allocate() for _ in range(16 - (unique + need) + 1)]
    assert kv.num_free_gpu_blocks == unique + need - 1
    assert not kv.can_swap_in(group)
    kv.gpu.free(hold.pop())
    assert kv.can_swap_in(group)
    assert not kv.can_swap_in(group, headroom=1)
    kv.swap_in(group)
    assert len(kv.append([group])) == (2 if tail else 0)
    assert kv.num_free_gpu_blocks == 0
