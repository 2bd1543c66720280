"""``minipaged release``: what a class gets, and that no answer is in it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minipaged.course.answers import ReferenceAnswers
from minipaged.course.catalog import Course, load_course
from minipaged.course.release import given_stages, release, release_contents
from minipaged.course.skeleton import exercise_text
from minipaged.errors import CourseError

ROOT = Path(__file__).parents[2]
COURSE = load_course(ROOT)

#: A shorter line may stand anywhere.
LONG = 24

#: Lines of answers that a class has for other reasons, and what they are there. None of them tells
#: how a task is done; a line that is not in here may be nowhere in a release.
ELSEWHERE = {
    "import torch.nn.functional as F": "how PyTorch is imported, in the models",
    "from dataclasses import dataclass": "how a dataclass is imported, in half of all modules",
    "from dataclasses import dataclass, field": "the same, in the other half",
    "from minipaged.sequence import Sequence, SequenceGroup": "an import, in the given engine",
    "self.num_blocks = num_blocks": "an argument that is kept, in the judge's model of a pool",
    "block_size=self.block_size,": "an argument that is handed on, in the given engine",
    'if self.policy == "pow2":': "a rule by its name, in the judge's model of a toy allocator",
    'if self.policy == "paged":': "the same: what follows is written another way",
    "if name not in SLO_METRICS:": "an option is checked, in the command line; the names are given",
    "for name, value in values.items():": "a loop over arguments, in the given checks of workloads",
    "_check_duration(duration)": "a call in given summarize(), of a check that is stricter",
    "def _check_duration(duration: float) -> None:": "that check: a run takes time",
    'f"the {self.name} pool is exhausted: {count} blocks were asked for, "': (
        "a message, in the given manager of a cache; lesson 2 shows it word for word"
    ),
    "for decision in decisions:": "a loop over what an argument holds, in the given engine",
    "for source, target in pairs:": "a loop over an argument, in a test that checks the copies",
    "for table, tokens in zip(tables, num_tokens):": "a loop over what a test has put together",
    "seq.status = Status.RUNNING": "a given method of the queues",
    "self.prefill(group, plan)": "a call of a given method, by another one",
    "self.enqueue(self.running, group)": "a call of a given method, by another one",
    "group.prefilling = False": "the scripted preemption that stage 5 is graded with",
    "plan.resumed.append(group.request_id)": "the same: a step's plan says who came back",
    "plan.preempted.append(Preempted(group.request_id, mode))": "the same: and who had to go",
}

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


@pytest.fixture(scope="module", autouse=True)
def identity() -> Iterator[None]:
    """Commits do not depend on who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in IDENTITY.items():
            patch.setenv(name, value)
        for name in ("PYTHONPATH", "GIT_DIR", "GIT_WORK_TREE"):
            patch.delenv(name, raising=False)
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        yield


@pytest.fixture(scope="module")
def closed(tmp_path_factory) -> Path:
    """The copy that tells least: only stage 0 is given."""
    folder = tmp_path_factory.mktemp("class") / "copy"
    done = release(COURSE, folder, given_stages(COURSE, "0"), seeds=())
    assert done.commit
    assert done.kept == ()
    return folder


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def minipaged(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the copy's own command line."""
    code = "import sys; from minipaged.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


# --------------------------------------------------------------------------- no answers
def answer_lines(course: Course, given: tuple[str, ...]) -> dict[str, str]:
    """Lines of the references that are stripped, and are not in their skeletons: line -> part."""
    found = {}
    for stage in course.stages:
        if stage.number in given:
            continue
        for part in stage.parts:
            skeleton = exercise_text(course, stage, part)
            for line in (course.root / part.source).read_text(encoding="utf-8").splitlines():
                if len(line.strip()) >= LONG and line.strip() not in skeleton:
                    found[line.strip()] = part.name
    return found


def everything_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file, what is packed in one, and every object of the repository's history."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and ".git" not in file.relative_to(folder).parts:
            yield from unpacked(file.name, file.read_bytes())
    command = ["git", "-C", str(folder), "cat-file", "--batch-all-objects", "--batch"]
    objects = io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout)
    while header := objects.readline():
        name, kind, size = header.decode().split()
        yield from unpacked(f"{kind} {name}", objects.read(int(size)))
        objects.readline()


