"""A small course for the tests of the judge: two stages without torch, three checks each, and what
students hand in for them. It stands in a folder of its own, whatever the real course says."""

from __future__ import annotations

import shutil
from pathlib import Path

import minipaged
from minipaged.course.catalog import Course, Stage, load_course
from minipaged.course.submission import Submission, submission_in_memory

COURSE = """
[course]
title = "The judge's own"
version = "1"

[[stage]]
number = "02"
name = "block_allocator"
title = "The block allocator"
hours = 1

[[stage.part]]
name = "block_allocator"
module = "minipaged.kvcache.block_allocator"
contract = 1
drop = ["BlockAllocator._exists", "BlockAllocator._held"]

[[stage.task]]
id = "2.1"
title = "Allocate"
part = "block_allocator"
symbols = [
  "BlockAllocator.__init__", "BlockAllocator.num_free", "BlockAllocator.free_blocks",
  "BlockAllocator.allocate", "BlockAllocator.allocate_many",
]
question = "Which?"
pointer = "That."
checks = [{ name = "hands_out_every_block_once", points = 10 }]

[[stage.task]]
id = "2.2"
title = "Free"
part = "block_allocator"
symbols = [
  "BlockAllocator.share", "BlockAllocator.free", "BlockAllocator.free_many",
  "BlockAllocator.ref_count",
]
question = "Which?"
pointer = "That."
checks = [{ name = "is_free_after_its_last_holder", points = 10 }]

[stage.robustness]
checks = [{ name = "a_double_free_is_an_error", points = 5, parent = "2.2" }]

[[stage]]
number = "03"
name = "block_table"
title = "The block table"
hours = 1

[[stage.part]]
name = "block_table"
module = "minipaged.kvcache.block_table"
contract = 1

[[stage.task]]
id = "3.1"
title = "Slots"
part = "block_table"
symbols = ["BlockTable.slot"]
question = "Which?"
pointer = "That."
checks = [
  { name = "a_token_lives_in_its_block", points = 5 },
  { name = "has_no_test", points = 1 },
]
"""

TESTS_02 = """
import pytest

from minipaged.course.testing import expect, expect_error, state_of
from minipaged.errors import DoubleFree, OutOfBlocks


@pytest.mark.parametrize("case", range(2))
def test_hands_out_every_block_once(parts, rng, case):
    size = int(rng.integers(20, 40))
    pool = parts.BlockAllocator(size)
    taken = [pool.allocate() for _ in range(size)]
    expect(taken, list(range(size)), f"a pool of {size}")
    expect(pool.num_free, 0, "all are taken")
    with expect_error(OutOfBlocks, "GPU", str(size), why="none is left"):
        pool.allocate()


def test_is_free_after_its_last_holder(parts, rng):
    size = int(rng.integers(3, 60))
    pool = parts.BlockAllocator(size)
    block = pool.allocate()
    holders = int(rng.integers(2, 9))
    for _ in range(holders - 1):
        pool.share(block)
    expect(pool.ref_count(block), holders, "each holder counts")
    freed = [pool.free(block) for _ in range(holders)]
    expect(freed, [False] * (holders - 1) + [True], f"{holders} holders")
    expect(state_of(pool), f"free:{{{' '.join(map(str, range(size)))}}}"
           if size <= 8 else f"free:{{0..{size - 1}}}", "all are back")


def test_a_double_free_is_an_error(parts, rng):
    pool = parts.BlockAllocator(int(rng.integers(3, 60)))
    block = pool.allocate()
    expect(pool.free(block), True, "the only holder")
    with expect_error(DoubleFree, "double free", str(block), why="nobody holds it"):
        pool.free(block)


def test_nobody_asked_for():
    raise AssertionError("it is not in the catalog")
"""

TESTS_03 = """
from minipaged.course.testing import expect, expect_error


def test_a_token_lives_in_its_block(parts, rng):
    table = parts.BlockTable(parts.BlockAllocator(50), 4)
    blocks = [int(x) for x in rng.permutation(50)[:6]]
    table.blocks = blocks
    table.num_tokens = 22
    for token in range(22):
        expect(table.slot(token), blocks[token // 4] * 4 + token % 4, f"token {token}")
    with expect_error(IndexError, "22", why="no such token"):
        table.slot(22)
"""

#: Right, and not the reference's way: a linked list of free blocks, holders in a dict.
GOOD = """
from minipaged.errors import DoubleFree, OutOfBlocks


class BlockAllocator:
    def __init__(self, num_blocks, name="GPU"):
        self.num_blocks, self.name = num_blocks, name
        self._next = list(range(1, num_blocks + 1))
        self._head, self.num_free = 0, num_blocks
        self._held = {}

    @property
    def free_blocks(self):
        blocks, block = [], self._head
        while block < self.num_blocks:
            blocks.append(block)
            block = self._next[block]
        return blocks[::-1]

    def allocate(self):
        if not self.num_free:
            raise OutOfBlocks(f"no block of {self.name} is left: it has {self.num_blocks}")
        block = self._head
        self._head = self._next[block]
        self._held[block] = 1
        self.num_free -= 1
        return block

    def allocate_many(self, count):
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks of {self.name}")
        return [self.allocate() for _ in range(count)]

    def share(self, block):
        self._check(block)
        self._held[block] += 1

    def free(self, block):
        self._check(block)
        self._held[block] -= 1
        if self._held[block]:
            return False
        del self._held[block]
        self._next[block], self._head = self._head, block
        self.num_free += 1
        return True

    def free_many(self, blocks):
        for block in blocks:
            self.free(block)

    def ref_count(self, block):
        return self._held.get(block, 0)

    def _check(self, block):
        if block not in self._held:
            raise DoubleFree(f"double free of block {block}")
"""

GOOD_TABLE = """
class BlockTable:
    def __init__(self, allocator, block_size):
        self.allocator, self.block_size, self.blocks, self.num_tokens = allocator, block_size, [], 0

    def slot(self, token):
        if token >= self.num_tokens:
            raise IndexError(f"{token} of {self.num_tokens}")
        return self.blocks[token // self.block_size] * self.block_size + token % self.block_size
"""


def make_course(root: Path) -> Course:
    """Write the course into a folder that only its owner can read."""
    package = Path(minipaged.__file__).parent
    for name in ("block_allocator", "block_table"):
        copy = root / "minipaged" / "kvcache" / f"{name}.py"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / "kvcache" / f"{name}.py", copy)
    (root / "course.toml").write_text(COURSE)
    for folder, text in (("stage02_block_allocator", TESTS_02), ("stage03_block_table", TESTS_03)):
        (root / "tests" / folder).mkdir(parents=True)
        (root / "tests" / folder / f"test_judged_{folder}.py").write_text(text)
        (root / "solutions" / folder).mkdir(parents=True)
    (root / "solutions" / "__init__.py").write_text("")
    answer = "from minipaged.kvcache.block_allocator import BlockAllocator as BlockAllocator\n"
    (root / "solutions" / "stage02_block_allocator" / "block_allocator.py").write_text(answer)
    root.chmod(0o700)
    return load_course(root)


def handed_in(course: Course, source: str, name: str = "somebody") -> Submission:
    """A submission for stage 02."""
    return submission_in_memory(course, course.stage("2"), {"block_allocator": source}, name)


def stage_2(course: Course) -> Stage:
    return course.stage("2")
