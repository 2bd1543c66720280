"""``minipaged release DIR --open K``: a copy of the course for a class, without the answers.

Stages up to K are given: their modules are the reference. In all others the package's file *is*
the skeleton. Each release is one new commit in the class's repository, which shares no history with
this one; what stands in ``exercises/`` already is never touched.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from minipaged.course import answers, mutants, signatures
from minipaged.course.catalog import FILE, Course, Part, load_course
from minipaged.course.mutants import Mutant, load_mutants
from minipaged.course.notebooks import notebook_texts
from minipaged.course.skeleton import exercise_text
from minipaged.course.sync import write_exercises
from minipaged.errors import CourseError

#: What a release has in place of our own, or besides.
CLASSROOM = "classroom"

#: What it has of ours: files, and the beginnings of paths. All else is left out.
_KEPT = (
    ".github/",
    ".gitignore",
    "LICENSE",
    "Makefile",
    FILE,
    "kernels/",
    "lessons/",
    "minipaged/",
    "notebooks/",
    "pyproject.toml",
    "tests/checkpoint_",
    "tests/conftest.py",
    "tests/stage",
)
_LEFT_OUT = (
    "lessons/_book/",
    "lessons/discussion",
    "lessons/hidden-checks/",
    "lessons/instructor",
)

#: Given files that do once more what a part does: they are left out while it is closed.
_TELL = {"kernels/rotary.py": "cache_write"}

#: Folders of a class's repository in which nothing stays that a later release does not have.
_OWNED = ("kernels/", "lessons/", "minipaged/", "tests/")

#: Targets of the Makefile that work on what is left out.
_TARGETS = ("book", "pictures", "mutants", "check-generated")

#: What a repository of a class may hold before its first release.
_HARMLESS = frozenset({".gitignore", "LICENSE", "README.md"})


@dataclass(frozen=True)
class Released:
    """What a release did.

    Attributes:
        commit: its short name; empty if nothing was new.
        written: files of the copy, those in ``exercises/`` apart.
        kept: exercises that were left alone.
    """

    folder: Path
    commit: str
    written: int
    kept: tuple[Path, ...]


def given_stages(course: Course, up_to: str, also: Sequence[str] = ()) -> tuple[str, ...]:
    """The numbers of the stages whose modules a release has.

    Raises:
        CourseError: there is no such stage.
    """
    last = course.stage(up_to)
    more = {course.stage(key).number for key in also}
    return tuple(s.number for s in course.stages if s.number <= last.number or s.number in more)


def release(
    course: Course, folder: Path, given: Sequence[str], seeds: Sequence[int] = answers.SEEDS
) -> Released:
    """Commit a copy of the course into a class's repository.

    Args:
        folder: a repository of a class, or a folder that is empty or not there.
        given: numbers of the stages whose modules it has.
        seeds: those for which it has the answers of checkpoints.

    Raises:
        CourseError: this is such a copy itself; the folder is something else, or has changes that
            are not committed; it was given a stage before that would be closed now; git fails.
    """
    folder = folder.resolve()
    check_target(course, folder, given)
    contents = release_contents(course, given, seeds)
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _git(folder, "init", "--quiet", "--initial-branch=main")
    _git(folder, "var", "GIT_AUTHOR_IDENT")  # fails, with advice, before anything is written
    for name in _git(folder, "ls-files", "-z").split("\0"):
        if name.startswith(_OWNED) and name not in contents:
            (folder / name).unlink()
    for name, content in contents.items():
        _write(folder / name, content)
    exercises = write_exercises(load_course(folder))
    names = "\0".join([*contents, *(str(outcome.path) for outcome in exercises)])
    # By name and by force: an ignore file of the user's own must not take anything out.
    chosen = ("--pathspec-from-file=-", "--pathspec-file-nul")
    _git(folder, "add", "--force", *chosen, stdin=names)
    _git(folder, "add", "--update")
    commit = ""
    if _git(folder, "diff", "--cached", "--name-only"):
        message = f"{course.title}, {course.version}: {_in_words(course, given)}"
        _git(folder, "commit", "--quiet", "--message", message)
        commit = _git(folder, "rev-parse", "--short", "HEAD").strip()
    kept = tuple(outcome.path for outcome in exercises if outcome.what == "left alone")
    return Released(folder, commit, len(contents), kept)


# --------------------------------------------------------------------------- what is in it
@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Content = bytes | Link


def release_contents(
    course: Course, given: Sequence[str], seeds: Sequence[int] = answers.SEEDS
) -> dict[str, Content]:
    """Every file of a release but for those that students write: path -> what it holds.

    Raises:
        CourseError: git does not know what belongs to the course.
    """
    listed = _git(course.root, "ls-files", "-z").split("\0")
    closed = [stage for stage in course.stages if stage.number not in given]
    hidden = [part.name for stage in closed for part in stage.parts]
    left_out = (*_LEFT_OUT, *(name for name, part in _TELL.items() if part in hidden))
    names = [name for name in listed if name.startswith(_KEPT) and not name.startswith(left_out)]
    contents: dict[str, Content] = {}
    for name in sorted(names):
        file = course.root / name
        if file.is_symlink():
            contents[name] = Link(os.readlink(file))
        elif file.is_file():
            contents[name] = file.read_bytes()
    texts = {str(path): text for path, text in notebook_texts(course).items()}
    for stage in closed:
        for part in stage.parts:
            texts[_file_of(course, part)] = exercise_text(course, stage, part)
    for stage in course.stages:
        source = course.root / mutants.FOLDER / f"stage{stage.number}.toml"
        if source.is_file():
            whole = source.read_text(encoding="utf-8")
            text = _beliefs(load_mutants(course, stage)) if stage in closed else whole
            texts[str(source.relative_to(course.root))] = text
    if (course.root / signatures.FILE).is_file():
        contents[str(signatures.FILE)] = (course.root / signatures.FILE).read_bytes()
    for checkpoint in course.checkpoints if closed and seeds else ():
        name = f"tests/{checkpoint.folder}/{answers.FILE}"
        texts[name] = answers.recorded(course, checkpoint, seeds)
    modules = [_file_of(course, part) for stage in closed for part in stage.parts]
    for name, change in (
        (FILE, lambda text: _course_text(text, given, hidden)),
        ("Makefile", _makefile),
        ("lessons/README.md", _start_page),
        ("pyproject.toml", lambda text: _pyproject(text, modules)),
        (".github/workflows/test.yml", lambda text: text.replace(".ci/run", "make test")),
    ):
        if (course.root / name).is_file():
            texts[name] = change((course.root / name).read_text(encoding="utf-8"))
    contents |= {name: text.encode() for name, text in texts.items()}
    for file in sorted((course.root / CLASSROOM).rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            name = file.relative_to(course.root / CLASSROOM).as_posix()
            contents[name] = file.read_bytes()
    return contents


def _file_of(course: Course, part: Part) -> str:
    """The reference's file as git knows it: kernels lie behind a link."""
    root = course.root.resolve()
    return (root / part.source).resolve().relative_to(root).as_posix()


