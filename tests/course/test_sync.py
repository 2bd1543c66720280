"""minipaged sync never overwrites what a student wrote."""

import shutil
import stat
import subprocess

import pytest
import small_course

from minipaged.cli import main
from minipaged.course.sync import bring, differing, exercise_texts, write_exercises, write_notebooks
from minipaged.errors import CourseError

BOX = "exercises/stage07_boxes/box.py"
TRACE = "exercises/stage07_boxes/counterexample.toml"
NEW_BOX = (
    small_course.BOX.replace(
        "def weigh(things: Sequence[int])", "def weigh(things: Sequence[int], unit: str)"
    )
    .replace("Put things in.", "Put things in, in order.")
    .replace(
        "    def take(self)",
        '    def shake(self) -> None:\n        """New here."""\n        self._things.reverse()\n\n'
        "    def take(self)",
    )
)
NEW_TOML = small_course.TOML.replace('"Box.put"', '"Box.put", "Box.shake"')


@pytest.fixture
def course(tmp_path):
    course = small_course.make(tmp_path / "mine")
    write_exercises(course)
    return course


@pytest.fixture
def newer(tmp_path):
    newer = small_course.make(tmp_path / "newer", box=NEW_BOX, toml=NEW_TOML)
    write_exercises(newer)
    return newer


def outcomes(done):
    return {outcome.path.as_posix(): outcome.what for outcome in done}


def write_answer(course, symbol="weigh", body="return 7  # my answer"):
    file = course.root / BOX
    file.write_text(small_course.solved(file.read_text(), symbol, body))
    return file


# --------------------------------------------------------------------------- in one checkout
def test_missing_exercises_are_written(tmp_path):
    course = small_course.make(tmp_path)
    assert set(outcomes(write_exercises(course)).values()) == {"written"}
    assert set(outcomes(write_exercises(course)).values()) == {"up to date"}
    for path, text in exercise_texts(course).items():
        assert (tmp_path / path).read_text() == text
    assert not list((tmp_path / "exercises").rglob(".*"))


def test_an_untouched_one_is_refreshed(course):
    newer = small_course.make(course.root, box=NEW_BOX, toml=NEW_TOML)
    assert outcomes(write_exercises(newer))[BOX] == "refreshed"
    assert "New here." in (course.root / BOX).read_text()
    assert differing(newer) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('raise NotImplementedError("stage 7, task 7.1', "return 1\n        #"),
        ("class Box:", "LIMIT = 4\n\n\nclass Box:"),
        ("class Box:", "class Box(list):"),
        ("return weigh(one) > weigh(other)", "return True"),
        ("    def put(", "    # my note\n    def put("),
        ("from typing", "import os\nfrom typing"),
        ('NAME = "box"', 'NAME = "chest"'),
        ("class Box:", "class Box:("),
    ],
)
def test_one_with_anything_of_a_student_is_left_alone(course, old, new):
    file = course.root / BOX
    text = file.read_text()
    mine = text.replace(old, new, 1)
    assert mine != text
    file.write_text(mine)
    newer = small_course.make(course.root, box=NEW_BOX, toml=NEW_TOML)
    assert outcomes(write_exercises(newer))[BOX] == "left alone"
    assert file.read_text() == mine


def test_a_trace_is_left_alone(course):
    file = course.root / TRACE
    file.write_text(file.read_text().replace("trace = []", 'trace = ["box.put(1)"]'))
    toml = small_course.TOML.replace("needs no count", "needs no lid")
    assert (
        outcomes(write_exercises(small_course.make(course.root, toml=toml)))[TRACE] == "left alone"
    )
    assert "box.put(1)" in file.read_text()


def test_the_check_lists_what_differs(course, monkeypatch, capsys):
    monkeypatch.chdir(course.root)
    assert main(["sync", "--check"]) == 0
    capsys.readouterr()
    write_answer(course)
    assert main(["sync", "--check"]) == 1
    told = capsys.readouterr().out
    assert BOX in told
    assert "counterexample" not in told
    assert "minipaged sync" in told


def test_the_command_says_what_it_left_and_what_to_do(course, monkeypatch, capsys):
    monkeypatch.chdir(course.root)
    write_answer(course)
    (course.root / TRACE).unlink()
    assert main(["sync"]) == 0
    told = capsys.readouterr().out
    assert f"left alone    {BOX} (your work is in it)" in told
    assert f"written       {TRACE}" in told
    assert "sync --from" in told


def test_a_file_keeps_its_mode_and_a_link_stays_one(course):
    file, real = course.root / BOX, course.root / "elsewhere.py"
    shutil.move(file, real)
    file.symlink_to(real)
    real.chmod(0o600)
    newer = small_course.make(course.root, box=NEW_BOX, toml=NEW_TOML)
    assert outcomes(write_exercises(newer))[BOX] == "refreshed"
    assert file.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert "New here." in real.read_text()


# --------------------------------------------------------------------------- from a newer one
def test_work_is_carried_into_newer_exercises(course, newer, monkeypatch, capsys):
    file = write_answer(course)
    before = file.read_text()
    monkeypatch.chdir(course.root)
    assert main(["sync", "--from", str(newer.root)]) == 0
    told, text = capsys.readouterr().out, file.read_text()
    assert "return 7  # my answer" in text
    assert "Put things in, in order." in text
    assert "def shake(self) -> None:" in text
    assert file.with_name("box.py.before-sync").read_text() == before
    assert "carried: weigh" in told
    assert "def weigh(things: Sequence[int]) -> int:" in told
    assert "def weigh(things: Sequence[int], unit: str) -> int:" in told


