"""The trace that the student found."""

from __future__ import annotations


def test_counterexample(counterexample):
    assert not counterexample.message, counterexample.message
