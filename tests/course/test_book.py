"""The book is whole: it builds without a warning, has every lesson and notebook, fetches nothing,
fits a phone, and its start page, glossary and guides agree with the course."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from minipaged.course.catalog import load_course

ROOT = Path(__file__).resolve().parents[2]
COURSE = load_course(ROOT)
LESSONS = ROOT / "lessons"
PAGES = sorted(LESSONS.glob("*.md"))
#: What makes a browser fetch something, in HTML and in style sheets.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\s(?:src|data)=\"([^\"]+)\""
    r"|<link\b[^>]*?\shref=\"([^\"]+)\""
    r"|(?:url\(|@import\s+(?!url))\s*[\"']?([^\"')\s]+)",
)


@cache
def script():
    spec = importlib.util.spec_from_file_location("book", ROOT / "scripts" / "book.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The book without the results of its notebooks, which takes seconds."""
    for module in ("sphinx", "myst_nb", "sphinx_book_theme"):
        pytest.importorskip(module, reason="of the book: `make setup` installs it")
    out = tmp_path_factory.mktemp("book")
    assert script().build(COURSE, out, run_notebooks=False) == 0, "Sphinx warns, see above"
    return out / "html"


def links_to(page):
    return set(re.findall(r"href=\"([^\"#]+\.html)", page.read_text(encoding="utf-8")))


def test_every_lesson_and_notebook_is_in_the_sidebar(site):
    wanted = {f"{page.stem}.html" for page in PAGES if page.name != "README.md"}
    wanted |= {f"notebooks/{book.stem}.html" for book in (ROOT / "notebooks").glob("*.ipynb")}
    assert wanted <= links_to(site / "index.html")
    for page in wanted:
        assert (site / page).is_file()


def test_nothing_is_fetched(site):
    files = [file for kind in ("html", "css") for file in site.rglob(f"*.{kind}")]
    found = [
        address
        for file in files
        for groups in FETCHED.findall(file.read_text(encoding="utf-8"))
        for address in groups
    ]
    assert any("book.css" in address for address in found), "the pattern finds what is there"
    outside = {a for a in found if urlsplit(a).scheme not in ("", "data") or a.startswith("//")}
    assert not outside


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js">',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        '<img alt="" src="http://example/x.png">',
        "@import url(https://fonts.example/x.css);",
    ],
)
def test_what_is_fetched_is_seen(text):
    (groups,) = FETCHED.findall(text)
    assert urlsplit("".join(groups)).netloc


def test_links_inside_the_book_lead_somewhere(site):
    for page in [*site.glob("*.html"), *site.glob("notebooks/*.html")]:
        for link in links_to(page):
            if not urlsplit(link).scheme:
                assert (page.parent / link).is_file(), f"{page.name}: {link}"


def test_pictures_are_in_the_page_and_tell_their_state(site):
    for stage in COURSE.stages:
        html = (site / f"{Path(stage.lesson).stem}.html").read_text(encoding="utf-8")
        lesson = (ROOT / stage.lesson).read_text(encoding="utf-8")
        for state in re.findall(r"!\[(.*?)\]\(images/", lesson):
            assert f">{state}</desc>" in html


def test_only_a_page_with_mathematics_loads_mathjax(site):
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert ("mathjax-tex.js" in html) == ('class="math' in html), page.name


@pytest.fixture(scope="module")
def window(site, tmp_path_factory):
    """A browser without a network."""
    pytest.importorskip("websocket", reason="comes with Jupyter")
    from browser import Browser, find_chromium

    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium here to look at the book with")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def test_no_page_is_wider_than_a_phone(site, window):
    window.look(390)
    for page in [*site.glob("*.html"), *site.glob("notebooks/*.html")]:
        window.open(page)
        assert window.value("document.documentElement.scrollWidth") <= 390, page.name
        assert all(address.startswith(("file:", "data:")) for address in window.requests)


@pytest.mark.parametrize("dark", [False, True])
def test_pictures_have_the_ink_of_the_page(site, window, dark):
    window.look(1200, dark)
    window.open(site / f"{Path(COURSE.stages[-1].lesson).stem}.html")
    ink = "getComputedStyle(document.querySelector('svg.mp-pool text')).fill"
    red, *_ = (int(part) for part in re.findall(r"\d+", window.value(ink)))
    assert (red > 128) == dark


def test_mathematics_is_set_without_a_network(window, tmp_path):
    text = "# A page\n\n$$\\mathbb{E}[o_i] = \\sum_{j \\le i} \\mathcal{O}(p_{ij}) v_j$$\n"
    (tmp_path / "index.md").write_text(text, encoding="utf-8")
    sphinx = [sys.executable, "-m", "sphinx", "-qW", f"-c{LESSONS / '_book'}"]
    subprocess.run([*sphinx, str(tmp_path), str(tmp_path / "html")], check=True, cwd=ROOT)
    window.open(tmp_path / "html" / "index.html")
    assert window.wait("document.querySelectorAll('mjx-container svg path').length") > 10
    scripts = [address for address in window.requests if "mathjax" in address]
    assert len(scripts) == 1, "all letters are in the bundle"


