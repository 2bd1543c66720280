"""Exercises: everything of the reference but its answers."""

import ast
import subprocess
import sys
import tomllib

import pytest
import small_course

from minipaged.course.catalog import load_course
from minipaged.course.projection import project
from minipaged.course.skeleton import (
    counterexample_text,
    exercise_text,
    skeleton_module_source,
    stage_texts,
)
from minipaged.course.submission import read_part
from minipaged.errors import CourseError


@pytest.fixture
def course(tmp_path):
    return small_course.make(tmp_path)


def text_of(course, name):
    stage, part = course.parts[name]
    return exercise_text(course, stage, part)


BOX_SKELETON = '''\
"""Boxes for things.

A box has a size.

Stage 7, the box::

    read    lessons/07-boxes.md
    write   7.1  Put in     5 points
            7.2  Take out   4 points
    also    robustness 2 points, counterexample.toml 2 points
    check   minipaged grade 7
    stuck   minipaged hint 7.1
    use it  minipaged generate --parts mine --model opt-stories --raw "Once upon a time"
    next    lids.py, beside this file
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction

#: What a box is called.
NAME = "box"


class Box:
    """Holds things.

    Attributes:
        size: how many fit.
    """

    def __init__(self, size: int) -> None:
        """An empty box."""
        raise NotImplementedError("stage 7, task 7.1: see lessons/07-boxes.md")

    def put(self, things: Iterable[int]) -> None:
        """Put things in.

        Raises:
            ValueError: it is full.
        """
        raise NotImplementedError("stage 7, task 7.1: see lessons/07-boxes.md")

    def take(self) -> Fraction:
        """Take the smallest out."""
        raise NotImplementedError("stage 7, task 7.2: see lessons/07-boxes.md")


# --------------------------------------------------------------------------- weighing
def weigh(things: Sequence[int]) -> int:
    """What things weigh together."""
    raise NotImplementedError("stage 7, task 7.2: see lessons/07-boxes.md")


def heavier(one: Sequence[int], other: Sequence[int]) -> bool:
    """Given: is one heavier than the other?"""
    return weigh(one) > weigh(other)  # both are weighed


# --------------------------------------------------------------------------- private
def _unused_elsewhere(value: Decimal) -> str:
    return f"{NAME} of {value}"
'''


def test_a_whole_skeleton(course):
    # It also shows: an import that only the answer used is gone, one in an annotation is not; the
    # heading of a section stays while anything of the section does.
    assert text_of(course, "box") == BOX_SKELETON


def test_what_stands_in_for_the_reference_is_the_exercise(course):
    _, part = course.parts["box"]
    assert skeleton_module_source(course, part) == text_of(course, "box")


def test_a_kept_import_stays(course):
    assert "\nimport math\n" in text_of(course, "lids")


@pytest.mark.parametrize(
    ("name", "next_step"),
    [("box", "lids.py, beside this file"), ("lids", "lessons/08-shelves.md")],
)
def test_it_says_what_comes_next(course, name, next_step):
    assert f"    next    {next_step}\n" in text_of(course, name)


def test_the_last_file_of_the_course_leads_to_the_overview(course):
    assert "    next    minipaged grade: how far you are\n" in text_of(course, "shelf")


def test_a_section_goes_with_the_last_of_it():
    source = small_course.BOX
    drop = ["_unused_elsewhere", "_settle", "weigh", "heavier"]
    text = project(source, {"Box.take": "stage 7, task 7.2: x"}, drop).code
    assert "# -----" not in text
    assert "Decimal" not in text
    assert "Sequence" not in text


def test_nothing_is_left_of_an_if_whose_imports_all_went():
    source = small_course.BOX
    text = project(source, {"Box.put": "m"}, ["_unused_elsewhere", "Box.take", "_settle"]).code
    assert "TYPE_CHECKING" not in text


def test_a_blank_line_stays_before_a_group_that_lost_its_first_import():
    source = (
        "from __future__ import annotations\n\nimport a\nimport b\n\n\n"
        "def f() -> b.B:\n    return a\n"
    )
    text = project(source, {"f": "stage 1, task 1.1: x"}).code
    assert "annotations\n\nimport b\n\n\ndef" in text


def test_a_long_import_that_lost_a_name_is_wrapped_as_ruff_would():
    names = [f"quite_a_long_name_{i}" for i in range(5)]
    listed = "".join(f"    {name},\n" for name in [*names, "secret"])
    used = " | ".join(names)
    source = f"from somewhere import (\n{listed})\n\n\ndef f() -> {used}:\n    return secret\n"
    text = project(source, {"f": "stage 1, task 1.1: x"}).code
    assert text.startswith(
        "from somewhere import (\n" + listed.replace("    secret,\n", "") + ")\n"
    )


def test_a_stub_that_is_too_long_is_split_as_ruff_would():
    lesson = "lessons/" + "x" * 60 + ".md"
    source = "class A:\n    class B:\n        def f(self) -> int:\n            return 1\n"
    text = project(source, {"A.B.f": f"stage 1, task 1.1: see {lesson}"}).code
    assert text.endswith(
        "            raise NotImplementedError(\n"
        f'                "stage 1, task 1.1: see {lesson}"\n            )\n'
    )


KERNEL = '''\
import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):  # one program a block
    """Copy ``n`` values."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)
    # and that is all


@triton.jit(do_not_specialize=["n"])
def fill(x, n): tl.store(x, n)


class Launch:
    async def go(self):
        """Run it."""
        yield 1
'''


