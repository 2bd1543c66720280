"""No vacuous pass: a body that ignores what it is asked earns no point in its task."""

from __future__ import annotations

import pytest
from degenerate_bodies import BODIES, with_bodies

from minipaged.course.catalog import load_course
from minipaged.course.judge.run import judge_many
from minipaged.course.mutants import reference_source
from minipaged.course.scores import score
from minipaged.course.submission import submission_in_memory

COURSE = load_course()
KEYS = [stage.key for stage in COURSE.stages]


def submission(stage, tasks, body):
    """The reference, with the bodies of some tasks replaced."""
    sources = {}
    for task in tasks:
        text = sources.get(task.part) or reference_source(COURSE, stage, task.part)
        sources[task.part] = with_bodies(text, task.symbols, BODIES[body])
    return submission_in_memory(COURSE, stage, sources, body)


@pytest.mark.parametrize("key", KEYS)
def test_degenerate_bodies_in_all_tasks_earn_nothing(key):
    stage = COURSE.stage(key)
    earns_nothing(stage, list(stage.tasks))


@pytest.mark.parametrize("task_id", [task.id for stage in COURSE.stages for task in stage.tasks])
def test_degenerate_bodies_in_one_task_earn_nothing_there(task_id):
    """The reference does all the rest."""
    stage, task = COURSE.task(task_id)
    earns_nothing(stage, [task])


def earns_nothing(stage, tasks):
    submissions = [submission(stage, tasks, body) for body in BODIES]
    wanted = [check.name for task in tasks for check in task.checks]
    rounds = judge_many(COURSE, stage, submissions, checks=wanted)
    for each, judged in zip(submissions, rounds, strict=True):
        assert list(judged.checks) == wanted, f"{each.name}: zero tests run is a failure"
        statuses = {name: check.status for name, check in judged.checks.items()}
        assert set(statuses.values()) == {"failed"}, f"{each.name}: {statuses} {judged.note}"
        earned = score(stage, each, [judged], trace_started=False)
        assert sum(task.points for task in earned.tasks if task.task in tasks) == 0


def test_the_bodies_are_put_where_they_belong():
    stage, task = COURSE.task("2.1")
    text = reference_source(COURSE, stage, task.part)
    for name, body in BODIES.items():
        changed = with_bodies(text, task.symbols, body)
        expected = {"return the first argument": "return count", "raise the named error":
                    "from minipaged.errors import OutOfBlocks; raise OutOfBlocks('no')",
                    "raise RuntimeError": "raise RuntimeError('no')"}.get(name, name)  # fmt: skip
        method = changed[changed.index("def allocate_many") : changed.index("def share")]
        assert method.splitlines()[1].strip() == expected
        assert changed[changed.index("def share") :] == text[text.index("def share") :]
