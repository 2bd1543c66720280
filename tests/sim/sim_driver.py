"""The simulated engine, driven step by step; and what a plan says, to compare it with another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minipaged.contracts import StepPlan
from minipaged.engine import Engine
from minipaged.executor.cost_model import CostModel
from minipaged.executor.simulated import SimulatedExecutor, VirtualClock
from minipaged.sampling_params import SamplingParams
from minipaged.sim.fork_model import ForkModel
from minipaged.sim.sampling import SimulatedSampling

#: A step takes a second, whatever is in it.
ONE_SECOND = CostModel(1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, overlap=False)


@dataclass
class Arrival:
    """A request that is queued before step ``step``."""

    step: int
    prompt: list[int]
    params: SamplingParams


@dataclass
class Watcher:
    """Sees every plan between planning and booking, when its block tables are those of the step."""

    inner: object
    plans: list[tuple] = field(default_factory=list)

    def execute(self, plan: StepPlan):
        self.plans.append(described(plan))
        return self.inner.execute(plan)


def described(plan: StepPlan) -> tuple:
    """All that a plan decides, but for the tokens, which a simulation does not know."""
    return (
        plan.step,
        [(s.seq_id, s.start, len(s.token_ids), tuple(s.block_table), s.sample) for s in plan.spans],
        [*plan.swap_in],
        [*plan.swap_out],
        [*plan.copies],
        [(victim.request_id, victim.mode) for victim in plan.preempted],
        [*plan.resumed],
        [*plan.admitted],
    )


def drive(engine: Engine, arrivals: Sequence[Arrival], added: Callable[[int], object] = int):
    """Step until all have ended; requests arrive by the number of the step.

    Args:
        added: told the index of each request that was queued.

    Returns:
        The plans that were executed, and the last output of each request, in the order of the
        arrivals.
    """
    watcher = Watcher(engine.executor)
    engine.executor = watcher
    outputs, queued, step = {}, 0, 0
    while queued < len(arrivals) or engine.has_unfinished():
        while queued < len(arrivals) and arrivals[queued].step <= step:
            arrival = arrivals[queued]
            engine.add_request(
                str(queued), arrival.prompt, arrival.params, arrival_time=float(step)
            )
            added(queued)
            queued += 1
        for output in engine.step():
            outputs[output.request_id] = output
        step += 1
    engine.executor = watcher.inner
    return watcher.plans, [outputs[str(i)] for i in range(len(arrivals))]


def simulated_engine(scheduler, cache, cost: CostModel = ONE_SECOND, **options):
    """An engine on a virtual clock, and its sampling."""
    clock = VirtualClock()
    sampling = SimulatedSampling(clock, ForkModel())
    engine = Engine(
        scheduler, cache, SimulatedExecutor(cost, clock), sampling, clock=clock, **options
    )
    return engine, sampling
