"""The paged block manager: which sequence holds which blocks, on which device
(paper, sections 4.3 to 4.5).

It owns both pools and every block table, and is built from the course's parts. It decides
nothing: who is admitted, preempted or resumed is the scheduler's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from minipaged.contracts import BlockPair
from minipaged.errors import InvariantError, OutOfBlocks

if TYPE_CHECKING:
    from minipaged.kvcache.block_allocator import BlockAllocator
    from minipaged.kvcache.block_table import BlockTable
    from minipaged.parts import Parts
    from minipaged.sequence import Sequence, SequenceGroup


class PagedKVManager:
    """Implements :class:`minipaged.contracts.KVManager` with paged blocks.

    Attributes:
        gpu, cpu: the allocators of the two pools.
        tables: the block table of every sequence that holds blocks, by ``seq_id``.
    """

    preemptible = True

    def __init__(
        self, num_gpu_blocks: int, num_cpu_blocks: int, block_size: int, parts: Parts
    ) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.num_cpu_blocks = num_cpu_blocks
        self.block_size = block_size
        self.parts = parts
        self.gpu: BlockAllocator = parts.BlockAllocator(num_gpu_blocks, "GPU")
        self.cpu: BlockAllocator = parts.BlockAllocator(num_cpu_blocks, "CPU")
        self.tables: dict[int, BlockTable] = {}
        self._make_writable = parts.make_writable  # called for every token

    @property
    def num_free_gpu_blocks(self) -> int:
        return self.gpu.num_free

    @property
    def num_free_cpu_blocks(self) -> int:
        return self.cpu.num_free

    @property
    def num_usable_gpu_blocks(self) -> int:
        return self.num_gpu_blocks

    # -- admission ---------------------------------------------------------------------------
    def blocks_needed(self, group: SequenceGroup) -> int:
        if group.shape is not None:
            return len({label for labels in group.shape.values() for label in labels})
        return -(-self._only(group).num_tokens // self.block_size)

    def fits(self, group: SequenceGroup, headroom: int = 0) -> bool:
        # A recomputed group that could not take its next token would come back for nothing.
        need = self.blocks_needed(group) + self._next_token_of_shape(group)
        return need + headroom <= self.gpu.num_free

    def _next_token_of_shape(self, group: SequenceGroup) -> int:
        """Blocks that the next token of a recomputed group of several will take: one for each
        sequence, but for the last holder of every partly filled block."""
        if group.shape is None:
            return 0
        partial = {
            group.shape[seq.seq_id][-1]
            for seq in group.live
            if (seq.num_tokens - 1) % self.block_size
        }
        return len(group.seqs) - len(partial)

    def fits_ever(self, group: SequenceGroup) -> bool:
        return self.blocks_needed(group) <= self.num_usable_gpu_blocks

    def allocate(self, group: SequenceGroup) -> None:
        if group.shape is not None:
            self._allocate_shape(group, group.shape)
            group.shape = None
            return
        seq = self._only(group)
        table = self.parts.BlockTable(self.gpu, self.block_size)
        table.append(seq.num_tokens)
        self.tables[seq.seq_id] = table

    def _allocate_shape(self, group: SequenceGroup, shape: dict[int, list[int]]) -> None:
        """Tables that share blocks as they did before: equal labels are one block.

        They cover ``num_tokens - 1`` tokens each: those that were in the cache."""
        if self.blocks_needed(group) > self.gpu.num_free:
            raise OutOfBlocks(
                f"the GPU pool is exhausted: {self.blocks_needed(group)} blocks were asked for, "
                f"{self.gpu.num_free} of {self.num_gpu_blocks} are free"
            )
        block_of: dict[int, int] = {}
        for seq in group.live:
            table = self.parts.BlockTable(self.gpu, self.block_size)
            for label in shape[seq.seq_id]:
                if label in block_of:
                    self.gpu.share(block_of[label])
                else:
                    block_of[label] = self.gpu.allocate()
                table.blocks.append(block_of[label])
            table.num_tokens = seq.num_tokens - 1
            self.tables[seq.seq_id] = table

    @staticmethod
    def _only(group: SequenceGroup) -> Sequence:
        (seq,) = group.seqs.values()
        return seq

    # -- growth ------------------------------------------------------------------------------
    def can_append(self, group: SequenceGroup) -> bool:
        # A sequence takes one block at most, which settles nearly every case at once.
        if self.gpu.num_free >= len(group.seqs):
            return True
        return self.parts.blocks_for_next_token(self._tables(group)) <= self.gpu.num_free

    def append(self, groups: Iterable[SequenceGroup]) -> list[BlockPair]:
        copies = []
        tables, make_writable = self.tables, self._make_writable
        for group in groups:
            # Only siblings share a block that is partly filled.
            siblings = len(group.seqs) > 1
            for seq_id in group.seqs:
                table = tables[seq_id]
                if siblings:
                    pair = make_writable(table)
                    if pair is not None:
                        copies.append(pair)
                table.append(1)
        return copies

    def fork(self, parent: Sequence, child: Sequence) -> None:
        self.tables[child.seq_id] = self.parts.fork(self.tables[parent.seq_id])

    def free(self, seq: Sequence) -> None:
        table = self.tables.pop(seq.seq_id, None)
        if table is not None:
            table.free()

    def take_copies(self) -> list[BlockPair]:
        return []

    # -- preemption --------------------------------------------------------------------------
    def release(self, group: SequenceGroup) -> None:
        # Of a step that failed a table has the block of the token that was being fed, too.
        shape = {
            seq.seq_id: self.tables[seq.seq_id].blocks[
                : -(-(seq.num_tokens - 1) // self.block_size)
            ]
            for seq in group.live
        }
        group.shape = shape if len(shape) > 1 else None
        for seq in group.live:
            self.free(seq)

    def can_swap_out(self, group: SequenceGroup) -> bool:
        return len(self.parts.unique_blocks(self._tables(group))) <= self.cpu.num_free

    def swap_out(self, group: SequenceGroup) -> list[BlockPair]:
        return self.parts.move(self._tables(group), self.cpu)

    def blocks_to_swap_in(self, group: SequenceGroup) -> int:
        """The group's blocks, and those that its next token needs."""
        tables = self._tables(group)
        return len(self.parts.unique_blocks(tables)) + self.parts.blocks_for_next_token(tables)

    def can_swap_in(self, group: SequenceGroup, headroom: int = 0) -> bool:
        return self.blocks_to_swap_in(group) + headroom <= self.gpu.num_free

    def swap_in(self, group: SequenceGroup) -> list[BlockPair]:
        return self.parts.move(self._tables(group), self.gpu)

    def _tables(self, group: SequenceGroup) -> list[BlockTable]:
        return [self.tables[seq_id] for seq_id in group.seqs]

    # -- looking -----------------------------------------------------------------------------
    def block_table(self, seq_id: int) -> list[int]:
        table = self.tables.get(seq_id)
        return table.blocks if table is not None else []

    def check(self, groups: Seq[SequenceGroup]) -> None:
        live = {seq_id for group in groups for seq_id in group.seqs}
        for seq_id in self.tables.keys() - live:
            raise InvariantError("I1", f"sequence {seq_id} has ended and still holds a table")
        for pool in (self.gpu, self.cpu):
            self._check_pool(pool, self._held(pool))

    def _held(self, pool: BlockAllocator) -> Counter[int]:
        """The references to each block of a pool that can be accounted for."""
        tables = (table for table in self.tables.values() if table.allocator is pool)
        return Counter(block for table in tables for block in table.blocks)

    @staticmethod
    def _check_pool(pool: BlockAllocator, held: Counter[int]) -> None:
        for block in range(pool.num_blocks):
            if pool.ref_count(block) != held[block]:
                raise InvariantError(
                    "I1",
                    f"{pool.name} block {block} has {held[block]} references from tables and pins, "
                    f"and a ref count of {pool.ref_count(block)}",
                )
        free = pool.free_blocks
        if len(set(free)) != len(free):
            raise InvariantError("I2", f"the {pool.name} free list holds a block twice: {free}")
        if set(free) & held.keys():
            raise InvariantError(
                "I2", f"{pool.name} blocks {sorted(set(free) & held.keys())} are free and held"
            )
        if len(free) + len(held) != pool.num_blocks:
            raise InvariantError(
                "I2",
                f"{len(free)} free + {len(held)} held {pool.name} blocks are not {pool.num_blocks}",
            )