def _course_text(text: str, given: Sequence[str], closed: Sequence[str]) -> str:
    """``course.toml`` of a release: which stages it has, and no names of the answers' helpers."""
    head, *parts = text.split("[[stage.part]]\n")
    for i, section in enumerate(parts):
        if re.match(rf'name = "({"|".join(closed)})"\n', section):
            parts[i] = re.sub(r"^drop = \[.*?\]\n", "", section, count=1, flags=re.M | re.S)
    text = "[[stage.part]]\n".join([head, *parts])
    heading = "# " + "-" * 72 + " release"
    return f"{text.rstrip()}\n\n{heading}\n[release]\ngiven = {json.dumps(list(given))}\n"


def _beliefs(found: Sequence[Mutant]) -> str:
    """Mutants without what they change: enough to tell a student what a submission believes."""
    tables = []
    for mutant in found:
        values = {field.name: getattr(mutant, field.name) for field in fields(Mutant)}
        values |= {"find": "", "replace": ""}
        rows = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        tables.append("\n".join(["[[mutant]]", *rows]))
    return "\n\n".join(["# The changes themselves would tell the answers.", *tables]) + "\n"


def _makefile(text: str) -> str:
    """Without the targets that work on what is left out, and the comments above them."""
    names = "|".join(_TARGETS)
    text = re.sub(rf"^(?:#.*\n)*(?:{names}):.*\n(?:\t.*\n)*\n?", "", text, flags=re.M)
    return re.sub(
        r"^\.PHONY:.*$", lambda line: re.sub(rf" (?:{names})\b", "", line[0]), text, flags=re.M
    )


