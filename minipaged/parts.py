"""Which implementation of each part an engine is built from.

A part is a module of the package that is one stage of the course. Everything that puts an engine
together takes its parts from here, and nowhere else, so that a student's own can stand in for any
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minipaged.kvcache import (
    block_allocator,
    block_table,
    buddy,
    contiguous,
    copy_on_write,
    sizing,
    swap,
)
from minipaged.scheduling import admission, preemption, scheduler

if TYPE_CHECKING:
    from minipaged.attention import AttentionBackend


def reference_attention() -> AttentionBackend:
    """The reference's attention. It is imported here, when an engine with a model is built:
    planning and simulation need no torch."""
    from minipaged.attention.reference import ReferenceAttention

    return ReferenceAttention()


@dataclass(frozen=True)
class Parts:
    """What an engine is made of. The reference is the default for each."""

    watermark_blocks: Callable[[int, float], int] = sizing.watermark_blocks
    BuddyAllocator: Callable[..., buddy.BuddyAllocator] = buddy.BuddyAllocator
    ContiguousKVManager: Callable[..., contiguous.ContiguousKVManager] = (
        contiguous.ContiguousKVManager
    )
    BlockAllocator: Callable[..., block_allocator.BlockAllocator] = block_allocator.BlockAllocator
    BlockTable: Callable[..., block_table.BlockTable] = block_table.BlockTable
    attention: Callable[[], AttentionBackend] = reference_attention
    fork: Callable[..., block_table.BlockTable] = copy_on_write.fork
    make_writable: Callable[..., tuple[int, int] | None] = copy_on_write.make_writable
    blocks_for_next_token: Callable[..., int] = copy_on_write.blocks_for_next_token
    copy_blocks: Callable[..., None] = copy_on_write.copy_blocks
    unique_blocks: Callable[..., list[int]] = swap.unique_blocks
    move: Callable[..., list[tuple[int, int]]] = swap.move
    Admission: Callable[..., admission.Admission] = admission.Admission
    Preemption: Callable[..., preemption.Preemption] = preemption.Preemption
    Scheduler: Callable[..., scheduler.Scheduler] = scheduler.Scheduler
