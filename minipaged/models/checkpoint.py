"""The tensors of a checkpoint folder, one at a time, whatever container holds them.

Files are mapped into memory, not read: a tensor costs memory when somebody copies it, and its
file is let go before the next one is opened.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minipaged.errors import ModelError

if TYPE_CHECKING:
    import torch


class Weight(NamedTuple):
    """One tensor of a checkpoint."""

    name: str
    """As the file has it."""
    tensor: torch.Tensor
    file: Path


class WeightFiles(NamedTuple):
    """The files that make up one checkpoint."""

    files: list[Path]
    weight_map: dict[str, str] | None
    """Tensor name to file name, where the folder has an index."""


class _Container(NamedTuple):
    suffix: str
    single: str
    index_file: str
    shard: re.Pattern[str]


# In the order of preference: safetensors cannot run code and maps faster.
_CONTAINERS = (
    _Container(
        ".safetensors",
        "model.safetensors",
        "model.safetensors.index.json",
        re.compile(r"model-(\d+)-of-(\d+)\.safetensors"),
    ),
    _Container(
        ".bin",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        re.compile(r"pytorch_model-(\d+)-of-(\d+)\.bin"),
    ),
)
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_checkpoint(folder: str | Path) -> Iterator[Weight]:
    """Every tensor of the checkpoint in ``folder``, under the name that its file gives it.

    Takes safetensors and ``.bin`` files, single or sharded; where both are there, safetensors.
    Other files (optimizer states, ``consolidated.*``) are ignored. The memory that this takes is
    that of one mapped file; a tensor must be copied before the next one is asked for.

    Raises:
        ModelError: no weights, a missing shard, a tensor that the index promises and its shard
            lacks, a tensor that two shards hold, a file that is truncated, a Git LFS pointer, or
            not a checkpoint; the message names the file and the tensor.
    """
    found = find_weight_files(Path(folder))
    seen: dict[str, Path] = {}
    for file in found.files:
        names = set()
        for name, tensor in read_weight_file(file):
            if name in seen:
                raise ModelError(f"tensor {name!r} is both in {seen[name]} and in {file}")
            seen[name] = file
            names.add(name)
            yield Weight(name, tensor, file)
        promised = [
            n for n, f in (found.weight_map or {}).items() if f == file.name and n not in names
        ]
        if promised:
            raise ModelError(
                f"{file} lacks the tensor {promised[0]!r}, which the folder's index says it holds"
            )


def find_weight_files(folder: Path) -> WeightFiles:
    """Which files of ``folder`` hold its weights; errors as :func:`read_checkpoint`."""
    for container in _CONTAINERS:
        single = folder / container.single
        if single.is_file():
            return WeightFiles([single], None)
        if (folder / container.index_file).is_file():
            return _indexed(folder, folder / container.index_file)
        if shards := _unindexed_shards(folder, container):
            return WeightFiles(shards, None)
    others = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    raise ModelError(
        f"{folder} holds no weights: expected {' or '.join(c.single for c in _CONTAINERS)}, or "
        f"shards of one with their index. It holds {', '.join(others[:10]) or 'nothing'}"
    )


def read_weight_file(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every (name, tensor) of one ``.safetensors`` or ``.bin`` file, mapped into memory."""
    with open(file, "rb") as opened:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ModelError(
                f"{file} is a Git LFS pointer, not the file itself: run `git lfs pull` beside it"
            )
    read = _read_safetensors if file.suffix == ".safetensors" else _read_bin
    yield from read(file)


# --------------------------------------------------------------------------- finding
def _indexed(folder: Path, index_file: Path) -> WeightFiles:
    try:
        index: dict[str, str] = json.loads(index_file.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(index.values()), key=str)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index_file} is not an index of shards ({error!r})") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{index_file} names a shard that is no file beside it: {name!r}")
        if not (folder / name).is_file():
            tensors = [tensor for tensor, file in index.items() if file == name]
            raise ModelError(
                f"the shard {folder / name} is missing; {index_file.name} says that it holds "
                f"{len(tensors)} tensors, {tensors[0]!r} among them"
            )
    return WeightFiles([folder / name for name in names], index)


def _unindexed_shards(folder: Path, container: _Container) -> list[Path]:
    if not folder.is_dir():
        return []
    shards = {p: m for p in sorted(folder.iterdir()) if (m := container.shard.fullmatch(p.name))}
    if not shards:
        return []
    total = max(int(match[2]) for match in shards.values())
    missing = set(range(1, total + 1)) - {int(match[1]) for match in shards.values()}
    if missing:
        raise ModelError(
            f"{folder} has {len(shards)} of {total} shards of its {container.suffix} checkpoint: "
            f"number {min(missing)} is missing"
        )
    return list(shards)


# --------------------------------------------------------------------------- reading
def _read_safetensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 (the file is no mapping)
                yield name, opened.get_tensor(name)
    except SafetensorError as error:
        raise _damaged(file, error) from error


def _read_bin(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    # torch's older format is no zip archive and cannot be mapped.
    mapped = zipfile.is_zipfile(file)
    try:
        content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        raise _damaged(file, error) from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds a {type(content).__name__}, not tensors by name")
    for name, tensor in content.items():
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(f"{file} holds a {type(tensor).__name__} as {name!r}, not a tensor")
        yield name, tensor


def _damaged(file: Path, error: Exception) -> ModelError:
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return ModelError(
        f"{file} ({file.stat().st_size} bytes) is truncated or no checkpoint ({first_line}): "
        "get it again"
    )
