"""A student's parts in the real engine: what is taken, what is refused, and what is said."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import pickle
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from minipaged.cli import main
from minipaged.config import SchedulerConfig
from minipaged.course import load_parts
from minipaged.course.catalog import load_course
from minipaged.course.progress import digest_of
from minipaged.course.skeleton import exercise_text
from minipaged.course.student_parts import StudentParts
from minipaged.course.submission import read_submission
from minipaged.errors import CourseError, OutOfBlocks
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]
COURSE = load_course(ROOT)
OPT = ["--model", "opt-stories", "--device", "cpu", "--num-gpu-blocks", "64"]
PROMPT = "Once upon a time"

HEAP_ALLOCATOR = """
from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from minipaged.errors import DoubleFree, OutOfBlocks


@dataclass
class Ledger:
    refs: dict[int, int] = field(default_factory=dict)


class BlockAllocator:
    def __init__(self, num_blocks, name="GPU"):
        self.num_blocks = num_blocks
        self.name = name
        self.__heap = list(range(num_blocks))
        self.ledger = Ledger()

    @property
    def num_free(self):
        return len(self.__heap)

    @property
    def free_blocks(self):
        return sorted(self.__heap, reverse=True)

    def allocate(self):
        return self.allocate_many(1)[0]

    def allocate_many(self, count):
        if count > len(self.__heap):
            raise OutOfBlocks(f"no room in {self.name}")
        blocks = [heapq.heappop(self.__heap) for _ in range(count)]
        self.ledger.refs.update(dict.fromkeys(blocks, 1))
        return blocks

    def share(self, block):
        if not self.ref_count(block):
            raise DoubleFree(str(block))
        self.ledger.refs[block] += 1

    def free(self, block: int) -> bool:
        if not self.ref_count(block):
            raise DoubleFree(str(block))
        self.ledger.refs[block] -= 1
        if self.ledger.refs[block]:
            return False
        del self.ledger.refs[block]
        heapq.heappush(self.__heap, block)
        return True

    def free_many(self, blocks: Iterable[int]) -> None:
        for block in list(blocks):
            self.free(block)

    def ref_count(self, block):
        if not 0 <= block < self.num_blocks:
            raise ValueError(block)
        return self.ledger.refs.get(block, 0)
"""

LOOP_ATTENTION = """
import torch


