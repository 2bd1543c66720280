"""Checkpoints: the engine on a student's parts alone."""

from __future__ import annotations

import re
import shutil

import pytest
from degenerate_bodies import BODIES, with_bodies

from minipaged.cli import main
from minipaged.course.catalog import load_course
from minipaged.course.judge.run import judge_many
from minipaged.course.mutants import apply, find_mutant, reference_source
from minipaged.course.scores import score
from minipaged.course.submission import read_submission, submission_in_memory
from minipaged.errors import CourseError

COURSE = load_course()
#: A checkpoint -> mutants of its parts that it must see: (stage, mutant, check).
SEEN = {
    "A": [
        ("2", "free_many_stops_at_a_shared_block", "every_block_is_free_at_the_end"),
        ("3", "a_full_block_has_a_block_of_room", "every_block_is_free_at_the_end"),
        (
            "3",
            "heads_and_places_are_taken_for_each_other",
            "one_request_gets_the_text_of_the_reference",
        ),
        ("4", "only_the_last_block_is_shared", "the_samples_hold_their_prompt_once"),
        ("4", "remapped_but_not_copied", "the_samples_hold_their_prompt_once"),
        ("4", "a_source_has_one_target", "three_samples_are_those_of_the_reference"),
    ],
    "B": [
        ("5", "never_is_only_later", "every_request_ends_and_every_block_comes_back"),
        ("6", "a_plan_has_one_victim", "pressure_takes_no_token_away"),
        ("6", "the_host_has_room", "groups_come_back_whole"),
        ("6", "what_is_fed_is_the_prompt", "pressure_takes_no_token_away"),
        ("6", "sharing_is_lost_on_the_way", "groups_come_back_whole"),
        ("6", "a_moved_block_has_one_holder", "groups_come_back_whole"),
    ],
    "C": [
        ("7", "heads_stand_within_a_slot", "one_request_gets_its_text_from_your_kernels"),
        (
            "7",
            "the_target_lies_like_the_source",
            "samples_are_copied_and_swapped_by_your_kernels",
        ),
        ("7", "what_was_summed_is_never_mended", "every_version_of_decode_says_the_same"),
        ("8", "query_heads_take_turns", "every_version_of_decode_says_the_same"),
        (
            "8",
            "a_part_leaves_its_sum_without_its_maximum",
            "query_heads_share_keys_in_the_engine",
        ),
        ("8", "a_chunk_begins_at_position_0", "prompts_chunks_and_decodes_share_a_step"),
    ],
}


def in_memory(checkpoint, changed, name):
    """The reference's parts as a submission, some of them changed.

    Args:
        changed: part -> text.
    """
    return submission_in_memory(COURSE, checkpoint, changed, name)


def degenerate(part, body):
    stage, _ = COURSE.parts[part]
    symbols = [s for task in stage.tasks if task.part == part for s in task.symbols]
    return with_bodies(reference_source(COURSE, stage, part), symbols, BODIES[body])


def vacuous(checkpoint, exhaustive):
    """Submissions whose bodies all ignore what they are asked."""
    parts = [part.name for part in checkpoint.parts]
    return [
        in_memory(checkpoint, {part: degenerate(part, body) for part in parts}, body)
        for body in list(BODIES)[:: 1 if exhaustive else 6 if checkpoint.triton else 3]
    ]


def wrong(checkpoint, exhaustive):
    """Submissions with one wrong part, and the check that must see it."""
    tried = SEEN[checkpoint.key][:: 1 if exhaustive else 3 if checkpoint.triton else 2]
    for stage_key, name, check in tried:
        stage = COURSE.stage(stage_key)
        mutant = find_mutant(COURSE, stage, name)
        text = apply(mutant, reference_source(COURSE, stage, mutant.part))
        yield in_memory(checkpoint, {mutant.part: text}, name), check


