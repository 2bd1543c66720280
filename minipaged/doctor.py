"""Is this machine fit to run minipaged, and if not, what mends it?

Checks never raise: whatever goes wrong becomes a line with its remedy. Everything that could
crash or hang (a kernel, an import of a large library) runs in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

import minipaged
from minipaged.fetch import SMOLLM2, default_cache_dir, is_complete

PYTHON = (3, 11)
"""The least that the package is written for."""
TIMEOUT = 180
"""Seconds that a process of a check may take."""


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        ok: True: fine; False: broken; None: absent, and nothing that works needs it.
        detail: what was found.
        remedy: what to do, where something is to be done.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def checks() -> list[Check]:
    """All checks, in the order in which one thing needs the other."""
    return [_outcome(check) for check in _CHECKS]


def _outcome(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        name = check.__name__.removeprefix("check_")
        return Check(name, False, f"the check itself fails: {error!r}", "report this, please")


# --------------------------------------------------------------------------- the machine
def check_python() -> Check:
    found = platform.python_version()
    detail = f"{found} ({sys.executable})"
    if sys.version_info[:2] < PYTHON:
        return Check("Python", False, detail, "install Python 3.11 or later and make .venv anew")
    return Check("Python", True, detail)


def check_disk() -> Check:
    cache = default_cache_dir()
    folder = next(parent for parent in (cache, *cache.parents) if parent.exists())
    free, needed = shutil.disk_usage(folder).free, SMOLLM2.disk_bytes
    detail = f"{free / 1e9:.1f} GB free in {folder}"
    if free < needed and not is_complete(cache / SMOLLM2.name):
        remedy = (
            f"{SMOLLM2.title} needs {needed / 1e9:.1f} GB: make room, or set MINIPAGED_CACHE to a "
            "folder on another disk"
        )
        return Check("disk", False, detail, remedy)
    return Check("disk", True, detail)


# --------------------------------------------------------------------------- libraries
def check_torch() -> Check:
    broken = _check_version("torch", "torch")
    if broken is not None:
        return broken
    found = _version("torch")
    cuda, usable = _cuda()
    if cuda is None:
        return Check("torch", False, f"{found} cannot be imported: {usable}", "make setup")
    build = f"built for CUDA {cuda}" if cuda else "CPU build"
    if cuda and not usable:
        build += ", which is not usable here"
    return Check("torch", True, f"{found}, {build}")


def check_triton() -> Check:
    if platform.system() != "Linux" and _version("triton") is None:
        return Check("Triton", None, "there is none for this system: kernels cannot run here")
    broken = _check_version("Triton", "triton")
    if broken is not None:
        return broken
    # A torch with CUDA names the one Triton that it works with.
    found, partner = _version("triton") or "", _requirement("torch", "triton")
    if partner is not None and not partner.specifier.contains(found, prereleases=True):
        detail = f"{found}, and torch {_version('torch')} works with {partner.specifier}"
        return Check("Triton", False, detail, f"pip install 'triton{partner.specifier}'")
    return Check("Triton", True, found)


def check_transformers() -> Check:
    broken = _check_version("transformers", "transformers")
    if broken is not None:
        return broken
    found = _version("transformers") or ""
    done = _python("-c", "from transformers import LlamaForCausalLM, OPTForCausalLM")
    if done.returncode:
        detail = f"{found} cannot load its models: {_last_line(done)}"
        remedy = "make setup; if the message names `kernels`, look for a package of that name on "
        remedy += "Python's path (kernels/ here must have no __init__.py)"
        return Check("transformers", False, detail, remedy)
    return Check("transformers", True, found)


def _check_version(name: str, distribution: str) -> Check | None:
    """A broken check where a library is missing or of a version that we do not support."""
    found, wanted = _version(distribution), _requirement("minipaged", distribution)
    versions = str(wanted.specifier) if wanted is not None else ""
    remedy = f"pip install '{distribution}{versions}'"
    if found is None:
        return Check(name, False, "not installed", remedy)
    if wanted is not None and not wanted.specifier.contains(found, prereleases=True):
        return Check(name, False, f"{found}, and {versions} is known to work", remedy)
    return None


def _cuda() -> tuple[str | None, str]:
    """The CUDA version that torch is built for ('' for none) and a non-empty text if it works
    here; (None, message) where torch cannot be imported."""
    code = "import torch as t; print(t.version.cuda or '', t.cuda.is_available() or '', sep=';')"
    done = _python("-c", code)
    if done.returncode:
        return None, _last_line(done)
    cuda, usable = done.stdout.splitlines()[-1].split(";")
    return cuda, usable


# --------------------------------------------------------------------------- kernels
def check_link(package: Path | None = None) -> Check:
    """``minipaged/kernels`` must lead to the folder of kernels; a checkout without symbolic links
    (git on Windows, some zip files) has a small text file in its place."""
    link = (package or Path(minipaged.__file__).parent) / "kernels"
    remedy = (
        "in the repository: git config core.symlinks true && rm minipaged/kernels && "
        "git checkout -- minipaged/kernels (on Windows with Developer Mode on)"
    )
    name = "kernels link"
    if link.is_file():
        return Check(name, False, f"{link} is a text file, not a link to ../kernels", remedy)
    if link.is_symlink() and not link.exists():
        detail = f"{link} leads to {os.readlink(link)}, which is not there"
        return Check(name, False, detail, remedy)
    if not (link / "self_test.py").is_file():
        return Check(name, False, f"{link} has no self_test.py", remedy)
    return Check(name, True, f"{link} -> {os.readlink(link)}" if link.is_symlink() else str(link))


def check_interpreter() -> Check:
    """Triton's interpreter has returned zeros without a word in some pairs of versions, so a
    kernel is run and its values are compared with NumPy's."""
    return _check_kernel("Triton interpreter", "cpu", {"TRITON_INTERPRET": "1"})