def unpacked(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    yield name, data
    if data[:1] in (b"{", b"["):  # a line in a notebook is a string of JSON
        try:
            strings = list(strings_in(json.loads(data)))
        except ValueError:
            return
        yield f"{name}, its strings", "\n".join(strings).encode()
    elif data[:2] == b"\x1f\x8b":
        yield from unpacked(f"{name}, unzipped", gzip.decompress(data))
    elif zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for inner in archive.namelist():
                yield from unpacked(f"{name}: {inner}", archive.read(inner))
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None:
                    yield from unpacked(f"{name}: {member.name}", file.read())


def strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.items() if isinstance(value, dict) else value:
            yield from strings_in(list(item) if isinstance(item, tuple) else item)


def leaks(folder: Path, given: tuple[str, ...]) -> dict[str, list[str]]:
    """Lines of answers that are there, and where."""
    lines = {line.encode(): line for line in answer_lines(COURSE, given)}
    found: dict[str, list[str]] = {}
    seen = set()
    for name, data in everything_in(folder):
        if data in seen:
            continue
        seen.add(data)
        for line in lines:
            if line in data:
                found.setdefault(lines[line], []).append(name)
    return found


def test_no_line_of_an_answer_is_anywhere(closed):
    assert len(answer_lines(COURSE, ("00",))) > 300
    found = leaks(closed, ("00",))
    assert {line: places for line, places in found.items() if line not in ELSEWHERE} == {}
    stale = ELSEWHERE.keys() - found.keys()
    assert stale == set(), "these stand nowhere any more: take them out"


def test_a_leak_is_found_wherever_it_is(tmp_path):
    """In a notebook, where quotes are escaped; in an archive; in the history alone."""
    lines = [line for line in answer_lines(COURSE, ()) if line not in ELSEWHERE]
    quoted = next(line for line in lines if '"' in line)
    packed, forgotten = [line for line in lines if '"' not in line][:2]
    git(tmp_path, "init", "--quiet")
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": [{"source": ["x\n", quoted]}]}))
    with zipfile.ZipFile(tmp_path / "more.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside.txt.gz", gzip.compress(f"  {packed}\n".encode()))
    (tmp_path / "old.py").write_text(forgotten)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "old")
    git(tmp_path, "rm", "--quiet", "old.py")
    git(tmp_path, "commit", "--quiet", "--message", "gone")
    assert {quoted, packed, forgotten} <= leaks(tmp_path, ()).keys()


def test_what_tells_answers_is_left_out(closed):
    names = git(closed, "ls-files").splitlines()
    for gone in ("solutions/", "scripts/", "tests/course/", "tests/engine/", "tests/structure/"):
        assert not [name for name in names if name.startswith(gone)]
    assert not [name for name in names if "instructor" in name or "hidden" in name]
    assert "CHANGELOG.md" not in names
    assert "kernels/rotary.py" not in names  # it writes a cache too, as task 7.1 does
    assert "kernels/rotary.py" in release_contents(COURSE, given_stages(COURSE, "7"), seeds=())
    changes = (closed / "tests/mutants/stage02.toml").read_text()
    assert changes.count('find = ""') == changes.count("[[mutant]]") > 10
    course = (closed / "course.toml").read_text()
    assert "BlockAllocator._held" not in course
    assert "BlockAllocator._held" in (ROOT / "course.toml").read_text()


def test_no_link_leads_to_what_is_left_out(closed):
    dead = []
    for page in [*closed.glob("*.md"), *closed.glob("*/*.md")]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.name}: {target}")
    assert dead == []


def test_a_closed_module_is_the_skeleton_word_for_word(closed):
    copy = load_course(closed)
    assert [stage.key for stage in copy.stages if stage.closed] == [
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "10",
    ]
    for name, (stage, part) in copy.closed_parts.items():
        text = (closed / part.source).read_text()
        assert text == exercise_text(COURSE, *COURSE.parts[name])
        assert text == (closed / "exercises" / stage.folder / f"{part.name}.py").read_text()
    sizing = copy.stages[0].parts[0].source
    assert (closed / sizing).read_bytes() == (ROOT / sizing).read_bytes()


def test_stages_up_to_one_are_given_and_others_by_name():
    assert given_stages(COURSE, "1") == ("00", "01")
    assert given_stages(COURSE, "block_allocator", ["6", "05"]) == ("00", "01", "02", "05", "06")
    with pytest.raises(CourseError, match="there is no stage '77'"):
        given_stages(COURSE, "1", ["77"])