def test_files_without_work_become_the_new_ones(course, newer):
    (course.root / TRACE).unlink()
    done = outcomes(bring(course, str(newer.root)))
    assert done[BOX] == "refreshed"
    assert done[TRACE] == "written"
    assert done["exercises/stage08_shelves/shelf.py"] == "up to date"
    assert (course.root / BOX).read_text() == (newer.root / BOX).read_text()
    assert not list(course.root.rglob("*.before-sync"))


def test_a_second_time_nothing_is_left_to_carry(course, newer):
    write_answer(course)
    bring(course, str(newer.root))
    once = (course.root / BOX).read_text()
    done = outcomes(
        bring(small_course.make(course.root, box=NEW_BOX, toml=NEW_TOML), str(newer.root))
    )
    assert done[BOX] == "up to date"
    assert (course.root / BOX).read_text() == once


def test_an_earlier_copy_is_not_overwritten(course, newer):
    file = write_answer(course)
    copy = file.with_name("box.py.before-sync")
    copy.write_text("of an earlier time")
    bring(course, str(newer.root))
    assert copy.read_text() == "of an earlier time"
    assert "return 7" in file.with_name("box.py.2.before-sync").read_text()


def test_a_trace_of_the_student_is_kept(course, newer):
    mine = '# why\ntrace = ["box.put(1)"]\n'
    (course.root / TRACE).write_text(mine)
    (newer.root / TRACE).write_text("# new words\ntrace = []\n")
    assert outcomes(bring(course, str(newer.root)))[TRACE] == "left alone"
    assert (course.root / TRACE).read_text() == mine


def test_a_file_that_is_no_python_is_named_and_left(course, newer, monkeypatch, capsys):
    file = course.root / BOX
    broken = file.read_text() + "def f(:\n"
    file.write_text(broken)
    monkeypatch.chdir(course.root)
    assert main(["sync", "--from", str(newer.root)]) == 1
    told = capsys.readouterr().out
    line = broken.count("\n")
    assert f"broken        {BOX} (line {line}: invalid syntax: def f(:; the file is left" in told
    assert file.read_text() == broken


def git(folder, *arguments):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def test_from_a_revision(course, newer):
    git(course.root, "init", "-q", "-b", "main")
    git(course.root, "add", ".")
    git(course.root, "commit", "-q", "-m", "the course")
    git(course.root, "checkout", "-q", "-b", "theirs")
    shutil.copytree(newer.root, course.root, dirs_exist_ok=True)
    git(course.root, "commit", "-q", "-a", "-m", "newer")
    git(course.root, "checkout", "-q", "main")
    write_answer(course)
    done = outcomes(bring(course, "theirs"))
    assert done[BOX] == "carried over"
    assert "return 7" in (course.root / BOX).read_text()
    assert "def shake" in (course.root / BOX).read_text()
    # And what the README says to do next goes through.
    git(course.root, "commit", "-q", "-a", "-m", "carried over")
    carried = (course.root / BOX).read_text()
    git(course.root, "merge", "-q", "-X", "ours", "-m", "merged", "theirs")
    assert (course.root / BOX).read_text() == carried
    assert "shake" in (course.root / "things" / "box.py").read_text()


@pytest.mark.parametrize("upstream", ["nowhere/main", "--help", "HEAD~99", ""])
def test_what_is_no_upstream_is_an_error(course, upstream):
    git(course.root, "init", "-q")
    with pytest.raises(CourseError, match="neither a folder nor a revision"):
        bring(course, upstream)


def test_a_folder_or_revision_that_is_no_checkout_is_an_error(course, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(CourseError, match=r"no checkout of the course: it has no course\.toml"):
        bring(course, str(other))
    git(course.root, "init", "-q", "-b", "main")
    git(course.root, "add", "things")
    git(course.root, "commit", "-q", "-m", "without the course")
    with pytest.raises(CourseError, match=r"'main' is no checkout.*course\.toml"):
        bring(course, "main")


def test_one_thing_at_a_time(course, monkeypatch, capsys):
    monkeypatch.chdir(course.root)
    assert main(["sync", "--check", "--from", "x"]) == 1
    assert "one at a time" in capsys.readouterr().err


# --------------------------------------------------------------------------- notebooks
SOURCE = "# %% [markdown]\n# # Boxes\n\n# %%\nx = 1\n\n# %%\nx = 1\n"


def test_notebooks_are_made_from_their_sources(course):
    import nbformat

    folder = course.root / "notebooks"
    folder.mkdir()
    (folder / "07_boxes.py").write_text(SOURCE)
    assert [path.name for path in differing(course)] == ["07_boxes.ipynb"]
    assert outcomes(write_notebooks(course)) == {"notebooks/07_boxes.ipynb": "written"}
    assert outcomes(write_notebooks(course)) == {"notebooks/07_boxes.ipynb": "up to date"}
    assert differing(course) == []
    book = nbformat.read(folder / "07_boxes.ipynb", as_version=4)
    nbformat.validate(book)
    assert [(cell.cell_type, cell.source) for cell in book.cells] == [
        ("markdown", "# Boxes"),
        ("code", "x = 1"),
        ("code", "x = 1"),
    ]
    assert len({cell.id for cell in book.cells}) == 3
    assert book.metadata.kernelspec.name == "python3"


def test_a_new_cell_leaves_the_ids_of_the_others():
    import nbformat

    from minipaged.course.notebooks import notebook_text

    old = nbformat.reads(notebook_text(SOURCE), as_version=4).cells
    new = nbformat.reads(notebook_text("# %%\ny = 2\n\n" + SOURCE), as_version=4).cells
    assert [cell.id for cell in new[1:]] == [cell.id for cell in old]
