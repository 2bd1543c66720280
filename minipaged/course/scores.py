"""What a submission earns: the rounds of the judge turned into points.

A check gives all its points or none. A task that is not written, or whose answer was taken,
earns nothing and its checks do not run; a check of robustness counts only where its parent task
is whole. Where the references of other stages are missing, what needs an unwritten part of theirs
waits for it, and a counterexample is graded by whoever has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from minipaged.course.catalog import Check, Stage, Task
from minipaged.course.stubs import stub_in
from minipaged.course.submission import Submission, TaskState

if TYPE_CHECKING:
    from minipaged.course.judge.run import Judged

Status = Literal[
    "passed",
    "failed",
    "not run",
    "not started",
    "taken",
    "broken",
    "parent failed",
    "parent taken",
    "waiting",
    "sent in",
    "pending",
]
_ABSENT: Mapping[TaskState, Status] = {
    "ready": "not run",
    "not started": "not started",
    "taken": "taken",
    "broken": "broken",
}


@dataclass(frozen=True)
class CheckScore:
    """One check.

    Attributes:
        message: why it earned nothing, for those that failed or could not run.
        transcript: the calls that led there.
        output: what the submission printed.
        waits_for: the task of another stage that must be written first.
    """

    check: Check
    status: Status
    message: str = ""
    transcript: str = ""
    output: str = ""
    waits_for: str = ""

    @property
    def points(self) -> int:
        return self.check.points if self.status == "passed" else 0

    @property
    def total(self) -> int:
        return 0 if self.status == "sent in" else self.check.points


@dataclass(frozen=True)
class TaskScore:
    """One task, and whether its code was there to be graded."""

    task: Task
    state: TaskState
    checks: tuple[CheckScore, ...]

    @property
    def points(self) -> int:
        return sum(check.points for check in self.checks)

    @property
    def total(self) -> int:
        return sum(check.total for check in self.checks)

    @property
    def whole(self) -> bool:
        return self.points == self.total


@dataclass(frozen=True)
class StageScore:
    """One stage.

    Attributes:
        counterexample: None where the stage asks for none.
        seeds: of the rounds that were graded.
        note: what kept the judge from its work, if anything did: then there is no verdict.
        seconds: that grading took.
        diagnosis: what the submission seems to believe, if it fails as a known mutant does.
        gpu: checks that take a GPU: pending where there was none. Their points are counted apart.
    """

    stage: Stage
    submission: Submission
    tasks: tuple[TaskScore, ...]
    robustness: tuple[CheckScore, ...]
    counterexample: CheckScore | None
    seeds: tuple[int, ...] = ()
    note: str = ""
    seconds: float = 0.0
    diagnosis: str = ""
    gpu: tuple[CheckScore, ...] = ()

    @property
    def gpu_points(self) -> str:
        """``GPU: 10 pending`` or ``GPU: 7 of 10``; empty for a stage that has none."""
        return points_on_gpu(sum(check.total for check in self.gpu), self.gpu_earned)

    @property
    def gpu_earned(self) -> int | None:
        """Points of the checks that take a GPU; None while they are pending."""
        if all(check.status == "pending" for check in self.gpu):
            return None
        return sum(check.points for check in self.gpu)

    @property
    def checks(self) -> list[CheckScore]:
        """All checks, in the order of the score card."""
        found = [check for task in self.tasks for check in task.checks]
        return [*found, *self.robustness, *([self.counterexample] if self.counterexample else [])]

    @property
    def points(self) -> int:
        return sum(check.points for check in self.checks)

    @property
    def total(self) -> int:
        return sum(check.total for check in self.checks)

    @property
    def whole(self) -> bool:
        return self.points == self.total

    def task_of(self, check: CheckScore) -> TaskScore | None:
        """The task that a check belongs to, or whose robustness it tests."""
        for task in self.tasks:
            if check in task.checks or check.check.parent == task.task.id:
                return task
        return None


def runnable(stage: Stage, submission: Submission, trace_started: bool) -> list[str]:
    """The checks that have something to run on."""
    ready = {task.id for task in stage.tasks if submission.task_state(task) == "ready"}
    found = [c.name for task in stage.tasks if task.id in ready for c in task.checks]
    found += [check.name for check in stage.robustness if check.parent in ready]
    if stage.counterexample is not None and trace_started and not stage.trace_is_sent_in:
        found.append(stage.counterexample_check.name)
    return found


def score(
    stage: Stage,
    submission: Submission,
    rounds: Sequence[Judged],
    *,
    trace_started: bool,
    diagnosis: str = "",
    seconds: float = 0.0,
    on_device: Judged | None = None,
) -> StageScore:
    """Points from rounds of grading.

    Args:
        rounds: the first ran all that could be run, each later one what had passed until then.
            A check must pass in all of them.
        on_device: the round of the GPU checks; None where there is no GPU.
    """
    asked = set(runnable(stage, submission, trace_started))
    tasks = []
    for task in stage.tasks:
        state = submission.task_state(task)
        checks = tuple(
            _check(stage, check, rounds)
            if check.name in asked
            else CheckScore(check, _ABSENT[state], submission.error_of(task))
            for check in task.checks
        )
        tasks.append(TaskScore(task, state, checks))
    by_id = {task.task.id: task for task in tasks}
    robustness = tuple(_robustness(stage, check, by_id[str(check.parent)], rounds)
                       for check in stage.robustness)  # fmt: skip
    counterexample = None
    if stage.counterexample is not None:
        check = stage.counterexample_check
        if stage.trace_is_sent_in:
            counterexample = CheckScore(check, "sent in")
        elif trace_started:
            counterexample = _check(stage, check, rounds)
        else:
            counterexample = CheckScore(check, "not started")
    return StageScore(
        stage,
        submission,
        tuple(tasks),
        robustness,
        counterexample,
        seeds=tuple(judged.seed for judged in rounds),
        note=next((judged.note for judged in rounds if judged.note), ""),
        seconds=seconds,
        diagnosis=diagnosis,
        gpu=tuple(
            CheckScore(check, "pending") if on_device is None else _check(stage, check, [on_device])
            for check in stage.gpu
        ),
    )


def points_on_gpu(total: int, points: int | None) -> str:
    """The column of GPU points.

    Args:
        points: None where they are pending.
    """
    if not total:
        return ""
    return f"GPU: {total} pending" if points is None else f"GPU: {points} of {total}"


def _check(stage: Stage, check: Check, rounds: Sequence[Judged]) -> CheckScore:
    """What the rounds say of a check: the first that it does not pass decides."""
    for number, judged in enumerate(rounds):
        result = judged.checks.get(check.name)
        if result is None:
            return CheckScore(check, "not run", judged.note or "the judge has no result for it")
        if result.status != "passed":
            message = result.message
            task = stub_in(message)
            if task is not None and task not in [own.id for own in stage.tasks]:
                return CheckScore(check, "waiting", message, waits_for=task)
            if number:
                message += (
                    f"\n(The cases of seed {rounds[0].seed} pass. "
                    f"Repeat this one with --seed {judged.seed}.)"
                )
            status: Status = "failed" if result.status == "failed" else "not run"
            return CheckScore(check, status, message, result.transcript, result.output)
    if not rounds:
        return CheckScore(check, "not run", "nothing was graded")
    return CheckScore(check, "passed")


def _robustness(
    stage: Stage, check: Check, parent: TaskScore, rounds: Sequence[Judged]
) -> CheckScore:
    if parent.state != "ready":
        return CheckScore(check, "parent taken" if parent.state == "taken" else "not started")
    if not parent.whole:
        return CheckScore(check, "parent failed")
    return _check(stage, check, rounds)
