"""How Sphinx makes the book. `scripts/book.py` lays out its sources and runs it: `make book`."""

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Punctuation, Text
from sphinx.application import Sphinx

from minipaged import __version__
from minipaged.course.catalog import load_course


class StateLexer(RegexLexer):
    """The notation of states: ``seq0:[7 2 5*] free:{0 1} refs{7:2 2:2}``."""

    name = "state"
    tokens = {  # noqa: RUF012 (Pygments' own way)
        "root": [
            (r"(free|refs|cached|pinned)(?=[:{])", Keyword),
            (r"[\w.]+(?=:\[)", Name.Function),
            (r"\d+", Number),
            (r"\*", Comment),
            (r"[][{}:]", Punctuation),
            (r".|\n", Text),
        ]
    }


course = load_course()
project = "minipaged"
html_title = course.title
version = release = __version__
author = ""
language = "en"

extensions = ["myst_nb"]
root_doc = "index"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# A notebook that fails is a book that fails. Its results are kept until something changes that they
# come from: `scripts/book.py` sees to that.
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False
# Nothing is fetched: pages with mathematics, and only those, load what lies beside them. It is
# MathJax with the one of its fonts that is whole in the bundle: others load their rarer letters
# when they meet them, and so does what makes speech of a formula its rules.
mathjax_path = "mathjax/tex-mml-svg-mathjax-tex.js"
mathjax4_config = {"options": {"menuOptions": {"settings": {"enrich": False}}}}
html_theme_options = {
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
    "logo": {"text": project},
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def setup(app: Sphinx) -> None:
    app.add_lexer("state", StateLexer)
