"""One simulation of the reproduction: plain data in, plain data out, so that it can run anywhere
and its result can be kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from minipaged.config import PAPER_2023_CACHE, PreemptionMode, SchedulerConfig
from minipaged.errors import ConfigError
from minipaged.sim.metrics import pooled
from minipaged.sim.paper.observers import MemoryObserver, SharingObserver
from minipaged.sim.simulate import PAPER_DEPLOYMENTS, simulate
from minipaged.sim.workloads import Workload, chatbot, paper, shared_prefix

if TYPE_CHECKING:
    from minipaged.parts import Parts
    from minipaged.sim.simulate import Observer


@dataclass(frozen=True)
class Job:
    """A system under a workload of the paper's.

    Attributes:
        workload: a name of :data:`WORKLOADS`.
        system, model: by name.
        rate: requests a second.
        duration: seconds in which requests arrive; the run goes on until all have ended.
        top_rate: random numbers are drawn as for this rate, and then spread out in time until the
            rate is the one that is asked for. Jobs that differ in nothing but their rate have the
            same requests in the same order, with the same gaps but for one factor.
        num_sequences, beam: parallel samples, or beams.
        block_size: tokens.
        preemption: see :class:`minipaged.config.SchedulerConfig`.
        observe: measure the classes of memory (``memory``), or how many blocks are shared
            (``sharing``)? Both take time.
        seed: of everything.
    """

    workload: str
    system: str
    model: str
    rate: float
    duration: float
    top_rate: float
    num_sequences: int = 1
    beam: bool = False
    block_size: int = 16
    preemption: PreemptionMode = "auto"
    observe: tuple[str, ...] = ()
    seed: int = 0

    @property
    def size(self) -> float:
        """About how much work it is: sequences."""
        return self.rate * self.duration * self.num_sequences


@dataclass(frozen=True)
class Outcome:
    """What is kept of a simulation.

    Attributes:
        latency: mean normalized latency, s/token, over all sequences.
        requests, failed: how many there were, and how many were not served to their end.
        steps: of the engine.
        duration: seconds until the last request had ended.
        mean_batch: requests in the batch, over the time that steps took.
        memory: percent of the KV cache in each of the four classes, mean over the time in which a
            request waited; empty if nobody measured, or none waited.
        memory_batch: requests in the batch, over the same time.
        saved: percent of the logical blocks that need no physical block of their own, mean over
            steps.
        preemptions: by mode.
    """

    latency: float
    requests: int
    failed: int
    steps: int
    duration: float
    mean_batch: float
    memory: dict[str, float] = field(default_factory=dict)
    memory_batch: float = 0.0
    saved: float = 0.0
    preemptions: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Builder = Callable[[Job], Workload]

#: Workloads by name: each draws a job's requests at its ``top_rate``.
WORKLOADS: Mapping[str, Builder] = {
    "sharegpt": lambda job: paper(
        "sharegpt", job.top_rate, job.duration, job.seed, job.num_sequences, job.beam
    ),
    "alpaca": lambda job: paper(
        "alpaca", job.top_rate, job.duration, job.seed, job.num_sequences, job.beam
    ),
    "translation-1": lambda job: shared_prefix(1, job.top_rate, job.duration, job.seed),
    "translation-5": lambda job: shared_prefix(5, job.top_rate, job.duration, job.seed),
    "chatbot": lambda job: chatbot(job.top_rate, job.duration, job.seed),
}


def offered(job: Job) -> Workload:
    """The requests of a job: those that come first among the ones drawn at ``top_rate``, as many
    as still arrive within ``duration`` when time is stretched.

    Raises:
        ConfigError: no such workload, or a rate above ``top_rate``.
        RequestError: no request arrives in that time.
    """
    if job.workload not in WORKLOADS:
        raise ConfigError(f"unknown workload {job.workload!r}: choose from {', '.join(WORKLOADS)}")
    if job.rate > job.top_rate:
        raise ConfigError(f"rate {job.rate:g} is above top_rate {job.top_rate:g}")
    drawn = WORKLOADS[job.workload](job)
    stretch = job.top_rate / job.rate
    requests = tuple(
        replace(request, arrival_time=request.arrival_time * stretch)
        for request in drawn.requests
        if request.arrival_time * stretch < job.duration
    )
    return replace(drawn, requests=requests)


def run_job(job: Job, parts: Parts | None = None) -> Outcome:
    """Simulate.

    Raises:
        ConfigError, PlanError, RequestError: the job makes no sense.
    """
    workload = offered(job)
    memory, sharing = MemoryObserver(), SharingObserver()
    observers: dict[str, Observer] = {"memory": memory, "sharing": sharing}
    run = simulate(
        workload,
        job.system,
        PAPER_DEPLOYMENTS[job.model],
        cache=replace(PAPER_2023_CACHE, block_size=job.block_size),
        scheduler=replace(SchedulerConfig.paper_2023(), preemption=job.preemption),
        parts=parts,
        observers=[observers[name] for name in job.observe],
        seed=job.seed,
    )
    return Outcome(
        latency=fmean(pooled(run.records, "normalized_latency")),
        requests=workload.num_requests,
        failed=sum(bool(record.error) for record in run.records),
        steps=run.num_steps,
        duration=run.duration,
        mean_batch=run.mean_batch,
        memory=memory.shares(),
        memory_batch=memory.mean_batch,
        saved=sharing.percent,
        preemptions=dict(run.preemptions),
    )