def test_answers_are_asked_for_once_and_then_known(tmp_path):
    record = tmp_path / "answers.jsonl"
    requests = [{"prompt": [3, 1, 4, 1, 5], "max_tokens": 6, "n": 2, "temperature": 0.9, "seed": 5}]
    engine = {"model": "hash", "block_size": 4, "num_gpu_blocks": 20}
    asked = ReferenceAnswers(tmp_path / "none", record, seed=7)(requests, **engine)
    assert [len(output["token_ids"]) for output in asked["outputs"][0]] == [6, 6]
    known = ReferenceAnswers(record)
    assert known(requests, **engine) == asked
    with pytest.raises(CourseError, match="knows the answers for seed 7 alone"):
        known(requests, **{**engine, "block_size": 8})


# --------------------------------------------------------------------------- the repository
def test_a_release_is_one_commit_without_a_history(closed):
    assert git(closed, "rev-list", "--count", "--all").strip() == "1"
    assert git(closed, "log", "--format=%an <%ae>").strip() == "Ada <ada@example.org>"
    assert git(closed, "status", "--porcelain") == ""
    assert (closed / "minipaged/kernels").is_symlink()
    assert "Never write a task's body" in (closed / "AGENTS.md").read_text()


def test_a_later_release_is_a_commit_more_and_leaves_work_alone(closed, tmp_path):
    folder = tmp_path / "class"
    git(tmp_path, "clone", "--quiet", str(closed), str(folder))
    mine = folder / "exercises/stage01_contiguous/naive.py"
    mine.write_text(mine.read_text().replace("raise NotImplementedError", "raise ValueError"))
    work = mine.read_text()
    (folder / "lessons/old.md").write_text("of a course that was\n")
    (folder / "notes.md").write_text("our own\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Work")
    done = release(COURSE, folder, given_stages(COURSE, "1"), seeds=())
    assert done.kept == (mine.relative_to(folder),)
    assert git(folder, "rev-list", "--count", "HEAD").strip() == "3"
    assert git(folder, "status", "--porcelain") == ""
    assert mine.read_text() == work
    assert (folder / "notes.md").is_file()
    assert not (folder / "lessons/old.md").exists()
    opened = COURSE.stage("1").parts[0].source
    assert (folder / opened).read_bytes() == (ROOT / opened).read_bytes()
    assert leaks(folder, ("00", "01")).keys() <= ELSEWHERE.keys()
    with pytest.raises(CourseError, match="was given stage 1: the answers are in its history"):
        release(COURSE, folder, given_stages(COURSE, "0"), seeds=())
    with pytest.raises(CourseError, match="this is a copy for a class"):
        release(load_course(folder), tmp_path / "other", ("00",), seeds=())


def test_a_place_that_is_something_else_is_refused(closed, tmp_path):
    given = given_stages(COURSE, "0")

    def refused(folder: Path) -> str:
        before = sorted(folder.rglob("*"))
        with pytest.raises(CourseError) as error:
            release(COURSE, folder, given, seeds=())
        assert sorted(folder.rglob("*")) == before
        return str(error.value)

    with pytest.raises(CourseError, match="is this course itself"):
        release(COURSE, ROOT, given, seeds=())
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine\n")
    assert "holds something, and is no git repository" in refused(folder)
    git(folder, "init", "--quiet")
    assert "not committed, as '?? thesis.tex'" in refused(folder)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Mine")
    assert "is the repository of something else: it has thesis.tex" in refused(folder)
    (folder / "course.toml").write_text('[course]\ntitle = "whole"\n')
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "A course")
    assert "is a whole copy of the course, with its answers" in refused(folder)


def test_without_a_name_for_the_commit_nothing_is_written(tmp_path, monkeypatch):
    for name in IDENTITY:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CourseError, match="git var in"):
        release(COURSE, tmp_path / "class", ("00",), seeds=())
    assert [path.name for path in (tmp_path / "class").iterdir()] == [".git"]


# --------------------------------------------------------------------------- a student's side
@pytest.fixture(scope="module")
def desk(closed, tmp_path_factory) -> Path:
    """A student's clone, in which stages 2 and 4 are written, and nothing else."""
    folder = tmp_path_factory.mktemp("student") / "clone"
    git(folder.parent, "clone", "--quiet", str(closed), str(folder))
    for key in ("2", "4"):
        stage = COURSE.stage(key)
        for part in stage.parts:
            text = (ROOT / part.source).read_text(encoding="utf-8")
            (folder / "exercises" / stage.folder / f"{part.name}.py").write_text(text)
    return folder


def test_a_missing_part_is_named_with_its_stage_and_lesson(desk):
    arguments = ("generate", "--model", "opt-stories", "--raw", "Once")
    done = minipaged(desk, *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "minipaged: error: paged_attention is not written (tasks 3.3, 3.4): stage 3, "
        "lessons/03-block-table.md; write exercises/stage03_block_table/paged_attention.py, then "
        "`minipaged grade 3`"
    )
    done = minipaged(desk, *arguments, "--parts", "ref")
    assert "this copy of the course has no reference for paged_attention" in done.stderr