def test_kernels_one_liners_and_coroutines():
    messages = dict.fromkeys(["copy", "fill", "Launch.go"], "stage 7, task 7.1: see x")
    stub = '"stage 7, task 7.1: see x")'
    assert project(KERNEL, messages).code == (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        "def copy(x, y, n, BLOCK: tl.constexpr):  # one program a block\n"
        f'    """Copy ``n`` values."""\n    tl.static_assert(False, {stub}\n\n\n'
        '@triton.jit(do_not_specialize=["n"])\n'
        f"def fill(x, n):\n    tl.static_assert(False, {stub}\n\n\n"
        'class Launch:\n    async def go(self):\n        """Run it."""\n'
        f"        raise NotImplementedError({stub}\n"
    )


def test_a_symbol_that_the_reference_lacks_is_named():
    with pytest.raises(CourseError, match=r"no Box\.shake"):
        project(small_course.BOX, {"Box.shake": "m"})
    with pytest.raises(CourseError, match="no _nothing"):
        project(small_course.BOX, {}, ["_nothing"])


def test_a_reference_without_a_docstring_is_refused(tmp_path):
    course = small_course.make(tmp_path, shelf="def store(things, thing):\n    return things\n")
    with pytest.raises(CourseError, match="part shelf: the reference has no docstring"):
        text_of(course, "shelf")


def test_the_counterexample_is_toml_that_says_what_to_do(course):
    text = counterexample_text(course.stages[0])
    assert tomllib.loads(text) == {"trace": []}
    for word in (
        "2 points",
        "A box needs no count.",
        "box = Box(3)",
        "other = Box(1)",
        "at most 4",
    ):
        assert word in text
    for word in ("box.size", "minipaged grade 7", "minipaged hint 7.counterexample"):
        assert word in text
    with pytest.raises(CourseError, match="stage 8"):
        counterexample_text(course.stages[1])


# --------------------------------------------------------------------------- the real ones
@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The real course in a folder of its own, with its exercises written."""
    course = small_course.copy_of_the_course(tmp_path_factory.mktemp("course"))
    for stage in course.stages:
        for path, text in stage_texts(course, stage).items():
            file = course.root / "exercises" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return course


def real_parts():
    course = load_course(small_course.ROOT)
    return list(course.parts)


def answer_lines(course, stage, part):
    """Lines of the reference that are in a body or a helper of the answer, and nowhere else."""
    source = (course.root / part.source).read_text()
    symbols = {symbol for task in stage.tasks_of(part) for symbol in task.symbols}
    secret, lines = set(), source.splitlines()
    tree = ast.parse(source)
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        owner = f"{node.name}." if inner else ""
        for f, prefix in [(node, ""), *((n, owner) for n in inner)]:
            name = prefix + getattr(f, "name", "")
            if name in part.drop:
                secret.update(range(f.lineno, f.end_lineno + 1))
            elif name in symbols:
                first = f.body[1] if ast.get_docstring(f) else f.body[0]
                secret.update(range(first.lineno, f.end_lineno + 1))
    shown = {line.strip() for i, line in enumerate(lines, 1) if i not in secret}
    return {lines[i - 1].strip() for i in secret} - shown


@pytest.mark.parametrize("name", real_parts())
def test_no_line_of_an_answer_is_in_an_exercise(generated, name):
    stage, part = generated.parts[name]
    shown = {line.strip() for line in text_of(generated, name).splitlines()}
    secret = {line for line in answer_lines(generated, stage, part) if len(line) >= 24}
    assert secret
    assert secret & shown == set()


@pytest.mark.parametrize("name", real_parts())
def test_what_is_not_an_answer_is_all_there(generated, name):
    stage, part = generated.parts[name]
    source, text = (generated.root / part.source).read_text(), text_of(generated, name)
    symbols = {symbol for task in stage.tasks_of(part) for symbol in task.symbols}
    assert read_part(stage, part, part.source, text).stubs == symbols
    ours = {n.name: n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            twin = ours[node.name]
            assert ast.get_docstring(node) == ast.get_docstring(twin)
            assert ast.unparse(node.args) == ast.unparse(twin.args)


def test_every_exercise_imports(generated):
    code = "import sys, runpy\nfor file in sys.argv[1:]: runpy.run_path(file)"
    files = sorted((generated.root / "exercises").glob("*/*.py"))
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_exercises_pass_ruff_and_mypy(generated):
    def run(folder, *command):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    files = [str(file) for file in (generated.root / "exercises").glob("*/*.py")]
    assert files
    run(generated.root, "ruff", "check", "--no-cache", *files)
    run(generated.root, "ruff", "format", "--no-cache", "--check", *files)
    # Kernels in exercises/ are held to what those of the engine are. One run, in the checkout: what
    # mypy knows of torch is at hand there, and other flags would make it forget that.
    kernels = [p.name for stage in generated.stages if stage.triton for p in stage.parts]
    project = (small_course.ROOT / "pyproject.toml").read_text()
    theirs = '"minipaged.kernels.*"'
    assert project.count(theirs) == 1
    config = generated.root / "mypy.toml"
    config.write_text(project.replace(theirs, f"{theirs}, {str(kernels)[1:-1]}"))
    run(small_course.ROOT, "mypy", f"--config-file={config}", *files)
