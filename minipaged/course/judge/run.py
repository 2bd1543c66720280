"""Have submissions judged, in a process of its own: whatever a submission does to the judge, who
asked for it is still there."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
import sysconfig
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psutil

import minipaged
from minipaged.course.catalog import FILE, Course, Stage
from minipaged.course.judge import isolated, linux
from minipaged.course.judge.limits import Limits
from minipaged.course.judge.parent import kill_all
from minipaged.course.judge.results import CheckResult as CheckResult
from minipaged.course.judge.results import Judged as Judged
from minipaged.course.submission import Submission, foundations, trace_path
from minipaged.errors import CourseError

#: Seconds for one stage and one submission, and for one of kernels, which are interpreted; a
#: solution takes a tenth of it on a machine with nothing else to do.
SECONDS, SECONDS_OF_KERNELS = 120.0, 300.0

#: Who workers become where the judge is root: nobody.
_NOBODY = 65534


def judge(
    course: Course,
    stage: Stage,
    submission: Submission,
    *,
    seed: int = 0,
    checks: Collection[str] | None = None,
    user: str | None = "auto",
    seconds: float | None = None,
    limits: Limits | None = None,
) -> Judged:
    """Run a stage's checks on a submission.

    Args:
        seed: of the random cases.
        checks: names of those to run; None for all.
        user: whom the submission runs as: ``auto`` for nobody where we are root and ourselves
            elsewhere, None for ourselves, or a name.
        seconds: for the whole stage; by default what a stage of its kind may take.
        limits: of one worker.

    Raises:
        CourseError: no such user, or no such check.
    """
    jobs = [_job(course, stage, submission, seed, checks)]
    return _run(course, stage, jobs, user, seconds, limits)[0]


def judge_rounds(
    course: Course,
    stage: Stage,
    submission: Submission,
    *,
    seeds: Sequence[int],
    checks: Collection[str] | None = None,
    user: str | None = "auto",
    seconds: float | None = None,
    limits: Limits | None = None,
) -> list[Judged]:
    """As :func:`judge`, once for each seed, each time only what passed before. One process does it
    all, so a second round costs little."""
    jobs = [_job(course, stage, submission, seed, checks) for seed in seeds]
    for job in jobs[1:]:
        job["again"] = True
    return _run(course, stage, jobs, user, seconds, limits)


def judge_many(
    course: Course,
    stage: Stage,
    submissions: Sequence[Submission],
    *,
    seed: int = 0,
    checks: Collection[str] | None = None,
    checks_of_each: Sequence[Collection[str]] | None = None,
    user: str | None = "auto",
    seconds: float | None = None,
    limits: Limits | None = None,
) -> list[Judged]:
    """As :func:`judge`, for many submissions in one process.

    Args:
        checks: as :func:`judge`.
        checks_of_each: in place of it, for each submission its own.
        seconds: for each.
    """
    wanted = [checks] * len(submissions) if checks_of_each is None else checks_of_each
    jobs = [
        _job(course, stage, each, seed, names)
        for each, names in zip(submissions, wanted, strict=True)
    ]
    return _run(course, stage, jobs, user, seconds, limits) if jobs else []


# --------------------------------------------------------------------------- the request
def _job(
    course: Course,
    stage: Stage,
    submission: Submission,
    seed: int,
    checks: Collection[str] | None,
) -> dict[str, Any]:
    known = [check.name for check in stage.checks()]
    for name in checks or ():
        if name not in known:
            raise CourseError(f"stage {stage.key} has no check {name!r}: {', '.join(known)}")
    # A worked answer re-exports the reference, so it needs it; nobody else gets it.
    trusted = submission.name == "solutions" and submission.folder == course.root / "solutions"
    trace = trace_path(course, submission)
    return {
        "trusted": trusted,
        "again": False,
        "trace": None if trace is None else str(trace),
        "sources": {
            name: [str(file.path), file.source]
            for name, file in submission.files.items()
            if file.source is not None and not file.error
        },
        "own": foundations(course, stage, submission),
        "seed": seed,
        "checks": [name for name in known if checks is None or name in checks],
    }


def _user(name: str | None) -> int | None:
    root = os.geteuid() == 0
    if name is None or (name == "auto" and not root):
        return None
    if name == "auto":
        return _NOBODY
    if not root:
        raise CourseError(f"only root can run a submission as {name!r}: leave the user out")
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise CourseError(f"there is no user {name!r} on this machine") from None


def _run(
    course: Course,
    stage: Stage,
    jobs: list[dict[str, Any]],
    user: str | None,
    seconds: float | None,
    limits: Limits | None,
) -> list[Judged]:
    if seconds is None:
        seconds = SECONDS_OF_KERNELS if stage.triton else SECONDS
    package = Path(minipaged.__file__).resolve().parent
    request = {
        "root": str(course.root),
        "stage": stage.number,
        "user": _user(user),
        "seconds": seconds,
        "limits": asdict(limits or Limits.of(stage)),
        "closed": [str(course.root.resolve())],
        "answers": [
            str((base / part.source).resolve())
            for part in stage.parts
            for base in (course.root, package.parent)
        ],
        "libraries": [
            str(package),
            str((package / "kernels").resolve()),  # a link, to beside the package
            *{os.path.realpath(sysconfig.get_path(n)) for n in ("stdlib", "purelib", "platlib")},
        ],
        "jobs": jobs,
    }
    before = _digests(course, stage)
    lines, note = _ask(json.dumps(request), len(jobs) * (seconds + 30) + 120)
    after = _digests(course, stage)
    changed = [file for file in before | after if before.get(file) != after.get(file)]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        lines, note = (
            [],
            (
                "the grader's own files changed while the submission ran "
                f"({os.path.relpath(changed[0], course.root)}{more}): grade again"
            ),
        )
    return [
        _read(stage, job, lines[i] if i < len(lines) else None, note) for i, job in enumerate(jobs)
    ]


def _read(stage: Stage, job: dict[str, Any], line: str | None, note: str) -> Judged:
    if line is None:
        lost = {name: CheckResult(name, "not run", note) for name in job["checks"]}
        return Judged(stage.number, job["seed"], lost, note)
    results = [CheckResult(**row) for row in json.loads(line)]
    return Judged(stage.number, job["seed"], {result.name: result for result in results})


# --------------------------------------------------------------------------- the process
def _ask(request: str, timeout: float) -> tuple[list[str], str]:
    """A line for each job that the judge has finished, and why there are no more."""
    # What a user's shell says of pytest is not for graded tests.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", OMP_NUM_THREADS="1")
    with _nothing_left(), tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            isolated.command("minipaged.course.judge.__main__"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # a Ctrl-C is ours: we end the judge
            text=True,
        )
        try:
            output, _ = process.communicate(request, timeout=timeout)
            why = _why_ended(process.returncode, errors)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            why = f"the judge was ended: it took more than {timeout:g} s"
        except BaseException:
            process.kill()
            process.wait()
            raise
    # The last line may have been cut.
    return output.split("\n")[:-1], why


def _why_ended(code: int, errors: IO[bytes]) -> str:
    if code < 0:
        return f"the judge was ended from outside (signal {-code}) while the submission ran"
    errors.seek(0)
    last = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"the judge could not work: {''.join(last) or f'exit status {code}'}"


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Whatever a judge that was killed leaves behind is ended too."""
    me, session = psutil.Process(), os.getsid(0)
    before = set(me.children(recursive=True))

    def left() -> Iterator[psutil.Process]:
        for process in set(me.children(recursive=True)) - before:
            # All of the judge's have left our session; what else the caller starts has not.
            with suppress(ProcessLookupError):
                if os.getsid(process.pid) != session:
                    yield process

    linux.adopt_orphans()
    try:
        yield
    finally:
        kill_all(left)
        linux.adopt_orphans(False)


def _digests(course: Course, stage: Stage) -> dict[Path, bytes]:
    """Of every file that decides what a check says."""
    tests = course.root / "tests"
    folders = (tests / stage.folder, tests / "mutants", Path(__file__).resolve().parents[1])
    files = [course.root / FILE, *(course.root / part.source for part in stage.parts)]
    for folder in folders:
        files += sorted(f for f in folder.rglob("*") if f.suffix in (".py", ".toml"))
    digests = {}
    for file in files:
        with suppress(OSError):
            digests[file] = hashlib.sha256(file.read_bytes()).digest()
    return digests
