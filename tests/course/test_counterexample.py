"""Traces: what is refused, what is no counterexample, and what earns the points."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import replace

import pytest

from minipaged.course.catalog import Counterexample, load_course
from minipaged.course.counterexample import is_started, judge_trace, read_trace
from minipaged.course.skeleton import counterexample_text
from minipaged.course.submission import read_submission, trace_path
from minipaged.errors import CourseError

COURSE = load_course()
ASKED = Counterexample(
    mutant="share_marks_instead_of_counting",
    claim="It is enough to mark a block as shared.",
    points=4,
    names={"pool": "BlockAllocator(4)"},
    observe=("pool.num_free", "state_of(pool)"),
    max_operations=6,
    question="",
    pointer="",
)
STAGE = replace(COURSE.stage("2"), counterexample=ASKED)
GOOD = ["a = pool.allocate()", "pool.share(a)", "pool.share(a)", "pool.free(a)"]


@pytest.fixture
def judged(tmp_path):
    def judge(text, stage=STAGE):
        path = tmp_path / "counterexample.toml"
        path.write_text(text if isinstance(text, str) else f"trace = {text}", encoding="utf-8")
        return judge_trace(COURSE, stage, path)

    return judge


def test_the_first_difference_is_told(judged):
    verdict = judged(GOOD)
    assert verdict.message == ""
    assert verdict.found == (
        "after operation 3, `pool.share(a)`: state_of(pool) gives free:{1 2 3} refs{0:3}, and "
        "free:{1 2 3} refs{0:2} where the claim is believed"
    )


def test_an_answer_that_differs_is_a_difference_before_any_state_is_looked_at(judged):
    stage = replace(STAGE, counterexample=replace(ASKED, observe=()))
    assert judged([*GOOD, "pool.free(a)"], stage).found == (
        "after operation 5, `pool.free(a)`: the call gives False, and True where the claim is "
        "believed"
    )


def test_an_error_on_one_side_is_a_difference(judged):
    stage = replace(STAGE, counterexample=replace(ASKED, observe=(), max_operations=7))
    freed = ["pool.free_many([a, a])", "pool.ref_count(a)"]
    assert "1, and 0 where the claim is believed" in judged([*GOOD[:3], *freed], stage).found


def test_no_difference_is_told_with_the_state(judged):
    message = judged(GOOD[:2]).message
    assert message == (
        "the trace shows no difference: after all 2 operations a right implementation and one "
        "that believes the claim agree: the last call gives None, pool.num_free is 3, "
        "state_of(pool) is free:{1 2 3} refs{0:2}.\nThe claim: It is enough to mark a block as "
        "shared."
    )


def test_the_claim_is_told_in_one_line_whatever_is_observed(judged):
    stage = replace(STAGE, counterexample=replace(ASKED, observe=(), claim="It is\nenough."))
    message = judged(GOOD[:1], stage).message
    assert message.endswith("agree: the last call gives 0.\nThe claim: It is enough.")


def test_graded_tests_speak_to_students_and_never_by_a_bare_assertion():
    tests = [path for stage in COURSE.stages
             for path in (COURSE.root / "tests" / stage.folder).glob("*.py")]  # fmt: skip
    assert tests
    for path in tests:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bare = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        assert not bare, f"{path.name}, lines {bare}: pytest would show the expression"


def test_what_both_sides_refuse_is_no_difference(judged):
    message = judged(["pool.free(0)", "pool.allocate_many(5)"]).message
    assert "no difference" in message
    assert "the last call gives OutOfBlocks" in message


def test_errors_of_the_reference_leave_no_value(judged):
    message = judged(["a = pool.allocate_many(9)", "pool.free_many(a)"]).message
    assert "operation 2" in message
    assert "'a' has no value" in message
    assert "OutOfBlocks" in message


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ("pool.num_free", ["is no call", "a = pool.method()"]),
        ("a = 3", ["is no call"]),
        ("import os", ["is no call"]),
        ("pool.allocate(); pool.allocate()", ["is no call"]),
        ("while True: pool.allocate()", ["is no call"]),
        ("a = pool.allocate(", ["is not Python"]),
        ("\0", ["is not Python"]),
        ("(" * 400 + ")" * 400, ["is not Python"]),
        ("", ["is no call"]),
        ("open('x')", ["only methods of pool"]),
        ("pool.allocate.__call__()", ["only methods of pool"]),
        ("[pool][0].allocate()", ["only methods of pool"]),
        ("os.system(1)", ["no 'os'", "pool"]),
        ("pool._free.append(1)", ["only methods of pool"]),
        ("pool._held(1)", ["'_held' is private"]),
        ("pool.__init__(9)", ["private"]),
        ("pool.free(b)", ["no earlier operation", "'b'"]),
        ("pool.free(1.5)", ["whole number"]),
        ("pool.free(True)", ["no number"]),
        ("pool.free('a')", ["whole number"]),
        ("pool.free(1 + 1)", ["whole number"]),
        ("pool.free(pool.allocate())", ["earlier result"]),
        ("pool.free(*[1])", ["whole number"]),
        ("pool.free(**{})", ["not allowed"]),
        ("pool.allocate_many(100000)", ["more than 1000"]),
        ("pool.allocate_many(-100000)", ["more than 1000"]),
        ("a = b = pool.allocate()", ["one name"]),
        ("pool.name = pool.allocate()", ["one name"]),
        ("pool = pool.allocate()", ["another name"]),
        ("__builtins__ = pool.allocate()", ["another name"]),
        ("pool.free()", ["cannot be called like this", "argument"]),
        ("pool.fre(1)", ["cannot be called like this", "fre"]),
    ],
)
def test_operations_that_are_refused(judged, operation, words):
    escaped = operation.replace("\0", "\\u0000").replace("'", '\\"')
    message = judged(f'trace = ["{escaped}"]').message
    assert message.startswith("operation 1")
    for word in words:
        assert word.replace("'", '"') in message.replace("'", '"')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trace = [", ["not TOML", "counterexample.toml"]),
        ("", ["list of strings"]),
        ("trace = 'pool.allocate()'", ["list of strings"]),
        ("trace = [1]", ["list of strings"]),
        ("trace = []", ["empty"]),
        (f"trace = {['pool.allocate()'] * 7}", ["7 operations", "at most 6"]),
    ],
)
def test_files_that_are_refused(judged, text, words):
    message = judged(text).message
    for word in words:
        assert word in message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(CourseError, match="minipaged sync"):
        read_trace(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(CourseError, match="UTF-8"):
        read_trace(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("text", "started"),
    [(None, False), ("trace = []", False), ("# only\ntrace = [ ]\n", False),
     ("trace = ['pool.allocate()']", True), ("trace = [", True), ("trace = 1", True)],
)  # fmt: skip
def test_a_trace_is_started_once_something_is_written(tmp_path, text, started):
    path = tmp_path / "counterexample.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert is_started(path) is started


def test_results_and_numbers_may_be_arguments_in_lists_and_by_name(judged):
    trace = [*GOOD[:1], "more = pool.allocate_many(count=2)", "pool.free_many([a, -1])"]
    assert "no difference" in judged(trace).message


# --------------------------------------------------------------------------- functions
def functions_of(key, **changes):
    stage = COURSE.stage(key)
    return replace(stage, counterexample=replace(stage.counterexample, **changes))


def test_functions_of_a_part_can_be_called(judged):
    stage = functions_of("0")
    found = judged(["a = blocks_for_tokens(1, 2)", "sequences_that_fit(a, 1, 2)"], stage).found
    assert "`sequences_that_fit(a, 1, 2)`: the call gives 1, and 2 where" in found
    assert "no difference" in judged(["sequences_that_fit(num_blocks=9, 4, 4)".replace(
        "4, 4", "num_tokens=4, block_size=4")], stage).message  # fmt: skip


def test_the_skeleton_says_what_can_be_called():
    text = counterexample_text(COURSE.stage("0"))
    assert tomllib.loads(text) == {"trace": []}
    assert "at the start" not in text
    assert "    functions     sequences_that_fit\n" in text
    assert 'trace = ["x = sequences_that_fit(…)"]' in text
    both = counterexample_text(functions_of("4", functions=("fork",)))
    for words in (
        "pool = BlockAllocator(6)",
        "functions     fork",
        "method or one of the functions",
    ):
        assert words in both


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ("kv_growth([1], [1], 1, 1, 9)", "only sequences_that_fit or blocks_for_tokens can be"),
        ("sequences_that_fit.__call__(1, 1, 2)", "no 'sequences_that_fit' here"),
        ("blocks_for_tokens = blocks_for_tokens(1, 2)", "try another name"),
        ("sequences_that_fit(-1, 1, 2)", "not negative"),
        ("sequences_that_fit([1, -1], 1, 2)", "not negative"),
        ("sequences_that_fit(1, 1, 0)", "cannot be called like this"),
        ("sequences_that_fit(1, 0, 2)", "cannot be called like this"),
        ("sequences_that_fit(1)", "cannot be called like this"),
        ("sequences_that_fit(1, 1, b)", "no earlier operation gives 'b'"),
        ("1", "as `a = sequences_that_fit()`"),
    ],
)
def test_calls_of_functions_that_are_refused(judged, operation, words):
    message = judged([operation], functions_of("0")).message
    assert message.startswith("operation 1")
    assert words in message


def test_objects_are_arguments_and_results_have_methods(judged):
    stage = functions_of(
        "4",
        mutant="a_fork_takes_no_reference",
        functions=("fork",),
        observe=("pool.num_free",),
        max_operations=4,
    )
    trace = ["a.append(4)", "b = fork(a)", "b.free()"]
    assert "pool.num_free" in judged(trace, stage).found
    message = judged(["a.append(4)", "b = fork(a)", "b._blocks()"], stage).message
    assert "'_blocks' is private" in message
    message = judged(["b = a.append(99)", "b.free()"], stage).message
    assert "'b' has no value" in message


def test_a_stage_without_one_says_so(tmp_path):
    with pytest.raises(CourseError, match="asks for no counterexample"):
        judge_trace(COURSE, replace(STAGE, counterexample=None), tmp_path / "x.toml")


STAGES = [stage.key for stage in COURSE.stages if stage.counterexample]


@pytest.mark.parametrize("key", STAGES)
def test_the_solutions_trace_earns_the_points(key):
    stage = COURSE.stage(key)
    trace = trace_path(COURSE, read_submission(COURSE, stage, "solutions"))
    verdict = judge_trace(COURSE, stage, trace)
    assert verdict.message == ""
    assert verdict.found


@pytest.mark.parametrize("key", STAGES)
def test_one_operation_alone_shows_nothing(judged, key):
    stage = COURSE.stage(key)
    for name in stage.counterexample.names:
        for call in ("allocate()", "append(1)", "append(4)", "free()"):
            assert judged([f"{name}.{call}"], stage).message
