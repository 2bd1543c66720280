"""Paged prefill against causal attention in float64, on the rounded inputs."""

from __future__ import annotations

import itertools
import math
import mmap
from dataclasses import dataclass

import pytest
import torch

from minipaged.kernels.paged_prefill import paged_prefill

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B = 16
CONTEXTS = (1, B - 1, B, B + 1, 5 * B + 3)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
UNTOUCHED = 7.0
#: A KV head and the two query heads that read it: what a test costs in the interpreter is its
#: number of programs.
ONE_GROUP = {"heads": 2, "kv_heads": 1}
MAP_NORESERVE = 0x4000  # of Linux; Python has it from 3.13 on


@dataclass
class Case:
    """Arguments of the kernel, and what each sequence has in the cache: keys and values by
    sequence, ``[context_len, num_kv_heads, d]``."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    scale: float

    @property
    def max_query_len(self) -> int:
        return int(self.query_start.diff().max())

    def run(self, **changes) -> torch.Tensor:
        """The kernel's output; rows that it does not write hold ``UNTOUCHED``."""
        given = {
            "q": self.q, "k_cache": self.k_cache, "v_cache": self.v_cache,
            "block_tables": self.block_tables, "query_start": self.query_start,
            "context_lens": self.context_lens, "scale": self.scale,
            "max_query_len": self.max_query_len, "out": torch.full_like(self.q, UNTOUCHED),
        }  # fmt: skip
        return paged_prefill(**(given | changes))

    def expected(self) -> torch.Tensor:
        """The same from the definition, in float64, position by position."""
        q = self.q.double().cpu()
        out = torch.full(q.shape, UNTOUCHED, dtype=torch.float64)
        starts = self.query_start.tolist()
        for s, (k, v) in enumerate(zip(self.keys, self.values)):
            group = q.shape[1] // k.shape[1]
            k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
            queries = range(starts[s], starts[s + 1])
            for t, position in zip(queries, range(len(k) - len(queries), len(k))):
                scores = torch.einsum("hd,jhd->hj", q[t], k[: position + 1]) * self.scale
                out[t] = torch.einsum("hj,jhd->hd", scores.softmax(-1), v[: position + 1])
        return out


def make_case(
    spans,
    *,
    heads=4,
    kv_heads=2,
    d=16,
    block_size=B,
    dtype=torch.float32,
    stale=math.nan,
    rows_before=0,
    rows_after=0,
    seed=0,
) -> Case:
    """Chunks of ``(history, query)`` lengths over shuffled block tables.

    Slots past a context, blocks of nobody, and the block that the entries past a context name
    hold ``stale``. So do the rows of ``q`` that belong to no sequence.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    lengths = [history + query for history, query in spans]
    needed = [-(-length // block_size) for length in lengths]
    num_blocks = sum(needed) + 2
    order = torch.randperm(num_blocks, generator=generator).tolist()
    k_cache = torch.full((num_blocks, kv_heads, block_size, d), stale, dtype=dtype)
    v_cache = k_cache.clone()
    tables = torch.full((len(spans), max(needed) + 1), order.pop(), dtype=torch.int32)
    keys, values = [], []
    for s, (length, count) in enumerate(zip(lengths, needed)):
        table = torch.tensor([order.pop() for _ in range(count)])
        tables[s, :count] = table
        position = torch.arange(length)
        block, place = table[position // block_size], position % block_size
        for cache, kept in ((k_cache, keys), (v_cache, values)):
            kept.append(random(length, kv_heads, d))
            cache[block, :, place] = kept[-1]
    starts = torch.tensor([rows_before, *(query for _, query in spans)]).cumsum(0)
    q = torch.full((int(starts[-1]) + rows_after, heads, d), math.nan, dtype=dtype)
    q[rows_before : int(starts[-1])] = random(int(starts[-1]) - rows_before, heads, d)
    return Case(
        q=q.to(DEVICE),
        k_cache=k_cache.to(DEVICE),
        v_cache=v_cache.to(DEVICE),
        block_tables=tables.to(DEVICE),
        query_start=starts.int().to(DEVICE),
        context_lens=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        keys=keys,
        values=values,
        scale=d**-0.5,
    )


def check(case: Case, out: torch.Tensor | None = None) -> None:
    out = case.run() if out is None else out
    assert out.dtype == case.q.dtype
    expected = case.expected()
    rows = slice(int(case.query_start[0]), int(case.query_start[-1]))
    got = out.double().cpu()
    error = (got - expected)[rows].abs().max() / expected[rows].abs().max()
    assert error <= TOLERANCE[out.dtype], f"relative error {error:.2e}"
    got[rows] = expected[rows]
    assert (got == expected).all(), "a row of no sequence was written"


# --------------------------------------------------------------------------- lengths
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_prompts_of_all_lengths_in_one_call(dtype):
    check(make_case([(0, context) for context in CONTEXTS], dtype=dtype, **ONE_GROUP))


@pytest.mark.parametrize("history", CONTEXTS)
def test_chunks_after_history(history):
    spans = [(history, 1), (history, 2), (history, B + 1), (history, 3 * B - 1)]
    check(make_case(spans, **ONE_GROUP))


def test_chunks_longer_than_a_tile_over_contexts_longer_than_several():
    check(make_case([(37, 150), (0, 65), (150, 64)], heads=2, kv_heads=1))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_before_and_after_the_sequences_are_neither_read_nor_written(dtype):
    """The step's decodes stand before its prompts, padding behind them."""
    check(make_case([(5, 3), (0, 9)], rows_before=3, rows_after=5, dtype=dtype))


