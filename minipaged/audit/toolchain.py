"""NVIDIA's assembler and disassembler, as they come with Triton's wheel.

They take text from strangers, so each run has a time limit.

Line numbers survive the assembler, but columns and the calls by which a helper was inlined do
not: of a load in a helper one could not say for whom it loads. Triton's PTX still has them, in
comments. So :func:`assemble` numbers the distinct places, writes that number where the line
number stood, and keeps the list. The machine code is the same.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from minipaged.audit.compiler import AuditError, Ptx, capability_of

TIME_LIMIT_S = 120.0

_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)([^\n/]*)(?://([^\n]*))?$", re.MULTILINE)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"([^"]*)"', re.MULTILINE)
_POSITION = re.compile(r"([^\s\[\]@]+):(\d+):(\d+)")


@dataclass(frozen=True)
class Position:
    """A place in a source file: its name without folders, line from 1, column from 0."""

    file: str
    line: int
    column: int


#: Where an instruction comes from: its own place, then the call that inlined it, and so on out.
Site = tuple[Position, ...]


@dataclass(frozen=True)
class Cubin:
    """Machine code of one kernel.

    Attributes:
        binary: an ELF file.
        sites: what its line numbers stand for: line ``n`` is ``sites[n - 1]``.
    """

    binary: bytes
    sites: tuple[Site, ...]


def assemble(ptx: Ptx, arch: str = "sm_80") -> Cubin:
    """Machine code, with the options that Triton gives the assembler.

    Raises:
        AuditError: the assembler refuses the text; the message is its own.
    """
    capability = capability_of(arch)
    # The instructions of one generation that the next does not promise: as Triton asks for them.
    name = f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"
    text, sites = number_sites(ptx.text)
    with tempfile.TemporaryDirectory(prefix="minipaged-audit-") as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text, encoding="utf-8")
        _run(_assembler(capability), "-lineinfo", *_assembler_options(), f"--gpu-name={name}",
             str(source), "-o", str(binary))  # fmt: skip
        return Cubin(binary.read_bytes(), sites)


def disassemble(cubin: Cubin) -> str:
    """The text of ``nvdisasm -g -c``: instructions, and the line that each comes from."""
    return _on_file(cubin, "nvdisasm", "-g", "-c")


def resource_usage(cubin: Cubin) -> str:
    """The text of ``cuobjdump --dump-resource-usage``."""
    return _on_file(cubin, "cuobjdump", "--dump-resource-usage")


def ptx_version(arch: str = "sm_80") -> int:
    """The PTX version that the assembler for ``arch`` takes: 84 is PTX 8.4."""
    output = _run(_assembler(capability_of(arch)), "--version")
    release = re.search(r"release (\d+\.\d+)", output)
    if not release:
        raise AuditError("ptxas does not tell its version")
    from triton.backends.nvidia.compiler import ptx_get_version

    return int(ptx_get_version(release[1]))


def number_sites(text: str) -> tuple[str, tuple[Site, ...]]:
    """PTX whose line numbers are the numbers of places, from 1, and the places."""
    files = {number: name.rsplit("/", 1)[-1] for number, name in _FILE.findall(text)}
    numbers: dict[Site, int] = {}

    def replace(match: re.Match[str]) -> str:
        file, line, column, rest, comment = match.groups()
        site = tuple(
            Position(name, int(at), int(col)) for name, at, col in _POSITION.findall(comment or "")
        ) or (Position(files.get(file, ""), int(line), int(column)),)
        number = numbers.setdefault(site, len(numbers) + 1)
        return f"\t.loc\t{file} {number} 0{rest.rstrip()}"

    return _LOC.sub(replace, text), tuple(numbers)


def _on_file(cubin: Cubin, tool: str, *options: str) -> str:
    with tempfile.NamedTemporaryFile(prefix="minipaged-audit-", suffix=".cubin") as file:
        file.write(cubin.binary)
        file.flush()
        return _run(tool, *options, file.name)


def _assembler(capability: int) -> str:
    return "ptxas-blackwell" if capability >= 100 else "ptxas"


@functools.cache
def _assembler_options() -> tuple[str, ...]:
    # Triton from 3.7 on works around a fault of its assembler with this option.
    source = (_triton_folder() / "backends" / "nvidia" / "compiler.py").read_text(encoding="utf-8")
    return tuple(re.findall(r"'(--regAllocOptLevel=\d)'", source))


def _triton_folder() -> Path:
    found = importlib.util.find_spec("triton")  # not imported: it may interpret in this process
    if found is None or found.origin is None:
        raise AuditError("Triton is not installed: its wheel brings the assembler")
    return Path(found.origin).parent


def _run(tool: str, *arguments: str) -> str:
    path = _triton_folder() / "backends" / "nvidia" / "bin" / tool
    if not path.is_file():
        raise AuditError(f"Triton's wheel has no {tool} in {path.parent}")
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as expired:
        raise AuditError(f"{tool} took more than {TIME_LIMIT_S:.0f} s") from expired
    if done.returncode:
        raise AuditError(f"{tool} refuses the kernel: {done.stderr.strip()}")
    return done.stdout
