"""The trace that the student found, on which a group takes another number of blocks."""

import pytest


def test_counterexample(counterexample):
    if counterexample.message:
        pytest.fail(counterexample.message, pytrace=False)
