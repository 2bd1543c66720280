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
def test_degenerate_bodies_earn_nothing(key, exhaustive):
    """In all tasks at once, and in each with the reference in all others."""
    stage = COURSE.stage(key)
    # Where time is short, each task is tried with other bodies than the one before. Kernels take
    # longest.
    together, apart = (1, 1) if exhaustive else (4, len(BODIES) if stage.triton else 4)
    cases = [(list(stage.tasks), body) for body in list(BODIES)[::together]]
    for number, task in enumerate(stage.tasks):
        cases += [([task], body) for body in list(BODIES)[number % apart :: apart]]
    submissions = [submission(stage, tasks, body) for tasks, body in cases]
    wanted = [[check.name for task in tasks for check in task.checks] for tasks, _ in cases]
    rounds = judge_many(COURSE, stage, submissions, checks_of_each=wanted)
    for (tasks, body), each, names, judged in zip(cases, submissions, wanted, rounds, strict=True):
        where = f"`{body}` in {', '.join(task.id for task in tasks)}"
        statuses = {name: check.status for name, check in judged.checks.items()}
        assert list(statuses) == names, f"{where}: zero tests run is a failure"
        assert set(statuses.values()) == {"failed"}, f"{where}: {statuses} {judged.note}"
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
