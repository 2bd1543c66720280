"""``minipaged sync``: the exercises, written from the reference; newer ones, brought into a
student's work.

What a student wrote is never overwritten. Without ``--from``, a file that has any of it is left
alone; with it, the work is carried over into the new skeleton and the old file kept beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from minipaged.course import syntax
from minipaged.course.catalog import FILE, Course, load_course
from minipaged.course.files import back_up, read_text, write_text
from minipaged.course.next_step import program
from minipaged.course.notebooks import notebook_texts
from minipaged.course.skeleton import stage_texts
from minipaged.course.transplant import Transplant, transplant
from minipaged.errors import CourseError

FOLDER = "exercises"


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        path: relative to the root.
        what: ``written``, ``refreshed``, ``up to date``, ``left alone``, ``carried over`` or
            ``broken``.
        note: what there is to say about it.
        moved: what was carried over, and how.
        kept: the old file's copy.
    """

    path: Path
    what: str
    note: str = ""
    moved: Transplant | None = None
    kept: Path | None = None


def exercise_texts(course: Course) -> dict[Path, str]:
    """Every generated exercise, by its path below the root."""
    return {
        Path(FOLDER) / path: text
        for stage in course.stages
        for path, text in stage_texts(course, stage).items()
    }


# --------------------------------------------------------------------------- this checkout
def write_exercises(course: Course) -> list[Outcome]:
    """Write the exercises that are missing, and refresh those that have nothing of a student's."""
    return [_fresh(course, path, text) for path, text in exercise_texts(course).items()]


def _fresh(course: Course, path: Path, text: str) -> Outcome:
    file = course.root / path
    if not file.exists():
        write_text(file, text)
        return Outcome(path, "written")
    mine = read_text(file)
    if mine == text:
        return Outcome(path, "up to date")
    try:
        if not is_untouched(mine, text, file.suffix):
            return Outcome(path, "left alone", "your work is in it")
    except CourseError as error:
        return Outcome(path, "left alone", str(error))
    write_text(file, text)
    return Outcome(path, "refreshed")


def is_untouched(mine: str, skeleton: str, suffix: str) -> bool:
    """Has a student added nothing to a file, however old the skeleton that it came from?

    Raises:
        CourseError: it is no Python; the message says in which line.
    """
    if suffix == ".toml":
        return set(mine.splitlines()) <= set(skeleton.splitlines())
    merged = transplant(skeleton, mine, "")
    return not merged.carried and not merged.conflicts and _notes(mine) <= _notes(skeleton)


def _notes(source: str) -> set[str]:
    return set(syntax.comments(syntax.module(source)))


def differing(course: Course) -> list[Path]:
    """Generated files that are not what their sources would make of them."""
    texts = {**exercise_texts(course), **notebook_texts(course)}
    return [path for path, text in texts.items() if _text_of(course.root / path) != text]


def _text_of(file: Path) -> str | None:
    return read_text(file) if file.is_file() else None


def write_notebooks(course: Course) -> list[Outcome]:
    """Generate every notebook anew."""
    done = []
    for path, text in notebook_texts(course).items():
        same = _text_of(course.root / path) == text
        if not same:
            write_text(course.root / path, text)
        done.append(Outcome(path, "up to date" if same else "written"))
    return done


# --------------------------------------------------------------------------- from another one
def bring(course: Course, upstream: str) -> list[Outcome]:
    """Bring the exercises of a newer checkout, and keep what the student wrote.

    Args:
        upstream: its folder, or a revision of this repository, as ``upstream/main``.

    Raises:
        CourseError: there is no such thing, or it is no checkout of the course.
    """
    names, read = _upstream(course.root, upstream)
    base = exercise_texts(course)
    done = []
    for name in names:
        path = Path(*PurePosixPath(name).parts)
        try:
            done.append(_bring_one(course, path, read(name), base.get(path, "")))
        except CourseError as error:
            done.append(Outcome(path, "broken", f"{error}; the file is left alone"))
    return done


def _bring_one(course: Course, path: Path, new: str, base: str) -> Outcome:
    file = course.root / path
    if not file.exists():
        write_text(file, new)
        return Outcome(path, "written")
    mine = read_text(file)
    if mine == new:
        return Outcome(path, "up to date")
    if mine == base or is_untouched(mine, base or new, file.suffix):
        write_text(file, new)
        return Outcome(path, "refreshed")
    if new == base:
        return Outcome(path, "up to date", "nothing is new in its skeleton")
    if file.suffix != ".py":
        return Outcome(path, "left alone", "yours is kept")
    merged = transplant(new, mine, base)
    kept = back_up(file, "sync")
    write_text(file, merged.text)
    return Outcome(path, "carried over", moved=merged, kept=kept.relative_to(course.root))


