"""Decode steps as graphs: buckets, padding, memory that stays; without a GPU, on recordings."""

import gc
import random
import weakref

import pytest
import torch
from recorded import HostWaits, NoWaiting, record
from static_attention import StaticAttention
from tiny_models import hf_model, ours

from minipaged.attention.reference import ReferenceAttention
from minipaged.contracts import Span, StepPlan
from minipaged.executor.decode_graphs import bucket_sizes
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.kvcache.pool import KVPool

B, LENGTH, BLOCKS = 4, 40, 60


@pytest.fixture(scope="module", params=["llama-gqa", "opt-post-norm-projected"])
def model(request):
    return ours(hf_model(request.param))


def make(model, sizes=(), *, backend=StaticAttention, capture=record, seed=0):
    pool = KVPool(model.config, B, BLOCKS, 8)
    generator = torch.Generator().manual_seed(seed)
    for cache in (*pool.k_cache, *pool.v_cache):
        cache.copy_(torch.randn(cache.shape, generator=generator))
    executor = TorchExecutor(model, pool, backend())
    if sizes:
        executor.capture_decodes(sizes, LENGTH, capture)
    return executor


def decodes(dice, count, step=0, **options):
    """A plan of that many sequences with histories of any length, in tables of their own blocks."""
    blocks = dice.sample(range(1, BLOCKS), 6 * count)
    spans = []
    for i in range(count):
        start = dice.randrange(1, 6 * B)
        table = blocks[6 * i : 6 * i + start // B + 1]
        spans.append(Span(i, start, [dice.randrange(97)], table, **options))
    return StepPlan(step, spans)


def test_sizes_of_the_buckets():
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(6) == [1, 2, 4, 6]
    assert bucket_sizes(8) == [1, 2, 4, 8]
    assert bucket_sizes(27) == [1, 2, 4, 8, 16, 24, 27]
    assert len(bucket_sizes(256)) == 3 + 32


def test_a_step_is_that_of_the_smallest_bucket_that_holds_it(model):
    graphed, eager = make(model, [1, 2, 6]), make(model)
    used = []
    buckets = graphed._graphs._buckets
    graphed._graphs._buckets = [
        b._replace(replay=lambda b=b: (used.append(b.size), b.replay())) for b in buckets
    ]
    dice = random.Random(1)
    for step, count in enumerate([1, 2, 3, 6, 5, 1]):
        plan = decodes(dice, count, step)
        ours, theirs = graphed.execute(plan).rows, eager.execute(plan).rows
        assert ours.shape == (count, model.config.vocab_size)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
        torch.testing.assert_close(graphed.pool.device_blocks, eager.pool.device_blocks)
    assert used == [1, 2, 6, 6, 6, 1]


def test_capturing_and_padding_write_nothing(model):
    """Block 0 is what padding reads; no sequence of these tests holds it."""
    executor, untouched = make(model, [1, 4]), make(model)
    assert torch.equal(executor.pool.device_blocks, untouched.pool.device_blocks)
    before = executor.pool.device_blocks.clone()
    plan = decodes(random.Random(2), 3)
    executor.execute(plan)
    written = (before != executor.pool.device_blocks).flatten(3).any(3).any(0).any(0)
    assert written.nonzero().flatten().tolist() == sorted(
        span.block_table[-1] for span in plan.spans
    )


def test_padding_is_a_sequence_of_one_token_that_writes_nowhere(model):
    executor = make(model, [4])
    dice = random.Random(9)
    for step, count in enumerate((4, 3)):  # the second fills up with what the first left behind
        executor.execute(decodes(dice, count, step))
    graphs = executor._graphs
    inputs = graphs._buckets[0].packing.views(graphs._memory)
    tokens, positions, slots, context_lens, tables = (x[3:].tolist() for x in inputs)
    assert tokens == positions == [0] * 5  # the batch is a multiple of 8 rows
    assert slots == [-1] * 5
    assert context_lens == [1]
    assert tables == [[0] * 16]


def test_padding_that_reads_nan_disturbs_no_one(model):
    graphed, eager = make(model, [8]), make(model)
    graphed.pool.device_blocks[:, :, 0] = torch.nan
    plan = decodes(random.Random(3), 5)
    rows = graphed.execute(plan).rows
    torch.testing.assert_close(rows, eager.execute(plan).rows, atol=1e-4, rtol=0)


def test_an_executor_and_its_memory_go_when_nobody_has_it(model):
    """A cycle would keep the pool, most of a GPU's memory, until the garbage is collected."""

    def capture(work):
        work()
        return lambda: None

    gc.disable()
    try:
        executor = make(model, [1, 4], capture=capture)
        gone = weakref.ref(executor)
        del executor
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(StepPlan(0, [Span(0, 0, [1, 2], [1]), Span(1, 5, [3], [2, 3])]), id="prompt"),
        pytest.param(decodes(random.Random(4), 2, prompt_logprobs=True), id="prompt-logprobs"),
        pytest.param(decodes(random.Random(5), 2, sample=False), id="nothing-sampled"),
        pytest.param(decodes(random.Random(6), 5), id="more-than-the-largest"),
    ],
)
def test_other_steps_run_without_a_graph(model, plan):
    graphed, eager = make(model, [1, 4]), make(model)
    for bucket in graphed._graphs._buckets:
        assert bucket.size <= 4
    graphed._graphs._buckets = [
        b._replace(replay=lambda: pytest.fail("a graph was used")) for b in graphed._graphs._buckets
    ]
    ours, theirs = graphed.execute(plan), eager.execute(plan)
    torch.testing.assert_close(ours.rows, theirs.rows)
    assert ours.prompt_rows.keys() == theirs.prompt_rows.keys()


def test_a_backend_that_looks_at_values_cannot_be_captured(model):
    """Why the reference has no graphs."""
    with pytest.raises(HostWaits):
        make(model, [2], backend=ReferenceAttention)


def test_no_step_makes_the_host_wait(model):
    executor = make(model, [1, 4])
    dice = random.Random(7)
    with NoWaiting():
        executor.execute(StepPlan(0, [Span(0, 0, [1, 2, 3, 4, 5], [1, 2], prompt_logprobs=True)]))
        executor.execute(StepPlan(1, swap_out=[(1, 0), (2, 1)], copies=[(3, 4)]))
        executor.execute(
            StepPlan(2, [Span(0, 5, [6], [5, 6]), Span(1, 0, [7, 8], [7], sample=False)],
                     swap_in=[(0, 5), (1, 6)], copies=[(3, 4)])
        )  # fmt: skip
        executor.execute(decodes(dice, 3, 3))
        executor.execute(decodes(dice, 6, 4))


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: bool((x > 0).any()),
        lambda x: x.nonzero(),
        lambda x: x.index_put_((x > 0,), torch.zeros(())),
    ],
)
def test_what_waits_is_seen(waits):
    with NoWaiting(), pytest.raises(HostWaits):
        waits(torch.randn(3))
