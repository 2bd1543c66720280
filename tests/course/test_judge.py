"""The judge is judged: what it says to an honest student, and what a dishonest one gets."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import attacks
import numpy as np
import psutil
import pytest
from judge_course import GOOD, GOOD_TABLE, handed_in, make_course

import minipaged
from minipaged.course.judge import linux
from minipaged.course.judge.lab import Lab
from minipaged.course.judge.libraries import Libraries
from minipaged.course.judge.limits import Limits
from minipaged.course.judge.parent import WarmParent
from minipaged.course.judge.pen import Ended, Grounds, Pen
from minipaged.course.judge.plugin import generator
from minipaged.course.judge.proxy import Client
from minipaged.course.judge.run import judge, judge_many, judge_rounds
from minipaged.course.judge.wire import Channel, Closed, WireError, decode, encode
from minipaged.course.skeleton import exercise_text
from minipaged.course.submission import read_submission, submission_in_memory
from minipaged.errors import CourseError

#: Short, so that what never ends does so soon.
LIMITS = Limits(
    cpu_seconds=1,
    call_seconds=2,
    memory=128 << 20,
    disk=4 << 20,
    processes=16,
    output=4 << 10,
    answer=1 << 20,
    tick=0.05,
)
ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")

#: Whom submissions run as: nobody, as in an instructor's container, or ourselves.
USERS = ["auto", None] if ROOT else [None]

CHECKS_2 = [
    "hands_out_every_block_once",
    "is_free_after_its_last_holder",
    "a_double_free_is_an_error",
]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return make_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def stage(course):
    return course.stage("2")


def source(course, text):
    return f"ROOT = {str(course.root)!r}\n{text}" if "ROOT" in text else text


def one(course, text, **options):
    """What the judge says of one text."""
    options = {"limits": LIMITS, **options}
    return judge(course, course.stage("2"), handed_in(course, source(course, text)), **options)


def statuses(judged):
    return {name: result.status for name, result in judged.checks.items()}


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def passed(judged):
    return [name for name, status in statuses(judged).items() if status == "passed"]


# --------------------------------------------------------------------------- honest submissions
def test_a_right_answer_of_another_design_the_reference_and_the_solutions_pass(course, stage):
    submissions = [read_submission(course, stage, name) for name in ("ref", "solutions")]
    for judged in judge_many(course, stage, [handed_in(course, GOOD), *submissions]):
        assert statuses(judged) == dict.fromkeys(CHECKS_2, "passed")
        assert judged.note == ""


def test_parts_of_other_stages_are_the_reference(course):
    stage = course.stage("3")
    good = submission_in_memory(course, stage, {"block_table": GOOD_TABLE}, "somebody")
    judged = judge(course, stage, good)
    assert statuses(judged) == {
        "a_token_lives_in_its_block": "passed",
        "has_no_test": "not run",
    }
    assert judged.checks["has_no_test"].message == "no test of the grader has this name"


def test_only_the_wanted_checks_run_whatever_a_users_shell_says(course, stage, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only -k nothing")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    judged = judge(course, stage, handed_in(course, GOOD), checks=[CHECKS_2[1]])
    assert statuses(judged) == {CHECKS_2[1]: "passed"}


def test_an_unknown_check_is_an_error_that_lists_them(course, stage):
    with pytest.raises(CourseError, match=r"no check 'other'.*hands_out_every_block_once"):
        judge(course, stage, handed_in(course, GOOD), checks=["other"])


def test_an_unknown_user_is_an_error(course, stage):
    with pytest.raises(CourseError, match="nobody-of-this-name"):
        judge(course, stage, handed_in(course, GOOD), user="nobody-of-this-name")


def test_a_second_round_runs_what_passed_the_first(course, stage):
    half = GOOD.replace("raise DoubleFree", "raise ValueError")
    first, second = judge_rounds(course, stage, handed_in(course, half), seeds=[0, 7])
    assert passed(first) == CHECKS_2[:2]
    assert (first.seed, second.seed) == (0, 7)
    assert statuses(second) == dict.fromkeys(CHECKS_2[:2], "passed")


# --------------------------------------------------------------------------- what is said
SAID = {
    "skeleton": None,
    "library": (
        "import bisect, collections, dataclasses, enum, functools, heapq, itertools, math, random\n"
        "import typing\n@dataclasses.dataclass\nclass Block:\n    refs: int = 0\n" + GOOD
    ),
    "wrong value": GOOD.replace("return False", "return None"),
    "wrong message": GOOD.replace("no block of", "nothing of").replace("{self.num_blocks}", ""),
    "wrong state": GOOD.replace("return blocks[::-1]", "return blocks[1:]"),
    "exception": GOOD.replace("block = self._head\n        self", "block = None + 1\n        self"),
    "prints": GOOD.replace("return False", "print('x' * 3000); return None"),
    "odd text": GOOD.replace("return False", "raise ValueError('\\x1b[2J\\ud800\\x00 é 字')"),
}

#: Told alike for each check: one is enough.
TOLD = {
    "undefined": "x = undefined",
    "exits": "import sys\nsys.exit(3)",
    "imports": "import no_such_module",
    "empty": "x = 1",
    "long message": "raise ValueError('x' * 100000)",
    "never ends": attacks.GREEDY["an endless loop"],
    "sleeps": attacks.GREEDY["sleep"],
    "ends": attacks.LEAVING["os._exit"],
    "is killed": attacks.LEAVING["a signal to itself"],
    "exits in a call": attacks.LEAVING["sys.exit"],
    "forges": attacks.LYING["answers written to the channel"],
    "huge answer": attacks.GREEDY["a huge answer"],
    "disk": attacks.GREEDY["disk, many files"],
    "memory": attacks.GREEDY["memory"],
}


@pytest.fixture(scope="module")
def said(course, stage):
    """What the judge says of each of the texts above."""
    texts = {**SAID, "skeleton": exercise_text(course, stage, stage.parts[0])}
    submissions = [handed_in(course, text, name) for name, text in texts.items()]
    return dict(zip(texts, judge_many(course, stage, submissions, limits=LIMITS)))


@pytest.fixture(scope="module")
def told(course, stage):
    submissions = [handed_in(course, text, name) for name, text in TOLD.items()]
    judged = judge_many(course, stage, submissions, checks=CHECKS_2[:1], limits=LIMITS)
    return {name: each.checks[CHECKS_2[0]] for name, each in zip(TOLD, judged)}


def test_a_skeleton_passes_nothing_and_says_which_task_it_is(said):
    assert passed(said["skeleton"]) == []
    first = said["skeleton"].checks[CHECKS_2[0]].message.splitlines()[0]
    assert first.startswith("NotImplementedError: stage 2, task 2.1: see lessons/02-block-")


def test_a_module_that_uses_the_standard_library_loads_as_nobody(said):
    assert passed(said["library"]) == CHECKS_2


def test_a_wrong_value_is_told_with_the_calls_that_led_there(said):
    result = said["wrong value"].checks["is_free_after_its_last_holder"]
    assert result.status == "failed"
    first = result.message.splitlines()[0]
    assert "expected [False," in first
    assert "got [None," in first
    lines = result.transcript.splitlines()
    assert lines[0].startswith("block_allocator = BlockAllocator(")
    assert "block_allocator.free(0)" in lines
    assert lines[-1] == "block_allocator.free(0) -> True"


def test_long_transcripts_show_the_start_and_the_end(said):
    lines = said["wrong message"].checks["hands_out_every_block_once"].transcript.splitlines()
    assert lines[0].startswith("block_allocator = BlockAllocator(")
    assert lines[1].endswith("calls before")
    assert lines[-1] == (
        "block_allocator.allocate() -> OutOfBlocks: nothing of GPU is left: it has "
    )
    assert len(lines) == 14


def test_what_only_reads_the_state_is_not_in_the_transcript(said):
    result = said["wrong state"].checks["is_free_after_its_last_holder"]
    assert result.message.startswith("all are back: expected 'free:{0")
    assert result.transcript.splitlines()[-1] == "block_allocator.free(0) -> True"


def test_an_exception_is_told_by_its_place_and_the_students_own_frames(said):
    line = SAID["exception"].splitlines().index("        block = None + 1") + 1
    message = said["exception"].checks["hands_out_every_block_once"].message
    assert message.splitlines() == [
        "TypeError: unsupported operand type(s) for +: 'NoneType' and 'int' "
        f"(block_allocator.py, line {line}, in allocate)",
        f"    block_allocator.py, line {line}, in allocate",
        "        block = None + 1",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("undefined", "cannot be loaded: NameError: name 'undefined' is not defined"),
        ("exits", "cannot be loaded: SystemExit: 3"),
        ("imports", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("empty", "your block_allocator.py has no BlockAllocator"),
        ("long message", "cannot be loaded: ValueError: xxx"),
        ("never ends", "is there an endless loop?"),
        ("sleeps", "no answer from BlockAllocator() within 2 s: does it wait for something?"),
        ("ends", "your code ended its own process (exit status 0) in BlockAllocator()"),
        ("is killed", "your code ended its own process (SIGKILL)"),
        ("exits in a call", "SystemExit: 0 (block_allocator.py, line"),
        ("forges", "your code wrote to the grader's channel"),
        ("huge answer", "an answer of more than 1 MiB"),
        ("disk", "your code wrote more than 4 MiB to its folder"),
        ("memory", "memory"),
    ],
)
def test_what_went_wrong_is_said_in_plain_words(told, name, words):
    result = told[name]
    assert result.status == "failed"
    assert words.lower() in result.message.lower()
    assert len(result.message) < 8000


def test_what_a_submission_prints_is_kept_up_to_a_limit(said):
    result = said["prints"].checks["is_free_after_its_last_holder"]
    assert result.output.startswith("xxx")
    assert len(result.output) < 5000


def test_text_from_a_submission_cannot_steer_a_terminal(said):
    message = said["odd text"].checks["is_free_after_its_last_holder"].message
    assert message.startswith("ValueError: ?[2J?? é 字 (block_allocator.py")


def test_the_time_for_a_stage_ends(course, stage):
    text = source(course, attacks.GREEDY["sleep"])
    limits = replace(LIMITS, call_seconds=30)
    judged = judge(course, stage, handed_in(course, text), limits=limits, seconds=1)
    assert "the time for the whole stage is up" in judged.checks[CHECKS_2[0]].message
    assert judged.checks[CHECKS_2[1]].status == "not run"
    assert judged.checks[CHECKS_2[1]].message == "not run: the time is up"


# --------------------------------------------------------------------------- dishonest submissions
@pytest.mark.parametrize("user", USERS)
def test_no_attack_passes_a_check_and_the_next_submission_is_still_graded(course, stage, user):
    texts = {**attacks.GREEDY, **attacks.LEAVING, **attacks.LYING, **attacks.COPYING}
    texts |= attacks.MEDDLING
    if user == "auto":
        texts["kills the judge"] = attacks.KILLS_THE_JUDGE
    submissions = [handed_in(course, source(course, text), name) for name, text in texts.items()]
    submissions.append(handed_in(course, GOOD))
    # The others are alike for each check, and some take their time.
    subtle = {*attacks.LYING, *attacks.COPYING, "somebody"}
    checks = [CHECKS_2 if each.name in subtle else CHECKS_2[:1] for each in submissions]
    *attacked, good = judge_many(
        course, stage, submissions, checks_of_each=checks, user=user, limits=LIMITS
    )
    results = [(n, result) for n, j in zip(texts, attacked) for result in j.checks.values()]
    assert len(results) >= 60
    assert {name for name, result in results if result.status != "failed"} == set()
    assert [name for name, r in results if r.message.startswith("SystemError: OPEN")] == []
    assert passed(good) == CHECKS_2
    assert not Path("/var/tmp/minipaged-was-here").exists()


@pytest.mark.parametrize("user", USERS)
def test_no_process_is_left(course, stage, user):
    texts = list(attacks.SPAWNING.values())
    if user == "auto":  # root has no limit of processes, so it may not try
        texts.append(attacks.FORK_BOMB)
    submissions = [handed_in(course, text) for text in [*texts, GOOD]]
    *attacked, good = judge_many(
        course, stage, submissions, checks=CHECKS_2[:1], user=user, limits=LIMITS
    )
    for judged in attacked:
        result = judged.checks[CHECKS_2[0]]
        assert result.status == "failed"
        numbers = [int(word) for word in result.output.split()[:200] if word.isdigit()]
        assert numbers
        assert [pid for pid in numbers if not has_ended(pid)] == []
    assert passed(good) == CHECKS_2[:1]
    assert psutil.Process().children(recursive=True) == []


def test_a_submission_that_kills_the_judge_has_nothing(course, stage):
    judged = one(course, attacks.KILLS_THE_JUDGE, user=None)
    assert set(statuses(judged).values()) == {"not run"}
    assert "ended from outside (signal 9)" in judged.note
    assert psutil.Process().children(recursive=True) == []
    assert passed(judge(course, stage, handed_in(course, GOOD), user=None)) == CHECKS_2


@as_root
def test_another_user_cannot_read_the_tests_whatever_it_does(course):
    path = course.root / "tests" / "stage02_block_allocator"
    text = f"PATH = {str(path / 'test_judged_stage02_block_allocator.py')!r}\n"
    result = one(course, text + attacks.READS_TESTS_IN_C).checks[CHECKS_2[0]]
    assert result.message.startswith("PermissionError: closed")


def test_an_edited_test_makes_the_whole_run_void(tmp_path):
    course = make_course(tmp_path)
    test = tmp_path / "tests" / "stage02_block_allocator" / "test_judged_stage02_block_allocator.py"
    judged = one(course, f"PATH = {str(test)!r}\n" + attacks.EDITS_TESTS_IN_C, user=None)
    assert test.read_text().endswith("# was here\n")
    assert set(statuses(judged).values()) == {"not run"}
    assert "the grader's own files changed" in judged.note


def test_answers_learned_from_the_visible_cases_earn_nothing(course, stage):
    """A submission that holds the answers to seed 0 passes with seed 0, and not with another."""
    script = {
        int(generator(0, stage, f"test_hands_out_every_block_once[{i}]").integers(20, 40)): i
        for i in range(2)
    }
    text = f"""