def _upstream(root: Path, upstream: str) -> tuple[list[str], Callable[[str], str]]:
    """The names of the exercises that upstream has, and what reads one."""
    folder = Path(upstream).expanduser()
    if upstream and folder.is_dir():
        if not (folder / FILE).is_file() or not (folder / FOLDER).is_dir():
            raise CourseError(f"{upstream!r} is no checkout of the course: it has no {FILE}")
        files = sorted((folder / FOLDER).glob("stage*/*"))
        names = [file.relative_to(folder).as_posix() for file in files if file.is_file()]
        return _generated(names), lambda name: read_text(folder / name)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CourseError(f"git does not answer: {error}") from None
        if done.returncode:
            raise CourseError(done.stderr.decode(errors="replace").strip())
        return done.stdout.decode("utf-8", errors="replace")

    try:
        commit = git(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{upstream}^{{commit}}"
        )
    except CourseError:
        raise CourseError(
            f"{upstream!r} is neither a folder nor a revision of this repository; `git fetch` "
            "brings those of a remote, and `git branch --all` lists them"
        ) from None
    commit = commit.strip()
    listed = git("ls-tree", "-r", "-z", "--name-only", commit, FILE, f"{FOLDER}/").split("\0")
    if FILE not in listed:
        raise CourseError(f"{upstream!r} is no checkout of the course: it has no {FILE}")
    return _generated(listed), lambda name: git("show", f"{commit}:{name}")


def _generated(names: list[str]) -> list[str]:
    """Of the files in ``exercises/``, those that a student fills in."""
    paths = [PurePosixPath(name) for name in names]
    return [str(p) for p in paths if len(p.parts) == 3 and p.suffix in (".py", ".toml")]


# --------------------------------------------------------------------------- the command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged sync``."""
    parser.add_argument(
        "--from",
        dest="upstream",
        metavar="UPSTREAM",
        help="carry your work into the exercises of a newer checkout: a folder, or upstream/main",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    parser.add_argument(
        "--notebooks", action="store_true", help="write the notebooks (for authors)"
    )


def run(args: argparse.Namespace) -> int:
    """Returns 1 if a check finds a difference or a file could not be carried over, else 0."""
    course = load_course()
    if sum([args.check, args.notebooks, args.upstream is not None]) > 1:
        raise CourseError("--check, --from and --notebooks are one at a time")
    if args.check:
        return _check(course)
    if args.notebooks:
        return _report(write_notebooks(course))
    if args.upstream is not None:
        return _report(bring(course, args.upstream))
    done = write_exercises(course)
    _report(done)
    if any(outcome.what == "left alone" for outcome in done):
        print(
            f"\nNewer exercises come into your work with `{program()} sync --from UPSTREAM`. To "
            f"start a file anew, move it away and run `{program()} sync`."
        )
    return 0


def _check(course: Course) -> int:
    found = differing(course)
    for path in found:
        print(f"{path} is not what its source makes of it")
    if found:
        print(
            f"\n`{program()} sync` writes the exercises (one that has work in it must be moved "
            f"away first), `{program()} sync --notebooks` the notebooks."
        )
        return 1
    print("Exercises and notebooks are what their sources make of them.")
    return 0


def _report(done: list[Outcome]) -> int:
    for outcome in done:
        note = f" ({outcome.note})" if outcome.note else ""
        print(f"{outcome.what:<12}  {outcome.path}{note}")
        if outcome.kept is not None:
            print(f"{'':14}your old file is {outcome.kept}")
        if outcome.moved is not None:
            _report_merge(outcome.moved)
    return 1 if any(outcome.what == "broken" for outcome in done) else 0


def _report_merge(merged: Transplant) -> None:
    carried = f"carried: {', '.join(merged.carried) or 'comments'}"
    print(textwrap.fill(carried, 96, initial_indent=" " * 14, subsequent_indent=" " * 23))
    for conflict in merged.conflicts:
        print(f"{'':14}look at {conflict.symbol}: it {conflict.what}")
        for title, text in (("yours", conflict.before), ("new", conflict.after)):
            if text:
                print(textwrap.indent(f"{title}:\n{textwrap.indent(text, '    ')}", " " * 18))
