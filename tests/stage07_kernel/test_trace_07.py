"""The trace that the student found, whose output a slot without a token has changed."""

import pytest


def test_counterexample(counterexample):
    if counterexample.message:
        pytest.fail(counterexample.message, pytrace=False)