def _start_page(text: str) -> str:
    """Without the line that leads to the page for instructors."""
    return re.sub(r"^\* Teaching this\?.*\n(?:  .*\n)*", "", text, flags=re.M)


def _pyproject(text: str, skeletons: Sequence[str]) -> str:
    """With ruff told that these modules import what their answers will need."""
    table = "[tool.ruff.lint.per-file-ignores]\n"
    return text.replace(table, table + "".join(f'"{name}" = ["F401"]\n' for name in skeletons))


# --------------------------------------------------------------------------- where it goes
def check_target(course: Course, folder: Path, given: Sequence[str]) -> None:
    """Can a release be made there?

    Raises:
        CourseError: no; the message says why.
    """
    if course.given is not None:
        raise CourseError("this is a copy for a class: a release is made where the answers are")
    folder = folder.resolve()
    if folder == course.root.resolve():
        raise CourseError(f"{folder} is this course itself, with its answers")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / ".git").exists():
        raise CourseError(
            f"{folder} holds something, and is no git repository: name a folder that is not there, "
            "or the repository of the class"
        )
    changed = _git(folder, "status", "--porcelain").splitlines()
    if changed:
        raise CourseError(
            f"{folder} has changes that are not committed, as {changed[0].strip()!r}: commit them, "
            "or put them away"
        )
    tracked = set(_git(folder, "ls-files", "-z").split("\0")) - {""}
    if FILE not in tracked:
        if others := sorted(tracked - _HARMLESS):
            raise CourseError(f"{folder} is the repository of something else: it has {others[0]}")
        return
    before = _given_before(folder)
    if before is None:
        raise CourseError(f"{folder} is a whole copy of the course, with its answers")
    if taken := sorted(set(before) - set(given)):
        raise CourseError(
            f"{folder} was given stage {int(taken[0])}: the answers are in its history, and "
            "it cannot be closed again"
        )


def _given_before(folder: Path) -> list[str] | None:
    """The stages that a class has; None in a copy that is not for a class."""
    try:
        data = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"{folder / FILE}: {error}") from None
    found = data.get("release")
    return None if found is None else list(found.get("given", []))


def _write(file: Path, content: Content) -> None:
    if isinstance(content, Link):
        if file.is_symlink() and os.readlink(file) == content.target:
            return
        file.unlink(missing_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(content.target)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _git(folder: Path, *arguments: str, stdin: str = "") -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, input=stdin.encode(), capture_output=True, check=False)
    except OSError as error:
        raise CourseError(f"git cannot be run: {error.strerror}") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()
        raise CourseError(f"git {arguments[0]} in {folder}: {told}")
    return done.stdout.decode("utf-8", errors="replace")


# --------------------------------------------------------------------------- the command
def _in_words(course: Course, given: Sequence[str]) -> str:
    keys = [stage.key for stage in course.stages if stage.number in given]
    what = f"stages {', '.join(keys)} are" if len(keys) > 1 else f"stage {keys[0]} is"
    return f"{what} given"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged release``."""
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="the class's repository, or a new folder"
    )
    parser.add_argument(
        "--open",
        required=True,
        metavar="K",
        help="stages up to K are given: their modules are the reference; later ones are skeletons",
    )
    parser.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="STAGE",
        help="give these too: with 5 and 6 an engine runs before students come to them",
    )


def run(args: argparse.Namespace) -> int:
    """Make a release, and say what it is."""
    course = load_course()
    given = given_stages(course, args.open, args.also)
    check_target(course, args.folder, given)
    print("Recording what the reference answers in the checkpoints …", flush=True)
    done = release(course, args.folder, given)
    if not done.commit:
        print(f"{done.folder} is up to date: nothing was committed.")
        return 0
    print(f"{done.folder}: commit {done.commit}, {done.written} files; {_in_words(course, given)}.")
    if done.kept:
        print(f"Left alone, for there is work in them: {', '.join(map(str, done.kept))}")
    print("What students do first: make setup, then .venv/bin/minipaged grade")
    return 0
