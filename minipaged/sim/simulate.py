"""Run a workload through the engine on a virtual clock.

The simulator *is* the engine: the same scheduler and block manager, a real call of ``schedule()``
for every step, with an executor that only knows how long a step takes. It reads no other clock than
its own, so one seed replays a run to the last byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from minipaged.capacity import PAPER_TABLE_1, find_gpu, find_model, make_plan
from minipaged.config import PAPER_2023_CACHE, CacheConfig, ConfigError, SchedulerConfig
from minipaged.engine import Engine
from minipaged.executor.cost_model import (
    EFFICIENCIES,
    CostModel,
    Efficiency,
    StepSeconds,
    make_cost_model,
)
from minipaged.executor.simulated import PaddedExecutor, SimulatedExecutor, VirtualClock
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams
from minipaged.sim.fork_model import ForkModel
from minipaged.sim.records import RequestRecord
from minipaged.sim.sampling import SimulatedSampling
from minipaged.sim.systems import System, find_system

if TYPE_CHECKING:
    from minipaged.contracts import StepLogits, StepPlan
    from minipaged.outputs import RequestOutput
    from minipaged.sim.workloads import Request, Workload
    from minipaged.trace import TraceWriter

TERMS = StepSeconds._fields


@dataclass(frozen=True)
class Deployment:
    """A model on its cards.

    Attributes:
        model, gpu: by name.
        tensor_parallel: cards.
        efficiency: what the system gets out of them; by name, or one's own.
    """

    model: str = "opt-13b"
    gpu: str = "a100-40gb"
    tensor_parallel: int = 1
    efficiency: str | Efficiency = "paper_2023"

    def cost_model(self, block_size: int = 16) -> CostModel:
        """How long steps take.

        Raises:
            PlanError: no such model or card.
            ConfigError: no such efficiency.
        """
        efficiency = self.efficiency
        if isinstance(efficiency, str):
            if efficiency not in EFFICIENCIES:
                raise ConfigError(
                    f"unknown efficiency {efficiency!r}: choose from {', '.join(EFFICIENCIES)}"
                )
            efficiency = EFFICIENCIES[efficiency]
        model, gpu = find_model(self.model), find_gpu(self.gpu)
        return make_cost_model(model, gpu, self.tensor_parallel, block_size, efficiency)

    def cache(self, cache: CacheConfig) -> CacheConfig:
        """The same settings, with the numbers of blocks settled: those that are given, or as many
        as the memory of the cards holds.

        Raises:
            PlanError: the model does not fit.
        """
        model, gpu = find_model(self.model), find_gpu(self.gpu)
        gpu_blocks, cpu_blocks = cache.num_gpu_blocks, cache.num_cpu_blocks
        if gpu_blocks is None or cpu_blocks is None:
            plan = make_plan(model, gpu, self.tensor_parallel, cache=cache)
            gpu_blocks = plan.num_blocks if gpu_blocks is None else gpu_blocks
            cpu_blocks = plan.swap_blocks if cpu_blocks is None else cpu_blocks
        return replace(cache, num_gpu_blocks=gpu_blocks, num_cpu_blocks=cpu_blocks)


#: Where the paper's models run (table 1; LLaMA-13B in section 6.4 on the card of OPT-13B).
PAPER_DEPLOYMENTS = {
    **{model: Deployment(model, gpu, cards) for model, cards, gpu, *_ in PAPER_TABLE_1},
    "llama-13b": Deployment("llama-13b", "a100-40gb", 1),
}


class Observer(Protocol):
    """Looks at every step that took time."""

    def observe(self, engine: Engine, plan: StepPlan, seconds: float) -> None:
        """After a step was booked.

        Args:
            plan: what it did.
            seconds: how long it took.
        """


@dataclass
class Run:
    """What came of a run, which went on until every request had ended.

    Attributes:
        system: its name.
        records: one for each request of the workload, in its order.
        num_steps: steps, each a call of ``schedule()``.
        duration: when the last request ended (units of all times: seconds).
        busy: how long steps took, by term.
        latency: sum over the requests of the time that they spent in the batch while a step went
            on, by the terms of that step.
        waiting: sum over the requests of the time that they were not in the batch, before their
            first step and after each preemption, by what they waited for: ``memory``,
            ``sequence limit``, ``token budget``, ``batch`` (a batch that nobody joins has to
            end), ``step`` (they came while one was going on), or ``turn`` (prompts that have
            steps of their own).
        batch_seconds: the integral over time of the requests in the batch.
        computed_tokens: tokens computed; more than prompts and outputs have, if some were computed
            again.
        preemptions: by mode.
        swapped_blocks, copied_blocks: blocks moved to the host, and copied on the card.
    """

    system: str
    records: list[RequestRecord] = field(default_factory=list)
    num_steps: int = 0
    duration: float = 0.0
    busy: StepSeconds = field(default_factory=StepSeconds)
    latency: StepSeconds = field(default_factory=StepSeconds)
    waiting: dict[str, float] = field(default_factory=dict)
    batch_seconds: float = 0.0
    computed_tokens: int = 0
    preemptions: dict[str, int] = field(default_factory=dict)
    swapped_blocks: int = 0
    copied_blocks: int = 0

    @property
    def mean_batch(self) -> float:
        """Requests in the batch, over the time that steps took."""
        busy = sum(self.busy)
        return self.batch_seconds / busy if busy else 0.0

    @property
    def queueing(self) -> float:
        """Sum over the requests of the time that they were not in the batch, whatever for."""
        return sum(self.waiting.values())


def simulate(
    workload: Workload,
    system: str | System = "vllm",
    deployment: Deployment | None = None,
    *,
    cache: CacheConfig = PAPER_2023_CACHE,
    scheduler: SchedulerConfig | None = None,
    cost: CostModel | None = None,
    forks: ForkModel | None = None,
    parts: Parts | None = None,
    observers: Iterable[Observer] = (),
    progress: Callable[[int], object] | None = None,
    trace: TraceWriter | None = None,
    max_model_len: int | None = None,
    check: bool = False,
    seed: int = 0,
) -> Run:
    """Serve every request of a workload to its end.

    Args:
        deployment: None: OPT-13B on one A100-40GB, as the paper has it.
        cache, scheduler: settings beside those that make the system what it is; None: those of the
            authors' experiments.
        cost: how long steps take; None: what the deployment says.
        parts: whose parts the engine is built from.
        progress: called with the number of requests that have ended since the last call.
        trace: gets a record of every step.
        max_model_len: positions of the model: longer prompts are refused, longer outputs end there.
            None: as many as the workload asks for.
        check: verify the engine's invariants in every step.
        seed: of the beams.

    Raises:
        ConfigError, PlanError: the settings make no sense, or the model does not fit.
    """
    return _Simulation(
        workload,
        find_system(system) if isinstance(system, str) else system,
        deployment or Deployment(),
        cache,
        scheduler or SchedulerConfig.paper_2023(),
        cost,
        forks or ForkModel(),
        parts,
        tuple(observers),
        trace,
        max_model_len or workload.max_model_len,
        check,
        seed,
    ).run(progress)


class _Simulation:
    """An engine, and the requests on their way to it."""

    def __init__(
        self,
        workload: Workload,
        system: System,
        deployment: Deployment,
        cache: CacheConfig,
        scheduler: SchedulerConfig,
        cost: CostModel | None,
        forks: ForkModel,
        parts: Parts | None,
        observers: tuple[Observer, ...],
        trace: TraceWriter | None,
        max_model_len: int,
        check: bool,
        seed: int,
    ) -> None:
        self.workload = workload
        self.observers = observers
        self.max_model_len = max_model_len
        self.clock = VirtualClock()
        kind = PaddedExecutor if system.padded else SimulatedExecutor
        self.executor = kind(cost or deployment.cost_model(cache.block_size), self.clock)
        self.sampling = SimulatedSampling(self.clock, forks, seed)
        self.engine = Engine(
            system.scheduler(replace(scheduler, max_model_len=max_model_len)),
            system.cache(deployment.cache(cache), shares_a_prefix=bool(workload.prefix)),
            self,
            self.sampling,
            parts=parts,
            clock=self.clock,
            check=check,
            trace=trace,
        )
        if workload.prefix and system.reservation == "paged":
            self.engine.register_prefix(
                [content_id for content_id, tokens in workload.prefix for _ in range(tokens)]
            )
        self.result = Run(system.name)
        self._records: dict[str, RequestRecord] = {}
        self._params: dict[tuple[int, int, bool], SamplingParams] = {}
        self._busy = [0.0] * len(TERMS)
        self._latency = [0.0] * len(TERMS)
        self._cause = ""

    def run(self, progress: Callable[[int], object] | None) -> Run:
        engine, clock, result = self.engine, self.clock, self.result
        requests = self.workload.requests
        next_request = 0
        while True:
            while next_request < len(requests) and requests[next_request].arrival_time <= clock.now:
                self._add(next_request, requests[next_request])
                next_request += 1
            if engine.has_unfinished():
                ended = self._step()
                if ended and progress is not None:
                    progress(len(ended))
            elif next_request < len(requests):
                clock.now = requests[next_request].arrival_time
            else:
                break
        result.busy, result.latency = StepSeconds(*self._busy), StepSeconds(*self._latency)
        result.num_steps = engine.num_steps
        result.duration = clock.now
        result.records = [self._records[str(i)] for i in range(len(requests))]
        return result

    def _add(self, index: int, request: Request) -> None:
        own = self.workload.own_ids[index]
        self.engine.add_request(
            str(index),
            request.token_ids(own),
            self._sampling_params(request),
            expected_output_len=request.output_len,
            arrival_time=request.arrival_time,
        )
        # The request that came last is the last in the queue.
        reply = own if request.reply is None else request.reply
        output_len = self._output_len(request)
        self.sampling.expect(self.engine.scheduler.waiting[-1], output_len, reply)
        self._wait("step", self.clock.now - request.arrival_time)

    def _output_len(self, request: Request) -> int:
        """Tokens that it gets: no more than there are positions. (A prompt that leaves none is
        refused.)"""
        return max(1, min(request.output_len, self.max_model_len - request.prompt_len))

    def _sampling_params(self, request: Request) -> SamplingParams:
        key = (request.output_len, request.num_sequences, request.beam)
        if key not in self._params:
            self._params[key] = SamplingParams(
                n=request.num_sequences,
                temperature=0.0 if request.beam else 1.0,
                max_tokens=request.output_len,
                ignore_eos=True,
                use_beam_search=request.beam,
            )
        return self._params[key]

    # -- a step: the engine's executor is this object, which passes the plan on ----------------
    def execute(self, plan: StepPlan) -> StepLogits:
        """Between plan and booking: who is not in the batch now, has been turned down."""
        self._cause = self._turned_down_for(plan)
        return self.executor.execute(plan)

    def _turned_down_for(self, plan: StepPlan) -> str:
        """What the first request in the queue waits for; those behind it wait for the same."""
        scheduler = self.engine.scheduler
        if scheduler.swapped or plan.preempted or not scheduler.waiting:
            return "memory"
        config, group = scheduler.config, scheduler.waiting[0]
        if config.batching == "request" and plan.spans and not plan.admitted:
            return "batch"
        tokens = scheduler.tokens_to_compute(group)
        return scheduler.admission.shortage(group, tokens, scheduler.batch(plan)) or "turn"

    def _wait(self, cause: str, seconds: float) -> None:
        if seconds:
            waiting = self.result.waiting
            waiting[cause] = waiting.get(cause, 0.0) + seconds

    def _step(self) -> list[RequestOutput]:
        scheduler = self.engine.scheduler
        unfinished = len(scheduler.waiting) + len(scheduler.running) + len(scheduler.swapped)
        before = self.clock.now
        outputs = self.engine.step()
        elapsed = self.clock.now - before
        if elapsed:
            self._book(self.engine.last_plan, elapsed, unfinished)
        for output in outputs:
            self._end(output)
        return outputs

    def _book(self, plan: StepPlan, elapsed: float, unfinished: int) -> None:
        """Count a step that took time.

        Args:
            unfinished: requests that it found.
        """
        result, seconds, batch = self.result, self.executor.last, self.sampling.num_groups
        self._busy = [total + term for total, term in zip(self._busy, seconds)]
        self._latency = [total + batch * term for total, term in zip(self._latency, seconds)]
        self._wait(self._cause, (unfinished - batch) * elapsed)
        result.batch_seconds += batch * elapsed
        result.computed_tokens += self.executor.last_load.tokens
        result.copied_blocks += len(plan.copies)
        result.swapped_blocks += len(plan.swap_out)
        for victim in plan.preempted:
            result.preemptions[victim.mode] = result.preemptions.get(victim.mode, 0) + 1
        for observer in self.observers:
            observer.observe(self.engine, plan, elapsed)

    def _end(self, output: RequestOutput) -> None:
        request = self.workload.requests[int(output.request_id)]
        times = self.sampling.end(output.request_id)
        expected = self._output_len(request)
        failed = [o for o in output.outputs if len(o.token_ids) != expected]
        reasons = [str(o.stop_reason or o.finish_reason) for o in failed]
        self._records[output.request_id] = RequestRecord(
            arrival_time=request.arrival_time,
            token_times=times,
            finish_time=output.metrics.finished_time,
            prompt_len=request.prompt_len,
            output_len=len(times),
            num_sequences=request.num_sequences,
            num_preemptions=output.metrics.num_preemptions,
            error=reasons[0] if reasons else "",
        )
