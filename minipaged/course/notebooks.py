"""Notebooks, generated from Python files in which ``# %%`` starts a cell (py:percent)."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from minipaged.course.catalog import Course
from minipaged.course.files import read_text
from minipaged.errors import CourseError

_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook_text(py_source: str) -> str:
    """The notebook (nbformat 4.5) of a py:percent file, without outputs: one source, one text.

    Raises:
        CourseError: jupytext is not installed.
    """
    try:
        import jupytext
        import nbformat
    except ImportError as error:
        raise CourseError(
            f"{error.name} is missing, which notebooks are made with: `make setup` installs it"
        ) from None
    book = jupytext.reads(py_source, fmt="py:percent")
    book.metadata = nbformat.from_dict(_METADATA)
    book.nbformat, book.nbformat_minor = 4, 5
    seen: Counter[str] = Counter()
    for cell in book.cells:
        # From the cell's text, so that a new cell does not rename those after it.
        name = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        seen[name] += 1
        cell.id = name if seen[name] == 1 else f"{name}-{seen[name]}"
    return str(nbformat.writes(book)).rstrip("\n") + "\n"


def notebook_texts(course: Course) -> dict[Path, str]:
    """Every notebook that has a source beside it, by its path below the root."""
    sources = sorted((course.root / "notebooks").glob("*.py"))
    return {
        file.relative_to(course.root).with_suffix(".ipynb"): notebook_text(read_text(file))
        for file in sources
    }
