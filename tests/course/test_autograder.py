"""The autograder's zip is tried as Gradescope uses it: unpacked, and run by its own entry point."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from minipaged.cli import main
from minipaged.course import on_gradescope
from minipaged.course.autograder import NOT_NEEDED, TRITON, chosen, lay_out, requirements
from minipaged.course.catalog import COUNTEREXAMPLE, HIDDEN, load_course
from minipaged.course.collect import collect
from minipaged.course.judge.run import judge
from minipaged.course.mutants import apply, load_mutants, reference_source
from minipaged.course.signatures import load_signatures
from minipaged.course.skeleton import exercise_text
from minipaged.course.submission import MAX_BYTES, read_submission
from minipaged.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]
COURSE = load_course(ROOT)
STAGE = COURSE.stage("2")
PART = STAGE.parts[0]
FILE = f"{PART.name}.py"
EXAMPLE = ROOT / "lessons" / "hidden-checks"
WHOM = 'the "staff" of 101'

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def hidden_checks(folder, toml="", **tests):
    """A folder with an instructor's own checks of stage 2: those of the example, by default."""
    shutil.copytree(EXAMPLE / STAGE.folder, folder / STAGE.folder)
    _, first, _ = (EXAMPLE / HIDDEN).read_text(encoding="utf-8").split("[[stage]]")
    (folder / HIDDEN).write_text(toml or f"[[stage]]{first}", encoding="utf-8")
    for name, text in tests.items():
        (folder / STAGE.folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


class Gradescope:
    """A container's folder, with the autograder unpacked in it."""

    def __init__(self, root, packed):
        self.root = root
        self.source, self.submission = root / "source", root / "submission"
        for entry in packed.infolist():
            file = Path(packed.extract(entry, self.source))
            file.chmod(entry.external_attr >> 16)
        # What the zip does not ask for is not used.
        for name in (*NOT_NEEDED, TRITON):
            (self.source / f"{name}.py").write_text("raise ImportError(__name__)\n")

    def grade(self, files, **environment):
        """The results of a submission: name -> text."""
        for folder in (self.submission, self.root / "results"):
            shutil.rmtree(folder, ignore_errors=True)
        self.submission.mkdir()
        for name, text in files.items():
            (self.submission / name).parent.mkdir(parents=True, exist_ok=True)
            (self.submission / name).write_text(text, encoding="utf-8")
        self.done = subprocess.run(
            [str(self.source / "run_autograder")],
            env={
                **os.environ,
                "AUTOGRADER_ROOT": str(self.root),
                "AUTOGRADER_PYTHON": sys.executable,
                **environment,
            },
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=300,
        )
        text = (self.root / "results" / "results.json").read_text(encoding="utf-8")
        assert "Traceback" not in text
        results = json.loads(text)
        assert results["stdout_visibility"] == "hidden"
        assert self.done.returncode == 0
        return results


@pytest.fixture(scope="module")
def gradescope(tmp_path_factory):
    made = tmp_path_factory.mktemp("made")
    path, hidden = made / "autograder.zip", hidden_checks(made / "hidden")
    options = ["--stages", "2", "--hidden", str(hidden), "--contact", WHOM]
    assert main(["autograder", str(path), *options]) == 0
    # Not pytest's folder: nobody but its owner can enter that anyway.
    root = Path(tempfile.mkdtemp(prefix="minipaged-autograder-test-"))
    root.chmod(0o755)
    with zipfile.ZipFile(path) as packed:
        yield Gradescope(root, packed)
    shutil.rmtree(root)


def reference():
    folder = ROOT / "solutions" / STAGE.folder
    return {
        FILE: reference_source(COURSE, STAGE, PART.name),
        COUNTEREXAMPLE: (folder / COUNTEREXAMPLE).read_text(encoding="utf-8"),
    }


def failed(results):
    return {test["name"].partition(": ")[2] for test in results["tests"] if not test["score"]}


def titles(names):
    return {name.replace("_", " ") for name in names}


# --------------------------------------------------------------------------- the entry point
def test_the_reference_gets_all_points(gradescope):
    files = {f"work/exercises/{STAGE.folder}/{n}": text for n, text in reference().items()}
    results = gradescope.grade(files)
    tests = results["tests"]
    assert failed(results) == set()
    assert results["score"] == sum(test["max_score"] for test in tests) == STAGE.points + 2
    seen = {test["name"]: test["visibility"] for test in tests}
    assert seen.pop("2 hidden: two pools share nothing") == "after_published"
    assert set(seen.values()) == {"visible"}
    assert results["output"].startswith(f"Stage 2, {STAGE.title}: 40 of 40 points")


def test_a_skeleton_gets_nothing(gradescope):
    files = {f"{STAGE.folder}/{FILE}": exercise_text(COURSE, STAGE, PART)}
    results = gradescope.grade(files)
    assert results["score"] == 0
    assert {test["score"] for test in results["tests"]} == {0}
    assert f"{COUNTEREXAMPLE} (stage 2) was not found" in results["output"]
    assert "0 of 40 points" in results["output"]


@pytest.mark.parametrize("place", [0, -1])
def test_a_mutant_gets_what_its_checks_leave(gradescope, place):
    mutant = load_mutants(COURSE, STAGE)[place]
    text = apply(mutant, reference_source(COURSE, STAGE, PART.name))
    results = gradescope.grade({**reference(), FILE: text})
    known = set(load_signatures(COURSE, STAGE)[mutant.name].failed)
    assert titles(known) <= failed(results)
    assert 0 < results["score"] < STAGE.points
    assert mutant.misconception in results["output"], "an own check is no part of a signature"


#: Looks around, and says what it saw in an error.
ATTACK = """
import os
ROOT = {root!r}

def tried(act, *path):
    try:
        return act(os.path.join(ROOT, *path))
    except OSError as error:
        return type(error).__name__

def read(path):
    with open(path) as file:
        return file.read()

class BlockAllocator:
    def __init__(self, num_blocks, name="GPU"):
        found = [f"uid {{os.getuid()}}"]
        found += [tried(os.listdir, name) for name in ("source", "results", "submission")]
        for name in ("course.toml", "minipaged/kvcache/{file}", "tests/mutants/stage02.toml"):
            found += [tried(os.stat, "source", name), tried(read, "source", name)]
        raise RuntimeError(str([*found, tried(os.path.basename), tried(os.listdir, "/") != []]))
    num_free = free_blocks = None
    def allocate(self): pass
    def allocate_many(self, count): pass
    def share(self, block): pass
    def free(self, block): pass
    def free_many(self, blocks): pass
    def ref_count(self, block): pass
"""


@as_root
def test_the_grader_is_closed_to_a_submission(gradescope):
    text = ATTACK.format(root=str(gradescope.root), file=FILE)
    results = gradescope.grade({FILE: text})
    assert results["score"] == 0
    found = next(test["output"] for test in results["tests"] if "uid" in test["output"])
    nothing = ["PermissionError"] * 9
    assert str(["uid 65534", *nothing, gradescope.root.name, True]) in found


@as_root
@pytest.mark.parametrize(
    ("unit", "check"),
    [
        ("5", "prompts_and_decodes_share_a_step"),
        ("6", "out_and_in_again_the_same_tokens_are_there"),
        ("A", "the_samples_hold_their_prompt_once"),
    ],
)
def test_every_kind_of_test_runs_where_the_package_is_closed(tmp_path, unit, check):
    folder = tmp_path / "source"
    lay_out(COURSE, [COURSE.unit(unit)], folder)
    tmp_path.chmod(0o755)
    folder.chmod(0o700)
    script = (
        "import sys; sys.path.insert(0, '.'); from minipaged.course.judge.run import judge\n"
        "from minipaged.course.catalog import load_course\n"
        "from minipaged.course.submission import read_submission\n"
        f"course = load_course(); unit = course.unit({unit!r})\n"
        f"found = judge(course, unit, read_submission(course, unit, 'ref'), checks=[{check!r}])\n"
        f"print(found.checks[{check!r}].status, found.checks[{check!r}].message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.startswith("passed"), done.stdout + done.stderr


# --------------------------------------------------------------------------- when it goes wrong
@pytest.mark.parametrize("how", ["no Python", "a broken grader", "no time"])
def test_whatever_goes_wrong_there_are_results(gradescope, how):
    environment = {
        "no Python": {"AUTOGRADER_PYTHON": "/nowhere/python"},
        "a broken grader": {},
        "no time": {"AUTOGRADER_SECONDS": "0.1"},
    }[how]
    course = gradescope.source / "course.toml"
    kept = course.read_bytes()
    if how == "a broken grader":
        course.write_text("[course", encoding="utf-8")
    results = gradescope.grade(reference(), **environment)
    course.write_bytes(kept)
    assert results["score"] == 0
    assert f"please tell {WHOM}" in results["output"]
    assert "Grading ended with status" in gradescope.done.stdout


def test_what_was_graded_before_the_end_counts(tmp_path, monkeypatch):
    """The judge of the second stage is never done."""
    units = [COURSE.stage("0"), STAGE]
    plain = {"units": ["0", "2"], "contact": WHOM}
    source, submission = tmp_path / "source", tmp_path / "submission"
    for folder in (source, submission):
        folder.mkdir()
    (source / "assignment.json").write_text(json.dumps(plain))
    monkeypatch.setattr(on_gradescope, "load_course", lambda folder: COURSE)
    grade = on_gradescope.grade_stage

    def grade_first(course, unit, handed_in):
        if unit is units[1]:
            raise KeyboardInterrupt
        return grade(course, unit, handed_in)

    monkeypatch.setattr(on_gradescope, "grade_stage", grade_first)
    with pytest.raises(KeyboardInterrupt):
        on_gradescope.grade_submission(source, submission, tmp_path / "results.json")
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {test["number"][0] for test in results["tests"]} == {"0"}
    assert "Stage 2 was not graded" in results["output"]
    assert WHOM in results["output"]


# --------------------------------------------------------------------------- what was handed in
def collected(tmp_path, files, units=("2", "3")):
    submission, desk = tmp_path / "submission", tmp_path / "desk"
    desk.mkdir()
    for name, text in files.items():
        (submission / name).parent.mkdir(parents=True, exist_ok=True)
        (submission / name).write_text(text, encoding="utf-8")
    found = collect(COURSE, [COURSE.unit(key) for key in units], submission, desk)
    return {str(now): str(before) for now, before in found.found.items()}, " ".join(found.remarks)


@pytest.mark.parametrize(
    "name",
    [
        FILE,
        f"{STAGE.folder}/{FILE}",
        f"exercises/{STAGE.folder}/{FILE}",
        f"me/paged/exercises/{STAGE.folder}/{FILE}",
        f"my homework/{FILE}",
    ],
)
def test_a_file_is_found_by_its_name(tmp_path, name):
    found, remarks = collected(tmp_path, {name: "mine", "notes/README.md": ""})
    assert found == {f"{STAGE.folder}/{FILE}": name}
    assert (tmp_path / "desk" / STAGE.folder / FILE).read_text() == "mine"
    assert "block_table.py (stage 3) was not found" in remarks
    assert FILE not in remarks


def test_of_a_whole_checkout_the_desk_is_taken(tmp_path):
    files = {
        f"exercises/{STAGE.folder}/{FILE}": "mine",
        f"solutions/{STAGE.folder}/{FILE}": "not mine",
        f"minipaged/kvcache/{FILE}": "not mine",
        f".git/{FILE}": "not mine",
        f"old/exercises/{STAGE.folder}/{FILE}": "not mine any more",
    }
    found, _ = collected(tmp_path, files)
    assert list(found.values()) == [f"exercises/{STAGE.folder}/{FILE}"]


def test_the_reference_of_a_checkout_is_nobodys_answer(tmp_path):
    files = {f"minipaged/kvcache/{FILE}": "not mine", f"solutions/{STAGE.folder}/{FILE}": "x"}
    found, remarks = collected(tmp_path, files)
    assert found == {}
    assert "You handed in: no files." in remarks


def test_two_files_of_a_name_are_none_unless_they_are_the_same(tmp_path):
    found, remarks = collected(tmp_path, {f"a/{FILE}": "one", f"b/{FILE}": "two"})
    assert found == {}
    assert f"{FILE} (stage 2) was handed in more than once: a/{FILE} and b/{FILE}" in remarks
    (tmp_path / "more").mkdir()
    found, _ = collected(tmp_path / "more", {f"a/{FILE}": "one", f"b/{FILE}": "one"})
    assert list(found.values()) == [f"a/{FILE}"]


def test_counterexamples_are_told_apart_by_their_folders(tmp_path):
    found, remarks = collected(tmp_path, {COUNTEREXAMPLE: "trace = []"})
    assert found == {}
    assert f"put it into a folder {STAGE.folder}" in remarks
    (tmp_path / "one").mkdir()
    found, _ = collected(tmp_path / "one", {COUNTEREXAMPLE: "trace = []"}, ["2", "A"])
    assert list(found) == [f"{STAGE.folder}/{COUNTEREXAMPLE}"]
    (tmp_path / "two").mkdir()
    name = f"{STAGE.folder}/{COUNTEREXAMPLE}"
    found, remarks = collected(tmp_path / "two", {name: "trace = []"})
    assert found == {name: name}
    assert f"{COUNTEREXAMPLE} (stage 3) was not found" in remarks


def test_no_link_is_followed(tmp_path):
    (tmp_path / "submission").mkdir()
    (tmp_path / "answers").mkdir()
    secret = tmp_path / "answers" / FILE
    secret.write_text("the answer")
    (tmp_path / "submission" / FILE).symlink_to(secret)
    (tmp_path / "submission" / STAGE.folder).symlink_to(secret.parent)
    os.mkfifo(tmp_path / "submission" / "block_table.py")
    found, remarks = collected(tmp_path, {})
    assert found == {}
    assert f"{FILE} is a link" in remarks
    assert f"{STAGE.folder} is a link" in remarks


def test_an_endless_file_is_not_read(tmp_path):
    found, remarks = collected(tmp_path, {FILE: "#" * (MAX_BYTES + 1)})
    assert found == {}
    assert f"{FILE} is longer than" in remarks


def test_a_checkpoint_wants_the_parts_of_its_stages(tmp_path):
    unit = COURSE.unit("A")
    files = {f"{part.name}.py": part.name for part in unit.parts}
    found, remarks = collected(tmp_path, files, ["A"])
    assert len(found) == len(unit.parts)
    assert remarks == ""


# --------------------------------------------------------------------------- the zip
def test_the_zip_has_what_grading_needs_and_no_more(tmp_path):
    path = tmp_path / "a.zip"
    assert main(["autograder", str(path), "--stages", "4,A", "--minutes", "20"]) == 0
    with zipfile.ZipFile(path) as packed:
        names = packed.namelist()
        modes = {e.filename: stat.filemode(e.external_attr >> 16) for e in packed.infolist()}
        setup, run = (packed.read(n).decode() for n in ("setup.sh", "run_autograder"))
    tops = {name.split("/")[0] for name in names}
    assert not tops & {"solutions", "exercises", "lessons", "notebooks", ".git", HIDDEN}
    graded = {name.split("/")[1] for name in names if name.startswith("tests/")}
    assert graded == {"stage04_copy_on_write", "checkpoint_a", "mutants"}
    assert not [name for name in names if "__pycache__" in name]
    assert modes["setup.sh"] == modes["run_autograder"] == "-rwxr-xr-x"
    assert "AUTOGRADER_SECONDS:-1170" in run
    assert '--index-url https://download.pytorch.org/whl/cpu "torch>=' in setup
    for script in (setup, run):
        assert "@" not in script.replace('"$@"', "")
        assert str(ROOT) not in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


#: Stands in for Python in setup.sh: notes what it is asked; a virtual environment is a copy of it.
FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >> "$ASKED"
case "$1 $2" in
  "-m venv") mkdir -p "${@: -1}/bin"; cp "$0" "${@: -1}/bin/python" ;;
  "-E -s") exit "$SELF_TEST" ;;