def check_compiled() -> Check:
    """The same kernel, compiled for the GPU."""
    if not (_gpus() and _cuda()[1]):
        return Check("kernel on the GPU", None, "no GPU that torch can use")
    return _check_kernel("kernel on the GPU", "cuda", {"TRITON_INTERPRET": ""})


def _check_kernel(name: str, device: str, env: dict[str, str]) -> Check:
    pair = f"triton {_version('triton')} with torch {_version('torch')} and numpy "
    pair += str(_version("numpy"))
    remedy = "install the pinned versions (make setup), and see the check of Triton above"
    if importlib.util.find_spec("triton") is None:
        return Check(name, None, "Triton is not installed")
    if not check_link().ok:
        return Check(name, False, "minipaged/kernels cannot be read", "mend the kernels link first")
    done = _python("-m", "minipaged.kernels.self_test", device, env=env)
    if done.returncode:
        return Check(name, False, f"a small kernel fails: {_last_line(done)} ({pair})", remedy)
    try:
        result = json.loads(done.stdout.splitlines()[-1])
        sums = list(zip(result["got"], result["expected"], strict=True))
    except (ValueError, KeyError, TypeError, IndexError):
        return Check(name, False, f"a small kernel printed {done.stdout[:80]!r}", remedy)
    wrong = [
        (row, g, e) for row, (g, e) in enumerate(sums) if not abs(g - e) <= 1e-4 * max(1.0, abs(e))
    ]
    if wrong:
        row, g, e = wrong[0]
        detail = (
            f"wrong values without an error: {len(wrong)} of {len(sums)} sums, row {row} is "
            f"{g:g} and should be {e:g} ({pair})"
        )
        return Check(name, False, detail, remedy)
    return Check(name, True, f"a kernel with {len(sums)} ragged rows agrees with NumPy")


def check_gpu() -> Check:
    found = _gpus()
    if not found:
        return Check("GPU", None, "none: CPU and the interpreter are used")
    if not _cuda()[1]:
        detail = f"{'; '.join(found)}, but torch cannot use it"
        remedy = "to use it, install torch with CUDA (make setup without TORCH=cpu) and a driver "
        return Check("GPU", None, detail, remedy + "that is new enough for it")
    return Check("GPU", True, "; ".join(found))


def _gpus() -> list[str]:
    """What nvidia-smi says of each GPU: name, memory, driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 2]
    return [f"{name}, {memory}, driver {driver}" for name, memory, driver in rows]


# --------------------------------------------------------------------------- the model
def check_model() -> Check:
    folder = default_cache_dir() / SMOLLM2.name
    name = "model cache"
    if not folder.exists():
        return Check(name, None, f"{SMOLLM2.title} is not in {folder.parent}", "minipaged fetch")
    if not is_complete(folder):
        detail = f"{folder} is not complete"
        return Check(name, False, detail, "minipaged fetch (it is made anew)")
    size = sum(file.stat().st_size for file in folder.iterdir())
    return Check(name, True, f"{SMOLLM2.title}, {size / 1e6:.0f} MB in {folder}")


_CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_torch,
    check_triton,
    check_link,
    check_interpreter,
    check_gpu,
    check_compiled,
    check_transformers,
    check_model,
    check_disk,
)


# --------------------------------------------------------------------------- helpers
def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirement(distribution: str, of: str) -> Requirement | None:
    """What a distribution's metadata asks of another one here, if it does."""
    try:
        texts = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if requirement.name == of and (marker is None or marker.evaluate({"extra": ""})):
            return requirement
    return None


def _python(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python as this process would. A process that hangs or cannot start has failed."""
    # The package may run from a folder that only this process knows of.
    home = str(Path(minipaged.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), home)))
    command = [sys.executable, *args]
    try:
        return subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {TIMEOUT} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {done.returncode}, no message"


# --------------------------------------------------------------------------- the command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged doctor``."""
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")


def run(args: argparse.Namespace) -> int:
    """Print every check. Returns 1 if anything is broken, else 0."""
    if args.json:
        found = checks()
        print(json.dumps([vars(check) for check in found], indent=2))
    else:
        found = _print_as_they_come()
    return 1 if any(check.ok is False for check in found) else 0


def _print_as_they_come() -> list[Check]:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    looks = {True: ("ok", "green"), None: ("--", "yellow"), False: ("BROKEN", "bold red")}
    found = []
    for make in _CHECKS:
        check = _outcome(make)
        found.append(check)
        word, style = looks[check.ok]
        line = Text.assemble((f"{word:>6}", style), f"  {check.name:<18}  {check.detail}")
        console.print(line, soft_wrap=True)
        if check.remedy:
            console.print(Text(f"{'':>28}to mend it: {check.remedy}"), soft_wrap=True)
    broken = [check.name for check in found if check.ok is False]
    told = f"{len(broken)} broken: {', '.join(broken)}" if broken else "All is well."
    console.print(Text(f"\n{told}"))
    return found