def test_the_grid_may_be_larger_than_the_chunks():
    case = make_case([(5, 3), (0, 9)])
    check(case, case.run(max_query_len=200))


def test_no_sequence_is_no_work():
    case = make_case([(0, 3)])
    out = case.run(
        block_tables=case.block_tables[:0],
        query_start=case.query_start[:1],
        context_lens=case.context_lens[:0],
        max_query_len=0,
    )
    assert (out == UNTOUCHED).all()


# --------------------------------------------------------------------------- shapes
@pytest.mark.parametrize("d", [8, 24, 64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_head_dims(d, dtype):
    check(make_case([(B + 3, 5), (0, B + 1)], d=d, dtype=dtype, **ONE_GROUP))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 4), (9, 3), (8, 1), (5, 1), (1, 1)])
def test_a_query_head_reads_the_kv_head_of_its_group(heads, kv_heads):
    """B39: head h reads KV head h // group, not h % kv_heads."""
    check(make_case([(20, 7), (0, 18)], heads=heads, kv_heads=kv_heads))


def test_forty_heads_of_128():
    check(make_case([(18, 2)], heads=40, kv_heads=40, d=128, dtype=torch.float16))


@pytest.mark.parametrize("block_size", [1, 4, 7, 8, 32, 128])
def test_block_sizes(block_size):
    check(make_case([(20, 5), (0, 9), (8, 33)], block_size=block_size))


def test_every_shape(exhaustive):
    """All of them together; by default one in forty."""
    shapes = itertools.product(
        TOLERANCE, [64, 80, 96, 112, 128, 256], [(4, 4), (6, 2), (8, 1)], [8, 16, 32]
    )
    for dtype, d, (heads, kv_heads), block_size in list(shapes)[:: 1 if exhaustive else 40]:
        spans = [(0, length) for length in (1, block_size - 1, block_size)]
        spans += [(block_size + 1, 3), (5 * block_size, 3)]
        check(
            make_case(
                spans, dtype=dtype, d=d, heads=heads, kv_heads=kv_heads, block_size=block_size
            )
        )


def test_q_and_out_may_be_views():
    case = make_case([(20, 6), (0, 7)])
    wide = torch.full((len(case.q), 9, 20), math.nan, device=DEVICE)
    wide[:, 2:6, :16] = case.q
    target = torch.full((len(case.q), 5, 16), UNTOUCHED, device=DEVICE)
    out = case.run(q=wide[:, 2:6, :16], out=target[:, 1:])
    check(case, out)
    assert (target[:, 0] == UNTOUCHED).all()


def test_a_slice_of_wider_block_tables():
    case = make_case([(40, 6), (0, 7)])
    wide = torch.cat([case.block_tables, case.block_tables.flip(0)], dim=1)
    check(case, case.run(block_tables=wide[:, : case.block_tables.shape[1]]))


# --------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    ("stale", "dtype"),
    [
        (math.nan, torch.float32),
        (math.inf, torch.float32),
        (-math.inf, torch.float32),
        (math.nan, torch.float16),
        (math.nan, torch.bfloat16),
    ],
)
def test_stale_slots_do_not_show(stale, dtype):
    """B34: zero times NaN is NaN, so a mask on the scores alone does not hide stale values."""
    spans = [(0, context) for context in CONTEXTS] + [(B - 2, 2), (4, 3)]
    check(make_case(spans, stale=stale, dtype=dtype, **ONE_GROUP))


