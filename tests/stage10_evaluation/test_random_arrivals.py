"""Task 10.1: when requests arrive. What is random is judged by what it must be on the whole: a
right answer is inside of these bounds but once in many million times."""

from __future__ import annotations

import math

import numpy as np
from run_oracle import expect_number, expect_numbers

from minipaged.course.testing import expect, expect_error
from minipaged.errors import ConfigError

MANY = 6000


def drawn(parts, lab, rng, rate, duration, *burstiness):
    times = parts.arrival_times(rate, duration, lab.rng(seed(rng)), *burstiness)
    return array_of(times, called(rate, duration, *burstiness))


def seed(rng):
    return int(rng.integers(1 << 30))


def called(rate, duration, *burstiness):
    shape = "".join(f", burstiness {each:.4g}" for each in burstiness)
    return f"arrival_times() of rate {rate:.4g}, {duration:.4g} s{shape}"


def array_of(times, why):
    if not (isinstance(times, np.ndarray) and times.dtype == np.float64 and times.ndim == 1):
        raise AssertionError(f"{why}: expected a float64 array of one axis, got {times!r:.60}")
    return times


def test_arrivals_come_at_the_rate_that_is_asked_for(parts, lab, rng):
    for shape in (None, 0.25, 1.0, 4.0, float(rng.uniform(0.3, 9))):
        rate = float(rng.uniform(0.5, 60))
        duration, given = MANY / rate, [] if shape is None else [shape]
        times = drawn(parts, lab, rng, rate, duration, *given)
        why = f"{called(rate, duration, *given)}: arrivals a second"
        expect_number(len(times) / duration, rate, why, 0.2)  # of the burstiest, 7 deviations


def share_below(shape, x):
    """Of gamma distributed gaps with the mean 1 and a whole shape, those that are below x."""
    terms = [(shape * x) ** k / math.factorial(k) for k in range(shape)]
    return 1 - math.exp(-shape * x) * sum(terms)


def test_gaps_are_as_bursty_as_they_should_be(parts, lab, rng):
    for shape in (1.0, 0.25, 4.0, float(rng.integers(2, 10))):
        rate = float(rng.uniform(0.5, 60))
        why = called(rate, MANY / rate, shape)
        gaps = np.diff(drawn(parts, lab, rng, rate, MANY / rate, shape))
        expect(len(gaps) > MANY / 10, True, f"{why}: are there arrivals enough to judge?")
        gaps = gaps / gaps.mean()
        spread = f"{why}: standard deviation of the gaps over their mean"
        within = 7 * math.sqrt((0.5 + 0.5 / shape) / len(gaps))
        expect_number(float(gaps.std()), 1 / math.sqrt(shape), spread, within)
        if shape >= 1:
            want = share_below(round(shape), 0.7)
            got = float((gaps < 0.7).mean())
            within = 7 * math.sqrt(want * (1 - want) / len(gaps)) / want
            expect_number(got, want, f"{why}: share of gaps below 0.7 of their mean", within)


def test_arrivals_lie_in_the_duration_and_in_order(parts, lab, rng):
    counts = []
    for _ in range(8):
        rate = float(rng.uniform(2, 60))
        duration = 100 / rate
        times = drawn(parts, lab, rng, rate, duration)
        why = called(rate, duration)
        counts.append(len(times))
        expect(len(times) > 0, True, f"{why}: is there an arrival?")
        expect(bool((np.diff(times) >= 0).all()), True, f"{why}: are they in order?")
        expect(bool(0 < times[0] < 40 / rate), True, f"{why}: does the first come a gap after 0?")
        expect(bool(times[-1] < duration), True, f"{why}: is the last one before the end?")
        late = bool(times[-1] > duration - 40 / rate)
        expect(late, True, f"{why}: do they go on until the end?")
    why = "arrival_times() of 100 arrivals in the mean, 8 times: is their number random?"
    expect(len(set(counts)) > 1, True, why)


def test_the_generator_is_the_only_source_of_chance(parts, lab, rng):
    rate, duration = float(rng.uniform(2, 30)), 20.0
    for name in ("arrival_times", "arrivals_by_quantum"):
        draw, one = getattr(parts, name), seed(rng)
        generators = [lab.rng(one), lab.rng(one), lab.rng(one + 1)]
        first, same, other = (
            array_of(draw(rate, duration, generator), f"{name}()") for generator in generators
        )
        again = draw(rate, duration, generators[0])
        why = f"{name}(), twice with a generator of the same seed: the same times?"
        expect(bool(np.array_equal(first, same)), True, why)
        why = f"{name}(), with generators of two seeds: the same times?"
        expect(bool(np.array_equal(first, other)), False, why)
        why = f"{name}(), a second time with one generator: the same times?"
        expect(bool(np.array_equal(first, again)), False, why)


