"""What the course's machinery does with kernels: from the skeleton to the points."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from datetime import date

import pytest
from degenerate_bodies import BODIES, with_bodies
from kernel_course import PARTS, changed, make_course
from rich.console import Console

from minipaged.course import grade, student_parts
from minipaged.course.catalog import load_course
from minipaged.course.contract import differences
from minipaged.course.device import has_cuda_device, triton_environment
from minipaged.course.grade import grade_stage
from minipaged.course.judge import libraries
from minipaged.course.judge.libraries import Libraries
from minipaged.course.judge.parent import WarmParent
from minipaged.course.judge.results import CheckResult, Judged
from minipaged.course.judge.run import judge_many
from minipaged.course.mutants import reference_source
from minipaged.course.progress import last_scores, record_score
from minipaged.course.release import release_contents
from minipaged.course.reports import gradescope, junit
from minipaged.course.score_card import show_progress, show_stage, show_total, show_void
from minipaged.course.scores import score
from minipaged.course.skeleton import exercise_text
from minipaged.course.source_module import run_as_module
from minipaged.course.student_parts import load_parts
from minipaged.course.submission import submission_in_memory
from minipaged.course.sync import write_exercises
from minipaged.course.transplant import transplant
from minipaged.course.unstick import unstick
from minipaged.errors import CourseError

triton = pytest.importorskip("triton", reason="Triton is for Linux alone")

WRITE, DECODE = "each_token_is_in_its_slot", "a_query_sees_its_context"
CODE = "the_machine_code_keeps_its_numbers_in_registers"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return make_course(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def stage(course):
    return course.stage("7")


# --------------------------------------------------------------------------- the judge
@pytest.fixture(scope="module")
def verdicts(course, stage):
    """What the judge says of kernels that are right, or fail in different ways; one judge for all
    of them."""
    skeletons = {p.name: exercise_text(course, stage, p) for p in stage.parts}
    wild = (
        "    check_write(k, v, k_cache, v_cache, slot_mapping)\n",
        "    import ctypes\n    ctypes.string_at(1 << 40, 8)\n",
    )
    cases = {
        "reference": ([check.name for check in stage.checks()], changed(course)),
        "far": (
            [WRITE],
            changed(
                course,
                cache_write=("block * block_stride + place", "block * block_stride * 99 + place"),
            ),
        ),
        "wild": ([WRITE, DECODE], changed(course, cache_write=wild)),
        "no such name": (
            [DECODE, CODE],
            changed(
                course,
                paged_decode_v0=("query = query.to(tl.float32)", "query = nobody.to(tl.float32)"),
            ),
        ),
        "one warp": ([CODE], changed(course, paged_decode_v0=("num_warps=4", "num_warps=1"))),
        "wrong head": (
            [WRITE, DECODE],
            changed(course, paged_decode_v0=("(head // GROUP)", "(head % GROUP)")),
        ),
        "stubs": (
            [WRITE, DECODE],
            submission_in_memory(course, stage, skeletons, "skeletons"),
        ),
    }
    for name, body in BODIES.items():
        sources = {
            task.part: with_bodies(reference_source(course, stage, task.part), task.symbols, body)
            for task in stage.tasks
        }
        cases[name] = [WRITE, DECODE], submission_in_memory(course, stage, sources, name)
    checks = [wanted for wanted, _ in cases.values()]
    submissions = [submission for _, submission in cases.values()]
    found = judge_many(course, stage, submissions, checks_of_each=checks)
    return {name: judged.checks for name, judged in zip(cases, found, strict=True)}


def test_the_reference_passes(verdicts):
    assert {result.status for result in verdicts["reference"].values()} == {"passed"}
    assert len(verdicts["reference"]) == 4


def test_an_address_out_of_bounds_is_told_with_its_tensor_and_line(verdicts):
    result = verdicts["far"][WRITE]
    first, *rest = result.message.splitlines()
    assert first.startswith("OutOfBounds: out of bounds: store of k_cache [5, 2, 3, 12] at offset")
    assert "program (0, 0, 0) of cache_write_kernel" in first
    assert rest[-1].strip() == "tl.store(k_cache + target, key, mask=inside)"
    assert result.transcript.startswith("cache_write(tensor[7, 2, 12] float32, ")


def test_a_wild_pointer_ends_its_test_alone(verdicts):
    """Whoever gets around the check of addresses ends a worker, and no more."""
    assert verdicts["wild"][WRITE].message.startswith(
        "your code read or wrote memory that is not its own, in cache_write(), and the system "
        "ended its process (SIGSEGV)"
    )
    assert verdicts["wild"][DECODE].status == "passed"


def test_an_error_in_a_kernel_is_told_with_its_line(verdicts):
    """In the interpreter and in the compiler, without what Triton wraps it into."""
    first, *rest = verdicts["no such name"][DECODE].message.splitlines()
    assert first.startswith("NameError: name 'nobody' is not defined (paged_decode_v0.py, line ")
    assert rest[-1].strip().startswith("query = nobody.to(tl.float32)")
    first, line, caret = verdicts["no such name"][CODE].message.splitlines()[:3]
    assert first.startswith("CompilationError: NameError('nobody is not defined')")
    assert line.strip().startswith("query = nobody.to(tl.float32)")
    assert caret.strip() == "^"


def test_the_audit_says_what_the_machine_code_falls_short_of(verdicts):
    """What is asked of it comes from course.toml."""
    assert "warps fit on a multiprocessor of sm_80, at least 32 are asked" in (
        verdicts["one warp"][CODE].message
    )


def test_a_mutant_of_a_kernel_is_rejected(verdicts):
    assert verdicts["wrong head"][WRITE].status == "passed"
    assert verdicts["wrong head"][DECODE].message.endswith("expected True, got False")


def test_a_stub_is_told_as_one(verdicts):
    sentence = "AssertionError: stage 7, task 7.{}: see lessons/07-kernel.md"
    assert verdicts["stubs"][WRITE].message.startswith(sentence.format(1))
    assert verdicts["stubs"][DECODE].message.startswith(sentence.format(2))


@pytest.mark.parametrize("body", BODIES)
def test_degenerate_kernels_earn_nothing(verdicts, body):
    assert {result.status for result in verdicts[body].values()} == {"failed"}


def test_the_interpreter_is_tested_before_it_grades():
    """A warm parent whose self-test gives wrong sums refuses to work."""
    wrong = "import numpy as np\ndef run(device):\n    return np.zeros(3), np.array([0.0, 1, 2])\n"
    parent = WarmParent(Libraries.INTERPRETER)
    try:
        with pytest.raises(CourseError, match=r"2 of 3 sums of the self-test, row 1 is 0 and"):
            parent.prepare({"minipaged.kernels.self_test": wrong}, [])
    finally:
        parent.close()


# --------------------------------------------------------------------------- without Triton
def test_without_triton_a_stage_says_what_it_needs(course, stage, monkeypatch):
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    result = grade_stage(course, stage, changed(course))
    told = shown(show_void, result)
    assert "stage 7 needs Triton, which there is for Linux alone" in told
    assert result.points == 0
    assert libraries.missing_triton(load_course().stage("3")) == ""


def test_a_part_that_is_asked_for_by_name_needs_triton(course, monkeypatch):
    monkeypatch.setattr(student_parts, "missing_triton", lambda stage: "it needs Linux")
    with pytest.raises(CourseError, match="it needs Linux"):
        load_parts("cache_write=mine", course.root)
    assert load_parts("mine", course.root).files == ()


# --------------------------------------------------------------------------- the files
def test_what_unstick_copies_is_the_answer(course, stage):
    for task in stage.tasks:
        part = stage.part(task.part)
        done = unstick(course, stage, task, exercise_text(course, stage, part))
        file = submission_in_memory(course, stage, {part.name: done.text}, "stuck").files[part.name]
        assert file.written
        assert file.taken == {task.id}


def test_a_kernel_is_carried_into_a_new_skeleton(course, stage):
    for part in stage.parts:
        base, mine = exercise_text(course, stage, part), reference_source(course, stage, part.name)
        moved = transplant(base.replace("Program ``", "Each program ``"), mine, base)
        assert moved.carried == (f"{part.name}_kernel",)
        assert moved.conflicts == ()
        assert "Each program ``" in moved.text
        assert "static_assert" not in moved.text


def test_a_changed_signature_of_a_kernel_is_seen(course, stage):
    source = reference_source(course, stage, "cache_write")
    others = (
        source.replace("    block_stride,\n    head_stride,\n", "    head_stride,\n", 1),
        source.replace("def cache_write_kernel(\n    k,", "def cache_write_kernel(\n    key,", 1),
    )
    reference = run_as_module("kernel_reference", "/reference.py", source)
    assert differences(reference, reference) == []
    for number, other in enumerate(others):
        module = run_as_module("kernel_reference", f"/other{number}.py", other)
        want, got = differences(reference, module)
        assert want.startswith("  the engine's  @triton.jit cache_write_kernel(k, v, k_cache")
        assert got.startswith("  yours         @triton.jit cache_write_kernel(")


def test_a_copy_for_a_class_has_no_kernel_in_it(tmp_path):
    """The references lie behind a link, and git knows them by their own names."""
    root = tmp_path / "course"
    root.mkdir()
    course = make_course(root)
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", "-C", str(root), *command], check=True, capture_output=True)
    contents = release_contents(course, given=())
    for name in PARTS:
        assert b"tl.static_assert(False" in contents[f"kernels/{name}.py"]
        assert f"minipaged/kernels/{name}.py" not in contents


# --------------------------------------------------------------------------- in the engine
def test_a_stages_name_stands_for_its_parts(course, stage, tmp_path):
    write_exercises(course)
    file = course.root / "exercises" / stage.folder / "paged_decode_v0.py"
    try:
        with pytest.raises(CourseError, match="none of its parts is written: cache_write, paged"):
            load_parts("kernel=mine", course.root)
        file.write_text(reference_source(course, stage, "paged_decode_v0"))
        parts = load_parts("kernel=mine", course.root)
        assert [used.path for used in parts.files] == [file]
        assert parts.spec == "kernel=mine"
        assert any("cache_write (task 7.1)" in note for note in parts.notes)
        assert parts.decode_kernel == "paged_decode_v0"
        others = load_parts("kernel=mine,cache_write=ref", course.root)
        assert [used.path for used in others.files] == [file]
        assert not any("cache_write" in note for note in others.notes)
    finally:
        file.write_text(exercise_text(course, stage, stage.part("paged_decode_v0")))


def test_a_stub_of_a_kernel_is_told_as_one(course, stage):
    text = exercise_text(course, stage, stage.part("cache_write"))
    module = run_as_module("stubbed_cache_write", "/stub/cache_write.py", text)
    import torch

    k, cache = torch.zeros(1, 1, 4), torch.zeros(1, 1, 2, 4)
    with (
        pytest.raises(CourseError, match=r"not written is needed: stage 7, task 7.1: see lessons"),
        student_parts.explained(load_parts("ref", course.root)),
    ):
        module.cache_write(k, k, cache, cache.clone(), torch.zeros(1, dtype=torch.int64))


# --------------------------------------------------------------------------- in one process
def test_plain_pytest_runs_the_same_checks(course, stage):
    """And skips those that take a GPU, where there is none."""
    command = [sys.executable, "-m", "pytest", f"tests/{stage.folder}", "-q", "-rs", "--impl=ref"]
    options = ["-pno:cacheprovider", "-pminipaged.course.judge.plugin"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*command, *options], cwd=course.root, env=environment, capture_output=True, text=True
    )
    assert "5 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "needs a GPU" in done.stdout


# --------------------------------------------------------------------------- points on a GPU
def shown(show, *args):
    file = io.StringIO()
    show(Console(file=file, width=100, highlight=False, markup=False, emoji=False), *args)
    return file.getvalue()


def graded(stage, submission, on_device=None):
    checks = {check.name: CheckResult(check.name, "passed") for check in stage.checks()}
    rounds = [Judged(stage.number, 0, checks)]
    return score(stage, submission, rounds, trace_started=False, on_device=on_device)


@pytest.fixture
def on_device(stage):
    agrees, busy = (check.name for check in stage.gpu)
    results = {
        agrees: CheckResult(agrees, "passed"),
        busy: CheckResult(busy, "failed", "expected 0.5 or more of the bandwidth, got 0.1"),
    }
    return Judged(stage.number, 0, results)


def test_gpu_points_are_pending_without_a_gpu(course, stage):
    result = graded(stage, changed(course))
    assert (result.points, result.total, result.whole) == (13, 13, True)
    card = shown(show_stage, result)
    assert "13 of 13 points  GPU: 5 pending" in card.splitlines()[0]
    assert "· the card agrees  pending" in card
    assert "GPU: 10 pending" in shown(show_total, [result, result])
    report = gradescope([result])
    assert report["score"] == sum(test["max_score"] for test in report["tests"]) == 13
    assert report["extra_data"]["gpu"][0]["pending"] == 5
    assert "GPU: 5 pending" in report["output"]
    assert '<skipped message="pending"' in junit([result])


def test_gpu_points_stand_beside_the_others_where_there_is_one(course, stage, on_device, tmp_path):
    result = graded(stage, changed(course), on_device)
    assert (result.points, result.total, result.whole) == (13, 13, True)
    card = shown(show_stage, result)
    assert "13 of 13 points  GPU: 3 of 5" in card.splitlines()[0]
    assert "in a plain process of your own" in card
    assert "✓ the card agrees" in card
    assert "✗ the card is busy" in card
    assert "expected 0.5 or more of the bandwidth" in card
    apart = gradescope([result])["extra_data"]["gpu"][0]
    assert (apart["points"], apart["pending"], apart["max_points"]) == (3, 0, 5)

    record_score(tmp_path, result, date(2026, 1, 2))
    assert "GPU: 3 of 5" in shown(show_progress, course, last_scores(tmp_path))
    record_score(tmp_path, graded(stage, changed(course)), date(2026, 1, 3))
    assert last_scores(tmp_path)["07"].gpu == 3  # a machine without a GPU takes nothing away
    assert "GPU: 5 pending" in shown(show_progress, course, {})


def test_only_ones_own_files_run_on_a_gpu(course, stage, monkeypatch):
    monkeypatch.setattr(grade, "has_cuda_device", lambda: True)
    assert grade._on_device(course, stage, "mine", 0) is not None
    assert grade._on_device(course, stage, "/somebody/elses", 0) is None
    monkeypatch.setattr(grade, "has_cuda_device", lambda: False)
    assert grade._on_device(course, stage, "mine", 0) is None


def test_gpu_checks_run_when_a_stage_is_graded(course, stage, on_device):
    asked = []

    def run_on_device():
        asked.append(stage.key)
        return on_device

    def run_judge(course, stage, submission, *, seeds, checks, user):
        results = {name: CheckResult(name, "passed") for name in checks}
        return [Judged(stage.number, seed, results) for seed in seeds]

    options = {"run_judge": run_judge, "run_on_device": run_on_device}
    assert grade_stage(course, stage, changed(course), **options).gpu_earned == 3
    grade_stage(course, stage, changed(course), only=[WRITE], **options)
    assert asked == ["7"], "not when some checks alone are asked for"


def test_a_device_is_what_the_driver_shows(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidiactl").touch()
    assert not has_cuda_device(tmp_path)
    (tmp_path / "nvidia3").touch()
    assert has_cuda_device(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not has_cuda_device(tmp_path)
    assert triton_environment({}) == {"TRITON_INTERPRET": "1"}
    assert triton_environment({"TRITON_INTERPRET": "0"}) == {}