def test_what_is_not_asked_for_is_the_students_own_too(desk):
    """There is no reference that it could be."""
    code = (
        "from minipaged.course import load_parts\n"
        "parts = load_parts('mine', only=['sizing'])\n"
        "print(parts.BlockAllocator(3).num_free)\n"
        "parts.BlockTable(None, 4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=desk,
        env={**os.environ, "PYTHONPATH": str(desk)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "3\n"
    assert "CourseError: block_table is not written (tasks 3.1, 3.2): stage 3" in done.stderr


def test_there_is_nothing_to_take(desk):
    done = minipaged(desk, "unstick", "3.1", "--yes")
    assert "this copy of the course has no answer to 3.1" in done.stderr
    assert "unstick" not in minipaged(desk, "hint", "3.1", "--more").stdout
    assert "no reference of stage 2" in minipaged(desk, "mutants", "2").stderr


def test_the_overview_asks_for_what_was_not_given(desk):
    shown = minipaged(desk, "grade").stdout
    assert re.search(r"  0   Sizing the KV cache +given\n", shown)
    assert re.search(r"  2   The block allocator +0 of 36 +not graded yet\n", shown)
    assert "Next: task 1.1, " in shown
    total = sum(unit.points for unit in load_course(desk).units[1:])
    assert f"0 of {total} points" in shown


def test_of_a_trace_that_is_handed_in_it_says_what_can_be_said(desk):
    file = desk / "exercises/stage02_block_allocator/counterexample.toml"
    before = file.read_text(encoding="utf-8")
    try:
        for trace, said in (
            ('["pool.allocate("]', "operation 1, `pool.allocate(`, is not Python"),
            ('["pool.allocate()"]', "It can be run: hand it in."),
        ):
            file.write_text(f"trace = {trace}\n", encoding="utf-8")
            shown = minipaged(desk, "grade", "2").stdout
            assert "graded by your instructor" in shown
            assert said in shown
    finally:
        file.write_text(before, encoding="utf-8")
    assert (
        "this copy of the course has no solutions"
        in minipaged(desk, "grade", "2", "--impl", "solutions").stderr
    )


def test_stages_stand_on_the_students_own_files(desk):
    """Stage 4 needs block tables for some of its checks: these wait, the others count."""
    report = desk / "scores.json"
    done = minipaged(desk, "grade", "2", "4", "--seed", "0", "--json", str(report))
    assert done.returncode == 1
    assert "36 of 36 points" in done.stdout
    assert "Counterexample  4 points, graded by your instructor" in done.stdout
    assert "This copy has no reference of stages 1, 2, 3: your own files" in done.stdout
    lines = [line for line in done.stdout.splitlines() if "parent and child grow" in line]
    assert "waits for your task 3.2" in lines[0]
    assert "✓ the last holder writes in place" in done.stdout
    assert "write  exercises/stage03_block_table/block_table.py" in done.stdout
    scores = {row["name"]: row for row in json.loads(report.read_text())["tests"]}
    assert scores["4.2 Make writable: the last holder writes in place"]["status"] == "passed"


def test_its_own_tests_pass(closed):
    """Those of what is given, of the copy itself; what is closed is skipped. And ruff."""
    tests = ["tests/test_this_copy.py", "tests/stage00_sizing", "tests/stage02_block_allocator"]
    environment = {**os.environ, "PYTHONPATH": str(closed), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-pno:cacheprovider", *tests],
        cwd=closed,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    dots = [line for line in done.stdout.splitlines() if "%]" in line]
    assert "s" in dots[0]
    for arguments in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--no-cache", "."]
        found = subprocess.run(command, cwd=closed, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout


def test_its_makefile_has_what_works_there(closed):
    text = (closed / "Makefile").read_text()
    for target in ("book", "pictures", "mutants", "check-generated"):
        assert f"\n{target}:" not in text
        assert f" {target}" not in next(
            line for line in text.splitlines() if line.startswith(".PHONY: help")
        )
    for target in ("setup", "grade", "test", "lint"):
        assert f"\n{target}:" in text
    listed = subprocess.run(
        ["make", "help"], cwd=closed, capture_output=True, text=True, check=True
    ).stdout
    assert "make grade" in listed
    assert ".ci/run" not in (closed / ".github/workflows/test.yml").read_text()