def test_a_quantum_has_a_poisson_number(parts, lab, rng):
    quanta = 4000
    for mean, quantum in ((float(rng.uniform(1, 4)), float(rng.uniform(0.02, 3))), (0.7, None)):
        length = 0.01 if quantum is None else quantum
        rate, duration = mean / length, (quanta - 0.5) * length
        given = [] if quantum is None else [quantum]
        why = (
            f"arrivals_by_quantum() of rate {rate:.4g}, {duration:.4g} s, quanta of {length:.3g} s"
        )
        times = parts.arrivals_by_quantum(rate, duration, lab.rng(seed(rng)), *given)
        times = array_of(times, why)
        expect(bool((np.diff(times) >= 0).all()), True, f"{why}: are they in order?")
        places = np.rint(times / length)
        at = bool(np.allclose(times, places * length, rtol=1e-9, atol=1e-9 * length))
        expect(at, True, f"{why}: is each at the beginning of a quantum?")
        inside = len(times) > 0 and places.min() >= 0 and places.max() < quanta
        expect(bool(inside), True, f"{why}: are they all in the duration?")
        counts = np.bincount(places.astype(int), minlength=quanta)
        within = 6 / math.sqrt(mean * quanta)
        expect_number(float(counts.mean()), mean, f"{why}: arrivals a quantum", within)
        within = 7 * math.sqrt((2 + 1 / mean) / quanta)
        spread = float(counts.var() / counts.mean())
        expect_number(spread, 1.0, f"{why}: variance of these numbers over their mean", within)
        empty = math.exp(-mean)
        within = 6 * math.sqrt((1 - empty) / (empty * quanta))
        expect_number(float((counts == 0).mean()), empty, f"{why}: share of empty quanta", within)


def test_rescaling_stretches_all_gaps_alike(parts, rng):
    for count in (1, 2, int(rng.integers(3, 12)), 40):
        times = np.cumsum(rng.uniform(0.01, 3, count)).round(3)
        rate = round(float(rng.uniform(0.2, 20)), 2)
        why = f"rescale() of {count} arrivals, the last at {times[-1]:g} s, to {rate:g} a second"
        got = array_of(parts.rescale(times, rate), why)
        last = count / rate
        expect_numbers(got, [last * float(time / times[-1]) for time in times], why)


# --------------------------------------------------------------------------- robustness
def test_a_rate_that_cannot_be_is_refused(parts, lab, rng):
    below = -int(rng.integers(1, 100))
    for value in (0.0, float(below), math.inf, math.nan):
        word = f"{value:g}"
        for name, call in (
            ("rate", lambda v: parts.arrival_times(v, 5.0, lab.rng(1))),
            ("burstiness", lambda v: parts.arrival_times(3.0, 5.0, lab.rng(1), v)),
            ("rate", lambda v: parts.arrivals_by_quantum(v, 5.0, lab.rng(1))),
            ("quantum", lambda v: parts.arrivals_by_quantum(3.0, 5.0, lab.rng(1), v)),
            ("rate", lambda v: parts.rescale(np.array([1.0, 2.0]), v)),
        ):
            with expect_error(ConfigError, name, word, why=f"{name} is {value}"):
                call(value)
    for value in (float(below), math.inf):
        for draw in (parts.arrival_times, parts.arrivals_by_quantum):
            with expect_error(ConfigError, "duration", f"{value:g}", why=f"duration is {value}"):
                draw(3.0, value, lab.rng(1))


def test_a_run_without_arrivals_is_a_run(parts, lab, rng):
    rate = float(rng.uniform(1, 9))
    for name in ("arrival_times", "arrivals_by_quantum"):
        got = array_of(getattr(parts, name)(rate, 0.0, lab.rng(seed(rng))), f"{name}()")
        expect(len(got), 0, f"{name}() in 0 s")
    expect(len(array_of(parts.rescale(np.array([]), rate), "rescale()")), 0, "rescale() of none")
    with expect_error(ConfigError, why="rescale() of three arrivals at 0 s"):
        parts.rescale(np.zeros(3), rate)
