"""A right answer that has nothing in common with the reference's: only the held regions are kept.
Free chunks are what a walk down from the root chunks finds; nothing is ever split or merged."""

from __future__ import annotations

from minipaged.errors import DoubleFree, OutOfBlocks


def next_power_of_two(n):
    return n if n & (n - 1) == 0 else next_power_of_two(n + 1)


class BuddyAllocator:
    def __init__(self, num_blocks, max_chunk=128):
        if num_blocks < 1 or next_power_of_two(max(max_chunk, 1)) != max_chunk:
            raise ValueError("num_blocks or max_chunk")
        self.num_blocks = num_blocks
        self.max_chunk = max_chunk
        self.taken = {}

    def _roots(self):
        start = 0
        while start < self.num_blocks:
            size = self.max_chunk
            while size > self.num_blocks - start:
                size //= 2
            yield start, size
            start += size

    def _free_in(self, start, size):
        """The free chunks of a chunk: itself if nothing of it is held, else those of its halves."""
        if start in self.taken and self.taken[start] == size:
            return
        if not any(start <= first < start + size for first in self.taken):
            yield start, size
            return
        for half in (start, start + size // 2):
            yield from self._free_in(half, size // 2)

    def free_chunks(self):
        return [chunk for root in self._roots() for chunk in self._free_in(*root)]

    @property
    def free_blocks(self):
        return self.num_blocks - sum(self.taken.values())

    def largest_free(self):
        return max((size for _, size in self.free_chunks()), default=0)

    def regions(self):
        return sorted(self.taken.items())

    def region_size(self, num_blocks):
        if num_blocks < 1:
            raise ValueError(f"{num_blocks} blocks are no region")
        return next_power_of_two(num_blocks)

    def available(self, num_blocks):
        size = self.region_size(num_blocks)
        return sum(length // size for _, length in self.free_chunks())

    def capacity(self, num_blocks):
        size = self.region_size(num_blocks)
        return sum(length // size for _, length in self._roots())

    def allocate(self, num_blocks):
        size = self.region_size(num_blocks)
        fits = [(length, start) for start, length in self.free_chunks() if length >= size]
        if not fits:
            raise OutOfBlocks(f"{size} in a row of {self.free_blocks} that are free")
        start = min(fits)[1]
        self.taken[start] = size
        return start

    def free(self, start):
        if self.taken.pop(start, None) is None:
            raise DoubleFree(f"nothing starts at {start}")