esac
"""


@pytest.mark.parametrize("status", [0, 1])
def test_an_image_is_built_if_the_reference_passes_in_it(tmp_path, status):
    lay_out(COURSE, [STAGE], tmp_path / "source")
    python, asked = tmp_path / "bin" / "python3", tmp_path / "asked"
    python.parent.mkdir()
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "AUTOGRADER_ROOT": str(tmp_path),
        "ASKED": str(asked),
        "SELF_TEST": str(status),
    }
    done = subprocess.run([str(tmp_path / "source" / "setup.sh")], env=environment, timeout=60)
    assert done.returncode == status
    _, venv, torch, others, self_test = asked.read_text().splitlines()
    assert venv == f"-m venv --clear {tmp_path}/venv"
    assert torch.endswith(
        f"--index-url https://download.pytorch.org/whl/cpu {requirements(ROOT, [STAGE])[0]}"
    )
    assert others.endswith(f"--requirement {tmp_path}/source/requirements.txt")
    assert self_test == "-E -s -m minipaged.course.on_gradescope --self-test"


def test_what_is_installed_is_what_the_package_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    kernels = [stage for stage in COURSE.stages if stage.triton]
    for units, more in (([STAGE], {TRITON}), ([STAGE, *kernels], set())):
        torch, others = requirements(ROOT, units)
        assert torch.startswith("torch>=")
        left_out = set(project["dependencies"]) - {torch, *others}
        assert {line.partition(">")[0] for line in left_out} == {*NOT_NEEDED, *more}


def test_which_stages_are_graded():
    assert [unit.key for unit in chosen(COURSE, "A, 2,03", None)] == ["2", "3", "A"]
    assert [unit.key for unit in chosen(COURSE, None, "4")] == ["0", "1", "2", "3", "4", "A"]
    assert chosen(COURSE, None, None) == list(COURSE.units)
    with pytest.raises(CourseError, match="there is no stage '99'"):
        chosen(COURSE, "2,99", None)


def test_a_copy_for_a_class_makes_no_autograder(tmp_path, monkeypatch, capsys):
    closed = replace(COURSE, given=("00",))
    monkeypatch.setattr("minipaged.course.autograder.load_course", lambda: closed)
    assert main(["autograder", str(tmp_path / "a.zip")]) == 1
    assert "full checkout" in capsys.readouterr().err


# --------------------------------------------------------------------------- checks of one's own
def test_the_example_holds_for_the_reference_and_not_for_a_mutant(tmp_path):
    units = [COURSE.stage("2"), COURSE.stage("3")]
    lay_out(COURSE, units, tmp_path / "a", hidden=EXAMPLE)
    course = load_course(tmp_path / "a")
    unit = course.stage("2")
    assert unit.points == STAGE.points + 2
    shared = reference()[FILE].replace("self._refs = [0]", "BlockAllocator._refs = [0]")
    assert shared != reference()[FILE]
    submission = read_submission(course, unit, "ref")
    file = replace(submission.files[PART.name], source=shared)
    submission = replace(submission, files={PART.name: file}, name="shared")
    found = judge(course, unit, submission, checks=["two_pools_share_nothing"])
    assert found.checks["two_pools_share_nothing"].status == "failed"


BAD = {
    "no such visibility": (
        'visibility = "secret"\n[[stage]]\nnumber = "02"\nchecks = []',
        "hidden",
    ),
    "of a stage that is not graded": (
        '[[stage]]\nnumber = "03"\nchecks = [{ name = "x", points = 1, parent = "3.1" }]',
        "x is of a stage that this autograder does not grade",
    ),
    "no such parent": (
        '[[stage]]\nnumber = "02"\nchecks = [{ name = "x", points = 1, parent = "2.7" }]',
        "no such parent",
    ),
    "no such test": (
        '[[stage]]\nnumber = "02"\nchecks = [{ name = "x", points = 1, parent = "2.1" }]',
        "the reference does not pass it with seed 0: no test of the grader has this name",
    ),
    "wrong": (
        '[[stage]]\nnumber = "02"\nchecks = [{ name = "wrong", points = 1, parent = "2.1" }]',
        "the reference does not pass it with seed 0: expected 7",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_check_that_cannot_be_is_refused(tmp_path, case):
    toml, why = BAD[case]
    test = (
        "def test_wrong(parts):\n    assert parts.BlockAllocator(3).num_free == 7, 'expected 7'\n"
    )
    hidden = hidden_checks(tmp_path / "hidden", toml, test_wrong_on_purpose=test)
    with pytest.raises(CourseError, match=why):
        lay_out(COURSE, [STAGE], tmp_path / "a", hidden=hidden)


def test_a_file_of_ones_own_replaces_none_of_the_courses(tmp_path):
    hidden = hidden_checks(tmp_path / "hidden", test_allocate="def test_x(): pass\n")
    with pytest.raises(CourseError, match="has a file of this name: rename yours"):
        lay_out(COURSE, [STAGE], tmp_path / "a", hidden=hidden)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CourseError, match=r"has no hidden\.toml"):
        lay_out(COURSE, [STAGE], tmp_path / "b", hidden=tmp_path / "empty")
