"""The real engine under a load: requests arrive while others run, and each token's time is noted.

What comes of it is a :class:`~minipaged.sim.simulate.Run`, as of a simulation, so that both are
judged by the same code and under the same names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from minipaged.errors import RequestError
from minipaged.executor.cost_model import StepSeconds
from minipaged.sampling_params import SamplingParams
from minipaged.sim.records import RequestRecord
from minipaged.sim.simulate import Run

if TYPE_CHECKING:
    from minipaged.contracts import StepLogits, StepPlan
    from minipaged.engine import Engine
    from minipaged.outputs import RequestOutput
    from minipaged.sim.workloads import Request, Workload


class WatchedExecutor:
    """Passes plans on to an engine's executor, and notes what each step was.

    Attributes:
        seconds: that the last step took in the executor, on the engine's clock.
        batch: requests in it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._executor = engine.executor
        self.seconds = 0.0
        self.batch = 0

    def execute(self, plan: StepPlan) -> StepLogits:
        start = self._engine.clock()
        logits = self._executor.execute(plan)
        _wait_for_device(logits)
        self.seconds = self._engine.clock() - start
        self.batch = len(self._engine.scheduler.running)
        return logits


def _wait_for_device(logits: StepLogits) -> None:
    """A GPU works on when the host's call returns."""
    if getattr(logits.rows, "is_cuda", False):
        import torch

        torch.cuda.synchronize(logits.rows.device)


@contextmanager
def watched(engine: Engine) -> Iterator[WatchedExecutor]:
    """The engine with its executor watched, for as long as it takes."""
    executor = engine.executor
    watch = WatchedExecutor(engine)
    engine.executor = watch
    try:
        yield watch
    finally:
        engine.executor = executor


def serve_load(engine: Engine, workload: Workload, prompts: Sequence[list[int]]) -> Run:
    """Serve a workload in real time, on the engine's clock, until every request has ended.

    Args:
        engine: idle.
        prompts: token ids for each request, as many as its ``prompt_len`` says. Outputs are as
            long as the workload says: no token ends one.

    Raises:
        RequestError: the engine is busy, a prompt has another length, or a request is refused.
    """
    if engine.has_unfinished():
        raise RequestError("the engine is busy: a load is served by an idle one")
    for number, (request, prompt) in enumerate(zip(workload.requests, prompts, strict=True)):
        if len(prompt) != request.prompt_len:
            raise RequestError(
                f"prompt {number} has {len(prompt)} tokens, its request {request.prompt_len}"
            )
    with watched(engine) as watch:
        return _Load(engine, watch, workload, prompts).run()


class _Load:
    """A run that is going on. Times are seconds since its start."""

    def __init__(
        self,
        engine: Engine,
        watch: WatchedExecutor,
        workload: Workload,
        prompts: Sequence[list[int]],
    ) -> None:
        self.engine = engine
        self.watch = watch
        self.requests = workload.requests
        self.prompts = prompts
        self.result = Run("minipaged")
        self._start = engine.clock()
        self._steps_before = engine.num_steps
        self._times: dict[str, list[float]] = {}
        self._records: dict[str, RequestRecord] = {}
        self._model = self._host = 0.0

    def run(self) -> Run:
        engine, result, added = self.engine, self.result, 0
        while added < len(self.requests) or engine.has_unfinished():
            while added < len(self.requests) and self.requests[added].arrival_time <= self._now():
                self._add(added)
                added += 1
            if engine.has_unfinished():
                self._step()
            elif added < len(self.requests):
                time.sleep(max(0.0, self.requests[added].arrival_time - self._now()))
        result.duration = self._now()
        result.num_steps = engine.num_steps - self._steps_before
        result.busy = StepSeconds(compute=self._model, host=self._host)
        result.records = [self._records[str(i)] for i in range(len(self.requests))]
        return result

    def _now(self) -> float:
        return self.engine.clock() - self._start

    def _add(self, index: int) -> None:
        request = self.requests[index]
        self.engine.add_request(
            str(index),
            self.prompts[index],
            _sampling_params(request),
            expected_output_len=request.output_len,
            arrival_time=self._start + request.arrival_time,
        )
        self._times[str(index)] = []

    def _step(self) -> None:
        before, self.watch.seconds = self._now(), 0.0
        outputs = self.engine.step()
        now = self._now()
        self._model += self.watch.seconds
        self._host += now - before - self.watch.seconds
        self.result.batch_seconds += self.watch.batch * (now - before)
        for group in self.engine.scheduler.sampled:
            self._times[group.request_id].append(now)
        plan, preemptions = self.engine.last_plan, self.result.preemptions
        self.result.computed_tokens += plan.num_tokens
        self.result.copied_blocks += len(plan.copies)
        self.result.swapped_blocks += len(plan.swap_out)
        for victim in plan.preempted:
            preemptions[victim.mode] = preemptions.get(victim.mode, 0) + 1
        for output in outputs:
            self._end(output, now)

    def _end(self, output: RequestOutput, now: float) -> None:
        request = self.requests[int(output.request_id)]
        failed = [o for o in output.outputs if len(o.token_ids) != request.output_len]
        self._records[output.request_id] = RequestRecord(
            arrival_time=request.arrival_time,
            token_times=self._times.pop(output.request_id),
            finish_time=now,
            prompt_len=request.prompt_len,
            output_len=max(len(o.token_ids) for o in output.outputs),
            num_sequences=request.num_sequences,
            num_preemptions=output.metrics.num_preemptions,
            error=str(failed[0].stop_reason or failed[0].finish_reason) if failed else "",
        )


def _sampling_params(request: Request) -> SamplingParams:
    alone = request.beam or request.num_sequences == 1
    return SamplingParams(
        n=request.num_sequences,
        temperature=0.0 if alone else 1.0,
        max_tokens=request.output_len,
        ignore_eos=True,
        use_beam_search=request.beam,
    )
