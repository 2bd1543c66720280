"""Make ``lessons/faq.md``: what students see on screen, and what is behind it.

The questions are the first wrong values of the mutants (``tests/mutants/signatures.json``) and what
``minipaged doctor`` says of a machine that is not fit; the answers are the mutants' misconceptions
and the doctor's remedies. ``--check`` writes nothing, and fails on a difference.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from packaging.requirements import Requirement

from minipaged import doctor
from minipaged.course.catalog import Course, Stage, load_course
from minipaged.course.mutants import Mutant, load_mutants
from minipaged.course.signatures import load_signatures

ROOT = Path(__file__).resolve().parents[1]
FILE = Path("lessons", "faq.md")

_HEAD = """
# Questions that the screen asks

`minipaged grade` says what came and what was expected. This page says what may be behind it. Look
for the title of the first check that fails, then for its first line: in the cases that everybody
sees (seed 0) it is the same on every machine. If yours is another one, the list still tells what
others got wrong at this place. No answer has code in it.

At the end is what `minipaged doctor` says of a machine, and what mends it.

This page is made by `python scripts/faq.py` from the wrong parts that the grader is tested with
(`tests/mutants`), and from what the doctor says.
"""

_DOCTOR = """
## The machine

What `minipaged doctor` says, and what mends it. `…` stands for a folder of yours.
"""

#: What Markdown would take for something else.
_MARKDOWN = re.compile(r"__|[*<]")


def text_of(course: Course) -> str:
    """The whole page."""
    pages = [_HEAD.strip()]
    for stage in course.stages:
        if load_mutants(course, stage):
            pages += [f"## Stage {stage.key}: {_lower(stage.title)}", *_checks(course, stage)]
    pages += [_DOCTOR.strip(), "\n".join(_machine(course.root))]
    return "\n\n".join(pages) + "\n"


# --------------------------------------------------------------------------- graded tests
def _checks(course: Course, stage: Stage) -> Iterator[str]:
    """A paragraph for each check that is the first to reject some mutant, and one for each of
    them."""
    signatures = load_signatures(course, stage)
    behind: dict[str, list[tuple[str, Mutant]]] = {}
    for mutant in load_mutants(course, stage):
        if mutant.name in signatures:
            check, value = signatures[mutant.name].first
            behind.setdefault(check, []).append((value, mutant))
    homes = {check.name: task.id for task in stage.tasks for check in task.checks}
    homes |= {check.name: f"{check.parent}, robustness" for check in stage.robustness}
    for check in stage.checks():
        if check.name in behind:
            yield f"**{check.title}** (task {homes[check.name]})"
            found = (_entry(value, mutant.misconception) for value, mutant in behind[check.name])
            yield "\n".join(found)


def _entry(seen: str, answer: str) -> str:
    escaped = _MARKDOWN.sub(lambda found: "".join(f"\\{c}" for c in found[0]), answer)
    wrapped = textwrap.fill(escaped, 100, initial_indent="  ", subsequent_indent="  ")
    return f"* {_code(seen)}\\\n{wrapped}"


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _lower(title: str) -> str:
    """A title after a colon; names that are written large stay so."""
    first = title.split()[0]
    return title if any(letter.isupper() for letter in first[1:]) else title[0].lower() + title[1:]


# --------------------------------------------------------------------------- the doctor
def _machine(root: Path) -> Iterator[str]:
    for check in machine_faults(root):
        word = "BROKEN" if check.ok is False else "--"
        yield _entry(f"{word}  {check.name}  {check.detail}", f"To mend it: {check.remedy}")


def machine_faults(root: Path) -> Iterator[doctor.Check]:
    """What the doctor says of machines that lack something, one after the other."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for find, changes in _cases(root, folder):
            with ExitStack() as stack:
                for name, value in changes.items():
                    stack.enter_context(patch.object(doctor, name, value))
                found = find()
            if found.ok is True or not found.remedy:
                raise RuntimeError(f"the doctor says nothing of a machine that is broken: {found}")
            texts = (found.detail, found.remedy)
            detail, remedy = (text.replace(str(folder), "…") for text in texts)
            yield doctor.Check(found.name, found.ok, detail, remedy)


