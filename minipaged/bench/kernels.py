"""Decode attention on a GPU: the paged kernels and attention on the contiguous cache.

A call is timed as the engine makes it, inside a CUDA graph, where launches cost next to nothing.
The graph makes one call for each of several inputs, so many that together they read at least
256 MB of keys and values: nothing of one call is left in the L2 cache for the next. Times are
medians of ``triton.testing.do_bench``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minipaged.executor.decode_graphs import CudaCapture
from minipaged.kernels.traffic import AttentionShape, decode_traffic

MiB = 1 << 20
COLD_BYTES = 256 * MiB
"""Of keys and values, that the inputs of a measurement have together: several L2 caches."""
COPY_BYTES = 1024 * MiB
"""Of the tensor whose copy tells the card's bandwidth."""
TOLERANCE = 1e-2
"""Of max|difference| over max|result|, between implementations in half precision."""

MHA = AttentionShape(num_heads=40, num_kv_heads=40, head_dim=128, block_size=16, element_bytes=2)
GQA = replace(MHA, num_heads=32, num_kv_heads=8)
#: The most telling first: what the time does not suffice for is passed over.
BATCHES = (32, 8, 128, 1, 256)
CONTEXTS = (1024, 4096, 128, 16384)
FIGURE_18A_BATCHES = (8, 32)
FIGURE_18A_CONTEXTS = (64, 128, 256)

#: Makes call ``turn``, of as many as there are inputs.
Call = Callable[[int], Tensor]
#: Seconds of one call, given a way to make it and the number of inputs.
Timer = Callable[[Call, int], float]


