"""``minipaged autograder``: a zip that Gradescope makes an autograder of.

It holds the package, the graded tests of some stages, and what runs them; solutions and lessons
stay here. An instructor's own checks come from a folder and are in no repository that students
read.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from minipaged.course.catalog import FILE, HIDDEN, Checkpoint, Course, Stage, load_course
from minipaged.course.grade import SEEDS
from minipaged.course.judge.run import judge_rounds
from minipaged.course.mutants import FOLDER as MUTANTS
from minipaged.course.on_gradescope import ASSIGNMENT, Assignment
from minipaged.course.signatures import FILE as SIGNATURES
from minipaged.course.submission import read_submission
from minipaged.errors import CourseError

#: Of the package's dependencies, those that no graded test needs, and one that those of kernels do.
NOT_NEEDED = ("jupyter", "matplotlib", "transformers")
TRITON = "triton"

_TEMPLATES = Path(__file__).with_name("gradescope")

#: Seconds that are left of Gradescope's time limit when grading is ended.
_MARGIN = 30

#: Seeds that an instructor's own check is tried on.
_TRIES = 5

#: Of every file in the zip: the same contents make the same zip.
_DATE = (1980, 1, 1, 0, 0, 0)


# --------------------------------------------------------------------------- what goes into it
def lay_out(
    course: Course,
    units: Sequence[Stage],
    folder: Path,
    *,
    hidden: Path | None = None,
    contact: str = "your instructor",
    minutes: int = 10,
) -> None:
    """Write all that the zip holds to an empty folder.

    Args:
        units: stages and checkpoints that are graded.
        hidden: a folder with an instructor's own checks: ``hidden.toml``, and tests in a folder a
            stage, as in ``tests/``.
        contact: whom students ask where grading goes wrong.
        minutes: Gradescope's time limit of the assignment.

    Raises:
        CourseError: an own check says something that cannot be.
    """
    root = course.root
    assignment = Assignment(tuple(unit.key for unit in units), contact)
    for file in _files(course, units):
        target = folder / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    torch, others = requirements(root, units)
    values = {"@TORCH@": torch, "@SECONDS@": str(60 * minutes - _MARGIN)}
    for name in ("setup.sh", "run_autograder"):
        text = (_TEMPLATES / name).read_text(encoding="utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        (folder / name).chmod(0o755)
    (folder / "requirements.txt").write_text("\n".join(others) + "\n", encoding="utf-8")
    plain = {"units": assignment.units, "contact": contact}
    for name, data in ((ASSIGNMENT, plain), ("failed.json", assignment.failure())):
        (folder / name).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if hidden is not None:
        _add_hidden(units, hidden, folder)


def _files(course: Course, units: Sequence[Stage]) -> Iterator[Path]:
    root = course.root
    yield from (root / name for name in (FILE, "LICENSE"))
    for folder in ("minipaged", "minipaged/kernels", *(f"tests/{unit.folder}" for unit in units)):
        for file in sorted((root / folder).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file
    yield from (root / MUTANTS / f"stage{u.number}.toml" for u in units if u.counterexample)
    yield root / SIGNATURES


def requirements(root: Path, units: Sequence[Stage]) -> tuple[str, list[str]]:
    """What ``pip`` installs for grading: torch, which has an index of its own, and the rest."""
    left_out = {*NOT_NEEDED} if any(unit.triton for unit in units) else {*NOT_NEEDED, TRITON}
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = {Requirement(line).name: line for line in project["dependencies"]}
    torch = listed.pop("torch")
    return torch, [line for name, line in listed.items() if name not in left_out]


def _add_hidden(units: Sequence[Stage], hidden: Path, folder: Path) -> None:
    """Put own checks beside those of their stages, and try them on the reference."""
    if not (hidden / HIDDEN).is_file():
        raise CourseError(f"{hidden} has no {HIDDEN}: it says which checks there are")
    shutil.copyfile(hidden / HIDDEN, folder / HIDDEN)
    course = load_course(folder)
    having = [course.unit(unit.key) for unit in units]
    having = [unit for unit in having if any(check.hidden for check in unit.checks())]
    names = {check.name for stage in course.stages for check in stage.checks() if check.hidden}
    graded = {check.name for unit in having for check in unit.checks() if check.hidden}
    if names != graded:
        raise CourseError(
            f"{HIDDEN}: {min(names - graded)} is of a stage that this autograder does not grade"
        )
    for unit in having:
        for file in sorted((hidden / unit.folder).glob("*.py")):
            target = folder / "tests" / unit.folder / file.name
            if target.exists():
                raise CourseError(f"{file}: {unit.label} has a file of this name: rename yours")
            shutil.copyfile(file, target)
        _try(course, unit)


def _try(course: Course, unit: Stage) -> None:
    """What the reference does not pass on every seed no student can."""
    names = [check.name for check in unit.checks() if check.hidden]
    seeds = (0, *(1 + secrets.randbelow(SEEDS) for _ in range(_TRIES - 1)))
    reference = read_submission(course, unit, "ref")
    for judged in judge_rounds(course, unit, reference, seeds=seeds, checks=names):
        for result in judged.checks.values():
            if result.status != "passed":
                raise CourseError(
                    f"{unit.label}, {result.name}: the reference does not pass it with seed "
                    f"{judged.seed}: {result.message}"
                )


# --------------------------------------------------------------------------- the zip
def write_zip(folder: Path, path: Path) -> None:
    """Pack a folder, with its files' modes.

    Raises:
        CourseError: the zip cannot be written.
    """
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for file in sorted(file for file in folder.rglob("*") if file.is_file()):
                entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _DATE)
                entry.external_attr = file.stat().st_mode << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                packed.writestr(entry, file.read_bytes())
    except OSError as error:
        raise CourseError(f"{path} cannot be written: {error.strerror}") from None


# --------------------------------------------------------------------------- the command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged autograder``."""
    parser.add_argument("file", type=Path, metavar="FILE.zip", help="what is written")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--stages", metavar="LIST", help="what is graded, as 2,3 or 4,A; default: everything"
    )
    which.add_argument("--upto", metavar="STAGE", help="all up to a stage, checkpoints included")
    parser.add_argument(
        "--hidden", type=Path, metavar="DIR", help="a folder with checks of your own"
    )
    parser.add_argument(
        "--contact",
        default="your instructor",
        metavar="WHOM",
        help="whom students ask when grading goes wrong (default: your instructor)",
    )
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=10,
        metavar="N",
        help="the assignment's time limit on Gradescope (default: 10)",
    )


