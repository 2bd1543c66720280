"""The runs of figures 2 and 13: four systems under a load that is at or past what they can do."""

from __future__ import annotations

from minipaged.sim.paper.jobs import Job, Outcome
from minipaged.sim.paper.panels import ORCA
from minipaged.sim.paper.study import Study

SYSTEMS = (*ORCA, "vllm")
SHAREGPT_RATE, ALPACA_RATE = 2.0, 30.0


def sharegpt(study: Study) -> dict[str, Outcome]:
    """ShareGPT at 2 req/s for an hour, with the memory measured."""
    return _run(study, "sharegpt", SHAREGPT_RATE, study.duration(3600, 600), ("memory",))


def alpaca(study: Study) -> dict[str, Outcome]:
    """Alpaca at 30 req/s for a quarter of an hour."""
    return _run(study, "alpaca", ALPACA_RATE, study.duration(900, 60), ())


def _run(
    study: Study, workload: str, rate: float, duration: float, observe: tuple[str, ...]
) -> dict[str, Outcome]:
    jobs = [
        Job(workload, system, "opt-13b", rate, duration, rate, observe=observe)
        for system in SYSTEMS
    ]
    return dict(zip(SYSTEMS, study.sweep.run(jobs, f"{workload} at {rate:g} req/s")))