def test_search_finds_a_chapter(site, window):
    window.look(1200)
    window.open(site / "search.html", "?q=exhausted")
    links = "[...document.querySelectorAll('#search-results li a')].map(a => a.pathname)"
    assert any(found.endswith("/02-block-allocator.html") for found in window.wait(links))


def test_a_notebook_in_the_book_runs_on_the_solutions():
    sources = dict(script().sources(COURSE))
    books = [path for path in sources if path.endswith(".ipynb")]
    assert books
    for path in books:
        cells = json.loads(sources[path])["cells"]
        (parameters,) = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
        assert 'PARTS = "solutions"' in parameters["source"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("see [it](03-block-table.md#slots)", "see [it](03-block-table.md#slots)"),
        ("[start](README.md), [out](https://a.b/c)", "[start](index.md), [out](https://a.b/c)"),
        ("[nb](../notebooks/02_x.ipynb)", "[nb](notebooks/02_x.ipynb)"),
        ("the [engine's `engine.py`](../minipaged/engine.py)", "the engine's `engine.py`"),
        ("`[a](b)` and\n```\n[a](b)\n```\n[a](b)", "`[a](b)` and\n```\n[a](b)\n```\na"),
        ("30\n% of it\n```\n% a\n```", "30\n\\% of it\n```\n% a\n```"),
    ],
)
def test_the_markdown_of_a_lesson_is_that_of_the_book(text, wanted):
    assert script().for_the_book(text, "lessons/02-x.md") == wanted


def test_links_of_a_notebook_are_those_of_the_book():
    text = "[lesson](../lessons/02-x.md), [other](03_y.ipynb), [readme](README.md)"
    wanted = "[lesson](../02-x.md), [other](03_y.ipynb), readme"
    assert script().for_the_book(text, "notebooks/02_x.ipynb") == wanted


# The links of a stage's lesson: test_lessons.py.
@pytest.mark.parametrize("page", ["README", "how-to-study", "setup", "glossary", "discussion"])
def test_a_page_links_to_what_exists(page):
    text = (LESSONS / f"{page}.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not urlsplit(link).scheme:
            assert (LESSONS / link.partition("#")[0]).exists(), link


def rows(page):
    """The rows of a page's tables, as lists of cells."""
    lines = re.findall(r"^\|(.*)\|$", (LESSONS / page).read_text(encoding="utf-8"), re.M)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_the_table_of_chapters_is_the_course():
    linked = {row[0]: row for row in rows("README.md") if "](" in row[1]}
    assert list(linked) == [unit.key for unit in COURSE.units]
    for checkpoint in COURSE.checkpoints:
        _, chapter, _, points, _ = linked[checkpoint.key]
        assert chapter.endswith(f"]({Path(checkpoint.lesson).name})")
        assert int(points) == checkpoint.points
    for stage in COURSE.stages:
        _, chapter, hours, points, parts = linked[stage.key]
        assert chapter == f"[{stage.title}]({Path(stage.lesson).name})"
        assert parts == ", ".join(f"`{part.name}.py`" for part in stage.parts)
        assert (int(hours), int(points)) == (stage.hours, stage.points)


@pytest.mark.parametrize("page", ["how-to-study.md", "setup.md"])
def test_the_guides_say_which_stages_stand(page):
    told = in_words([int(stage.number) for stage in COURSE.stages])
    text = (LESSONS / page).read_text(encoding="utf-8")
    assert re.search(rf"(Stages {told} stand|\| {told}: all there are)", text)


def in_words(numbers):
    """``0 to 8 and 10``."""
    spans = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return " and ".join(f"{s[0]} to {s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)


def test_every_machine_was_tried_or_was_not():
    machines = [row for row in rows("setup.md") if len(row) == 3][2:]
    assert len(machines) >= 5
    for machine in machines:
        assert machine[2].startswith(("*tried on* ", "*not tried*")), machine[0]


def glossary():
    text = (LESSONS / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\* \*\*(.+?)\*\*: (.+?)(?=^\*|\Z)", text, re.M | re.S)
    assert len(entries) == len(re.findall(r"^\*", text, re.M)), "every entry has the form"
    return [(term, " ".join(told.split())) for term, told in entries]


def test_terms_of_the_glossary_are_unique_and_in_order():
    terms = [term.lower() for term, _ in glossary()]
    assert terms == sorted(set(terms))


def test_a_term_says_where_it_is_taught():
    lessons = {str(int(stage.number)): Path(stage.lesson).name for stage in COURSE.stages}
    for term, told in glossary():
        found = re.search(r"\((?:\[stage (\d+)\]\((.+)\)|stage (\d+))\)\.$", told)
        assert found, term
        number = found[1] or found[3]
        assert found[2] == lessons.get(number), f"{term}: stage {number}"
