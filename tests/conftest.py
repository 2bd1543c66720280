"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Most models here are tiny: a second thread would wait for the first. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from minipaged.course.catalog import Stage, load_course
from minipaged.course.device import compiles_for_device, triton_environment

# Before Triton is imported, by whatever test: without a GPU its kernels run in the interpreter.
os.environ.update(triton_environment(os.environ))

from minipaged.fetch import SMOLLM2, default_cache_dir, is_complete

# Graded tests: --impl, --seed and the fixtures that stand for the implementation under test.
pytest_plugins = ["minipaged.course.judge.plugin"]

_JUDGED = "tests/course/test_grade.py::test_the_solutions_earn_all_points"
_LEFT_OUT = f"left to {_JUDGED}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="tests of the grader try all that they know, not a part of it, as continuous "
        "integration does",
    )


# Last: what -k and -m have taken out is out.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Graded tests of kernels take minutes, and a test of the grader has the judge run the same
    ones on the same code: where both are in a run, and time is short, once is enough."""
    on_the_reference = config.getoption("impl") == "ref" and config.getoption("seed") == 0
    # Where a GPU compiles them they are no repetition: the judge interprets kernels.
    if config.getoption("exhaustive") or not on_the_reference or compiles_for_device():
        return
    selected = {item.nodeid for item in items}
    judged = {
        stage.folder: {f"test_{check.name}" for check in stage.checks()}
        for stage in load_course(Path(__file__).parents[1]).stages
        if stage.triton and f"{_JUDGED}[{stage.key}]" in selected
    }
    for item in items:
        name = getattr(item, "originalname", item.name)
        if name in judged.get(item.path.parent.name, ()):
            item.add_marker(pytest.mark.skip(reason=_LEFT_OUT))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    if count := sum(_LEFT_OUT in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(
            f"{count} graded tests of kernels were {_LEFT_OUT}, which runs them in the judge; "
            "with --exhaustive, or by themselves, they run here too"
        )


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Is there time? If not, a test that tries many things takes some of them."""
    return bool(request.config.getoption("exhaustive"))


@pytest.fixture(scope="session")
def some_of(exhaustive: bool) -> Callable[[Stage, Sequence[Any]], Sequence[Any]]:
    """What is tried of all that could be tried of a stage: where time is short, every third of one
    of kernels, which are compiled, or interpreted slowly."""
    return lambda stage, tried: tried[:: 3 if stage.triton and not exhaustive else 1]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The folder of SmolLM2-135M-Instruct, as `make model` puts it into the user's cache.

    A test that needs it is skipped where it is not there; with ``MINIPAGED_REQUIRE_MODEL`` set,
    as in continuous integration, it fails.
    """
    folder = default_cache_dir() / SMOLLM2.name
    if is_complete(folder):
        return folder
    reason = f"{SMOLLM2.title} is not in {folder}: `make model` gets it"
    if os.environ.get("MINIPAGED_REQUIRE_MODEL"):
        pytest.fail(reason)
    pytest.skip(reason)
