"""The pytest plugin of graded tests: the options ``--impl`` and ``--seed``, and the fixtures
``parts``, ``lab``, ``rng`` and ``counterexample``; for kernels ``audit``; for checkpoints ``serve``
and ``reference_serve``.

The same tests run in one process for debugging (``pytest tests/stage03_block_table --impl mine``)
and under the judge, which puts an :data:`~minipaged.course.judge.rig.OpenRig` of its own into
``config.stash[OPEN_RIG]``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minipaged.course.answers import FILE as ANSWERS
from minipaged.course.answers import ReferenceAnswers
from minipaged.course.catalog import Course, Stage, find_root, load_course
from minipaged.course.device import compiles_for_device
from minipaged.course.judge.auditing import Auditor
from minipaged.course.judge.rig import OpenRig, Rig
from minipaged.errors import CourseError

OPEN_RIG = pytest.StashKey[OpenRig]()
_NO_GPU = pytest.mark.skip(reason="needs a GPU, and kernels that are compiled for it")
_STAGES = pytest.StashKey[dict[Path, tuple[Course, Stage]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("minipaged", "graded tests")
    group.addoption(
        "--impl",
        default="ref",
        help="what graded tests run on: ref (default), mine, solutions, or a folder laid out as "
        "exercises/",
    )
    group.addoption(
        "--record-answers",
        type=Path,
        metavar="FILE",
        help="write down what the reference answers in a checkpoint",
    )
    group.addoption(
        "--seed", type=int, default=0, help="of the random cases of graded tests (default: 0)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A stage's tests come in the order of its checks, whatever files they are in: with ``-x`` they
    stop at the first task that is not whole."""
    places: dict[Path, list[int]] = {}
    for i, item in enumerate(items):
        places.setdefault(item.path.parent, []).append(i)
    for folder, here in places.items():
        try:
            _, stage = _graded_in(config, folder)
        except CourseError:
            continue  # tests of something else
        checks = [*stage.checks(), *stage.gpu]
        order = {f"test_{check.name}": i for i, check in enumerate(checks)}
        on_gpu = {f"test_{check.name}" for check in stage.gpu}
        if on_gpu and not compiles_for_device():
            for i in here:
                if getattr(items[i], "originalname", items[i].name) in on_gpu:
                    items[i].add_marker(_NO_GPU)
        found = [items[i] for i in here]
        found.sort(key=lambda item: order.get(getattr(item, "originalname", item.name), len(order)))
        for i, item in zip(here, found):
            items[i] = item


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """The implementation under test, fresh for each test."""
    course, stage = _graded(request)
    open_rig = request.config.stash.get(OPEN_RIG, _in_process)
    with open_rig(course, stage, request.config.getoption("impl")) as rig:
        yield rig


@pytest.fixture
def parts(rig: Rig) -> Any:
    """The names of the parts: those of the graded stage are the submission's, all others the
    reference's."""
    return rig.parts


@pytest.fixture
def lab(rig: Rig) -> Any:
    """Makes and reads tensors where the submission lives."""
    return rig.lab


@pytest.fixture
def audit(request: pytest.FixtureRequest, rig: Rig) -> Auditor:
    """Compiles what the submission launches for a GPU that need not be there, and says what its
    machine code falls short of: ``audit("paged_decode_v1", arguments, "v1").sentences``."""
    course, stage = _graded(request)
    return Auditor(course, stage, rig.compile)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on ``--seed`` and the test's name alone."""
    _, stage = _graded(request)
    return generator(request.config.getoption("seed"), stage, request.node.name)


def generator(seed: int, stage: Stage, test: str) -> np.random.Generator:
    """The random numbers of one test, the same on every machine."""
    name = f"{stage.folder}::{test}"
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
    return np.random.default_rng([seed, *words.tolist()])


@pytest.fixture
def serve(request: pytest.FixtureRequest, rig: Rig) -> Any:
    """The whole engine on the submission's parts, which a checkpoint names:
    :func:`minipaged.course.judge.serving.serve` without its ``parts``."""
    from minipaged.course.student_parts import seats

    _, unit = _graded(request)
    own = {
        field: getattr(rig.parts, name)
        for part in unit.parts
        for field, name in seats(part).items()
    }
    return partial(rig.lab.serve, parts=own)


@pytest.fixture
def reference_serve(request: pytest.FixtureRequest) -> Any:
    """The same on the reference's parts, in the grader's own process: its ``outputs``."""
    option = request.config.getoption
    known = Path(request.path).parent / ANSWERS
    return ReferenceAnswers(known, option("--record-answers"), option("--seed"))


@pytest.fixture
def counterexample(request: pytest.FixtureRequest, rig: Rig) -> Any:
    """The verdict on the submission's trace: ``.message`` is empty where it earns the points."""
    from minipaged.course.counterexample import judge_trace

    course, stage = _graded(request)
    if request.config.getoption("impl") == "ref" and course.given is not None:
        pytest.skip("a copy for a class has no worked trace")
    if stage.trace_is_sent_in:
        pytest.skip("this copy of the course has no reference: your instructor grades it")
    if rig.trace is None:
        pytest.fail("this submission has no file for a counterexample", pytrace=False)
    return judge_trace(course, stage, rig.trace)


def _in_process(course: Course, stage: Stage, impl: str) -> Any:
    # Loaded only where it is used: the judge's own process never needs it.
    from minipaged.course.judge.in_process import in_process

    return in_process(course, stage, impl)


def _graded(request: pytest.FixtureRequest) -> tuple[Course, Stage]:
    """The course and stage that a test belongs to."""
    return _graded_in(request.config, Path(request.path).parent)


def _graded_in(config: pytest.Config, folder: Path) -> tuple[Course, Stage]:
    """The course and stage whose graded tests are in a folder.

    Raises:
        CourseError: those of no stage are.
    """
    known = config.stash.setdefault(_STAGES, {})
    if folder not in known:
        root = find_root(folder)
        if all(course.root != root for course, _ in known.values()):
            course = load_course(root)
            known |= {root / "tests" / unit.folder: (course, unit) for unit in course.units}
    if folder not in known:
        raise CourseError(f"{folder} is not the folder of a stage's graded tests")
    return known[folder]
