"""The grader is graded: mutants are rejected, and nobody else is taken for one."""

from __future__ import annotations

import ast
import importlib
import json
from collections import Counter

import pytest
from docstring_examples import claims, class_docstring, example_lines, keeps_example
from fakes import QUEUE, judged, small_course

from minipaged import cli
from minipaged.course import reject
from minipaged.course.catalog import load_course
from minipaged.course.judge.run import judge_many
from minipaged.course.mutants import (
    apply,
    find_mutant,
    load_mutants,
    mutant_submission,
    reference_source,
)
from minipaged.course.reject import grade_mutants
from minipaged.course.signatures import (
    Signature,
    diagnose,
    first_wrong_value,
    graded_checks,
    load_signatures,
    save_signatures,
)
from minipaged.course.submission import submission_in_memory
from minipaged.errors import CourseError

COURSE = load_course()
STAGES = {stage.key: stage for stage in COURSE.stages}
MUTANTS = {key: load_mutants(COURSE, stage) for key, stage in STAGES.items()}
SIGNATURES = {key: load_signatures(COURSE, stage) for key, stage in STAGES.items()}
KEYS = list(STAGES)
# Bugs that nobody named: what is wrong with each is no mutant's misconception.
UNRELATED = {
    "1": [
        ("naive", "stored.v[start:end] = v", "stored.v[start:end] = k"),
        ("naive", "del self._sequences[seq_id]", "self._sequences[seq_id].num_tokens = 0"),
        ("buddy", "self._num_free -= size", "self._num_free -= num_blocks"),
        ("buddy", "size = self._held.pop(start)", "size = self._held[start]"),
        (
            "contiguous",
            "group.expected_output_len or group.params.max_tokens",
            "group.params.max_tokens or group.expected_output_len",
        ),
        ("accounting", "(total / self._weight for", "(total / 2 for"),
    ],
    "0": [
        ("sizing", "return block_size * kv_bytes_per_token", "return kv_bytes_per_token"),
        ("sizing", "- weight_bytes - activation_bytes", "- weight_bytes + activation_bytes"),
        ("sizing", "int(num_blocks * watermark)", "round(num_blocks * watermark)"),
        ("sizing", "blocks * block_size * token_bytes", "blocks * token_bytes"),
        ("sizing", "max(output_lens, default=-1) + 1", "max(output_lens, default=-1)"),
    ],
    "2": [
        ("block_allocator", "self._free.pop()", "self._free.pop(len(self._free) // 2)"),
        ("block_allocator", "return list(self._free)", "return sorted(self._free)"),
        ("block_allocator", "self._refs[block] = 1", "self._refs[block] = 2"),
        ("block_allocator", "return len(self._free)", "return len(self._free) + 1"),
        ("block_allocator", "if count > len(self._free)", "if count >= len(self._free)"),
    ],
    "3": [
        ("block_table", "self.num_tokens += count", "self.num_tokens = count"),
        ("block_table", "range(start, stop)", "range(start, stop + 1)"),
        ("paged_attention", "v.to(v_cache.dtype)", "k.to(v_cache.dtype)"),
        ("paged_attention", "flatten(0, 1)[:length]", "flatten(0, 1)[-length:]"),
        ("paged_attention", "k.to(k_cache.dtype)", "k.to(k_cache.dtype) * 2"),
    ],
    "4": [
        ("copy_on_write", "share(block)", "share(child.blocks[0])"),
        ("copy_on_write", "table.blocks[-1] = target", "table.blocks[0] = target"),
        ("copy_on_write", "return source, target", "return source, target + 1"),
        ("copy_on_write", "cache[target] = cache[source]", "cache[source] = cache[target]"),
        ("copy_on_write", "need += 1\n            continue", "continue"),
    ],
    "5": [
        ("admission", "Verdict.LATER if reason else Verdict.OK", "Verdict.OK"),
        ("admission", 'return "sequence limit"', 'return "token budget"'),
        ("scheduler", "self.decode(decoding, plan)", "self.decode(decoding[::-1], plan)"),
        ("scheduler", "self.enqueue(self.running, group)", "self.running.insert(0, group)"),
        ("scheduler", "group.started = True", "group.started = decision.done"),
        ("scheduler", "self.book_computed()\n", "pass\n"),
    ],
    "6": [
        ("preemption", "group.num_preemptions += 1", "group.num_preemptions = 1"),
        ("preemption", "plan.swap_in += self.kv.swap_in(group)", "self.kv.swap_in(group)"),
        ("preemption", "group.prefilling = False", "group.prefilling = True"),
        ("preemption", "seq.status = Status.WAITING", "seq.status = Status.SWAPPED"),
        ("swap", "return list(moved.items())", "return list(moved.items())[1:]"),
        ("swap", "block for table in tables for", "block for table in list(tables)[1:] for"),
        ("transfer_cost", "num_tokens + 1) // 2", "num_tokens + 1)"),
        ("transfer_cost", "* link.transfer_seconds", "* link.transfer_seconds / 2"),
        ("transfer_cost", "-(-num_tokens // block_size)", "num_tokens // block_size"),
    ],
    "7": [
        ("cache_write", "tl.load(v + token", "tl.load(k + token"),
        ("block_copy", "plane = tl.program_id(1).to(tl.int64)", "plane = tl.cast(0, tl.int64)"),
        ("paged_decode_v0", "tl.cdiv(context_len, BLOCK_SIZE)", "context_len // BLOCK_SIZE"),
        ("paged_decode_v0", "mixed / tl.where(total > 0, total, 1.0)", "mixed"),
        ("paged_decode_v0", "head // GROUP", "head // 2"),
    ],
    "10": [
        ("arrivals", "np.repeat(starts,", "np.repeat(starts + quantum / 2,"),
        ("arrivals", "(len(times) / rate)", "((len(times) - 1) / rate)"),
        ("metrics", "return record.token_times[0] -", "return record.token_times[-1] -"),
        ("metrics", "float(ordered.std())", "float(ordered.std(ddof=1))"),
        ("metrics", "bound for name, bound", "bound + 1e9 for name, bound"),
        ("admission_study", "self.queue.appendleft(victim)", "self.queue.append(victim)"),
        ("admission_study", "sum(cache.waits) / len(cache.waits)", "sum(cache.waits)"),
        ("admission_study", "record.num_preemptions += 1", "record.num_preemptions = 1"),
    ],
}
DIFFERENT = COURSE.root / "tests" / "course" / "different"