from minipaged.errors import OutOfBlocks
KNOWN = {script!r}
class BlockAllocator:
    num_free = 0
    def __init__(self, size):
        self.answers = list(range(size)) if size in KNOWN else []
        self.size = size
    def allocate(self):
        if self.answers:
            return self.answers.pop(0)
        raise OutOfBlocks(f"GPU {{self.size}}")
"""
    first, second = judge_rounds(course, stage, handed_in(course, text), seeds=[0, 12345])
    assert first.note == ""
    assert passed(first) == [CHECKS_2[0]]
    assert passed(second) == []


def test_a_check_that_cannot_fail_by_skipping(tmp_path):
    course = make_course(tmp_path)
    test = tmp_path / "tests" / "stage02_block_allocator" / "test_judged_stage02_block_allocator.py"
    test.write_text(
        "import pytest\n"
        "def test_hands_out_every_block_once(parts):\n    pytest.skip('no')\n"
        "@pytest.mark.xfail\n"
        "def test_is_free_after_its_last_holder(parts):\n    assert False\n"
        "def test_a_double_free_is_an_error(parts):\n"
        "    with pytest.raises(Exception):\n        parts.BlockAllocator(3)\n"
    )
    judged = one(course, attacks.LEAVING["os._exit"])
    assert passed(judged) == []
    assert set(statuses(judged).values()) == {"failed"}


def test_tests_that_cannot_be_read_are_said_to_be(tmp_path):
    course = make_course(tmp_path)
    folder = tmp_path / "tests" / "stage02_block_allocator"
    (folder / "test_judged_stage02_block_allocator.py").write_text("import nonsense_module\n")
    judged = one(course, GOOD)
    assert set(statuses(judged).values()) == {"not run"}
    assert "nonsense_module" in judged.checks[CHECKS_2[0]].message


# --------------------------------------------------------------------------- without Linux
@pytest.fixture
def pen_without_linux(course, stage, monkeypatch):
    """A worker whose judge has nothing but the watchdog."""
    monkeypatch.setattr(linux, "HERE", False)
    parent = WarmParent(Libraries.NUMPY)
    parent.prepare({}, ["minipaged.errors"])
    grounds = Grounds(None, replace(LIMITS, call_seconds=20), (), (), ())

    def open_pen(text):
        sources = {"block_allocator": ("block_allocator.py", text)}
        return Client(Pen(parent, grounds, sources, time.monotonic() + 60))

    yield open_pen
    parent.close()
    assert psutil.Process().children(recursive=True) == []


def test_the_watchdog_alone_ends_what_takes_too_much(stage, pen_without_linux):
    client = pen_without_linux(attacks.GREEDY["memory"])
    allocator = client.symbol(stage.parts[0], "BlockAllocator", True)
    with pytest.raises(Ended, match="used more than 128 MiB of memory"):
        allocator(3)
    client.pen.close()


def test_the_watchdog_alone_finds_a_daemon(stage, pen_without_linux):
    client = pen_without_linux(attacks.SPAWNING["a daemon"])
    client.symbol(stage.parts[0], "BlockAllocator", True)(3)
    daemon = int(client.pen.close())
    assert has_ended(daemon)


# --------------------------------------------------------------------------- in one process
def run_in_process(course, impl, *arguments):
    command = [sys.executable, "-m", "pytest", "tests/stage02_block_allocator", "-q"]
    plugin = ["-p", "minipaged.course.judge.plugin", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *plugin, "--impl", impl, *arguments],
        cwd=course.root,
        capture_output=True,
        text=True,
    )


def test_the_same_tests_run_in_one_process(course, stage, tmp_path):
    folder = tmp_path / stage.folder
    folder.mkdir()
    file = folder / "block_allocator.py"
    file.write_text(GOOD)
    done = run_in_process(course, str(tmp_path), "-k", "not nobody")
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    file.write_text(exercise_text(course, stage, stage.parts[0]))
    done = run_in_process(course, str(tmp_path), "-k", "double_free")
    assert done.returncode == 1
    assert "NotImplementedError: stage 2, task 2.1: see lessons" in done.stdout
    assert f"{file}:" in done.stdout or "block_allocator.py:" in done.stdout


def test_the_lab_makes_models_without_torch():
    code = (
        "import sys; from minipaged.course.judge.lab import Lab; "
        "model = Lab().model_config(num_layers=2, num_heads=8, num_kv_heads=2, head_dim=16); "
        "assert (model.hidden_size, model.num_kv_heads) == (128, 2); "
        "other = Lab().model_config(num_layers=2, num_heads=8, num_kv_heads=2, head_dim=16, "
        "hidden_size=96, name='x'); "
        "assert (other.hidden_size, other.name) == (96, 'x'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_lab_makes_groups_without_torch():
    code = (
        "import sys; from minipaged.course.judge.lab import Lab; "
        "group = Lab().sequence_group(prompt=6, computed=[8, 7], first_id=3, n=3); "
        "assert [(s.seq_id, s.num_tokens, s.num_computed) for s in group.live] == "
        "[(3, 9, 8), (4, 8, 7)]; "
        "assert (group.started, group.places(), group.params.n) == (True, 2, 3); "
        "fresh = Lab().sequence_group(prompt=6, n=3, max_tokens=None, expected_output_len=2); "
        "assert (fresh.started, fresh.places(), fresh.live[0].num_tokens) == (False, 3, 6); "
        "kv = Lab().block_tables(4, {3: [7, 2]}); "
        "assert (kv.block_size, kv.block_table(3), kv.block_table(4)) == (4, [7, 2], []); "
        "booked = Lab().reservation(10, 16, 2)(group); "
        "assert (booked.requested_tokens, booked.spare_regions) == (10, 2); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("shared", [False, True])
def test_the_lab_overwrites_what_went_in_and_what_came_out(shared):
    class Keeper:
        def __init__(self):
            self.array = np.zeros(3)

        def swap(self, array, factor):
            old, self.array = self.array, array if shared else array.copy()
            return old if shared else old.copy(), factor

    keeper, given = Keeper(), np.arange(1.0, 4.0)
    Lab().overwrite(keeper, "swap", given, 2)
    assert keeper.array.tolist() == ([0, 0, 0] if shared else [1, 2, 3])
    assert given.tolist() == [1, 2, 3]


# --------------------------------------------------------------------------- the wire
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    10**40,
    -0.0,
    float("inf"),
    float("-inf"),
    0.1,
    "",
    "é 字 \U0001f600 \ud800 \x00\n",
    [],
    [1, [2.5, (3, "x")], {"a": {4: None}}],
    (1,),
    {1, "two", (3, 4)},
    frozenset({1}),
    {(1, 2): [3], "x": {5}},
]


def over_the_wire(value):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        Channel(mine).send({"value": encode(value, refuse)})
        return decode(Channel(theirs).receive(timeout=5)["value"], refuse)


def refuse(value):
    raise WireError(f"a {type(value).__name__} cannot be sent")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_plain_values_arrive_as_they_were(value):
    got = over_the_wire(value)
    assert repr(got) == repr(value) or got == value
    assert type(got) is type(value)


def test_nan_arrives():
    assert repr(over_the_wire([float("nan")])) == "[nan]"


@pytest.mark.parametrize("dtype", ["?", "i4", "i8", "u1", "f2", "f4", "f8", "c8", ">i4"])
def test_arrays_arrive_bit_for_bit_and_can_be_written(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)[:, ::-1]
    got = over_the_wire(array)
    assert got.dtype == array.dtype
    assert got.tobytes() == array.tobytes()
    assert got.shape == array.shape
    got[0] = 0


@pytest.mark.parametrize("shape", [(0,), (), (3, 0, 2)])
def test_odd_shapes_arrive(shape):
    assert over_the_wire(np.ones(shape)).shape == shape


def test_nan_and_infinity_arrive_in_arrays():
    array = np.array([np.nan, -np.inf, -0.0], dtype=np.float32)
    assert over_the_wire(array).tobytes() == array.tobytes()


@pytest.mark.parametrize("scalar", [np.int64(3), np.float32(0.1), np.bool_(True), np.float64(-0.0)])
def test_numpy_scalars_stay_what_they_are(scalar):
    got = over_the_wire(scalar)
    assert type(got) is type(scalar)
    assert got.tobytes() == scalar.tobytes()


def test_containers_of_a_subclass_arrive_plain():
    class Liar(list):
        def __iter__(self):
            return iter([1, 2, 3])

        def __eq__(self, other):
            return True

    got = over_the_wire(Liar([7]))
    assert type(got) is list
    assert got == [7]


class _Int(int):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"x", "bytes cannot be sent"),
        (bytearray(b"x"), "bytearray cannot be sent"),
        ([b"x"], "bytes cannot be sent"),
        (_Int(3), "a _Int cannot be sent"),
        (object(), "a object cannot be sent"),
        ({object()}, "a object in a set or as a key"),
        ({_Int(1): 2}, "a _Int in a set or as a key"),
        (np.array([object()]), "a ndarray cannot be sent"),
        (np.array(["x"]), "a ndarray cannot be sent"),
        (10**5000, "digits"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_refused_in_words(value, words):
    with pytest.raises(WireError, match=words):
        over_the_wire(value)


def test_a_list_in_itself_is_refused():
    value: list = []
    value.append(value)
    with pytest.raises(WireError, match="nested deeper than"):
        encode(value, refuse)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"f": "x"},
        {"f": None},
        {"q": 1},
        {"l": 3},
        {"l": [], "t": []},
        {"s": [{"l": []}]},
        {"d": [[1]]},
        {"a": ["|O", [1], "AAAAAAAAAAA="]},
        {"a": ["<f4", [1000, 1000], ""]},
        {"a": ["<f4", [-1], "AAAA"]},
        {"a": ["V8", [1], "AAAAAAAAAAA="]},
        {"g": ["<f4", "!!"]},
        2.5,
        [1],
    ],
    ids=repr,
)
def test_a_forged_message_is_no_value(message):
    with pytest.raises(WireError):
        decode(message, refuse)


@pytest.mark.parametrize("line", [b"x\n", b"[1]\n", b"[" * 100000 + b"\n", b"\xff\n", b"1e9\n"])
def test_a_line_that_is_no_message_is_refused(line):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.sendall(line)
        with pytest.raises(WireError):
            Channel(theirs).receive(timeout=1)


def test_a_line_without_end_is_refused_and_a_closed_channel_said():
    mine, theirs = socket.socketpair()
    with mine, theirs:
        channel = Channel(theirs, longest=1000)
        assert channel.receive(timeout=0) is None
        mine.sendall(b"x" * 2000)
        with pytest.raises(WireError, match="more than"):
            channel.receive(timeout=1)
        mine.close()
        with pytest.raises(Closed):
            Channel(theirs).receive(timeout=1)


def test_another_checkout_in_the_same_environment_has_its_own_judge(tmp_path):
    """The environment's package is this checkout's; the process is started by the other one's."""
    package = Path(minipaged.__file__).parent
    shutil.copytree(package, tmp_path / "minipaged", ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "import subprocess, sys; from minipaged.course.judge.isolated import command; "
        "sys.exit(subprocess.call(command('inspect', 'minipaged', '--details')))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path.parent,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"Origin: {tmp_path}/minipaged/__init__.py" in told.stdout
