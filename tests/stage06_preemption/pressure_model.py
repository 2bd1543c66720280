"""The judge's own picture of groups that are preempted: who holds which blocks, with what in them.

A group is given as letters: ``{"ab", "ac"}`` are two sequences that share their first block. What
is in a slot is the whole history of its token, since keys and values depend on all tokens before:
so what a sequence reads from its blocks shows which tokens it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minipaged.course.testing import expect

Pair = tuple[int, int]
Content = tuple[int, ...]


# --------------------------------------------------------------------------- groups
def state(group: Any) -> dict[int, tuple[str, int]]:
    """sequence -> (status, num_computed), of those that have ended too."""
    found = [*group.live, *group.finished_seqs]
    return {seq.seq_id: (status_of(seq), seq.num_computed) for seq in found}


def status_of(seq: Any) -> str:
    status = seq.status
    return repr(status) if status is None or isinstance(status, str) else status.value


def entries(plan: Any) -> dict[str, Any]:
    """What a plan says of blocks and requests, without the lists that are empty."""
    lists = {
        "swap_out": plan.swap_out,
        "swap_in": plan.swap_in,
        "copies": plan.copies,
        "preempted": [booked(entry) for entry in plan.preempted],
        "resumed": plan.resumed,
        "admitted": plan.admitted,
    }
    return {name: entry for name, entry in lists.items() if entry != []}


def booked(entry: Any) -> Any:
    """(request, how) of an entry in ``plan.preempted``; what it is, if it is none."""
    try:
        return entry.request_id, entry.mode
    except AttributeError:
        return entry


def draw_tokens(rng: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in rng.integers(1, 100, count)]


def draw_pairs(rng: np.random.Generator, count: int) -> list[Pair]:
    """So many (device, host) blocks, in no order."""
    device, host = rng.permutation(50)[:count], rng.permutation(50)[:count]
    return [(int(d), int(h)) for d, h in zip(device, host)]


# --------------------------------------------------------------------------- shapes
class Family:
    """Siblings on their way: they go on in step, some fork, and some end. Blocks are labels.

    Attributes:
        tokens: of each sequence, the last of which is not in the cache.
        tables: of each, the labels of its blocks.
    """

    def __init__(self, rng: np.random.Generator, block_size: int, prompt: int) -> None:
        self.rng, self.block_size, self.prompt = rng, block_size, prompt
        self.tokens = [draw_tokens(rng, prompt + 1)]
        self.tables = [list(range(-(-prompt // block_size)))]
        self.last_label = len(self.tables[0])

    @classmethod
    def of(
        cls, rng: np.random.Generator, block_size: int, count: int, cached: int, own: int = 1
    ) -> Family:
        """So many siblings, with so many tokens in the cache.

        Args:
            own: the last tokens that are each one's own.
        """
        family = cls(rng, block_size, cached - own)
        for _ in range(count - 1):
            family.fork()
        for _ in range(own):
            family.step()
        return family

    def label(self) -> int:
        self.last_label += 1
        return self.last_label

    def fork(self, parent: int = 0) -> None:
        self.tokens.append([*self.tokens[parent][:-1], *draw_tokens(self.rng, 1)])
        self.tables.append(list(self.tables[parent]))

    def step(self) -> None:
        """Each feeds its last token, with copy-on-write, and samples the next."""
        for at, table in enumerate(self.tables):
            others = [t for i, t in enumerate(self.tables) if i != at]
            if (len(self.tokens[at]) - 1) % self.block_size == 0:
                table.append(self.label())
            elif any(table[-1] in other for other in others):
                table[-1] = self.label()
            self.tokens[at] += draw_tokens(self.rng, 1)

    @property
    def num_tokens(self) -> list[int]:
        return [len(tokens) for tokens in self.tokens]

    @property
    def unique(self) -> int:
        return len({label for table in self.tables for label in table})

    def run(self, lab: Any, kv: Any, first_id: int = 0) -> Any:
        """The group, running, on blocks of a manager."""
        group = lab.running_group(prompt=self.prompt, tokens=self.tokens, first_id=first_id)
        group.shape = {first_id + i: list(table) for i, table in enumerate(self.tables)}
        kv.allocate(group)
        return group

    def told(self) -> str:
        """For messages: the tables, with letters for blocks."""
        return letters(self.tables)


def letters(tables: Iterable[Sequence[int]]) -> str:
    """``[a b] [a c]``: equal letters are one block."""
    names: dict[int, str] = {}
    for table in tables:
        for block in table:
            names.setdefault(block, name_of(len(names)))
    return " ".join(f"[{' '.join(names[block] for block in table)}]" for table in tables)


def name_of(number: int) -> str:
    letter = "abcdefghijklmnopqrstuvwxyz"[number % 26]
    return letter if number < 26 else f"{letter}{number // 26}"


def same_sharing(tables: Sequence[Sequence[int]]) -> list[list[int]]:
    """Tables with their blocks numbered anew, in the order of their first use."""
    numbers: dict[int, int] = {}
    return [[numbers.setdefault(block, len(numbers)) for block in table] for table in tables]


# --------------------------------------------------------------------------- bytes
class Memory:
    """The bytes of one side: what each slot holds."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[Pair, Content] = {}

    def write(self, table: Sequence[int], tokens: Sequence[int], position: int) -> None:
        block, place = table[position // self.block_size], position % self.block_size
        self.slots[block, place] = tuple(tokens[: position + 1])

    def read(self, table: Sequence[int], position: int) -> Content:
        block, place = table[position // self.block_size], position % self.block_size
        return self.slots.get((block, place), ())

    def blocks(self, pairs: Iterable[Pair], source: Memory) -> None:
        """Copy whole blocks from another memory, or from this one: all are read first."""
        read = [
            ((new, place), source.slots.get((old, place), ()))
            for old, new in pairs
            for place in range(self.block_size)
        ]
        self.slots.update(read)

    def wipe(self) -> None:
        """Somebody else has used all of it since."""
        self.slots = dict.fromkeys(self.slots, (-1,))

    def check(self, table: Sequence[int], tokens: Sequence[int], count: int, when: str) -> None:
        """The first so many tokens of a sequence are in its blocks."""
        for position in range(count):
            right = self.read(table, position) == tuple(tokens[: position + 1])
            where = f"block {table[position // self.block_size]}"
            expect(right, True, f"{when}: is token {position} in {where}, where the table has it?")

    def fill(self, kv: Any, group: Any) -> None:
        """As if all that is in the cache had been computed."""
        for seq in group.live:
            for position in range(seq.num_tokens - 1):
                self.write(kv.block_table(seq.seq_id), seq.token_ids, position)


# --------------------------------------------------------------------------- two pools
class Pools:
    """Tables of a group, and of others, in one pool; and a second pool.

    Attributes:
        tables: name -> the table under test.
        before: name -> its blocks at the start.
    """

    def __init__(
        self,
        parts: Any,
        rng: np.random.Generator,
        block_size: int,
        shape: Mapping[str, str],
        num_tokens: Mapping[str, int],
        *,
        host: int,
        busy: int = 0,
    ) -> None:
        """
        Args:
            shape: name -> its blocks, a letter each.
            host, busy: blocks of the other pool that are free, and that somebody has.
        """
        names = sorted(set("".join(shape.values())))
        total = len(names) + int(rng.integers(2, 5))
        self.num_blocks, self.block_size = total, block_size
        self.gpu, self.gpu_free = shuffled(parts, rng, total, "GPU", len(names))
        self.cpu, self.cpu_free = shuffled(parts, rng, host + busy, "CPU", busy)
        numbers = [block for block in range(total) if block not in self.gpu_free]
        rng.shuffle(numbers)
        self.before = {
            name: [numbers[names.index(letter)] for letter in word] for name, word in shape.items()
        }
        self.num_tokens = dict(num_tokens)
        self.tables = {}
        for name, blocks in self.before.items():
            table = parts.BlockTable(self.gpu, block_size)
            table.blocks, table.num_tokens = list(blocks), num_tokens[name]
            self.tables[name] = table
        for block in numbers:
            for _ in range(self.holders(block, self.before) - 1):
                self.gpu.share(block)

    def holders(self, block: int, names: Iterable[str]) -> int:
        return sum(block in self.before[name] for name in names)

    def unique(self, names: Iterable[str]) -> list[int]:
        found: list[int] = []
        for name in names:
            found += [block for block in self.before[name] if block not in found]
        return found

    def some(self, names: Iterable[str]) -> list[Any]:
        return [self.tables[name] for name in names]

    def told(self, names: Iterable[str]) -> str:
        return " ".join(f"{name}:{self.before[name]}" for name in names)

    def expect_old_pool(self, names: Iterable[str], why: str) -> None:
        """These have gone from it; all others are there."""
        stay = [name for name in self.before if name not in list(names)]
        want = {block: self.holders(block, stay) for block in self.unique(self.before)}
        got = {block: self.gpu.ref_count(block) for block in want}
        expect(got, want, f"{why}: references in the pool that they left")
        gone = sum(not count for count in want.values())
        expect(self.gpu.num_free, len(self.gpu_free) + gone, f"{why}: free blocks there")

    def expect_unchanged(self, why: str) -> None:
        for name, table in self.tables.items():
            got = table.allocator.name, table.blocks, table.num_tokens
            want = "GPU", self.before[name], self.num_tokens[name]
            expect(got, want, f"{why}: pool, blocks and tokens of {name}")
        self.expect_old_pool([], why)
        expect(self.cpu.free_blocks, self.cpu_free, f"{why}: free blocks of the other pool")


def shuffled(
    parts: Any, rng: np.random.Generator, num_blocks: int, name: str, held: int
) -> tuple[Any, list[int]]:
    """A pool, so many blocks of which are held, and its free list, in no order."""
    pool = parts.BlockAllocator(num_blocks, name)
    pool.allocate_many(num_blocks)
    free = [int(block) for block in rng.permutation(num_blocks)][held:]
    pool.free_many(free)
    return pool, pool.free_blocks