def share(part, whole):
    return sum(part) / len(whole)


# --------------------------------------------------------------------------- the rules
@pytest.mark.parametrize("key", KEYS)
def test_each_changes_one_place_of_the_reference(key):
    for mutant in MUTANTS[key]:
        text = reference_source(COURSE, STAGES[key], mutant.part)
        changed = apply(mutant, text)
        assert changed != text
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), mutant.name


@pytest.mark.parametrize("key", KEYS)
def test_a_stage_has_ten_to_twenty_of_them(key):
    assert 10 <= len(MUTANTS[key]) <= 20


@pytest.mark.parametrize("key", KEYS)
def test_no_two_fail_the_same_set_of_checks(key):
    failed = Counter(frozenset(s.failed) for s in SIGNATURES[key].values())
    twins = [sorted(checks) for checks, count in failed.items() if count > 1]
    assert twins == []


@pytest.mark.parametrize("key", KEYS)
def test_a_third_take_three_operations_to_show(key):
    assert share((m.operations >= 3 for m in MUTANTS[key]), MUTANTS[key]) >= 1 / 3


@pytest.mark.parametrize("key", KEYS)
def test_four_were_seen_in_real_engines(key):
    assert sum(bool(mutant.source) for mutant in MUTANTS[key]) >= 4


@pytest.mark.parametrize("key", KEYS)
def test_a_quarter_at_most_break_the_docstrings_example(key):
    assert share((breaks_example(key, m) for m in MUTANTS[key]), MUTANTS[key]) <= 1 / 4


@pytest.mark.parametrize("key", KEYS)
def test_none_crashes_at_its_first_call(key):
    """What is wrong is what it does, not that it cannot run: the first lines of the example, up
    to the first call of a method, raise nothing."""
    for mutant in MUTANTS[key]:
        text = apply(mutant, reference_source(COURSE, STAGES[key], mutant.part))
        compile(text, mutant.name, "exec")
        docstring = class_docstring(text)
        if docstring:
            values = {"__name__": __name__, **others(STAGES[key])}
            exec(compile(text, "<mutant>", "exec", dont_inherit=True), values)
            for statement, _ in list(example_lines(docstring))[:2]:
                exec(statement, values)
        first = SIGNATURES[key][mutant.name].first[1]
        assert not first.startswith(("NameError", "AttributeError", "TypeError", "SyntaxError"))


@pytest.mark.parametrize("key", KEYS)
def test_they_speak_to_the_student(key):
    for mutant in MUTANTS[key]:
        assert len(mutant.misconception) > 40, mutant.name
        assert "TODO" not in mutant.misconception


def others(stage):
    """Public names of the parts, for examples that use more than their own module."""
    from minipaged.course.judge.namespace import homes

    wanted = {"BlockAllocator"}
    return {
        name: getattr(importlib.import_module(part.module), name)
        for name, (home, part) in homes(COURSE).items()
        if name in wanted and home is not stage
    }


def breaks_example(key, mutant):
    reference = reference_source(COURSE, STAGES[key], mutant.part)
    docstring = class_docstring(reference)
    if not docstring:
        return False
    extra = others(STAGES[key])
    return not keeps_example(docstring, reference, apply(mutant, reference), extra)


