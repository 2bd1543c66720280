"""Make the book: ``make book``, or ``python scripts/book.py``.

Lessons stay Markdown that reads well by itself, and notebooks stay the student's. So the sources
are laid out anew under ``build/book/source``: a chapter a lesson, under it its notebook, which is
run on the solutions (``PARTS``), the pictures in the page (there they take its ink, light or dark),
and links to files that are not in the book turned into the names they show. Sphinx reads that and
``lessons/_book/conf.py``, and takes a warning for an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from minipaged.course.catalog import Course, load_course

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "book"
START = "lessons/README.md"
#: Pages without a stage of their own, in the order of the book.
FIRST = ("how-to-study", "setup")
LAST = ("glossary",)

#: A fenced block or code in a line, which stay as they are; or a percent sign that starts a line,
#: which MyST takes for a comment; or a link. Whichever begins first: code may stand in the text of
#: a link. Brackets may too, as states have them.
_MARKDOWN = re.compile(
    r"^(?P<fence>`{3,})[^\n]*\n.*?^(?P=fence)$"
    r"|(?P<ticks>`+)[^`].*?(?P=ticks)"
    r"|^(?P<before_percent>[ \t]*)%"
    r"|(?P<image>!?)\[(?P<text>(?:[^][]|\[[^][]*\])*)\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)


def page_of(file: str) -> str | None:
    """Where a file of the repository stands in the book, by its path below the root; None: it is
    not in it."""
    if file == START:
        return "index.md"
    folder, name = posixpath.split(file)
    if folder == "lessons" and name.endswith(".md"):
        return name
    return file if folder == "notebooks" and name.endswith(".ipynb") else None


def for_the_book(text: str, file: str) -> str:
    """Markdown of one file of the repository with links and pictures as the book has them.

    Args:
        file: its path below the root.
    """
    here = posixpath.dirname(file)
    page = page_of(file)
    assert page is not None, f"{file} is not in the book"

    def change(found: re.Match[str]) -> str:
        if found["before_percent"] is not None:
            return found["before_percent"] + r"\%"
        target, _, anchor = (found["target"] or "").partition("#")
        if not target or "://" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(here, target))
        if found["image"]:
            return _picture(ROOT / path, found["text"])
        there = page_of(path)
        if there is None:
            return found["text"]
        relative = posixpath.relpath(there, posixpath.dirname(page) or ".")
        return f"[{found['text']}]({relative}{'#' + anchor if anchor else ''})"

    return _MARKDOWN.sub(change, text)


def _picture(file: Path, alternative: str) -> str:
    svg = file.read_text(encoding="utf-8").strip()
    assert alternative in svg, f"{file.name} does not say {alternative}"
    return f'```{{raw}} html\n<div class="picture">\n{svg}\n</div>\n```'


def sources(course: Course) -> Iterator[tuple[str, str]]:
    """Every file that Sphinx reads: its path and its text."""
    lessons = {file.name: file for file in sorted((course.root / "lessons").glob("*.md"))}
    notebooks = {file.name: file for file in sorted((course.root / "notebooks").glob("*.ipynb"))}
    for name, file in lessons.items():
        path = f"lessons/{name}"
        text = for_the_book(file.read_text(encoding="utf-8"), path)
        if path == START:
            text += _contents(course, lessons)
        elif (notebook := name[:-3].replace("-", "_") + ".ipynb") in notebooks:
            text += _toctree([f"Notebook <notebooks/{notebook}>"])
        yield page_of(path) or "", text
    for name, file in notebooks.items():
        yield f"notebooks/{name}", _notebook(file, f"notebooks/{name}")


def _contents(course: Course, lessons: dict[str, Path]) -> str:
    """The tables of contents, which are the book's sidebar."""
    stages = [Path(stage.lesson).name for stage in course.units]
    first, last = ([f"{name}.md" for name in names] for names in (FIRST, LAST))
    more = [name for name in lessons if name not in {Path(START).name, *first, *stages, *last}]
    parts = {"Before you start": first, "Stages": stages, "More": [*more, *last]}
    return "".join(_toctree(filter(lessons.get, names), title) for title, names in parts.items())


def _toctree(pages: Iterable[str], caption: str = "") -> str:
    title = [f":caption: {caption}"] if caption else []
    return "\n".join(["\n", "```{toctree}", ":hidden:", *title, "", *pages, "```", ""])


def _notebook(file: Path, path: str) -> str:
    """A notebook that runs on the solutions."""
    book = json.loads(file.read_text(encoding="utf-8"))
    replaced = 0
    for cell in book["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = for_the_book(text, path)
        elif "parameters" in cell["metadata"].get("tags", []):
            text, count = re.subn(r'^PARTS = "mine"', 'PARTS = "solutions"', text, flags=re.M)
            replaced += count
        cell["source"] = text
    assert replaced == 1, f"{path} has no parameter PARTS"
    return json.dumps(book, indent=1, ensure_ascii=False)


def lay_out(course: Course, folder: Path) -> None:
    """Write the sources; touch only what has changed, so that Sphinx need not read it again."""
    wanted = {folder / path: text for path, text in sources(course)}
    for file in [f for f in folder.rglob("*") if f.is_file() and f not in wanted]:
        file.unlink()
    for file, text in wanted.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _digest(course: Course) -> str:
    """Of all that a notebook's results come from."""
    digest = hashlib.sha256()
    for folder in ("minipaged", "solutions"):
        for file in sorted((course.root / folder).rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{file.relative_to(course.root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def build(course: Course, out: Path = OUT, run_notebooks: bool = True) -> int:
    """Make the book in ``out/html``.

    Args:
        run_notebooks: or show them without results.

    Returns:
        Sphinx's exit status: 0 if there was not a single warning.
    """
    out.mkdir(parents=True, exist_ok=True)
    state = out / "made-from"
    now = f"{_digest(course)} {run_notebooks}"
    if not state.is_file() or state.read_text(encoding="utf-8") != now:
        for folder in ("doctrees", "results", "html"):
            shutil.rmtree(out / folder, ignore_errors=True)
        state.write_text(now, encoding="utf-8")
    lay_out(course, out / "source")
    conf = course.root / "lessons" / "_book"
    options = {
        "nb_execution_mode": "cache" if run_notebooks else "off",
        "nb_execution_cache_path": out / "results",
    }
    command = [sys.executable, "-m", "sphinx", "--builder=html", "--fail-on-warning", "--quiet"]
    command += [f"--conf-dir={conf}", f"--doctree-dir={out / 'doctrees'}"]
    command += [f"--define={name}={value}" for name, value in options.items()]
    # The same book whether or not the user has fetched a model.
    no_models = out / "no-models"
    no_models.mkdir(exist_ok=True)
    return subprocess.run(
        [*command, str(out / "source"), str(out / "html")],
        env=os.environ | {"MINIPAGED_CACHE": str(no_models)},
        cwd=course.root,
    ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="make the book")
    parser.add_argument("--out", type=Path, default=OUT, help="default: build/book")
    parser.add_argument("--no-run", action="store_true", help="show notebooks without results")
    args = parser.parse_args()
    status = build(load_course(ROOT), args.out, not args.no_run)
    if status == 0:
        print(f"The book: {os.path.relpath(args.out / 'html' / 'index.html')}")
    return status


if __name__ == "__main__":
    sys.exit(main())
