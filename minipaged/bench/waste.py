"""The same real requests in the paged engine and in the contiguous ones: how many are batched,
and where the memory goes (paper, figures 2 and 13)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minipaged.config import Reservation, SchedulerConfig
from minipaged.kvcache.accounting import MemoryClasses, MemoryMeter, memory_classes, sequence_memory
from minipaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minipaged.bench.workload import Job
    from minipaged.engine import Engine
    from minipaged.llm import LLM

SYSTEMS: tuple[Reservation, ...] = ("paged", "oracle", "pow2", "max")


@dataclass(frozen=True)
class Waste:
    """One system under the workload.

    Attributes:
        mean_batch: requests that ran, mean over the steps in which some request waited (all
            steps, where none ever did).
        classes: shares of the pool's slots, in percent, mean over the same steps.
        held_over_need: tokens in held blocks over held slots, divided by what whole blocks
            allow at best: ``sum(n) / sum(B * ceil(n / B))`` over the sequences. 1.0 means that
            no block is held beyond need.
        steps: that the whole workload took.
    """

    system: Reservation
    mean_batch: float
    classes: MemoryClasses
    held_over_need: float
    steps: int


def measure_waste(llm: LLM, jobs: list[Job], num_blocks: int) -> list[Waste]:
    """Serve the jobs once with each system, in a pool of ``num_blocks`` blocks."""
    return [_measure(llm, jobs, num_blocks, system) for system in SYSTEMS]


class _Watch:
    """Sees every step; ``pressed`` are those in which some request waited."""

    def __init__(self) -> None:
        self.held = self.need = 0
        self._all = _Mean()
        self._pressed = _Mean()

    def __call__(self, engine: Engine) -> None:
        scheduler, kv = engine.scheduler, engine.kv
        running = scheduler.running
        if not running:
            return
        # After the commit the token sampled last has no slot yet: num_computed are held.
        for seq in (seq for group in running for seq in group.live):
            self.held += len(kv.block_table(seq.seq_id))
            self.need += -(-seq.num_computed // kv.block_size)
        memory = sequence_memory(
            kv, running, scheduler.config.max_model_len, getattr(kv, "reservation", None)
        )
        shares = memory_classes(memory, kv.num_gpu_blocks * kv.block_size).shares()
        for mean in [self._all, self._pressed] if scheduler.waiting else [self._all]:
            mean.batches.append(len(running))
            mean.meter.add(shares)

    @property
    def mean(self) -> _Mean:
        return self._pressed if self._pressed.batches else self._all


class _Mean:
    def __init__(self) -> None:
        self.batches: list[int] = []
        self.meter = MemoryMeter()


def _measure(llm: LLM, jobs: list[Job], num_blocks: int, system: Reservation) -> Waste:
    cache = replace(
        llm.cache_config, num_gpu_blocks=num_blocks, num_cpu_blocks=0, reservation=system
    )
    engine = llm.make_engine(cache, SchedulerConfig())
    for i, job in enumerate(jobs):
        params = SamplingParams(temperature=0, max_tokens=job.output_len, ignore_eos=True)
        engine.add_request(str(i), job.prompt_token_ids, params)
    watch = _Watch()
    while engine.has_unfinished():
        engine.step()
        watch(engine)
    batches = watch.mean.batches
    return Waste(
        system,
        sum(batches) / len(batches),
        watch.mean.meter.mean(),
        watch.need / watch.held,
        engine.num_steps,
    )
