"""What is right in stage 01, said in another way than the reference says it: slots are labelled one
by one, chunks are halves of halves of a root chunk."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from minipaged.course.testing import expect

CLASSES = ("token_states", "reserved", "internal", "external")
MEMORY = ("tokens", "final_tokens", "slots", "requested_slots", "shared_slots")


def power_of_two_from(n: int) -> int:
    """The first power of two that is not below n."""
    power = 1
    while power < n:
        power *= 2
    return power


# --------------------------------------------------------------------------- arrays
def tokens(rng: np.random.Generator, count: int, heads: int, dim: int) -> tuple[Any, Any]:
    """Keys and values that every floating-point type holds exactly."""
    k, v = rng.integers(-99, 100, (2, count, heads, dim)).astype(np.float64)
    return k, v


def expect_array(got: Any, want: Any, why: str) -> None:
    """A whole array: its shape and its type, then its first wrong token."""
    if not isinstance(got, np.ndarray):
        raise AssertionError(f"{why}: expected an array of {list(want.shape)}, got {got!r}")
    expect(list(got.shape), list(want.shape), f"{why}: shape")
    expect(got.dtype.name, want.dtype.name, f"{why}: type")
    for i, (row, right) in enumerate(zip(got.tolist(), want.tolist(), strict=True)):
        expect(row, right, f"{why}, token {i}")


def expect_stored(cache: Any, seq_id: int, k: Any, v: Any, why: str) -> None:
    """What gather gives for a sequence."""
    got = cache.gather(seq_id)
    if not isinstance(got, tuple) or len(got) != 2:
        raise AssertionError(f"{why}: gather({seq_id}) gives keys and values, got {got!r}")
    expect_array(got[0], k, f"{why}: keys of sequence {seq_id}")
    expect_array(got[1], v, f"{why}: values of sequence {seq_id}")


# --------------------------------------------------------------------------- the buddy allocator
class BuddyModel:
    """Chunks as (first block, length); a chunk's buddy is looked up from its root chunk down."""

    def __init__(self, num_blocks: int, max_chunk: int) -> None:
        self.roots: list[tuple[int, int]] = []
        start = 0
        while start < num_blocks:
            size = max_chunk
            while start + size > num_blocks:
                size //= 2
            self.roots.append((start, size))
            start += size
        self.free_set = set(self.roots)
        self.held: dict[int, int] = {}

    @property
    def free_blocks(self) -> int:
        return sum(size for _, size in self.free_set)

    def largest_free(self) -> int:
        return max((size for _, size in self.free_set), default=0)

    def free_chunks(self) -> list[tuple[int, int]]:
        return sorted(self.free_set)

    def regions(self) -> list[tuple[int, int]]:
        return sorted(self.held.items())

    def allocate(self, num_blocks: int) -> int:
        want = power_of_two_from(num_blocks)
        size, start = min((size, start) for start, size in self.free_set if size >= want)
        self.free_set.remove((start, size))
        while size > want:
            size //= 2
            self.free_set.add((start + size, size))
        self.held[start] = size
        return start

    def free(self, start: int) -> None:
        chunk = (start, self.held.pop(start))
        self.free_set.add(chunk)
        for parent in reversed(self._path(chunk)):
            first, size = parent
            halves = {(first, size // 2), (first + size // 2, size // 2)}
            if not halves <= self.free_set:
                return
            self.free_set -= halves
            self.free_set.add(parent)

    def _path(self, chunk: tuple[int, int]) -> list[tuple[int, int]]:
        """The chunks that it was cut out of, from its root chunk on."""
        start, size = chunk
        first, length = next(root for root in self.roots if root[0] <= start < sum(root))
        path = []
        while length > size:
            path.append((first, length))
            length //= 2
            first += length if start >= first + length else 0
        return path


class Twins:
    """The allocator under test and the model, which live one life and are compared at each step."""

    def __init__(self, parts: Any, num_blocks: int, max_chunk: int) -> None:
        self.pool = parts.BuddyAllocator(num_blocks, max_chunk)
        self.model = BuddyModel(num_blocks, max_chunk)

    def allocate(self, num_blocks: int) -> int:
        got, want = self.pool.allocate(num_blocks), self.model.allocate(num_blocks)
        expect(got, want, f"allocate({num_blocks}), the region's first block")
        self.compare(f"after allocate({num_blocks})")
        return want

    def free(self, start: int) -> None:
        self.pool.free(start)
        self.model.free(start)
        self.compare(f"after free({start})")

    def compare(self, when: str) -> None:
        expect(self.pool.free_chunks(), self.model.free_chunks(), f"{when}, the free chunks")
        expect(self.pool.regions(), self.model.regions(), f"{when}, the held regions")
        expect(self.pool.free_blocks, self.model.free_blocks, f"{when}, free_blocks")


# --------------------------------------------------------------------------- the four classes
def classes_of(memory: Any) -> tuple[float, ...]:
    """Of a MemoryClasses that lives elsewhere."""
    return tuple(getattr(memory, name) for name in CLASSES)


def memory_of(sequence: Any) -> tuple[int | None, ...]:
    """Of a SequenceMemory that lives elsewhere."""
    return tuple(getattr(sequence, name) for name in MEMORY)


def classes(sequences: list[dict[str, Any]], pool_slots: int) -> tuple[int, ...]:
    """Every slot gets one label."""
    labels: Counter[str] = Counter()
    for seq in sequences:
        asked = seq.get("requested_slots")
        asked = seq["slots"] if asked is None else asked
        for slot in range(seq.get("shared_slots", 0), seq["slots"]):
            if slot < seq["tokens"]:
                labels["token_states"] += 1
            elif slot < seq["final_tokens"]:
                labels["reserved"] += 1
            elif slot < asked:
                labels["internal"] += 1
    labels["external"] = pool_slots - labels.total()
    return tuple(labels[name] for name in CLASSES)
