"""What planning costs: schedule, input tensors and commit, beside the least that a loop in
Python can do."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from statistics import median

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.contracts import Decision, GroupDecision
from minipaged.engine import make_kv_manager
from minipaged.executor.inputs import InputBuilder
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams
from minipaged.scheduling.scheduler import Scheduler
from minipaged.sequence import Sequence, SequenceGroup

BLOCK_SIZE = 16


@dataclass(frozen=True)
class SchedulingCost:
    """Medians over the steps, in milliseconds.

    Attributes:
        num_seqs, length: sequences that run, and tokens that each holds.
        loop_ms: a loop over the same sequences that appends one tuple of each (its id, its
            length, its last token) to a list.
    """

    num_seqs: int
    length: int
    schedule_ms: float
    inputs_ms: float
    commit_ms: float
    loop_ms: float

    @property
    def total_ms(self) -> float:
        return self.schedule_ms + self.inputs_ms + self.commit_ms

    @property
    def over_loop(self) -> float:
        return self.total_ms / self.loop_ms


class _Rig:
    """A scheduler whose sequences all decode, with nothing behind it."""

    def __init__(self, num_seqs: int, length: int, parts: Parts) -> None:
        config = SchedulerConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_seqs * length,
            max_model_len=2 * length + 4096,
        )
        blocks_each = -(-config.max_model_len // BLOCK_SIZE)
        cache = CacheConfig(
            block_size=BLOCK_SIZE, num_gpu_blocks=num_seqs * blocks_each, num_cpu_blocks=0
        )
        kv = make_kv_manager(cache, config, parts)
        self.scheduler: Scheduler = parts.Scheduler(
            config, kv, parts.Admission(config, kv, 0), parts.Preemption(kv, "auto")
        )
        self.inputs = InputBuilder(BLOCK_SIZE, max_seqs=num_seqs, max_blocks=blocks_each)
        params = SamplingParams(max_tokens=None)
        for i in range(num_seqs):
            seq = Sequence(self.scheduler.new_seq_id(), range(length))
            self.scheduler.add(SequenceGroup(str(i), seq, params, arrival_index=i))
        self.step()

    def step(self) -> tuple[float, float, float]:
        """Seconds of schedule, inputs and commit."""
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        planned = time.perf_counter()
        self.inputs.build(plan)
        built = time.perf_counter()
        decisions = [
            GroupDecision(group, [Decision(seq, 5, 0.0, seq.index) for seq in group.live])
            for group in self.scheduler.sampled
        ]
        decided = time.perf_counter()
        self.scheduler.commit(decisions)
        return planned - start, built - planned, time.perf_counter() - decided

    def loop(self) -> float:
        """Seconds of the loop that it is measured against."""
        start = time.perf_counter()
        tuples = []
        for group in self.scheduler.running:
            for seq in group.seqs.values():
                tuples.append((seq.seq_id, len(seq.token_ids), seq.token_ids[-1]))
        return time.perf_counter() - start


def measure_scheduling(
    num_seqs: int = 256,
    lengths: tuple[int, ...] = (64, 4096),
    steps: int = 150,
    parts: Parts | None = None,
) -> list[SchedulingCost]:
    """Measure all lengths in turn, step by step, so that noise falls on all of them."""
    rigs = [_Rig(num_seqs, length, parts or Parts()) for length in lengths]
    times: list[list[tuple[float, ...]]] = [[] for _ in rigs]
    gc.collect()
    gc.freeze()  # what the process had before is not this benchmark's garbage
    try:
        for _ in range(steps):
            for rig, rows in zip(rigs, times):
                rows.append((*rig.step(), rig.loop()))
    finally:
        gc.unfreeze()
    return [
        SchedulingCost(num_seqs, length, *(1e3 * median(column) for column in zip(*rows)))
        for length, rows in zip(lengths, times)
    ]
