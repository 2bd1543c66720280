"""What is measured while a simulation runs, beside what every run reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minipaged.kvcache.accounting import MemoryMeter, memory_classes, sequence_memory

if TYPE_CHECKING:
    from minipaged.contracts import StepPlan
    from minipaged.engine import Engine

#: The classes of figure 2, under the names of :class:`minipaged.kvcache.accounting.MemoryClasses`.
MEMORY_CLASSES = ("token_states", "reserved", "internal", "external")


class MemoryObserver:
    """Where the KV memory goes (figure 2): the mean over the time in which a request waits.

    While nobody waits a pool is as full as the load makes it, and its free slots are no waste.
    """

    def __init__(self) -> None:
        self._meter = MemoryMeter()
        self._seconds = 0.0
        self._batch_seconds = 0.0

    def observe(self, engine: Engine, plan: StepPlan, seconds: float) -> None:
        """See :class:`minipaged.sim.simulate.Observer`."""
        scheduler, kv = engine.scheduler, engine.kv
        running = scheduler.running
        if not running or not (scheduler.waiting or scheduler.swapped):
            return
        memory = sequence_memory(
            kv, running, scheduler.config.max_model_len, getattr(kv, "reservation", None)
        )
        self._meter.add(memory_classes(memory, kv.num_gpu_blocks * kv.block_size), seconds)
        self._seconds += seconds
        self._batch_seconds += len(running) * seconds

    def shares(self) -> dict[str, float]:
        """Percent of the pool, by class; empty if no step counted."""
        if not self._seconds:
            return {}
        mean = self._meter.mean().shares()
        return {name: float(getattr(mean, name)) for name in MEMORY_CLASSES}

    @property
    def mean_batch(self) -> float:
        """Requests in the batch over the same time; 0 if no step counted."""
        return self._batch_seconds / self._seconds if self._seconds else 0.0


class SharingObserver:
    """How much memory sharing saves (figure 15): of the logical blocks of all running sequences,
    those that need no physical block of their own. The mean is one over steps, as the authors'
    experiments have it."""

    def __init__(self) -> None:
        self._steps = 0
        self._sum = 0.0

    def observe(self, engine: Engine, plan: StepPlan, seconds: float) -> None:
        """See :class:`minipaged.sim.simulate.Observer`."""
        kv = engine.kv
        tables = [
            kv.block_table(seq.seq_id) for group in engine.scheduler.running for seq in group.live
        ]
        logical = sum(map(len, tables))
        if logical:
            physical = len(set().union(*tables))
            self._sum += (logical - physical) / logical
            self._steps += 1

    @property
    def percent(self) -> float:
        """0 if no step counted."""
        return 100 * self._sum / self._steps if self._steps else 0.0
