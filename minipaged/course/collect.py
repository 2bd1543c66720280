"""What students hand in, however they do it, laid out as ``exercises/``.

Some hand in the folder ``exercises``, some the folder of one stage, some bare files, and some all
that they have. Each file is found by its name. Nothing is run, and no link is followed: whoever
reads here may be root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from minipaged.course.catalog import COUNTEREXAMPLE, Checkpoint, Course, Stage
from minipaged.course.submission import MAX_BYTES

#: Folders with files of the same names that are nobody's answers.
_NOT_ANSWERS = frozenset({"__MACOSX", "__pycache__", "build", "minipaged", "solutions", "tests"})

#: Names that are told where nothing was found.
_MOST_NAMES = 20


@dataclass(frozen=True)
class Wanted:
    """A file that is graded: ``stage03_block_table/block_table.py``."""

    stage: Stage
    name: str

    @property
    def path(self) -> PurePosixPath:
        return PurePosixPath(self.stage.folder, self.name)

    def __str__(self) -> str:
        return f"{self.name} ({self.stage.label})"


@dataclass(frozen=True)
class Collected:
    """What was found.

    Attributes:
        found: where a file stands now, below the desk -> where it was handed in.
        remarks: a sentence to the student for each file that was not taken.
    """

    found: dict[PurePosixPath, PurePosixPath]
    remarks: tuple[str, ...]


def wanted_files(course: Course, units: Sequence[Stage]) -> list[Wanted]:
    """The files that are graded, in order, none twice: a checkpoint's parts are those of stages."""
    found = {}
    for unit in units:
        for part in unit.parts:
            home, _ = course.parts[part.name]
            found[part.name] = Wanted(home, f"{part.name}.py")
        if unit.counterexample is not None:
            found[unit.folder] = Wanted(unit, COUNTEREXAMPLE)
    return sorted(found.values(), key=lambda each: each.stage.number)


def collect(course: Course, units: Sequence[Stage], submission: Path, desk: Path) -> Collected:
    """Copy what is graded to a desk.

    Args:
        units: stages and checkpoints that are graded.
        submission: what was handed in.
        desk: an empty folder, which then is laid out as ``exercises/``.
    """
    wanted = wanted_files(course, units)
    for stage in {each.stage.folder: each.stage for each in wanted}.values():
        (desk / stage.folder).mkdir()
    files, links = _listed(submission)
    remarks = [f"{link} is a link: hand in the file itself." for link in links]
    found = {}
    for each in wanted:
        own = [file for file in files if (file.parent.name, file.name) == each.path.parts]
        bare = [f for f in files if f.name == each.name and not f.parent.name.startswith("stage")]
        texts = _read(submission, _upper(own or (bare if _is_alone(each, units) else [])))
        if len(set(texts.values())) > 1:
            both = " and ".join(str(file) for file in sorted(texts))
            remarks.append(f"{each} was handed in more than once: {both}. Leave one of them.")
        elif texts:
            source, text = min(texts.items())
            if len(text) > MAX_BYTES:
                remarks.append(f"{source} is longer than {MAX_BYTES:,} bytes, and was not read.")
                continue
            (desk / each.path).write_bytes(text)
            found[each.path] = source
        elif bare:
            remarks.append(
                f"It cannot be told which stage {bare[0]} belongs to: put it into a folder "
                f"{each.stage.folder}, with the stage's other files."
            )
        else:
            remarks.append(f"{each} was not found in what you handed in.")
    if not found:
        names = ", ".join(str(file) for file in files[:_MOST_NAMES]) or "no files"
        more = f" and {len(files) - _MOST_NAMES} more" if len(files) > _MOST_NAMES else ""
        remarks.append(f"You handed in: {names}{more}.")
    return Collected(found, tuple(remarks))


def _listed(folder: Path) -> tuple[list[PurePosixPath], list[PurePosixPath]]:
    """The files that may be answers, and the links, relative to a folder, the upper ones first."""
    files: list[PurePosixPath] = []
    links: list[PurePosixPath] = []
    for path in _below(folder):
        relative = PurePosixPath(path.relative_to(folder).as_posix())
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            files.append(relative)
        elif stat.S_ISLNK(mode):
            links.append(relative)
    return sorted(files, key=_depth), sorted(links, key=_depth)


def _depth(path: PurePosixPath) -> tuple[int, PurePosixPath]:
    return len(path.parts), path


def _below(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if not name.startswith("."):
                yield Path(here, name)
        folders[:] = [f for f in folders if not f.startswith(".") and f not in _NOT_ANSWERS]


def _is_alone(wanted: Wanted, units: Sequence[Stage]) -> bool:
    """Can a file be told by its bare name? All stages have a counterexample."""
    if wanted.name != COUNTEREXAMPLE:
        return True
    return sum(not isinstance(u, Checkpoint) and u.counterexample is not None for u in units) == 1


def _upper(files: Sequence[PurePosixPath]) -> list[PurePosixPath]:
    """Of files in order, those that are as far up as the first."""
    return [file for file in files if len(file.parts) == len(files[0].parts)]


def _read(folder: Path, files: Sequence[PurePosixPath]) -> dict[PurePosixPath, bytes]:
    """The bytes of files, up to one more than are taken."""
    texts = {}
    for file in files:
        descriptor = os.open(folder / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as opened:
            texts[file] = opened.read(MAX_BYTES + 1)
    return texts