def _cases(root: Path, folder: Path) -> Iterator[tuple[Callable[[], doctor.Check], dict[str, Any]]]:
    """A check of the doctor, and what it is made to see."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = {r.name: r for r in map(Requirement, project["dependencies"])}
    torch_names = Requirement("triton==3.6.0")

    def requirement(of_torch: Requirement | None = None) -> Callable[[str, str], Any]:
        return lambda of, name: of_torch if of == "torch" else listed[name]

    def seen(**changes: Any) -> dict[str, Any]:
        return {"_requirement": requirement(), "_version": lambda name: fitting[name], **changes}

    fitting = {"torch": "2.13.0", "triton": "3.7.0", "transformers": "5.0.0", "numpy": "2.3.0"}
    old = SimpleNamespace(version_info=(3, 9, 18), executable="/usr/bin/python3")
    yield doctor.check_python, {"sys": old, "platform": _answer(python_version="3.9.18")}
    yield doctor.check_torch, seen(_version=lambda name: None)
    yield doctor.check_torch, seen(_version=lambda name: "2.3.1")
    yield doctor.check_torch, seen(_cuda=lambda: (None, "ImportError: libcudart.so.12: not found"))
    yield doctor.check_triton, seen(_version=lambda name: None, platform=_answer(system="Linux"))
    yield doctor.check_triton, seen(_requirement=requirement(torch_names))
    (folder / "text").mkdir()
    (folder / "text" / "kernels").write_text("../kernels")
    (folder / "lost").mkdir()
    (folder / "lost" / "kernels").symlink_to("../nowhere")
    yield lambda: doctor.check_link(folder / "text"), {}
    yield lambda: doctor.check_link(folder / "lost"), {}
    zeros = '{"got": [0.0, 0.0], "expected": [3.5, -1.25]}\n'
    fit = doctor.Check("kernels link", True, "")
    for stdout, stderr in ((zeros, ""), ("", "RuntimeError: no interpreter")):
        done = _process(stdout, stderr)
        kernel = seen(_python=done, check_link=lambda: fit, importlib=_has_all())
        yield doctor.check_interpreter, kernel
    card = ["NVIDIA A100-SXM4-40GB, 40960 MiB, driver 470.57"]
    yield doctor.check_gpu, {"_gpus": lambda: card, "_cuda": lambda: ("12.8", "")}
    done = _process("", "ImportError: cannot import name 'LlamaForCausalLM'")
    yield doctor.check_transformers, seen(_python=done)
    cache = folder / "cache"
    yield doctor.check_model, {"default_cache_dir": lambda: cache}
    full = namedtuple("Usage", "total used free")(10**11, 10**11 - 5 * 10**7, 5 * 10**7)
    disk = SimpleNamespace(disk_usage=lambda path: full)
    yield doctor.check_disk, {"default_cache_dir": lambda: cache, "shutil": disk}
    half = folder / "cache" / doctor.SMOLLM2.name
    half.mkdir(parents=True)
    yield doctor.check_model, {"default_cache_dir": lambda: cache}


def _answer(**answers: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: (lambda text=text: text) for name, text in answers.items()})


def _process(stdout: str, stderr: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    code = 1 if stderr else 0
    return lambda *args, env=None: subprocess.CompletedProcess(args, code, stdout, stderr)


def _has_all() -> SimpleNamespace:
    return SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: True))


# --------------------------------------------------------------------------- the command
def main() -> int:
    parser = argparse.ArgumentParser(description="make lessons/faq.md")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    args = parser.parse_args()
    course = load_course(ROOT)
    file, text = ROOT / FILE, text_of(course)
    if not args.check:
        file.write_text(text, encoding="utf-8")
        return 0
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        print(f"{FILE} is not what its sources make of it: python scripts/faq.py")
        return 1
    print(f"{FILE} is what its sources make of it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
