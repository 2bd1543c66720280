"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Most models here are tiny: a second thread would wait for the first. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from minipaged.course.device import triton_environment

# Before Triton is imported, by whatever test: without a GPU its kernels run in the interpreter.
os.environ.update(triton_environment(os.environ))

from minipaged.fetch import SMOLLM2, default_cache_dir, is_complete

# Graded tests: --impl, --seed and the fixtures that stand for the implementation under test.
pytest_plugins = ["minipaged.course.judge.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="tests of the grader try all that they know, not a part of it, as continuous "
        "integration does",
    )


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Is there time? If not, a test that tries many things takes some of them."""
    return bool(request.config.getoption("exhaustive"))


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
