"""Simulations fan out, are kept, and are never taken for others."""

import json
import os
import signal
from dataclasses import asdict, replace

import joblib
import pytest
from joblib._parallel_backends import ThreadingBackend

from minipaged.errors import ConfigError
from minipaged.executor import cost_model
from minipaged.sim.paper import store as store_module
from minipaged.sim.paper import sweep as sweep_module
from minipaged.sim.paper.jobs import Job, run_job
from minipaged.sim.paper.store import ResultStore
from minipaged.sim.paper.sweep import Sweep, SweepError

JOB = Job("alpaca", "vllm", "opt-13b", rate=4.0, duration=5.0, top_rate=8.0)
JOBS = [JOB, replace(JOB, rate=8.0), replace(JOB, system="orca-oracle")]


@pytest.fixture
def ran(monkeypatch):
    """The jobs that were simulated in this process."""
    jobs = []

    def noted(job, parts=None):
        jobs.append(job)
        return run_job(job, parts)

    monkeypatch.setattr(sweep_module, "run_job", noted)
    return jobs


def test_results_come_in_the_order_of_the_jobs():
    outcomes = Sweep(workers=1).run(JOBS)
    assert outcomes == [run_job(job) for job in JOBS]
    assert outcomes[1].requests > outcomes[0].requests
    assert all(outcome.failed == 0 and outcome.latency > 0.02 for outcome in outcomes)


def test_processes_find_what_one_process_finds():
    assert Sweep(workers=2).run(JOBS) == Sweep(workers=1).run(JOBS)


def test_a_job_runs_once_and_the_largest_first(ran):
    sweep = Sweep(workers=1)
    sweep.run([*JOBS, JOB])
    sweep.run(JOBS)
    assert ran[0] == JOBS[1]
    assert sorted(ran, key=repr) == sorted(JOBS, key=repr)


def test_any_backend_of_joblib_will_do(ran):
    seen = []

    class Toy(ThreadingBackend):
        def configure(self, *args, **kwargs):
            seen.append(True)
            return super().configure(*args, **kwargs)

    joblib.register_parallel_backend("toy", Toy)
    assert Sweep(workers=2, backend="toy").run(JOBS) == [run_job(job) for job in JOBS]
    assert seen
    assert len(ran) == 3


@pytest.mark.parametrize("backend", ["ray", "dask", "nonsense"])
def test_a_backend_that_is_not_there_is_named(backend, monkeypatch):
    for module in ("ray", "ray.util", "ray.util.joblib", "distributed"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ConfigError, match=f"--backend {backend}"):
        Sweep(backend=backend).run(JOBS)


# --------------------------------------------------------------------------- keeping
def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path, ran, monkeypatch):
    path = tmp_path / "deep/runs.jsonl"
    noted, count = sweep_module.run_job, iter(range(9))

    def interrupted(job, parts=None):
        if next(count) == 2:
            raise KeyboardInterrupt
        return noted(job, parts)

    monkeypatch.setattr(sweep_module, "run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Sweep(workers=1, store=ResultStore(path)).run(JOBS)
    assert len(path.read_text().splitlines()) == 2
    with path.open("a") as file:
        file.write('{"digest": "a line that was being writ')
    with path.open("a") as file:
        file.write("\n")
    monkeypatch.setattr(sweep_module, "run_job", noted)
    outcomes = Sweep(workers=1, store=ResultStore(path)).run(JOBS)
    assert len(ran) == 3  # not five
    assert outcomes == [run_job(job) for job in JOBS]


def test_what_is_read_again_is_what_was_written(tmp_path):
    job = replace(JOB, observe=("memory", "sharing"), num_sequences=2)
    outcome = run_job(job)
    ResultStore(tmp_path / "runs.jsonl").put(job, outcome)
    assert ResultStore(tmp_path / "runs.jsonl").get(job) == outcome


def test_every_field_of_a_job_tells_it_from_others(tmp_path):
    store = ResultStore(tmp_path / "runs.jsonl")
    store.put(JOB, run_job(JOB))
    others = {
        "workload": "sharegpt", "system": "orca-max", "model": "opt-66b", "rate": 4.5,
        "duration": 6.0, "top_rate": 9.0, "num_sequences": 2, "beam": True, "block_size": 8,
        "preemption": "swap", "observe": ("memory",), "seed": 1,
    }  # fmt: skip
    assert set(others) == set(asdict(JOB))
    for field, other in others.items():
        assert store.get(replace(JOB, **{field: other})) is None, field
    assert store.get(JOB) is not None


def test_other_costs_other_forks_or_other_code_are_other_results(tmp_path, monkeypatch):
    path = tmp_path / "runs.jsonl"
    ResultStore(path).put(JOB, run_job(JOB))
    with monkeypatch.context() as patch:
        slower = replace(cost_model.PAPER_2023, layer_seconds=1.0)
        patch.setattr("minipaged.sim.simulate.EFFICIENCIES", {"paper_2023": slower})
        assert ResultStore(path).get(JOB) is None
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_code_digest", lambda: "other code")
        assert ResultStore(path).get(JOB) is None
    with monkeypatch.context() as patch:
        patch.setattr(store_module.ForkModel.__init__, "__defaults__", (0.5,))
        assert ResultStore(path).get(JOB) is None
    assert ResultStore(path).get(JOB) is not None


def test_lines_are_json_with_the_job_in_it(tmp_path):
    ResultStore(tmp_path / "runs.jsonl").put(JOB, run_job(JOB))
    (line,) = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert json.loads(line)["job"]["system"] == "vllm"


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """Ends the process that unpacks it, as an operating system short of memory does."""

    def __reduce__(self):
        return _die, ()


def test_a_worker_that_dies_is_told_in_a_sentence():
    with pytest.raises(SweepError, match="a worker process was ended"):
        Sweep(workers=2, parts=Deadly()).run(JOBS)
