"""Traffic by another hand: sums over lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TABLE_ENTRY_BYTES = 4
SLOT_BYTES = 8
WORKSPACE_BYTES = 4


@dataclass(frozen=True)
class Traffic:
    loaded: int
    stored: int

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.loaded + self.stored

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.loaded + other.loaded, self.stored + other.stored)


@dataclass(frozen=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    element_bytes: int


def cache_write_traffic(slot_mapping: Sequence[int], shape: AttentionShape) -> Traffic:
    tokens = sum(slot >= 0 for slot in slot_mapping)
    moved = 2 * tokens * shape.num_kv_heads * shape.head_dim * shape.element_bytes
    return Traffic(moved + len(slot_mapping) * SLOT_BYTES, moved)


def block_copy_traffic(num_pairs: int, num_layers: int, shape: AttentionShape) -> Traffic:
    piece = shape.num_kv_heads * shape.block_size * shape.head_dim * shape.element_bytes
    moved = num_pairs * 2 * num_layers * piece
    return Traffic(moved + num_pairs * 2 * SLOT_BYTES, moved)


def decode_traffic(context_lens: Sequence[int], shape: AttentionShape) -> Traffic:
    of_head = shape.head_dim * shape.element_bytes
    full = [n for n in context_lens if n > 0]
    entries = sum((n + shape.block_size - 1) // shape.block_size for n in full)
    loaded = 2 * sum(full) * shape.num_kv_heads * of_head
    loaded += len(full) * shape.num_heads * of_head + 4 * (entries + len(context_lens))
    return Traffic(loaded, len(context_lens) * shape.num_heads * of_head)


def split_traffic(
    context_lens: Sequence[int], num_splits: int, tile: int, shape: AttentionShape
) -> Traffic:
    if num_splits < 2:
        return Traffic(0, 0)
    parts = 0
    for n in context_lens:
        tiles = (n + tile - 1) // tile
        each = (tiles + num_splits - 1) // num_splits
        parts += sum(i * each < tiles for i in range(num_splits))
    numbers = shape.num_heads * (parts * shape.head_dim + len(context_lens) * num_splits)
    return Traffic(4 * numbers, 4 * numbers)


def prefill_traffic(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    shape: AttentionShape,
    tile_rows: int | None = None,
) -> Traffic:
    of_head = shape.head_dim * shape.element_bytes
    group = shape.num_heads // shape.num_kv_heads
    keys = entries = 0
    for queries, n in zip(query_lens, context_lens):
        if queries:
            entries += (n + shape.block_size - 1) // shape.block_size
            ends = range(tile_rows, queries * group, tile_rows) if tile_rows else []
            keys += sum(n - queries + (end - 1) // group + 1 for end in ends) + n
    moved = sum(query_lens) * shape.num_heads * of_head
    numbers = entries + 2 * len(context_lens) + 1
    return Traffic(moved + 2 * keys * shape.num_kv_heads * of_head + 4 * numbers, moved)


def decode_intensity(context_lens: Sequence[int], shape: AttentionShape) -> float:
    operations = 4 * sum(context_lens) * shape.num_heads * shape.head_dim
    return operations / decode_traffic(context_lens, shape).total


def floor_seconds(traffic: Traffic, bytes_per_s: float) -> float:
    return traffic.total / bytes_per_s
