"""The rate at a latency is found, in few runs, and with the same random numbers in each."""

import math
from dataclasses import replace

import pytest

from minipaged.errors import ConfigError
from minipaged.sim.paper.jobs import Job, Outcome, offered
from minipaged.sim.paper.knees import PRECISION, find_knees, search

JOB = Job("alpaca", "vllm", "opt-13b", rate=10.0, duration=20.0, top_rate=40.0)


def latency(rate, knee):
    """Flat, and then nearly straight up."""
    return 0.03 + 0.17 * (rate / knee) ** 30


def find(guess, knee, top=math.inf):
    looking = search(guess, top)
    rate, rates = next(looking), []
    while True:
        rates.append(rate)
        try:
            rate = looking.send(latency(rate, knee))
        except StopIteration as end:
            return end.value, rates


@pytest.mark.parametrize("guess", [0.02, 0.5, 0.9, 0.99, 1.0, 1.01, 1.1, 2.0, 50.0])
def test_a_rate_is_found_from_any_guess(guess):
    for knee in (0.06, 28.0):
        found, rates = find(guess * knee, knee)
        assert found == pytest.approx(knee, rel=PRECISION - 1)
        assert len(set(rates)) == len(rates)


def test_a_good_guess_costs_few_runs():
    assert max(len(find(guess, 1.0)[1]) for guess in (0.93, 0.97, 1.0, 1.05)) <= 5


def test_a_curve_that_stays_below_the_level_has_no_rate():
    found, rates = find(1.0, 8.0, top=2.0)
    assert found is None
    assert max(rates) == 2.0


def test_nor_has_one_that_is_always_above():
    looking = search(1.0)
    rates = [next(looking)]
    found = 0.0
    while found == 0.0:
        try:
            rates.append(looking.send(0.5))
        except StopIteration as end:
            found = end.value
    assert found is None
    assert rates == sorted(rates, reverse=True)
    assert 1e-4 < rates[-1] < 1e-3


class Fake:
    """A sweep whose systems have known knees; the second seed's is 10 % higher."""

    knees = {"vllm": 12.0, "orca-max": 3.0}  # noqa: RUF012

    def __init__(self):
        self.batches = []

    def run(self, jobs, label=""):
        self.batches.append(jobs)
        return [
            Outcome(latency(j.rate, self.knees[j.system] * (1 + 0.1 * j.seed)), 1, 0, 1, 1.0, 1.0)
            for j in jobs
        ]


def test_searches_go_on_side_by_side():
    sweep = Fake()
    curves = {"a": JOB, "b": replace(JOB, system="orca-max", rate=3.1)}
    found = find_knees(sweep, curves, seeds=2, shares=(0.25,))
    assert found["a"].rate == pytest.approx(12 * 1.05, rel=0.03)
    assert found["b"].rate == pytest.approx(3 * 1.05, rel=0.03)
    assert found["a"].spread == pytest.approx((12, 13.2), rel=0.03)
    assert len(sweep.batches[0]) == 2  # both in one round
    rates = [rate for rate, _ in found["a"].points]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(3, rel=0.03)  # a quarter of it, for the curve


def test_few_requests_are_made_up_for_by_seeds():
    curves = {"many": JOB, "few": replace(JOB, system="orca-max", rate=3.1)}
    found = find_knees(Fake(), curves, least_requests=150)  # 200 and 62 a run
    assert found["many"].spread is None
    assert found["few"].rate == pytest.approx(3 * 1.1, rel=0.03)  # the second of three seeds
    assert found["few"].spread == pytest.approx((3, 3.6), rel=0.03)


def test_one_seed_has_no_spread():
    assert find_knees(Fake(), {"a": JOB})["a"].spread is None


# --------------------------------------------------------------------------- random numbers
@pytest.mark.parametrize("workload", ["sharegpt", "alpaca", "translation-5", "chatbot"])
def test_another_rate_has_the_same_requests_and_gaps(workload):
    job = replace(JOB, workload=workload)
    slow, fast = offered(job), offered(replace(job, rate=20.0))
    assert fast.num_requests == pytest.approx(2 * slow.num_requests, rel=0.2)
    for one, two in zip(slow.requests, fast.requests):
        assert one.arrival_time == pytest.approx(2 * two.arrival_time)
        assert (one.prompt_len, one.output_len) == (two.prompt_len, two.output_len)


def test_the_rate_is_the_one_that_is_asked_for():
    work = offered(replace(JOB, duration=200.0))
    assert work.num_requests == pytest.approx(2000, rel=0.07)
    assert 195 < work.duration < 200


def test_another_seed_has_other_requests():
    assert offered(JOB).requests != offered(replace(JOB, seed=1)).requests


def test_a_job_that_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="rate 50 is above top_rate 40"):
        offered(replace(JOB, rate=50.0))
    with pytest.raises(ConfigError, match="'wikipedia'"):
        offered(replace(JOB, workload="wikipedia"))