@pytest.fixture(scope="module", params=SEEN)
def verdicts(request, exhaustive):
    """A checkpoint, and ``(submission, checks, what the judge says)`` of the vacuous and of the
    wrong ones. It is one judge for all of them, since it takes seconds to load its models."""
    checkpoint = COURSE.unit(request.param)
    everything = [check.name for check in checkpoint.checks()]
    ignoring = [(each, everything) for each in vacuous(checkpoint, exhaustive)]
    asked = [*ignoring, *((each, [check]) for each, check in wrong(checkpoint, exhaustive))]
    submissions, checks = zip(*asked, strict=True)
    rounds = judge_many(COURSE, checkpoint, submissions, checks_of_each=checks)
    said = list(zip(submissions, checks, rounds, strict=True))
    return checkpoint, said[: len(ignoring)], said[len(ignoring) :]


def test_bodies_that_ignore_what_they_are_asked_earn_nothing(verdicts):
    checkpoint, ignoring, _ = verdicts
    for each, checks, judged in ignoring:
        statuses = {name: check.status for name, check in judged.checks.items()}
        assert statuses == dict.fromkeys(checks, "failed"), f"{each.name}: {judged.note}"
        assert score(checkpoint, each, [judged], trace_started=False).points == 0


def test_one_wrong_part_is_seen(verdicts):
    for each, (check,), judged in verdicts[2]:
        assert judged.checks[check].status == "failed", f"{each.name}: {judged.note}"


# --------------------------------------------------------------------------- on the screen
@pytest.fixture
def desk(tmp_path):
    """A folder laid out as exercises/ in which all parts are the reference's."""
    folder = tmp_path / "desk"
    for stage, part in COURSE.parts.values():
        target = folder / stage.folder / f"{part.name}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(COURSE.root / part.source, target)
    return folder


def test_it_asks_for_all_of_its_parts(desk, capsys):
    """One task that is not written: nothing runs, and that task is what comes next."""
    checkpoint = COURSE.unit("A")
    stage, part = COURSE.parts["copy_on_write"]
    file = desk / stage.folder / f"{part.name}.py"
    skeleton = COURSE.root / "exercises" / stage.folder / f"{part.name}.py"
    file.write_text(skeleton.read_text())
    submission = read_submission(COURSE, checkpoint, str(desk))
    assert submission.task_state(checkpoint.tasks[0]) == "not started"
    assert main(["grade", "A", "--impl", str(desk)]) == 1
    out = capsys.readouterr().out
    assert "Checkpoint A" in out
    assert "0 of 20 points" in out
    assert "not started" in out
    assert "Next: task 4.1, " in out
    assert str(file) in out


def test_a_file_that_cannot_be_read_is_named(desk, capsys):
    stage, part = COURSE.parts["block_table"]
    (desk / stage.folder / f"{part.name}.py").write_text("def broken(:\n")
    assert main(["grade", "a", "--impl", str(desk)]) == 1
    out = capsys.readouterr().out
    assert "cannot be read" in out
    assert "block_table.py, line 1: " in out


def test_units_are_in_the_order_of_the_course():
    numbers = [unit.number for unit in COURSE.units]
    for checkpoint in COURSE.checkpoints:
        assert numbers[numbers.index(checkpoint.number) - 1] == checkpoint.after
    with pytest.raises(CourseError, match=r"there is no stage 'Q': .*; the checkpoints are A, B"):
        COURSE.unit("Q")
    with pytest.raises(CourseError, match="there is no stage 'A'"):
        COURSE.stage("A")


def test_the_overview_has_a_line_for_it(capsys):
    main(["grade"])
    shown = capsys.readouterr().out
    assert re.search(r"^ +A +Text and three samples, on your parts only", shown, re.MULTILINE)


def test_a_checkpoint_has_a_page_in_place_of_hints(capsys):
    assert main(["hint", "a.1"]) == 1
    assert "checkpoint A has nothing to write, and no hints: lessons/checkpoint-a.md" in (
        capsys.readouterr().err
    )