@pytest.mark.parametrize("part", ["naive", "buddy", "block_allocator", "block_table"])
def test_the_example_of_the_reference_is_true(part):
    stage, _ = COURSE.parts[part]
    text = reference_source(COURSE, stage, part)
    found = claims(class_docstring(text), text, others(stage))
    assert len(found) >= 3
    assert all(places for _, places in found)


# --------------------------------------------------------------------------- the record
@pytest.mark.parametrize("key", KEYS)
def test_every_mutant_is_on_record(key):
    assert list(SIGNATURES[key]) == [mutant.name for mutant in MUTANTS[key]], (
        "`make mutants` writes tests/mutants/signatures.json"
    )
    for name, signature in SIGNATURES[key].items():
        assert signature.failed, f"{name} is not rejected"
        assert set(signature.failed) <= set(graded_checks(STAGES[key]))


@pytest.mark.parametrize("key", KEYS)
def test_each_is_rejected_by_its_recorded_killer(key, some_of):
    """`make mutants` runs all checks on all of them; this runs one on each, or, where time is
    short, on every third of a stage of kernels."""
    mutants = some_of(STAGES[key], MUTANTS[key])
    recorded = [SIGNATURES[key][mutant.name].first for mutant in mutants]
    killers = [[check] for check, _ in recorded]
    outcomes = grade_mutants(COURSE, STAGES[key], mutants, killers)
    found = {outcome.mutant.name: outcome.signature.failed for outcome in outcomes}
    assert found == {m.name: dict([first]) for m, first in zip(mutants, recorded)}


# --------------------------------------------------------------------------- diagnosis
def test_a_mutant_is_told_what_it_believes():
    """Each is diagnosed from its own failures, when it comes as a student's submission."""
    for key, stage in STAGES.items():
        for mutant in MUTANTS[key]:
            failed = {n: f"{v}\nmore" for n, v in SIGNATURES[key][mutant.name].failed.items()}
            assert diagnose(COURSE, stage, judged(stage, failed)) == mutant


def test_other_failures_are_not_diagnosed():
    for key, stage in STAGES.items():
        for signature in SIGNATURES[key].values():
            check, value = signature.first
            other = {**signature.failed, check: f"{value} or so"}
            assert diagnose(COURSE, stage, judged(stage, other)) is None
            more = next(name for name in graded_checks(stage) if name not in signature.failed)
            found = diagnose(COURSE, stage, judged(stage, {**signature.failed, more: "no"}))
            assert found is None or set(SIGNATURES[key][found.name].failed) != set(signature.failed)
            assert diagnose(COURSE, stage, judged(stage, signature.failed, seed=1)) is None
        assert diagnose(COURSE, stage, judged(stage)) is None


def test_what_did_not_run_is_left_out_of_the_comparison(tmp_path):
    course = small_course(tmp_path)
    stage = course.stage("7")
    failed = {"it_counts": "2 is not 1", "it_gives_the_newest_first": "7 is not 8"}
    save_signatures(course, {"07": {"queue": Signature(failed)}})
    ran = ["it_keeps_what_is_put_in", "it_counts"]
    found = diagnose(course, stage, judged(stage, failed, checks=ran))
    assert found is not None
    assert found.name == "queue"


def test_two_that_fit_are_none(tmp_path):
    course = small_course(tmp_path)
    stage, file = course.stage("7"), tmp_path / "tests" / "mutants" / "stage07.toml"
    file.write_text(QUEUE + QUEUE.replace('"queue"', '"twin"'), encoding="utf-8")
    both = {name: Signature({"it_counts": "no"}) for name in ("queue", "twin")}
    save_signatures(course, {"07": both})
    assert diagnose(course, stage, judged(stage, {"it_counts": "no"})) is None


@pytest.mark.parametrize("key", KEYS)
def test_a_different_right_solution_earns_all_points(key, some_of):
    stage = STAGES[key]
    found, checks = submission_of(stage, DIFFERENT), some_of(stage, graded_checks(stage))
    [result] = judge_many(COURSE, stage, [found], checks=checks)
    assert {n: c.message for n, c in result.checks.items() if c.status != "passed"} == {}
    assert len(result.checks) == len(checks)
    assert diagnose(COURSE, stage, result) is None


def submission_of(stage, folder):
    files = {part.name: folder / stage.folder / f"{part.name}.py" for part in stage.parts}
    sources = {name: f.read_text(encoding="utf-8") for name, f in files.items() if f.is_file()}
    assert sources
    return submission_in_memory(COURSE, stage, sources, "different")