def _minutes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 40):
        raise argparse.ArgumentTypeError(f"Gradescope allows 1 to 40 minutes, not {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Write the zip."""
    course = load_course()
    if course.given is not None:
        raise CourseError(
            "this copy was made for a class, and has no reference to grade with: make the "
            "autograder in the full checkout"
        )
    units = chosen(course, args.stages, args.upto)
    with tempfile.TemporaryDirectory(prefix="minipaged-autograder-") as made:
        folder = Path(made)
        lay_out(
            course,
            units,
            folder,
            hidden=args.hidden,
            contact=args.contact,
            minutes=args.minutes,
        )
        write_zip(folder, args.file)
        graded = [load_course(folder).unit(unit.key) for unit in units]
    points = sum(unit.points for unit in graded)
    size = args.file.stat().st_size / 1e6
    print(f"{args.file}: {', '.join(unit.label for unit in units)}; {points} points, {size:.1f} MB")
    print("On Gradescope: a programming assignment of that many points, with this zip.")
    return 0


def chosen(course: Course, listed: str | None, upto: str | None) -> list[Stage]:
    """The stages and checkpoints that are graded, in order.

    Raises:
        CourseError: there is no such stage.
    """
    if listed is not None:
        names = {course.unit(name.strip()).number for name in listed.split(",")}
        return [unit for unit in course.units if unit.number in names]
    if upto is None:
        return list(course.units)
    last = course.stage(upto).number
    return [u for u in course.units if (u.after if isinstance(u, Checkpoint) else u.number) <= last]
