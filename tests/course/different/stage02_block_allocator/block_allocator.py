"""A right answer that has nothing in common with the reference's: the free blocks are a chain of
links in one array, and only held blocks have a count, in a dictionary."""

from __future__ import annotations

from minipaged.errors import DoubleFree, OutOfBlocks

END = -1


class BlockAllocator:
    def __init__(self, num_blocks, name="GPU"):
        self.num_blocks = num_blocks
        self.name = name
        self._next = [*range(1, num_blocks), END][:num_blocks]
        self._head = 0 if num_blocks else END
        self._count = {}

    @property
    def num_free(self):
        return self.num_blocks - len(self._count)

    @property
    def free_blocks(self):
        chain, block = [], self._head
        while block != END:
            chain.insert(0, block)
            block = self._next[block]
        return chain

    def allocate(self):
        (block,) = self.allocate_many(1)
        return block

    def allocate_many(self, count):
        if count > self.num_free:
            raise OutOfBlocks(
                f"{count} blocks of the {self.name} pool are wanted, and of its "
                f"{self.num_blocks} only {self.num_free} are free"
            )
        taken = []
        for _ in range(count):
            block, self._head = self._head, self._next[self._head]
            self._count[block] = 1
            taken.append(block)
        return taken

    def share(self, block):
        self._change(block, 1, "shared")

    def free(self, block):
        self._change(block, -1, "freed")
        if self._count[block]:
            return False
        del self._count[block]
        self._next[block], self._head = self._head, block
        return True

    def free_many(self, blocks):
        for block in blocks:
            self.free(block)

    def ref_count(self, block):
        if block not in range(self.num_blocks):
            raise ValueError(f"block {block}: the {self.name} pool has {self.num_blocks} blocks")
        return self._count.get(block, 0)

    def _change(self, block, by, what):
        if not self.ref_count(block):
            raise DoubleFree(f"block {block} of the {self.name} pool is free: it cannot be {what}")
        self._count[block] += by
