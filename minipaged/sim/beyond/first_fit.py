"""Contiguous regions of any length, for the question what a baseline's rounding costs."""

from __future__ import annotations

from minipaged.errors import DoubleFree, OutOfBlocks


class FirstFitAllocator:
    """Hands out regions of consecutive blocks, exactly as long as they are asked for: of the free
    chunks that are long enough, the first. Stands in for
    :class:`minipaged.kvcache.buddy.BuddyAllocator`, whose methods it has.

    Args:
        num_blocks: blocks of the pool.
        max_chunk: the longest region, in blocks.
    """

    def __init__(self, num_blocks: int, max_chunk: int = 128) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self.max_chunk = max_chunk
        #: (first block, length) of the free chunks, ascending; no two touch
        self._free = [(0, num_blocks)]
        self._lengths: dict[int, int] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that no region holds, wherever they are."""
        return sum(length for _, length in self._free)

    def free_chunks(self) -> list[tuple[int, int]]:
        """(first block, length) of every free chunk, by first block."""
        return list(self._free)

    def regions(self) -> list[tuple[int, int]]:
        """(first block, length) of every region that is held, by first block."""
        return sorted(self._lengths.items())

    def region_size(self, num_blocks: int) -> int:
        """Length of the region that ``allocate(num_blocks)`` takes: the same.

        Raises:
            ValueError: ``num_blocks`` is below 1.
        """
        if num_blocks < 1:
            raise ValueError(f"a region has at least 1 block, not {num_blocks}")
        return num_blocks

    def available(self, num_blocks: int) -> int:
        """How many regions of ``num_blocks`` blocks could be allocated now."""
        size = self.region_size(num_blocks)
        return sum(length // size for _, length in self._free)

    def capacity(self, num_blocks: int) -> int:
        """How many regions of ``num_blocks`` blocks an empty pool holds."""
        return self.num_blocks // self.region_size(num_blocks)

    def allocate(self, num_blocks: int) -> int:
        """Take a region.

        Returns:
            Its first block.

        Raises:
            OutOfBlocks: no free chunk is that long, however many blocks are free.
        """
        size = self.region_size(num_blocks)
        for at, (start, length) in enumerate(self._free):
            if length >= size:
                self._free[at : at + 1] = [(start + size, length - size)][: length > size]
                self._lengths[start] = size
                return start
        raise OutOfBlocks(
            f"first-fit pool: no free region of {size} blocks: {self.free_blocks} of "
            f"{self.num_blocks} blocks are free"
        )

    def free(self, start: int) -> None:
        """Give back the region whose first block is ``start``.

        Raises:
            DoubleFree: no region that is held begins there.
        """
        size = self._lengths.pop(start, 0)
        if not size:
            raise DoubleFree(f"first-fit pool: no region that is held begins at block {start}")
        self._free = sorted([*self._free, (start, size)])
        at = self._free.index((start, size))
        self._join(at)
        self._join(at - 1)

    def _join(self, at: int) -> None:
        """Make one chunk of the free chunk at a place and the one behind it, if they touch."""
        if 0 <= at < len(self._free) - 1:
            (start, length), (behind, more) = self._free[at : at + 2]
            if start + length == behind:
                self._free[at : at + 2] = [(start, length + more)]
