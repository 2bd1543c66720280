"""Modules of a student's for those that the simulator imports by name.

An engine is built from :class:`minipaged.parts.Parts`. Arrivals, metrics and what a transfer costs
are no parts of an engine: the simulator imports them. A copy for a class has only their skeletons
while a stage is closed, so what a student has written of them takes their place there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from minipaged.course.catalog import is_class_copy, load_course
from minipaged.course.student_parts import load_part_file, seats
from minipaged.course.submission import PartFile, read_submission


def own_modules(root: Path | None = None) -> list[PartFile]:
    """The files that take the place of a module: written, of a closed stage, and of a part that no
    engine is built from. None where the package has all modules.

    Args:
        root: of the course; None: that of the working directory.

    Raises:
        CourseError: the course cannot be read.
    """
    if not is_class_copy(root):
        return []
    course = load_course(root)
    found = [
        read_submission(course, stage, "mine").files[name]
        for name, (stage, part) in course.closed_parts.items()
        if not (seats(part) or stage.triton)
    ]
    return [file for file in found if file.written]


def use_own_modules(root: Path | None = None) -> None:
    """Put them in place, for this process. Whoever has imported a function of the skeleton's
    before keeps it: call this first.

    Raises:
        CourseError: the course cannot be read; a file cannot be loaded, or its signatures are not
            those of the skeleton.
    """
    for file in own_modules(root):
        package, _, name = file.part.module.rpartition(".")
        module = load_part_file(file.part, file)
        sys.modules[file.part.module] = module
        setattr(sys.modules[package], name, module)
