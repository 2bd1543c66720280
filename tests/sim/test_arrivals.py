"""Arrivals as others make them. That they are what they must be is graded in
tests/stage10_evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from minipaged.sim.arrivals import arrival_times, arrivals_by_quantum, rescale


def rng(seed=0):
    return np.random.default_rng(seed)


def test_an_hour_of_the_papers_trace():
    times = arrival_times(2.0, 3600.0, rng())
    assert len(times) == pytest.approx(7200, abs=6 * 85)
    assert (np.diff(times) >= 0).all()


def test_one_seed_is_one_trace():
    for burstiness in (0.1, 1.0, 30.0):
        first, again = (arrival_times(5.0, 100.0, rng(3), burstiness) for _ in range(2))
        assert first.tobytes() == again.tobytes()
    first, again = (arrivals_by_quantum(5.0, 100.0, rng(3)) for _ in range(2))
    assert first.tobytes() == again.tobytes()


def test_a_longer_run_does_not_begin_otherwise():
    """Nobody promises it, but a sweep over durations is easier to read when it holds."""
    short = arrivals_by_quantum(5.0, 50.0, rng(1))
    long = arrivals_by_quantum(5.0, 100.0, rng(1))
    assert (long[: len(short)] == short).all()


@pytest.mark.parametrize("burstiness", [0.02, 0.25, 1.0, 50.0])
def test_a_run_of_any_burstiness_ends(burstiness):
    times = arrival_times(20.0, 30.0, rng(), burstiness)
    assert ((times >= 0) & (times < 30)).all()


@pytest.mark.parametrize("quanta", [1, 3, 7, 11, 1000])
def test_quanta_of_a_decimal_length_are_counted_right(quanta):
    """0.1 has no exact value: 0.7 / 0.1 is below 7, and 1.1 / 0.1 above 11."""
    times = arrivals_by_quantum(10_000.0, quanta * 0.1, rng(), 0.1)
    assert len(np.unique(times)) == quanta
    assert times.max() < quanta * 0.1


def test_both_kinds_of_poisson_arrivals_agree_on_seconds():
    """Arrivals a second: their variance is their mean, with quanta and without."""
    for times in (arrival_times(4.0, 20_000.0, rng()), arrivals_by_quantum(4.0, 20_000.0, rng())):
        counts = np.bincount(times.astype(int), minlength=20_000)
        assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.07)


def test_a_rescaled_trace_has_its_rate_to_the_last_digit():
    times = arrival_times(3.0, 50.0, rng())
    before = times.copy()
    stretched = rescale(times, 2.0)
    assert stretched[-1] == len(times) / 2.0
    assert (times == before).all()
