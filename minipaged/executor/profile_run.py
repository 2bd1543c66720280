"""How many blocks fit on a GPU: what the largest steps take is measured, and the rest is the
pool's."""

from __future__ import annotations

from typing import Protocol

import torch

from minipaged.attention import AttentionBackend
from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.contracts import Span, StepPlan
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.kvcache.pool import KVPool, blocks_within, staging_blocks
from minipaged.kvcache.sizing import kv_bytes_per_block
from minipaged.models.causal_lm import CausalLM
from minipaged.sampling.sampler import Sampler, SampleRow
from minipaged.sampling_params import SamplingParams

#: What the driver keeps of one CUDA graph: an allowance, not measured.
GRAPH_BYTES = 16 << 20


class MemoryMeter(Protocol):
    """Watches the memory of a device.

    Attributes:
        total: its bytes.
    """

    total: int

    def reset(self) -> None:
        """Give back what is not in use, and forget the peak."""

    def used(self) -> int:
        """Bytes in use now, by everyone."""

    def peak(self) -> int:
        """The most that was in use since the last reset, by everyone."""


class CudaMemoryMeter:
    """Counts whole segments, as PyTorch's allocator takes them from the driver, and what other
    programs and the CUDA context itself hold."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        _, self.total = torch.cuda.mem_get_info(self._device)

    def reset(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def used(self) -> int:
        return self._others() + torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return self._others() + torch.cuda.max_memory_reserved(self._device)

    def _others(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free - torch.cuda.memory_reserved(self._device)


def profiled_num_blocks(
    model: CausalLM,
    backend: AttentionBackend,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    meter: MemoryMeter,
    *,
    num_graphs: int = 0,
) -> int:
    """Blocks of a pool that leaves room for the largest steps; call it when the model is loaded.

    The steps run on a pool that holds one sequence of the greatest length, which all share, and
    whose own size does not count. One computes as many prompt tokens as a step may have, the
    other decodes as many sequences, of the greatest length; both sample at random. What few
    steps need, the logits of whole prompts, has to fit into the share of the memory that
    ``gpu_memory_utilization`` leaves out.

    Args:
        scheduler: with the engine's own ``max_model_len``.
        num_graphs: CUDA graphs that will be captured.

    Returns:
        At least 1.

    Raises:
        PoolMemoryError: there is no room for a single block.
    """
    dtype, device = model.dtype, next(model.parameters()).device
    block_bytes = kv_bytes_per_block(model.config, dtype.itemsize, cache.block_size)
    longest = -(-scheduler.max_model_len // cache.block_size)
    pool = KVPool(model.config, cache.block_size, longest, dtype=dtype, device=device)
    executor = TorchExecutor(model, pool, backend)

    def measure(plan: StepPlan) -> tuple[int, int]:
        """Bytes in use before and at the peak of a step."""
        meter.reset()
        before = meter.used()
        _sample(executor, plan)
        return before, meter.peak()

    decode = _largest_decode(scheduler, cache.block_size)
    _sample(executor, decode)  # compiles kernels and sets up libraries, whose memory stays
    before, decode_peak = measure(decode)
    _, prompt_peak = measure(_largest_prompts(scheduler, cache.block_size))
    meter.reset()
    # A graph keeps the memory of a decode step for itself; all graphs share it.
    graphs = decode_peak - before + num_graphs * GRAPH_BYTES if num_graphs else 0
    swap_blocks = cache.num_cpu_blocks
    if swap_blocks is None:
        swap_blocks = cache.swap_space_bytes // block_bytes
    staging = staging_blocks(block_bytes, swap_blocks) * block_bytes
    taken = max(decode_peak, prompt_peak) - pool.gpu_bytes + graphs + staging
    budget = int(cache.gpu_memory_utilization * meter.total) - taken
    free = meter.total - meter.used() + pool.gpu_bytes
    return blocks_within(budget, block_bytes, free, device)


def _sample(executor: TorchExecutor, plan: StepPlan) -> None:
    rows = executor.execute(plan).rows
    params = SamplingParams(temperature=1.0, top_p=0.9)
    Sampler().sample(rows, [SampleRow(params, [0], 1)] * len(rows))


def _largest_prompts(scheduler: SchedulerConfig, block_size: int) -> StepPlan:
    """Prompts as long as they may be, up to the token budget, or past it: a prompt that is longer
    than the budget is computed alone, unless prompts are computed in chunks."""
    longest, budget = scheduler.max_model_len, scheduler.max_num_batched_tokens
    left = budget if scheduler.chunked_prefill else max(budget, longest)
    plan = StepPlan()
    while left > 0:
        length = min(left, longest)
        plan.spans.append(_span(len(plan.spans), 0, length, block_size))
        left -= length
    return plan


def _largest_decode(scheduler: SchedulerConfig, block_size: int) -> StepPlan:
    start = scheduler.max_model_len - 1
    return StepPlan(spans=[_span(i, start, 1, block_size) for i in range(scheduler.max_num_seqs)])


def _span(seq_id: int, start: int, length: int, block_size: int) -> Span:
    return Span(seq_id, start, [0] * length, list(range(-(-(start + length) // block_size))))
