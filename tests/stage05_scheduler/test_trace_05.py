"""The trace that the student found, on which another group is preempted."""

import pytest


def test_counterexample(counterexample):
    if counterexample.message:
        pytest.fail(counterexample.message, pytrace=False)