def write_kv(k, v, k_cache, v_cache, slot_mapping):
    size = k_cache.shape[2]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            k_cache[slot // size, :, slot % size] = k[token]
            v_cache[slot // size, :, slot % size] = v[token]


def gather_kv(cache, block_table, length):
    size = cache.shape[2]
    places = [(int(block_table[p // size]), p % size) for p in range(length)]
    return torch.stack([cache[block, :, offset] for block, offset in places])


def paged_attention(q, k_cache, v_cache, batch, scale):
    out = torch.zeros_like(q)
    starts = batch.query_start.tolist()
    for s, length in enumerate(batch.context_lens.tolist()):
        rows = q[starts[s] : starts[s + 1]]
        k = gather_kv(k_cache, batch.block_tables[s], length)
        v = gather_kv(v_cache, batch.block_tables[s], length)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", rows, k) * scale
        future = torch.ones(len(rows), length).triu(length - len(rows) + 1).bool()
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        out[starts[s] : starts[s + 1]] = torch.einsum("hqk,khd->qhd", weights, v)
    return out


class ReferenceAttention:
    def write(self, k, v, k_cache, v_cache, batch):
        write_kv(k, v, k_cache, v_cache, batch.slot_mapping)

    def attend(self, q, k_cache, v_cache, batch, scale):
        return paged_attention(q, k_cache, v_cache, batch, scale)
"""


# --------------------------------------------------------------------------- a student's desk
@cache
def skeleton(name: str) -> str:
    """Made once: it takes as long as a test."""
    stage, part = COURSE.parts[name]
    return exercise_text(COURSE, stage, part)


class Desk:
    """A folder laid out as exercises/, with every part still a skeleton."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COURSE.parts:
            self.file(name).parent.mkdir(parents=True, exist_ok=True)
            self.file(name).write_text(skeleton(name))

    def file(self, name: str) -> Path:
        stage, _ = COURSE.parts[name]
        return self.folder / stage.folder / f"{name}.py"

    def write(self, name: str, text: str = "", *changes: tuple[str, str]) -> Path:
        """The student's answer; the reference's, where no text is given."""
        _, part = COURSE.parts[name]
        text = text or (ROOT / part.source).read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} is in {name} {text.count(old)} times"
            text = text.replace(old, new)
        self.file(name).write_text(text)
        return self.file(name)

    def load(self, *names: str) -> StudentParts:
        """The parts of these names, or all that are written."""
        whole = str(self.folder)
        return load_parts(",".join(f"{n}={whole}" for n in names) or whole, ROOT)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk")


@pytest.fixture
def checkout(tmp_path: Path) -> Desk:
    """The exercises of a course of its own, so that `mine` means them."""
    root = tmp_path / "checkout"
    root.mkdir()
    shutil.copy(ROOT / "course.toml", root)
    (root / "minipaged").symlink_to(ROOT / "minipaged")
    return Desk(root / "exercises")


def make_llm(parts: Parts, **options):
    from minipaged.config import CacheConfig
    from minipaged.llm import LLM

    cache = CacheConfig(num_gpu_blocks=64, num_cpu_blocks=32, **options)
    return LLM("opt-stories", device="cpu", cache=cache, parts=parts, check=True)


def tokens(llm, prompts=(PROMPT, "One day a dog"), **params):
    outputs = llm.generate(list(prompts), SamplingParams(max_tokens=24, **params), progress=False)
    return [completion.token_ids for output in outputs for completion in output.outputs]


@pytest.fixture(scope="module")
def reference_tokens():
    return tokens(make_llm(Parts()))


# --------------------------------------------------------------------------- what is taken
def test_the_reference_is_the_reference():
    parts = load_parts("ref", ROOT)
    assert parts.notes == ()
    for field in dataclasses.fields(Parts):
        assert getattr(parts, field.name) is getattr(Parts(), field.name)


def test_the_reference_needs_no_course(tmp_path):
    """A package that was installed outside of a checkout has no course.toml."""
    shutil.copytree(
        ROOT / "minipaged", tmp_path / "minipaged", ignore=shutil.ignore_patterns("__pycache__")
    )
    story = ["generate", "--model", "opt-stories", "--max-tokens", "4", "Once"]
    for command in (["plan", "--model", "opt-13b"], story):
        done = subprocess.run(
            [sys.executable, "-m", "minipaged.cli", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_a_part_without_a_seat_is_there_for_who_names_it():
    parts = load_parts("solutions", ROOT, only=["naive", "sizing"])
    assert [note.split(" is ")[0] for note in parts.notes] == ["parts: sizing", "parts: naive"]
    naive = parts.module("minipaged.kvcache.naive")
    assert naive.__file__ == str(ROOT / "solutions/stage01_contiguous/naive.py")
    assert parts.module("minipaged.kvcache.buddy").__name__ == "minipaged.kvcache.buddy"


def test_a_skeleton_falls_back_and_each_part_is_named_once(desk):
    parts = desk.load()
    assert parts.BlockAllocator is Parts().BlockAllocator
    (note,) = parts.notes
    assert note.startswith(f"parts: not written in {desk.folder}, so the reference's: ")
    for missing in (
        "block_allocator (tasks 2.1, 2.2)",
        "block_table (tasks 3.1, 3.2)",
        "paged_attention (tasks 3.3, 3.4)",
    ):
        assert note.count(missing) == 1


def test_a_part_that_no_engine_is_built_from_is_not_spoken_of(desk):
    assert "accounting" in COURSE.parts
    assert "accounting" not in str(desk.load().notes)
    with pytest.raises(CourseError, match="no engine is built from accounting"):
        desk.load("accounting")


def test_what_is_written_is_taken_and_the_rest_falls_back(desk):
    path = desk.write("block_allocator", HEAP_ALLOCATOR)
    parts = desk.load()
    assert parts.BlockAllocator(3).ledger.refs == {}
    assert parts.BlockTable is Parts().BlockTable
    assert parts.notes[0] == f"parts: block_allocator is from {path}"
    assert "block_allocator" not in parts.notes[1]
    assert len(parts.notes) == 2


def test_a_half_written_part_falls_back_as_a_whole(desk):
    stub = 'raise NotImplementedError("stage 3, task 3.1: see lessons/03-block-table.md")'
    text = desk.file("block_table").read_text()
    assert stub in text
    desk.write("block_table", text.replace(stub, "return 0"))
    parts = desk.load()
    assert parts.BlockTable is Parts().BlockTable
    assert "block_table (task 3.2)" in parts.notes[0]


def test_a_missing_file_falls_back(desk):
    desk.file("block_table").unlink()
    (note,) = desk.load().notes
    assert "block_table (no file)" in note


def test_parts_are_picked_by_name(desk):
    for name in COURSE.parts:
        desk.write(name)
    parts = load_parts(f"block_allocator=ref, block_table={desk.folder}", ROOT)
    assert parts.BlockAllocator is Parts().BlockAllocator
    assert parts.BlockTable is not Parts().BlockTable
    assert parts.attention is Parts().attention
    assert len(parts.notes) == 1


def test_mine_is_the_exercises_folder_and_its_last_score_is_told(checkout):
    root = checkout.folder.parent
    checkout.write("block_allocator", HEAP_ALLOCATOR)
    assert load_parts("mine", root).notes[0] == (
        "parts: block_allocator is yours (stage 2 is not graded yet)"
    )
    digest = digest_of(read_submission(load_course(root), load_course(root).stage("2"), "mine"))
    record = {"points": 31, "total": 40, "date": "2026-03-05", "best": 31, "tasks": {}}
    record["digest"] = digest
    (root / ".minipaged").mkdir()
    (root / ".minipaged" / "scores.json").write_text(json.dumps({"02": record}))
    assert load_parts("mine", root).notes[0] == (
        "parts: block_allocator is yours (stage 2: 31 of 40 points, 5 Mar)"
    )
    checkout.write("block_allocator", HEAP_ALLOCATOR + "# better")
    assert load_parts("mine", root).notes[0] == (
        "parts: block_allocator is yours (stage 2 was changed since it was graded)"
    )


def test_the_fields_of_every_part_are_filled(desk):
    for name in COURSE.parts:
        desk.write(name)
    parts = desk.load()
    changed = [f.name for f in dataclasses.fields(Parts) if getattr(parts, f.name) is not f.default]
    modules = {part.module for _, part in COURSE.parts.values()}
    seats = [f.name for f in dataclasses.fields(Parts) if f.default.__module__ in modules]
    assert {"BlockAllocator", "BlockTable"} <= set(seats)
    assert set(changed) == {*seats, "attention"}


# --------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "block_tabel=mine",
            "no part 'block_tabel': the parts are .*block_allocator, block_table,",
        ),
        ("no/such/folder", "there is no folder '.*no/such/folder'"),
        ("block_table=no/such/folder", "there is no folder '.*no/such/folder'"),
        ("block_table=", "'block_table=' .* is not PART=mine"),
        ("block_table=ref,mine", "'mine' .* is not PART=mine"),
        ("block_table=ref,block_table=mine", "twice whose block_table"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(spec, says):
    with pytest.raises(CourseError, match=says):
        load_parts(spec, ROOT)


def test_a_part_named_but_not_written_is_refused_with_its_tasks(desk):
    with pytest.raises(CourseError, match=r"not written in .*block_table\.py: tasks 3\.1, 3\.2"):
        desk.load("block_table")


@pytest.mark.parametrize("names", [(), ("block_table",)])
def test_a_file_that_is_no_python_is_refused_with_its_line(desk, names):
    desk.write(
        "block_table", "", ("        self.num_tokens = 0\n\n", "        self.num_tokens = = 0\n\n")
    )
    with pytest.raises(CourseError, match=r"block_table\.py, line \d+: invalid syntax"):
        desk.load(*names)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named"),
        ("ratio = 1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_fails_while_it_is_loaded_is_refused_with_its_line(desk, line, says):
    desk.write(
        "block_allocator",
        f"# one\n{line}\n{HEAP_ALLOCATOR.replace('from __future__ import annotations', '')}",
    )
    for _ in range(2):  # nothing half loaded is left behind
        with pytest.raises(CourseError, match=rf"block_allocator\.py, line 2: {says}"):
            desk.load()


@pytest.mark.parametrize(
    ("old", "new", "engines", "yours"),
    [
        ("def append(self, count:", "def append(self, number:", "(self, count)", "(self, number)"),
        ("slot(self, token: int)", "slot(self, token: int, base: int = 0)", "(self, token)",
         "(self, token, base=0)"),
        ("def blocks_to_append(self, count: int)", "def blocks_to_append(self, count: int = 1)",
         "(self, count)", "(self, count=1)"),
        ("def clone(self)", "def copy(self)", "BlockTable.clone(self)", "there is none"),
        ("    @property\n    def num_free_slots", "    def num_free_slots",
         "num_free_slots, a property", "num_free_slots(self)"),
        ("(self, allocator: BlockAllocator, block_size: int)", "(self, block_size: int, allocator)",
         "(self, allocator, block_size)", "(self, block_size, allocator)"),
    ],
    ids=["renamed parameter", "another parameter", "another default", "missing", "no property",
         "another order"],
)  # fmt: skip
def test_another_signature_is_refused_with_both_shown(desk, old, new, engines, yours):
    path = desk.write("block_table", "", (old, new))
    with pytest.raises(CourseError) as refused:
        desk.load()
    first, theirs, mine, *_ = str(refused.value).splitlines()
    assert str(path) in first
    assert theirs.startswith("  the engine's")
    assert theirs.endswith(engines)
    assert mine.startswith("  yours")
    assert mine.endswith(yours)


def test_annotations_helpers_and_base_classes_are_free(desk):
    text = HEAP_ALLOCATOR.replace("class BlockAllocator:", "class Base:")
    desk.write(
        "block_allocator",
        text + "\n\ndef helper(x, y=3):\n    return x\n\n\nclass BlockAllocator(Base):\n"
        "    def compact(self) -> None: ...\n",
    )
    assert desk.load("block_allocator").BlockAllocator(4).allocate() == 0


# --------------------------------------------------------------------------- in the engine
def test_another_design_of_the_allocator_serves_the_same_tokens(desk, reference_tokens):
    desk.write("block_allocator", HEAP_ALLOCATOR)
    llm = make_llm(desk.load())
    assert llm.engine.kv.gpu.ledger.refs == {}
    assert tokens(llm) == reference_tokens


def test_stage_3_alone_runs_on_the_reference(desk, reference_tokens):
    desk.write("block_table")
    desk.write("paged_attention", LOOP_ATTENTION)
    parts = desk.load()
    assert "block_allocator (tasks 2.1, 2.2)" in parts.notes[-1]
    assert parts.attention.__module__.startswith("minipaged_part_paged_attention_")
    assert tokens(make_llm(parts)) == reference_tokens


def test_siblings_and_beams_share_blocks_of_a_students_pool(desk):
    for name in ("block_allocator", "block_table"):
        desk.write(name, HEAP_ALLOCATOR if name == "block_allocator" else "")
    beams = {"n": 2, "best_of": 3, "use_beam_search": True}
    mine, ours = make_llm(desk.load()), make_llm(Parts())
    assert tokens(mine, **beams) == tokens(ours, **beams)
    assert mine.engine.kv.gpu.num_free == 64


def test_two_engines_with_different_parts_run_side_by_side(desk, reference_tokens):
    desk.write("block_allocator", HEAP_ALLOCATOR)
    heap = make_llm(desk.load())
    desk.write("block_allocator")
    stack = make_llm(desk.load())
    ours = make_llm(Parts())
    engines = [heap, stack, ours]
    assert len({type(llm.engine.kv.gpu).__module__ for llm in engines}) == 3
    ids = [llm.add(PROMPT, SamplingParams(max_tokens=24)) for llm in engines]
    found = {}
    while len(found) < len(engines):
        for number, (llm, request_id) in enumerate(zip(engines, ids)):
            for output in llm.engine.step() if llm.engine.has_unfinished() else ():
                assert output.request_id == request_id
                found[number] = output.outputs[0].token_ids
    assert list(found.values()) == [reference_tokens[0]] * 3


def test_an_edit_is_picked_up_by_the_next_load_and_the_old_parts_stay(desk):
    path = desk.write("block_allocator", HEAP_ALLOCATOR)
    old = desk.load()
    path.write_text(HEAP_ALLOCATOR.replace("no room in", "NO ROOM in"))  # same size, same second
    new = desk.load()
    for parts, says in ((old, "no room"), (new, "NO ROOM")):
        with pytest.raises(OutOfBlocks, match=says):
            parts.BlockAllocator(0).allocate()
    path.write_text(HEAP_ALLOCATOR)
    assert desk.load().BlockAllocator is old.BlockAllocator


def test_objects_of_a_students_classes_can_be_pickled(desk):
    desk.write("block_allocator", HEAP_ALLOCATOR)
    pool = desk.load().BlockAllocator(4)
    pool.allocate()
    twin = pickle.loads(pickle.dumps(pool))
    assert type(twin) is type(pool)
    assert twin.ledger == pool.ledger
    assert twin.allocate() == 1


@pytest.mark.parametrize("names", [(), ("block_allocator", "block_table")])
def test_parts_pickle_as_their_spec(desk, names, monkeypatch):
    for name in COURSE.parts:
        desk.write(name)
    monkeypatch.chdir(desk.folder.parent)
    spec = ",".join(f"{name}=desk" for name in names) or "desk"
    parts = load_parts(spec, ROOT)
    data = pickle.dumps(parts)
    assert len(data) < 500
    monkeypatch.chdir("/")
    twin = pickle.loads(data)
    # The notes show paths from the working directory.
    assert dataclasses.replace(twin, notes=parts.notes) == parts


def _name_of_allocator(parts: Parts) -> tuple[str, int]:
    pool = parts.BlockAllocator(3)
    pool.allocate()
    return type(pool).__module__, pool.num_free


def test_parts_travel_to_a_spawned_process(desk):
    desk.write("block_allocator", HEAP_ALLOCATOR)
    parts = desk.load("block_allocator")
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        found = workers.apply(_name_of_allocator, (parts,))
    assert found == (parts.BlockAllocator.__module__, 2)


def test_loading_an_allocator_leaves_torch_alone(desk):
    desk.write("block_allocator", HEAP_ALLOCATOR)
    code = (
        "import sys; from minipaged.course import load_parts\n"
        f"load_parts('block_allocator={desk.folder}')\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --------------------------------------------------------------------------- on the command line
def run(capsys, *arguments):
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def generate(capsys, *arguments):
    return run(capsys, "generate", PROMPT, *OPT, "--raw", "--max-tokens", "20", *arguments)


def test_generate_prints_the_same_text_and_says_whose_parts_they_are(desk, capsys):
    desk.write("block_allocator", HEAP_ALLOCATOR)
    desk.write("block_table")
    status, text, err = generate(capsys, "--parts", str(desk.folder), "--check")
    assert status == 0
    assert text == generate(capsys)[1]
    assert err.count("minipaged: parts: ") == 3
    assert "paged_attention (tasks 3.3, 3.4)" in err


def broken_append(desk) -> tuple[Path, int]:
    path = desk.write(
        "block_table",
        "",
        ("        self.num_tokens += count\n", "        self.num_tokens += {}[count]\n"),
    )
    return path, path.read_text().splitlines().index("        self.num_tokens += {}[count]") + 1


@pytest.mark.parametrize(
    "command",
    [
        ["generate", PROMPT, *OPT, "--raw"],
        ["generate", PROMPT, PROMPT, *OPT, "--raw"],
        ["bench", "scheduler", "--threads", "1"],
        ["bench", "throughput", "--no-peers", "--model", "opt-stories", "--threads", "1"],
        ["demo", *OPT, "--max-model-len", "512"],
    ],
    ids=["generate one", "generate two", "bench scheduler", "bench throughput", "demo"],
)
def test_an_error_in_a_students_part_is_told_with_file_and_line(desk, capsys, command):
    path, line = broken_append(desk)
    status, out, err = run(capsys, *command, "--parts", str(desk.folder))
    assert status == 1
    assert "Traceback" not in err
    assert f"parts: block_table is from {path}" in "".join((out + err).splitlines())
    first, *told = [s.strip() for s in err[err.index("minipaged: error: ") :].splitlines()]
    assert first.startswith("minipaged: error: KeyError: ")
    assert told == [
        f"this is your block_table.py, line {line}, in append:",
        "self.num_tokens += {}[count]",
        f"({path}); `minipaged grade 3` tests it",
        "MINIPAGED_TRACEBACK=1 in front of the command shows the whole traceback",
    ]


def test_the_whole_traceback_is_there_for_the_asking(desk, capsys, monkeypatch):
    _, line = broken_append(desk)
    monkeypatch.setenv("MINIPAGED_TRACEBACK", "1")
    status, _, err = generate(capsys, "--parts", str(desk.folder))
    assert status == 1
    assert "Traceback" in err
    assert f'block_table.py", line {line}, in append' in err


def test_the_first_error_is_told_when_cleaning_up_meets_another(desk, capsys):
    path, line = broken_append(desk)
    text = path.read_text()
    cleaning = "        self.allocator.free_many(reversed(self.blocks))\n"
    desk.write("block_table", text, (cleaning, "        self.lost\n"))
    status, _, err = generate(capsys, "--parts", str(desk.folder))
    assert status == 1
    assert f"line {line}, in append:" in err


def test_an_error_that_a_students_code_caught_is_not_the_one_that_is_told(desk, capsys):
    new = (
        "        try:\n            {}[count]\n        except KeyError:\n"
        "            raise RuntimeError('mine')\n"
    )
    desk.write("block_table", "", ("        self.num_tokens += count\n", new))
    _, _, err = generate(capsys, "--parts", str(desk.folder))
    assert "minipaged: error: RuntimeError: mine\n" in err


def test_a_broken_invariant_names_the_students_files(desk, capsys):
    text = HEAP_ALLOCATOR.replace("return self.ledger.refs.get(block, 0)", "return 1")
    desk.write("block_allocator", text)
    status, _, err = generate(capsys, "--parts", str(desk.folder), "--check")
    assert status == 1
    assert "Traceback" not in err
    assert "minipaged: error: InvariantError: I1: " in err
    assert "block_allocator.py (`minipaged grade 2`)" in err
    assert "block_table.py" not in err[err.index("error: ") :]


def test_an_engine_that_fails_on_what_a_part_returned_names_the_students_files(desk, capsys):
    text = HEAP_ALLOCATOR.replace("return len(self.__heap)", "return None")
    desk.write("block_allocator", text)
    status, _, err = generate(capsys, "--parts", str(desk.folder))
    assert status == 1
    assert "TypeError: " in err
    assert re.search(r"this came up in the engine \(.*\.py, line \d+\)", err)
    assert "block_allocator.py (`minipaged grade 2`)" in err


def test_errors_of_the_user_are_not_blamed_on_the_parts(desk, capsys):
    desk.write("block_table")
    parts = ["--parts", str(desk.folder)]
    status, _, err = run(capsys, "generate", "Hi", "--model", "no-such-model-at-all", *parts)
    assert status == 1
    assert "no-such-model-at-all" in err
    assert "block_table.py (" not in err


def test_an_error_of_the_engine_on_its_own_parts_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(SchedulerConfig, "__post_init__", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["bench", "scheduler", "--threads", "1"])


def test_a_part_that_cannot_be_had_is_one_sentence(capsys):
    status, out, err = generate(capsys, "--parts", "block_tabel=mine")
    assert (status, out) == (1, "")
    assert err.startswith("minipaged: error: there is no part 'block_tabel'")
