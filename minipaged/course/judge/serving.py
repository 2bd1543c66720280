"""The whole engine, built from given parts, for checkpoints: requests in; what came out, and what
every step did, as plain data.

It runs where the submission runs. The reference's answers come from the same function in the
grader's own process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.contracts import Executor, StepLogits, StepPlan
from minipaged.course.judge.stories import grouped, stories
from minipaged.engine import Engine
from minipaged.executor.hash_executor import HashExecutor
from minipaged.llm import LLM
from minipaged.outputs import RequestOutput
from minipaged.parts import Parts
from minipaged.sampling.decide import TorchSampling
from minipaged.sampling_params import SamplingParams

#: Of the hash model, whose answers no arithmetic can blur.
HASH_VOCABULARY = 64


def serve(
    requests: Sequence[Mapping[str, Any]],
    *,
    parts: Mapping[str, Any],
    model: str,
    block_size: int,
    num_gpu_blocks: int,
    num_cpu_blocks: int = 0,
    attention: str = "reference",
    **settings: Any,
) -> dict[str, Any]:
    """Serve all requests, which arrive together.

    Args:
        requests: ``prompt`` (token ids), and arguments of :class:`SamplingParams`.
        parts: fields of :class:`minipaged.parts.Parts`; the reference's for the rest.
        model: ``stories`` (opt-stories), ``grouped`` (query heads share keys; it says nothing of
            sense), or ``hash``: an executor that hashes what the block tables lead to, so that one
            wrong block changes every later token.
        attention: of a model: ``reference``, or ``triton``, by the kernels among the parts.
        settings: fields of :class:`SchedulerConfig`.

    Returns:
        ``outputs``: for each request, in order, its completions as ``token_ids``, ``text`` and
        ``finish``. ``steps``: of each step ``tables`` (sequence -> blocks), ``copies``,
        ``preempted`` (request and mode), ``swap_in`` and ``swap_out``. ``free``: blocks that are
        free at the end, on the device and in host memory.
    """
    cache_config = CacheConfig(
        block_size=block_size, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks
    )
    scheduler = SchedulerConfig(**settings)
    chosen = Parts(**parts)
    if model in ("stories", "grouped"):
        engine = LLM(
            stories() if model == "stories" else grouped(),
            cache=cache_config,
            scheduler=scheduler,
            parts=chosen,
            attention=attention,
        ).engine
    else:
        engine = Engine(
            scheduler,
            cache_config,
            HashExecutor(num_gpu_blocks, num_cpu_blocks, block_size, HASH_VOCABULARY),
            TorchSampling(scheduler.max_model_len, vocab_size=HASH_VOCABULARY),
            parts=chosen,
            vocab_size=HASH_VOCABULARY,
        )
    for number, request in enumerate(requests):
        wishes = dict(request)
        engine.add_request(str(number), wishes.pop("prompt"), SamplingParams(**wishes))
    engine.executor = recorder = _Recorder(engine.executor)
    ended: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        ended |= {output.request_id: output for output in engine.step() if output.finished}
    return {
        "outputs": [
            [
                {"token_ids": list(o.token_ids), "text": o.text, "finish": o.finish_reason}
                for o in ended[str(number)].outputs
            ]
            for number in range(len(requests))
        ],
        "steps": recorder.steps,
        "free": (engine.kv.num_free_gpu_blocks, engine.kv.num_free_cpu_blocks),
    }


class _Recorder:
    """An executor that writes down what it is asked to do, before a table changes again."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.steps: list[dict[str, Any]] = []

    def execute(self, plan: StepPlan) -> StepLogits:
        self.steps.append(
            {
                "tables": {span.seq_id: list(span.block_table) for span in plan.spans},
                "copies": list(plan.copies),
                "preempted": [(victim.request_id, victim.mode) for victim in plan.preempted],
                "swap_in": list(plan.swap_in),
                "swap_out": list(plan.swap_out),
            }
        )
        return self.executor.execute(plan)
