"""The state of the block pools as plain data, and its notation as text.

``seq0:[7 2 5*] seq1:[7 2 9*] free:{0 1} refs{7:2 2:2}`` says: two sequences share blocks 7 and
2; blocks 5 and 9 are their own, each the last of its table and partly filled; 0 and 1 are free.
The notation is the expected value of a test, the diff of its failure, the frame of an animation
and the text alternative of a picture.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Fill = tuple[str, int, int]
"""(sequence, index of the block in its table, tokens in the block)"""


@dataclass(frozen=True)
class Pool:
    """The blocks of one device.

    Attributes:
        num_blocks: how many there are, numbered from 0.
        tables: sequence -> its physical blocks, in the order of its tokens.
        num_tokens: sequence -> tokens that its table has room for and that are taken.
        free: the free list.
        ref_counts: block -> its count, where that is not 0, as the allocator has it.
    """

    num_blocks: int
    tables: dict[str, list[int]] = field(default_factory=dict)
    num_tokens: dict[str, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    ref_counts: dict[int, int] = field(default_factory=dict)

    @property
    def num_used(self) -> int:
        """Blocks that are not in the free list."""
        return self.num_blocks - len(set(self.free))

    @property
    def shared(self) -> list[int]:
        """Blocks with more than one reference, by number."""
        return sorted(block for block, count in self.ref_counts.items() if count > 1)


@dataclass(frozen=True)
class PoolState:
    """Both pools at one moment.

    Attributes:
        block_size: tokens a block.
        gpu, cpu: the device's pool, and the host's for swapped sequences (None: there is none).
        token_text: sequence -> the text of each of its tokens, where a picture is to show it.
    """

    block_size: int
    gpu: Pool
    cpu: Pool | None = None
    token_text: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kv: Any,
        groups: Iterable[Any],
        name: Callable[[Any], str] = lambda seq: f"seq{seq.seq_id}",
        token_text: Mapping[str, list[str]] | None = None,
    ) -> PoolState:
        """A copy of what a KV manager holds for these (all) groups.

        Args:
            kv: a :class:`minipaged.contracts.KVManager`; its allocators ``gpu`` and ``cpu`` are
                asked for free blocks and reference counts where it has them.
            groups: of sequences, as :attr:`minipaged.sequence.SequenceGroup.live` gives them.
            name: what to call a sequence; unique, without spaces, ``:``, ``|`` and brackets.
        """
        on_gpu, on_cpu = _Tables(), _Tables()
        tables = getattr(kv, "tables", {})
        for group in groups:
            for seq in group.live:
                blocks = list(kv.block_table(seq.seq_id))
                if not blocks:
                    continue
                # The last sampled token has no slot before the next step: the table knows.
                taken = getattr(tables.get(seq.seq_id), "num_tokens", seq.num_tokens)
                side = on_cpu if seq.status.value == "swapped" else on_gpu
                side.blocks[name(seq)] = blocks
                side.tokens[name(seq)] = min(taken, len(blocks) * kv.block_size)
        return cls(
            block_size=kv.block_size,
            gpu=on_gpu.pool(kv.num_gpu_blocks, getattr(kv, "gpu", None)),
            cpu=on_cpu.pool(kv.num_cpu_blocks, getattr(kv, "cpu", None))
            if kv.num_cpu_blocks
            else None,
            token_text=dict(token_text or {}),
        )

    def pools(self) -> Iterator[tuple[str, Pool]]:
        """(title, pool) of each."""
        yield "GPU", self.gpu
        if self.cpu is not None:
            yield "CPU", self.cpu

    def holders(self, pool: Pool) -> dict[int, list[Fill]]:
        """Physical block -> who holds it, and how many tokens each has in it."""
        found: dict[int, list[Fill]] = {}
        for seq, blocks in pool.tables.items():
            for i, block in enumerate(blocks):
                found.setdefault(block, []).append((seq, i, self.tokens_in(pool, seq, i)))
        return found

    def tokens_in(self, pool: Pool, seq: str, index: int) -> int:
        """Tokens in the block ``index`` of a table: 0 to ``block_size``."""
        return max(0, min(pool.num_tokens[seq] - index * self.block_size, self.block_size))

    def text_in(self, seq: str, index: int) -> str:
        """The text of the tokens in the block ``index`` of a sequence's table."""
        start = index * self.block_size
        return "".join(self.token_text.get(seq, [])[start : start + self.block_size])

    def __str__(self) -> str:
        return format_state(self)


