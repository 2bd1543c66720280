"""The trace that the student found, on which a table with the famous off-by-one goes wrong."""

import pytest


def test_counterexample(counterexample):
    if counterexample.message:
        pytest.fail(counterexample.message, pytrace=False)
