"""The torch executor: order of the operations, rows of logits, and blindness to stale blocks."""

import pytest
import torch
from late_stream import LateStream
from tiny_models import hf_logits, hf_model, ours, prompt

from minipaged.attention.reference import ReferenceAttention
from minipaged.contracts import Span, StepPlan
from minipaged.executor import torch_executor
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.kvcache.pool import KVPool

B = 4


@pytest.fixture(scope="module")
def reference():
    return hf_model("llama-gqa")


@pytest.fixture(scope="module")
def model(reference):
    return ours(reference)


@pytest.fixture(params=["at once", "late"])
def executor(model, request):
    """Twice: swaps are done when they are asked for, or, as a GPU may, when they must be."""
    pool = KVPool(model.config, B, 20, 8)
    if request.param == "late":
        pool._mover._stream = LateStream()
    made = TorchExecutor(model, pool, ReferenceAttention())
    made.poison(range(20), range(8))
    return made


def expected_rows(reference, tokens):
    return hf_logits(reference, torch.tensor(tokens))


def close(rows, expected):
    torch.testing.assert_close(rows, expected, atol=1e-4, rtol=0)


def test_rows_come_in_the_order_of_the_plan(executor, reference):
    a, b, c = (prompt(n, seed=n).tolist() for n in (6, 9, 3))
    executor.execute(StepPlan(0, [Span(0, 0, a[:5], [7, 3]), Span(1, 0, b[:4], [1])]))
    out = executor.execute(
        StepPlan(1, [
            Span(2, 0, c, [9]),
            Span(1, 4, b[4:], [1, 0, 5]),
            Span(0, 5, a[5:], [7, 3]),
        ])
    )  # fmt: skip
    assert out.rows.dtype == torch.float32
    close(out.rows, torch.stack([expected_rows(reference, seq)[-1] for seq in (c, b, a)]))
    assert out.prompt_rows == {}


def test_only_the_rows_that_are_wanted(executor, reference, monkeypatch):
    monkeypatch.setattr(torch_executor, "_LOGIT_ROWS", 4)
    computed = []
    logits = executor.model.logits
    monkeypatch.setattr(
        executor.model, "logits", lambda hidden: computed.append(len(hidden)) or logits(hidden)
    )
    a, b = prompt(10).tolist(), prompt(7, seed=2).tolist()
    out = executor.execute(
        StepPlan(0, [
            Span(0, 0, a, [1, 2, 3], sample=False, prompt_logprobs=True),
            Span(1, 0, b, [4, 5]),
        ])
    )  # fmt: skip
    assert computed == [1, 4, 4, 2]
    close(out.rows, expected_rows(reference, b)[-1:])
    assert list(out.prompt_rows) == [0]
    close(out.prompt_rows[0], expected_rows(reference, a))


def test_swap_in_comes_before_swap_out_copy_and_forward(executor, reference):
    """One plan that only gives the right row in this order: the block that comes in is copied,
    the copy's old content has gone out, and the forward pass reads and writes the copy."""
    a, b = prompt(7).tolist(), prompt(6, seed=2).tolist()
    executor.execute(StepPlan(0, [Span(0, 0, a[:6], [0, 1]), Span(1, 0, b[:5], [2, 3])]))
    executor.execute(StepPlan(1, swap_out=[(1, 5)]))
    executor.poison([1])
    out = executor.execute(
        StepPlan(
            2,
            spans=[Span(0, 6, a[6:], [0, 3])],
            swap_in=[(5, 6)],
            swap_out=[(3, 2)],
            copies=[(6, 3)],
        )
    )
    close(out.rows, expected_rows(reference, a)[-1:])
    out = executor.execute(StepPlan(3, [Span(1, 5, b[5:], [2, 9])], swap_in=[(2, 9)]))
    close(out.rows, expected_rows(reference, b)[-1:])


def test_a_plan_of_block_operations_alone(executor, reference):
    a = prompt(7).tolist()
    executor.execute(StepPlan(0, [Span(0, 0, a[:6], [0, 1])]))
    out = executor.execute(StepPlan(1, swap_out=[(0, 0), (1, 1)]))
    assert tuple(out.rows.shape) == (0, executor.model.config.vocab_size)
    assert out.prompt_rows == {}
    executor.poison([0, 1])
    out = executor.execute(StepPlan(2, [Span(0, 6, a[6:], [4, 2])], swap_in=[(0, 4), (1, 2)]))
    close(out.rows, expected_rows(reference, a)[-1:])


def test_siblings_share_a_prompt_and_part_by_copy_on_write(executor, reference):
    a = prompt(6).tolist()
    executor.execute(StepPlan(0, [Span(0, 0, a, [5, 1])]))
    tails = [[11, 12, 13], [21, 22, 23], [31, 32, 33]]
    tables = [[5, 8, 10], [5, 9, 11], [5, 1, 12]]
    for j in range(3):
        out = executor.execute(
            StepPlan(
                1 + j,
                [Span(i, 6 + j, [tails[i][j]], tables[i]) for i in range(3)],
                copies=[(1, 8), (1, 9)] if j == 0 else [],
            )
        )
    close(out.rows, torch.stack([expected_rows(reference, a + tail)[-1] for tail in tails]))


def test_the_pool_is_not_read_past_a_context(executor, reference):
    """Everything that is not a token of the sequence is NaN from the start (see the fixture),
    its own last block included."""
    a = prompt(6).tolist()
    for step, (start, end) in enumerate([(0, 3), (3, 5), (5, 6)]):
        out = executor.execute(StepPlan(step, [Span(0, start, a[start:end], [13, 2])]))
        close(out.rows, expected_rows(reference, a[:end])[-1:])


def test_half_precision_rows_are_float32(reference):
    model = ours(reference, dtype=torch.bfloat16)
    pool = KVPool(model.config, B, 20, dtype=torch.bfloat16)
    executor = TorchExecutor(model, pool, ReferenceAttention())
    executor.poison(range(20))
    a = prompt(9).tolist()
    executor.execute(StepPlan(0, [Span(0, 0, a[:8], [1, 2]), Span(1, 0, a[:1], [5])]))
    out = executor.execute(
        StepPlan(1, [Span(0, 8, a[8:], [1, 2, 3], prompt_logprobs=True), Span(1, 1, [3], [5])])
    )
    assert out.rows.dtype == out.prompt_rows[0].dtype == torch.float32
    assert out.rows.isfinite().all()
    torch.testing.assert_close(out.rows[:1], expected_rows(reference, a)[-1:], atol=0.15, rtol=0)