class _Tables:
    """The tables of one side, while they are being collected."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[int]] = {}
        self.tokens: dict[str, int] = {}

    def pool(self, num_blocks: int, allocator: Any) -> Pool:
        held = Counter(block for blocks in self.blocks.values() for block in blocks)
        if hasattr(allocator, "ref_count"):
            counts = {block: allocator.ref_count(block) for block in range(num_blocks)}
            refs = {block: count for block, count in counts.items() if count}
        else:
            refs = dict(sorted(held.items()))
        free = getattr(allocator, "free_blocks", None)
        if free is None:
            free = [block for block in range(num_blocks) if block not in refs]
        return Pool(num_blocks, self.blocks, self.tokens, list(free), refs)


# --------------------------------------------------------------------------- to text
def format_state(state: PoolState) -> str:
    """The notation of a state, on one line.

    * ``seq0:[7 2 5*]``: a table; ``*`` marks a partly filled block, ``_`` a reserved empty one.
    * ``free:{0 1}``: the free list, by number; a run of more than eight is ``3..12``. A block that
      is in the list twice stands there twice.
    * ``refs{7:2 2:2}``: blocks with more than one reference, in the order in which the tables name
      them; and, where something is pinned or wrong, those held by a table without a reference
      or by a reference without a table. Left out where there are none.
    * `` | cpu `` and the same for the host's pool, where something is in it.
    """
    text = _format_pool(state, state.gpu)
    if state.cpu is not None and (state.cpu.tables or state.cpu.ref_counts):
        text += f" | cpu {_format_pool(state, state.cpu)}"
    return text


def _format_pool(state: PoolState, pool: Pool) -> str:
    words = []
    for seq, blocks in pool.tables.items():
        marks = [_mark(state.tokens_in(pool, seq, i), state.block_size) for i in range(len(blocks))]
        inside = " ".join(f"{block}{mark}" for block, mark in zip(blocks, marks))
        words.append(f"{seq}:[{inside}]")
    words.append(f"free:{{{_format_runs(sorted(pool.free))}}}")
    held = dict.fromkeys(block for blocks in pool.tables.values() for block in blocks)
    refs = {block: pool.ref_counts.get(block, 0) for block in [*held, *sorted(pool.ref_counts)]}
    noted = [f"{b}:{count}" for b, count in refs.items() if count != 1 or b not in held]
    if noted:
        words.append(f"refs{{{' '.join(noted)}}}")
    return " ".join(words)


def _mark(tokens: int, block_size: int) -> str:
    if tokens == 0:
        return "_"
    return "" if tokens == block_size else "*"


def _format_runs(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [[f"{r[0]}..{r[-1]}"] if len(r) > 8 else [str(n) for n in r] for r in runs]
    return " ".join(word for run in words for word in run)


# --------------------------------------------------------------------------- from text
_PART = re.compile(
    r"\s*(?:refs\{(?P<refs>[^{}]*)\}|free:\{(?P<free>[^{}]*)\}|(?P<seq>[^\s:|{}\[\]]+):\[(?P<table>[^\[\]]*)\])"
)


def parse_state(text: str, block_size: int = 2) -> PoolState:
    """The state that a notation describes.

    The notation does not say how many tokens a partly filled block holds: it gets
    ``block_size // 2``, which with the default is the only number that there is. The pool is as
    large as the highest block named.

    Raises:
        ValueError: not the notation; the message quotes where it stops being it.
    """
    if block_size < 2:
        raise ValueError(f"block_size must be at least 2 for a block partly filled: {block_size}")
    gpu, bar, cpu = text.partition("|")
    if not bar:
        return PoolState(block_size, _parse_pool(gpu, block_size))
    if not cpu.split()[:1] == ["cpu"]:
        raise ValueError(f"expected 'cpu' after '|' in {text!r}")
    host = _parse_pool(cpu.strip().removeprefix("cpu"), block_size)
    return PoolState(block_size, _parse_pool(gpu, block_size), host)


def _parse_pool(text: str, block_size: int) -> Pool:
    tables: dict[str, list[int]] = {}
    num_tokens: dict[str, int] = {}
    free: list[int] | None = None
    noted: dict[int, int] = {}
    at, end = 0, len(text.rstrip())
    while at < end:
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(f"not a pool state from {text[at:].strip()!r} on")
        at = part.end()
        if part["refs"] is not None:
            noted = dict(_parse_ref(word) for word in part["refs"].split())
        elif part["free"] is not None:
            free = [block for word in part["free"].split() for block in _parse_run(word)]
        else:
            seq = part["seq"]
            if seq in tables:
                raise ValueError(f"{seq} has two tables in {text.strip()!r}")
            tables[seq], num_tokens[seq] = _parse_table(seq, part["table"], block_size)
    if free is None:
        raise ValueError(f"no free:{{...}} in {text.strip()!r}")
    held = {block: 1 for blocks in tables.values() for block in blocks}
    refs = {block: count for block, count in sorted({**held, **noted}.items()) if count}
    highest = max([*free, *held, *noted], default=-1)
    return Pool(highest + 1, tables, num_tokens, free, refs)


def _parse_table(seq: str, inside: str, block_size: int) -> tuple[list[int], int]:
    blocks, num_tokens, full = [], 0, True
    for word in inside.split():
        match = re.fullmatch(r"(\d+)([*_]?)", word)
        if match is None:
            raise ValueError(f"{word!r} in the table of {seq} is no block")
        if not full and match[2] != "_":
            raise ValueError(f"{word!r} in the table of {seq} follows a block that is not full")
        full = not match[2]
        blocks.append(int(match[1]))
        num_tokens += {"": block_size, "*": block_size // 2, "_": 0}[match[2]]
    return blocks, num_tokens


def _parse_ref(word: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+):(\d+)", word)
    if match is None:
        raise ValueError(f"{word!r} in refs{{...}} is not BLOCK:COUNT")
    return int(match[1]), int(match[2])


def _parse_run(word: str) -> range:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", word)
    if match is None:
        raise ValueError(f"{word!r} in free:{{...}} is neither a block nor a run of them")
    return range(int(match[1]), int(match[2] or match[1]) + 1)