@dataclass(frozen=True)
class Case:
    """One size: ``batch`` sequences of ``context`` tokens each."""

    shape: AttentionShape
    batch: int
    context: int

    @property
    def heads(self) -> str:
        """Query heads over KV heads."""
        return f"{self.shape.num_heads} over {self.shape.num_kv_heads}"

    @property
    def kv_bytes(self) -> int:
        """Keys and values that one call reads."""
        s = self.shape
        return 2 * self.batch * self.context * s.num_kv_heads * s.head_dim * s.element_bytes

    @property
    def must_bytes(self) -> int:
        """What one call must move."""
        return decode_traffic([self.context] * self.batch, self.shape).total

    @property
    def turns(self) -> int:
        """Inputs that together are larger than any L2 cache."""
        return -(-COLD_BYTES // self.kv_bytes)

    @property
    def needed_bytes(self) -> int:
        """Memory of a measurement: paged cache, the contiguous one, and one while it is made."""
        return 3 * self.turns * self.kv_bytes


SWEEP = tuple(
    Case(shape, batch, context)
    for context in CONTEXTS
    for batch in BATCHES
    for shape in (MHA, GQA)
)  # fmt: skip
FIGURE_18A = tuple(
    Case(MHA, batch, context) for batch in FIGURE_18A_BATCHES for context in FIGURE_18A_CONTEXTS
)


@dataclass(frozen=True)
class Measured:
    """One implementation in one case.

    Attributes:
        implementation: its name.
        seconds: of one call; None: it was not measured.
        why_not: one sentence; empty where it was.
    """

    case: Case
    implementation: str
    seconds: float | None
    why_not: str = ""

    @property
    def bytes_per_s(self) -> float | None:
        """The bytes that must move, over the time."""
        return None if self.seconds is None else self.case.must_bytes / self.seconds


class Inputs:
    """Queries, a filled pool in which every input has blocks of its own, and the same cache
    without pages.

    Attributes:
        q: ``[batch, num_heads, head_dim]``.
        k_cache, v_cache: ``[num_blocks, num_kv_heads, block_size, head_dim]``.
        tables: ``[turns, batch, blocks]`` int32, shuffled over the whole pool.
        context_lens: ``[batch]`` int32.
        keys, values: ``[turns, batch, num_kv_heads, context, head_dim]``, contiguous.
    """

    def __init__(self, case: Case, device: torch.device, dtype: torch.dtype) -> None:
        s, turns = case.shape, case.turns
        blocks = -(-case.context // s.block_size)
        num_blocks = turns * case.batch * blocks
        torch.manual_seed(0)
        shape = (num_blocks, s.num_kv_heads, s.block_size, s.head_dim)
        self.case = case
        self.q = torch.randn(case.batch, s.num_heads, s.head_dim, device=device, dtype=dtype)
        self.k_cache = torch.empty(shape, device=device, dtype=dtype).normal_()
        self.v_cache = torch.empty(shape, device=device, dtype=dtype).normal_()
        order = torch.randperm(num_blocks, device=device)
        self.tables = order.to(torch.int32).view(turns, case.batch, blocks)
        self.context_lens = torch.full(
            (case.batch,), case.context, dtype=torch.int32, device=device
        )
        self.keys, self.values = self._gather(self.k_cache), self._gather(self.v_cache)

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float(self.case.shape.head_dim**-0.5)

    def _gather(self, cache: Tensor) -> Tensor:
        s, (turns, batch, _) = self.case.shape, self.tables.shape
        result = cache.new_empty(turns, batch, s.num_kv_heads, self.case.context, s.head_dim)
        for turn in range(turns):
            # [batch, blocks, heads, slots, dims] -> [batch, heads, blocks * slots, dims]
            blocks = cache[self.tables[turn].long()].transpose(1, 2).flatten(2, 3)
            result[turn] = blocks[:, :, : self.case.context]
        return result


def paged_v0(inputs: Inputs) -> Call:
    """Ours, one block a step."""
    from minipaged.kernels.paged_decode_v0 import paged_decode_v0

    i, out = inputs, torch.empty_like(inputs.q)
    return lambda turn: paged_decode_v0(
        i.q, i.k_cache, i.v_cache, i.tables[turn], i.context_lens, i.scale, out
    )


def paged_v1(inputs: Inputs) -> Call:
    """Ours, tiles of several blocks."""
    from minipaged.kernels.paged_decode_v1 import paged_decode_v1

    i, out = inputs, torch.empty_like(inputs.q)
    return lambda turn: paged_decode_v1(
        i.q, i.k_cache, i.v_cache, i.tables[turn], i.context_lens, i.scale, out
    )


def paged_v2(inputs: Inputs) -> Call:
    """Ours, with split contexts: what the engine runs."""
    from minipaged.kernels.paged_decode_v2 import paged_decode_v2

    i, out = inputs, torch.empty_like(inputs.q)
    return lambda turn: paged_decode_v2(
        i.q, i.k_cache, i.v_cache, i.tables[turn], i.context_lens, i.scale, i.case.context, out
    )


def contiguous_sdpa(inputs: Inputs) -> Call:
    """PyTorch's attention on the contiguous cache."""
    grouped = inputs.case.shape.num_heads != inputs.case.shape.num_kv_heads
    return lambda turn: scaled_dot_product_attention(
        inputs.q[:, :, None],  # [batch, heads, 1, dims]
        inputs.keys[turn],
        inputs.values[turn],
        scale=inputs.scale,
        enable_gqa=grouped,
    )[:, :, 0]


def contiguous_flash(inputs: Inputs) -> Call:
    """flash-attn's decode on the contiguous cache, where it is installed."""
    from flash_attn import flash_attn_with_kvcache  # type: ignore[import-not-found,unused-ignore]

    def call(turn: int) -> Tensor:
        result: Tensor = flash_attn_with_kvcache(
            inputs.q[:, None],  # [batch, 1, heads, dims]
            inputs.keys[turn].transpose(1, 2),
            inputs.values[turn].transpose(1, 2),
            cache_seqlens=inputs.context_lens,
            softmax_scale=inputs.scale,
        )
        return result[:, 0]

    return call


#: What the paged kernels are measured against comes first, and their results are held against it.
IMPLEMENTATIONS: Mapping[str, Callable[[Inputs], Call]] = {
    "contiguous sdpa": contiguous_sdpa,
    "contiguous flash-attn": contiguous_flash,
    "paged v0": paged_v0,
    "paged v1": paged_v1,
    "paged v2": paged_v2,
}


def measure(
    cases: Iterable[Case],
    timer: Timer,
    device: torch.device,
    dtype: torch.dtype = torch.float16,
    *,
    memory_bytes: int,
    deadline: float,
    implementations: Mapping[str, Callable[[Inputs], Call]] = IMPLEMENTATIONS,
    clock: Callable[[], float] = time.monotonic,
) -> list[Measured]:
    """Time every implementation in every case.

    Args:
        memory_bytes: what the inputs of a case may take; a larger case is passed over.
        deadline: on ``clock``: from then on cases are passed over.
        implementations: their first is what the results of the others must agree with.
    """
    measured: list[Measured] = []
    for case in cases:
        why_not = ""
        if case.needed_bytes > memory_bytes:
            why_not = (
                f"its inputs take {case.needed_bytes >> 20} MiB, of {memory_bytes >> 20} MiB free"
            )
        elif clock() > deadline:
            why_not = "the time was up"
        if why_not:
            measured += [Measured(case, name, None, why_not) for name in implementations]
            continue
        measured += _measure(case, timer, device, dtype, implementations)
    return measured


def _measure(
    case: Case,
    timer: Timer,
    device: torch.device,
    dtype: torch.dtype,
    implementations: Mapping[str, Callable[[Inputs], Call]],
) -> list[Measured]:
    try:
        inputs = Inputs(case, device, dtype)
    except RuntimeError as failure:
        why_not = f"its inputs cannot be made: {_first_line(failure)}"
        return [Measured(case, name, None, why_not) for name in implementations]
    measured: list[Measured] = []
    expected: Tensor | None = None
    for name, make in implementations.items():
        seconds, why_not = None, ""
        try:
            call = make(inputs)
            result = call(0).float()
            expected = result if expected is None else expected
            error = float((result - expected).abs().max() / expected.abs().max())
            if error <= TOLERANCE:
                seconds = timer(call, case.turns)
            else:  # or NaN
                why_not = f"its result is wrong: off by {error:.3g} of the largest"
        except ImportError:
            why_not = "it is not installed"
        except RuntimeError as failure:  # a peer that does not take this shape, or no memory left
            why_not = f"it failed: {_first_line(failure)}"
        measured.append(Measured(case, name, seconds, why_not))
    return measured


def _first_line(failure: Exception) -> str:
    return str(failure).partition("\n")[0]


def time_on_gpu(call: Call, turns: int) -> float:
    """Seconds of one call: the median over replays of a CUDA graph, by the calls in it."""
    from triton.testing import do_bench

    def work() -> None:
        for turn in range(turns):
            call(turn)

    replay = CudaCapture()(work)
    # A replay reads a few hundred megabytes at least: it varies little, and there are many cases.
    milliseconds: float = do_bench(replay, warmup=10, rep=50, return_mode="median")
    return milliseconds / 1e3 / turns


def copy_bandwidth(timer: Timer, device: torch.device, size: int = COPY_BYTES) -> float:
    """Bytes a second that the card reads and writes when it copies: its practical limit."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / timer(lambda turn: target.copy_(source), 1)


def overhead_of_paging(measured: Sequence[Measured]) -> dict[Case, float]:
    """Figure 18a of the paper: paged over contiguous time, each at its fastest."""
    best: dict[tuple[Case, str], float] = {}
    for entry in measured:
        if entry.seconds is not None:
            key = (entry.case, entry.implementation.partition(" ")[0])
            best[key] = min(entry.seconds, best.get(key, entry.seconds))
    return {
        case: best[case, "paged"] / best[case, "contiguous"]
        for case in dict.fromkeys(entry.case for entry in measured)
        if (case, "paged") in best and (case, "contiguous") in best
    }
