"""The engines of the throughput benchmark, behind one call: jobs in, token ids out."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minipaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minipaged.bench.workload import Job
    from minipaged.llm import LLM

Serve = Callable[[list["Job"]], list[list[int]]]
"""Output token ids of each job, in order: exactly ``output_len`` of them."""


def minipaged_engine(llm: LLM) -> Serve:
    """This engine: all jobs are queued, and share the pool."""

    def serve(jobs: list[Job]) -> list[list[int]]:
        prompts = [job.prompt_token_ids for job in jobs]
        params = [
            SamplingParams(temperature=0, max_tokens=job.output_len, ignore_eos=True)
            for job in jobs
        ]
        outputs = llm.generate(prompts, params, progress=False)
        return [output.outputs[0].token_ids for output in outputs]

    return serve


class TransformersModel:
    """The same weights in transformers, in float32 on the CPU, for its two ways to batch."""

    def __init__(self, folder: Path) -> None:
        # Any: transformers' own annotations are incomplete.
        self._transformers: Any = importlib.import_module("transformers")
        self._transformers.utils.logging.set_verbosity_error()
        self._transformers.utils.logging.disable_progress_bar()
        # Its continuous batching logs each start and stop.
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self.model: Any = self._transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        )
        self.model.eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    def static(self, batch_size: int) -> Serve:
        """``generate`` on padded batches: each runs until its longest output is done."""

        def serve(jobs: list[Job]) -> list[list[int]]:
            outputs: list[list[int]] = []
            for batch in _batches(jobs, batch_size):
                outputs += self._generate(batch)
            return outputs

        return serve

    @torch.inference_mode()
    def _generate(self, jobs: list[Job]) -> list[list[int]]:
        width = max(len(job.prompt_token_ids) for job in jobs)
        ids = torch.zeros(len(jobs), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(jobs):  # padded on the left
            ids[row, width - len(job.prompt_token_ids) :] = torch.tensor(job.prompt_token_ids)
            mask[row, width - len(job.prompt_token_ids) :] = 1
        longest = max(job.output_len for job in jobs)
        rows = self.model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=longest
        )
        return [row[width:][: job.output_len].tolist() for row, job in zip(rows, jobs)]

    def continuous(self, page_size: int = 16) -> Serve:
        """Its continuous batching, over a paged cache."""

        def serve(jobs: list[Job]) -> list[list[int]]:
            tokens = sum(len(job.prompt_token_ids) + job.output_len for job in jobs)
            batching = self._transformers.ContinuousBatchingConfig(
                page_size=page_size,
                num_blocks=tokens // page_size + 2 * len(jobs),
                max_batch_tokens=2560,
                allow_block_sharing=False,
            )
            generation = self._transformers.GenerationConfig(
                do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=128
            )
            done: dict[str, list[int]] = {}
            with (
                self._attention("sdpa"),
                self.model.continuous_batching_context_manager(
                    generation_config=generation,
                    continuous_batching_config=batching,
                    warmup=False,
                ) as manager,
            ):
                for i, job in enumerate(jobs):
                    manager.add_request(job.prompt_token_ids, str(i), max_new_tokens=job.output_len)
                while len(done) < len(jobs):
                    result = manager.get_result(timeout=1)
                    if result is not None and result.is_finished():
                        if result.error:
                            raise RuntimeError(result.error)
                        done[result.request_id] = list(result.generated_tokens)
                    elif result is None and not manager.is_running():
                        raise RuntimeError("transformers' continuous batching stopped")
            return [done[str(i)][: job.output_len] for i, job in enumerate(jobs)]

        return serve

    @contextmanager
    def _attention(self, name: str) -> Iterator[None]:
        """Continuous batching switches the model to a paged attention, and leaves it so."""
        try:
            yield
        finally:
            self.model.set_attn_implementation(name)


def _batches(jobs: list[Job], size: int) -> Iterable[list[Job]]:
    return (jobs[start : start + size] for start in range(0, len(jobs), size))