@pytest.mark.parametrize("key", UNRELATED)
def test_bugs_that_are_no_mutant_get_no_diagnosis(key, exhaustive):
    stage, submissions = STAGES[key], []
    tried = None if exhaustive else 1 if stage.triton else 3
    for part, find, replace in UNRELATED[key][:tried]:
        text = reference_source(COURSE, stage, part)
        assert text.count(find) == 1, find
        submissions.append(
            submission_in_memory(COURSE, stage, {part: text.replace(find, replace)}, find)
        )
    rounds = judge_many(COURSE, stage, submissions, checks=graded_checks(stage))
    for each, result in zip(submissions, rounds):
        assert any(check.status == "failed" for check in result.checks.values()), each.name
        assert diagnose(COURSE, stage, result) is None, each.name


# --------------------------------------------------------------------------- the files
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "stage07.toml"),
        ("x = 1", "'x'"),
        (QUEUE.replace('part = "box"', 'part = "none"'), "no part 'none'"),
        (QUEUE.replace("operations = 3", "operations = '3'"), "operations must be int"),
        (QUEUE.replace("operations = 3", ""), "operations is missing"),
        (QUEUE + "extra = 1", "'extra'"),
        (QUEUE + QUEUE, "two mutants"),
    ],
)
def test_a_file_that_cannot_be_is_told(tmp_path, text, words):
    course = small_course(tmp_path)
    (tmp_path / "tests" / "mutants" / "stage07.toml").write_text(text, encoding="utf-8")
    with pytest.raises(CourseError, match=words):
        load_mutants(course, course.stage("7"))


def test_a_stage_without_mutants_has_none(tmp_path):
    course = small_course(tmp_path)
    assert load_mutants(course, course.stage("8")) == ()
    with pytest.raises(CourseError, match="no mutant 'x'"):
        find_mutant(course, course.stage("8"), "x")


@pytest.mark.parametrize("find", ["nowhere to be found", "self"])
def test_what_is_to_be_changed_occurs_once(tmp_path, find):
    course = small_course(tmp_path)
    file = tmp_path / "tests" / "mutants" / "stage07.toml"
    file.write_text(QUEUE.replace("self._things.pop()", find), encoding="utf-8")
    stage = course.stage("7")
    with pytest.raises(CourseError, match="must occur once"):
        mutant_submission(course, stage, find_mutant(course, stage, "queue"))


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("allocate(): expected 1, got 2\nso far: …", "allocate(): expected 1, got 2"),
        ("TypeError: no (block_table.py, line 41, in append)", "TypeError: no"),
        ("slot(5) (the second) is 3", "slot(5) (the second) is 3"),
        ("", ""),
    ],
)
def test_the_first_wrong_value_names_no_line(message, value):
    assert first_wrong_value(message) == value


# --------------------------------------------------------------------------- the command
@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return small_course(tmp_path)


@pytest.fixture
def judges(monkeypatch):
    """A judge that says what it is told to, of the reference and of every mutant."""

    def set_up(of_mutants, of_reference=None, **options):
        def judge_many(course, stage, submissions, *, checks_of_each):
            failed = [of_reference, *[of_mutants] * (len(submissions) - 1)]
            return [
                judged(stage, each, **{"checks": names, **options})
                for each, names in zip(failed, checks_of_each, strict=True)
            ]

        monkeypatch.setattr(reject, "judge_many", judge_many)

    return set_up


def test_the_command_counts_and_writes(small, judges, capsys):
    failed = {"it_counts": "2 is not 1", "it_gives_the_newest_first": "7 is not 8"}
    judges(failed)
    file = small.root / "out.json"
    assert cli.main(["mutants", "7", "--json", str(file), "--write"]) == 0
    out = capsys.readouterr().out
    assert "total 1, rejected 1" in out
    assert "it_counts: 2 is not 1" in out
    assert json.loads(file.read_text()) == {
        "total": 1,
        "rejected": 1,
        "mutants": [
            {"stage": "07", "name": "queue", "rejected": True, "checks": list(failed),
             "first_wrong_value": "2 is not 1"}
        ],
    }  # fmt: skip
    assert load_signatures(small, small.stage("7")) == {"queue": Signature(failed)}


@pytest.mark.parametrize("key", ["7", "8"])
def test_a_mutant_that_survives_or_none_at_all_is_a_failure(small, judges, capsys, key):
    judges(None)
    assert cli.main(["mutants", key]) == 1
    assert "rejected 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"of_mutants": None, "checks": [], "note": "the judge was ended"}, "the judge was ended"),
        (
            {"of_mutants": {"it_counts": "no"}, "of_reference": {"it_counts": "no"}},
            "the reference itself fails it_counts: no",
        ),
    ],
)
def test_a_judge_that_is_not_right_itself_rejects_nothing(small, judges, capsys, said, words):
    judges(**said)
    assert cli.main(["mutants", "7"]) == 1
    out, err = capsys.readouterr()
    assert words in err
    assert "total" not in out