def test_a_broken_sequence_does_not_touch_its_neighbors():
    case = make_case([(5, 3), (2, 4), (0, 9)])
    whole = case.run()
    case.q[3:7] = math.nan
    broken = case.run()
    assert torch.equal(broken[:3], whole[:3])
    assert torch.equal(broken[7:], whole[7:])


@pytest.mark.parametrize("score", [30000.0, -30000.0])
def test_scores_far_from_zero_are_no_problem(score):
    """All weights are equal, so the result is the mean of the values seen so far."""
    case = make_case([(3, 40)], heads=2, kv_heads=2, dtype=torch.float16)
    case.q.fill_(100.0)
    case.k_cache.fill_(score / 100.0 / 16)
    case.keys = [torch.full_like(k, score / 100.0 / 16) for k in case.keys]
    case.scale = 1.0
    check(case)


def test_the_largest_score_may_come_last_or_first():
    for peak in (0, 97):
        case = make_case([(90, 8)], heads=2, kv_heads=2, seed=peak)
        case.scale = 20.0  # the softmax is nearly a choice
        check(case)


def test_products_of_float32_keep_their_last_bits():
    """TF32 would give 1 + 2^-11 back as 1."""
    case = make_case([(0, 1)], heads=1, kv_heads=1)
    value = 1 + 2.0**-11
    case.v_cache.fill_(value)
    assert (case.run() == value).all()


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU the memory would have to be there")
def test_a_block_may_start_past_the_range_of_32_bits():
    """2^21 blocks of 2^10 elements and one more: in 32 bits its offset is -2^31.

    The pool lies in the middle of memory that is promised and never touched, so that a wrong
    offset gives wrong values and not a crash.
    """
    dtype, block, far = torch.float16, B * 64, 2**21
    half = far * block * dtype.itemsize  # bytes
    promised = mmap.mmap(
        -1, 2 * half + (1 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    )
    memory = torch.frombuffer(promised, dtype=dtype)
    pool = memory[far * block :][: (far + 1) * block].view(far + 1, 1, B, 64)
    case = make_case([(3, 5)], heads=2, kv_heads=1, d=64, dtype=dtype)
    pool[far] = case.k_cache[case.block_tables[0, 0]]
    table = torch.full_like(case.block_tables, far)
    case.values = case.keys
    check(case, case.run(k_cache=pool, v_cache=pool, block_tables=table))


# --------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda q: q.double(), "float64, not one of"),
        ("q", lambda q: q[:, :3], r"3 query heads are not a multiple of 2|out \[3, 4, 16\]"),
        ("q", lambda q: q[0], r"must be \[T, num_heads, d\]"),
        ("k_cache", lambda k: k.half(), "k_cache is torch.float16, but q torch.float32"),
        ("k_cache", lambda k: k[:, :1], "with the same strides"),
        ("out", lambda out: out.half(), "out is torch.float16"),
        ("out", lambda out: out.transpose(1, 2).contiguous().transpose(1, 2), "has stride 4"),
        ("block_tables", lambda t: t.long(), "torch.int64, not .* torch.int32"),
        ("block_tables", lambda t: t.repeat(2, 1), r"block_tables is \[2, 2\]"),
        ("query_start", lambda t: t[:1], r"query_start is \[1\] torch.int32, not \[2\]"),
        ("context_lens", lambda t: t.float(), "context_lens is .* not"),
    ],
)
def test_what_does_not_fit_is_refused(name, change, message):
    case = make_case([(0, 3)])
    given = case.q.new_zeros(case.q.shape) if name == "out" else getattr(case, name)
    with pytest.raises(ValueError, match=message):
        case.run(**{name: change(given)})


def test_heads_that_do_not_divide_are_refused():
    case = make_case([(0, 3)])
    q = case.q[:, :3].contiguous()
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2 KV heads"):
        case.run(q=q, out=None)


def test_caches_of_another_width_are_refused():
    case = make_case([(0, 3)])
    with pytest.raises(ValueError, match="q has head_dim 16, but the caches 8"):
        case.run(k_cache=case.k_cache[..., :8], v_cache=case.v_cache[..., :8])
