"""The trace that the student found."""

from __future__ import annotations

import pytest


def test_counterexample(counterexample):
    if counterexample.message:
        pytest.fail(counterexample.message, pytrace=False)
