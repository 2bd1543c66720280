"""Instructions of an NVIDIA GPU, read from the text of ``nvdisasm``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Multiply-accumulate of the tensor cores, from Volta to Blackwell.
TENSOR_CORE = re.compile(r"(?:UTC)?[HIBDQO]G?MMA$")

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LINE = re.compile(r'^\s*//## File "[^"]*", line (\d+)')
_LABEL = re.compile(r"^(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_REGISTER = re.compile(r"\bR(\d+)\b")
_GROUPS_LEFT = re.compile(r"SB0, (0x[0-9a-f]+)")
# Words of an opcode that say how wide a load or store is; without one it is 32 bits.
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: with its modifiers: ``LDG.E.128``.
        operands: as printed.
        line: the line number that it carries; 0: none.
        target: for a branch: index of the instruction that it goes to; -1: no branch.
    """

    opcode: str
    operands: str
    line: int
    target: int = -1

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def is_load(self) -> bool:
        """Does it read global memory, into a register (LDG) or into shared memory (LDGSTS)?"""
        return self.name in ("LDG", "LDGSTS")

    @property
    def is_store(self) -> bool:
        """Does it write global memory?"""
        return self.name == "STG"

    @property
    def bits(self) -> int:
        """Width of a load or store in bits, for one thread."""
        words = self.opcode.split(".")[1:]
        # ENL2.256 and the like come after hints such as LTC128B, which are words of their own.
        return next((_WIDTHS[word] for word in reversed(words) if word in _WIDTHS), 32)

    @property
    def registers(self) -> frozenset[int]:
        """The registers that it names; of a group only the first is named."""
        return frozenset(map(int, _REGISTER.findall(self.operands)))


def parse(text: str) -> list[Instruction]:
    """The instructions of a disassembly, in order of address."""
    rows: list[tuple[str, str, int]] = []
    labels: dict[str, int] = {}
    line = 0
    for row in text.splitlines():
        if match := _INSTRUCTION.match(row):
            rows.append((match[2], match[3], line))
        elif match := _LINE.match(row):
            line = int(match[1])
        elif match := _LABEL.match(row):
            labels[match[1]] = len(rows)
        elif ".section" in row:
            line = 0
    instructions = []
    for opcode, operands, line in rows:
        target = _TARGET.search(operands) if opcode.startswith("BRA") else None
        instructions.append(
            Instruction(opcode, operands, line, labels.get(target[1], -1) if target else -1)
        )
    return instructions


def loops_twice(instructions: Sequence[Instruction]) -> Iterator[tuple[int, Instruction]]:
    """Walk the code in the order of addresses, and go back once where a branch leads back."""
    taken: set[int] = set()
    at = 0
    while at < len(instructions):
        instruction = instructions[at]
        yield at, instruction
        back = 0 <= instruction.target < at
        if back and at not in taken:
            taken.add(at)
            at = instruction.target
        else:
            at += 1


def bytes_in_flight(instructions: Sequence[Instruction], counted: frozenset[int]) -> int:
    """The most bytes that a thread has asked for at one time and not yet waited for.

    Counted in program order, each loop body twice. A load into a register is waited for by the
    first instruction that names the register. Copies into shared memory are waited for in groups:
    ``LDGDEPBAR`` closes a group, ``DEPBAR.LE SB0, n`` waits until ``n`` groups are left.

    Args:
        counted: indices of the loads that count.
    """
    to_register: dict[int, int] = {}  # first register -> bytes
    groups: list[int] = [0]  # bytes of copies; the last group is open
    most = 0
    for at, instruction in loops_twice(instructions):
        named = instruction.registers
        for first in [
            first
            for first, size in to_register.items()
            if not named.isdisjoint(_group(first, size))
        ]:
            del to_register[first]
        if instruction.name == "LDGDEPBAR":
            groups.append(0)
        elif instruction.name == "DEPBAR" and (left := _GROUPS_LEFT.search(instruction.operands)):
            groups = groups[max(0, len(groups) - 1 - int(left[1], 16)) :]
        elif at in counted and instruction.name == "LDGSTS":
            groups[-1] += instruction.bits // 8
        elif at in counted:
            destination = _REGISTER.search(instruction.operands)
            if destination:
                to_register[int(destination[1])] = instruction.bits // 8
        most = max(most, sum(to_register.values()) + sum(groups))
    return most


def _group(first: int, size: int) -> range:
    return range(first, first + max(1, size // 4))
