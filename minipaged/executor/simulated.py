"""An executor that computes nothing: it knows how long a step would take, and lets the time pass.

Scheduler and block manager cannot tell it from a model on a GPU. What they decide is what they
would decide there, so what is measured is the code that serves.
"""

from __future__ import annotations

from minipaged.contracts import StepLogits, StepPlan
from minipaged.executor.cost_model import CostModel, StepLoad, StepSeconds


def load_of(plan: StepPlan) -> StepLoad:
    """What a step has to do."""
    spans = plan.spans
    tokens = sum([len(span.token_ids) for span in spans])
    context = sum([span.start for span in spans])
    pairs = 0
    if tokens > len(spans):
        for span in spans:
            count = len(span.token_ids)
            if count > 1:
                pairs += count * span.start + count * (count + 1) // 2
    return StepLoad(
        tokens,
        len(spans),
        context,
        pairs,
        len(plan.copies),
        len(plan.swap_out),
        len(plan.swap_in),
    )


class VirtualClock:
    """Seconds since the start of a simulation. It goes on only when it is told to."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedExecutor:
    """Implements :class:`minipaged.contracts.Executor` on a virtual clock.

    Attributes:
        last_load, last: what the last step had to do, and where its time went.
    """

    def __init__(self, cost: CostModel, clock: VirtualClock) -> None:
        self.cost = cost
        self.clock = clock
        self.last_load = StepLoad(0, 0, 0)
        self.last = StepSeconds()

    def execute(self, plan: StepPlan) -> StepLogits:
        """Advance the clock by what the step takes. The logits have no rows."""
        self.last_load = load = self.load(plan)
        self.last = seconds = self.cost.seconds(load)
        self.clock.now += sum(seconds)
        return StepLogits(None)

    def load(self, plan: StepPlan) -> StepLoad:
        """What the step has to do."""
        return load_of(plan)


class PaddedExecutor(SimulatedExecutor):
    """A batch of requests as one rectangle (FasterTransformer): every prompt is padded to the
    longest, and a sequence that has ended is computed until the last one has."""

    def __init__(self, cost: CostModel, clock: VirtualClock) -> None:
        super().__init__(cost, clock)
        self._rows = 0
        self._columns = 0

    def load(self, plan: StepPlan) -> StepLoad:
        prompts = [span for span in plan.spans if span.start == 0]
        if prompts:  # a new batch
            self._rows = len(prompts)
            self._columns = max(len(span.token_ids) for span in prompts)
            tokens = self._rows * self._columns
            return StepLoad(tokens, self._rows, 0, tokens * (self._columns + 1) // 2)
        self._columns += 1
        return StepLoad(self._rows, self._rows, self._rows * self._columns)
