"""The hash executor: exact, independent of the batch, and changed by every kind of damage."""

import numpy as np
import pytest

from minipaged.contracts import Span, StepPlan
from minipaged.executor.hash_executor import POISON, HashExecutor

B = 4
PROMPT = [11, 12, 13, 14, 15, 16]


def executor(**changes) -> HashExecutor:
    return HashExecutor(num_gpu_blocks=8, num_cpu_blocks=4, block_size=B, **changes)


def prefill(table=(0, 1), tokens=tuple(PROMPT), seq_id=0, **changes) -> Span:
    return Span(seq_id, 0, list(tokens), list(table), **changes)


def rows(executor: HashExecutor, *spans: Span, **operations) -> np.ndarray:
    return executor.execute(StepPlan(spans=list(spans), **operations)).rows.numpy()


def row_after(damage, next_token: int = 17) -> np.ndarray:
    """The decode row that follows the prompt, once ``damage(executor)`` has been done."""
    engine = executor()
    rows(engine, prefill())
    damage(engine)
    return rows(engine, Span(0, 6, [next_token], [0, 1]))[0]


def untouched() -> np.ndarray:
    return row_after(lambda engine: None)


def test_logits_are_float32_rows_one_a_sampled_span():
    engine = executor(vocab_size=50)
    plan = StepPlan(
        spans=[prefill(), prefill((2, 3), seq_id=1, sample=False), prefill((4, 5), seq_id=2)]
    )
    logits = engine.execute(plan)
    assert tuple(logits.rows.shape) == (2, 50)
    assert str(logits.rows.dtype) == "torch.float32"
    np.testing.assert_array_equal(logits.rows[0], logits.rows[1])
    assert logits.prompt_rows == {}
    assert tuple(engine.execute(StepPlan()).rows.shape) == (0, 50)


def test_logits_look_like_a_model_that_is_worth_sampling():
    engine = executor(vocab_size=64)
    sample = np.concatenate([rows(engine, prefill(tokens=[t] * 6)) for t in range(64)])
    assert abs(sample.mean()) < 0.2
    assert 1.8 < sample.std() < 2.2
    assert len(set(sample.argmax(axis=1))) > 30


def test_rows_do_not_depend_on_the_batch_nor_on_where_the_blocks_are():
    alone = rows(executor(), prefill())
    other = prefill((2, 3), tokens=[5, 4, 3], seq_id=9)
    batched = rows(executor(), other, prefill((7, 4)))
    np.testing.assert_array_equal(alone[0], batched[1])


def test_one_prefill_chunks_and_decodes_give_the_same_row():
    whole = rows(executor(), prefill())[0]
    engine = executor()
    rows(engine, Span(0, 0, PROMPT[:3], [0, 1], sample=False))
    rows(engine, Span(0, 3, PROMPT[3:5], [0, 1], sample=False))
    np.testing.assert_array_equal(whole, rows(engine, Span(0, 5, PROMPT[5:], [0, 1]))[0])


def test_prompt_rows_are_those_that_decoding_the_prompt_would_give():
    span = prefill(prompt_logprobs=True)
    logits = executor().execute(StepPlan(spans=[span]))
    assert tuple(logits.prompt_rows[0].shape) == (6, 64)
    np.testing.assert_array_equal(logits.prompt_rows[0][-1], logits.rows[0])
    for end in range(1, 7):
        row = rows(executor(), prefill(tokens=PROMPT[:end]))[0]
        np.testing.assert_array_equal(logits.prompt_rows[0][end - 1], row)


def test_prompt_rows_of_a_later_chunk_are_its_own():
    engine = executor()
    rows(engine, Span(0, 0, PROMPT[:4], [0, 1], sample=False))
    chunk = Span(0, 4, PROMPT[4:], [0, 1], prompt_logprobs=True)
    logits = engine.execute(StepPlan(spans=[chunk]))
    assert tuple(logits.prompt_rows[0].shape) == (2, 64)
    np.testing.assert_array_equal(logits.prompt_rows[0][-1], logits.rows[0])


@pytest.mark.parametrize("position", range(6))
@pytest.mark.parametrize("part", [0, 1])
def test_every_slot_of_the_context_counts(position, part):
    def damage(engine):
        engine.device[position // B, position % B, part] += 1

    assert not np.array_equal(row_after(damage), untouched())


def test_slots_past_the_context_and_other_blocks_do_not_count():
    def damage(engine):
        engine.device[1, 3] = 77
        engine.poison([2, 3, 4, 5, 6, 7])

    np.testing.assert_array_equal(row_after(damage), untouched())


def test_reading_through_a_wrong_table_changes_the_row():
    engine = executor()
    rows(engine, prefill())
    swapped_entries = rows(engine, Span(0, 6, [17], [1, 0]))[0]
    assert not np.array_equal(swapped_entries, untouched())


def test_a_wrong_position_or_token_changes_the_row():
    engine = executor()
    rows(engine, prefill())
    assert not np.array_equal(rows(engine, Span(0, 7, [17], [0, 1]))[0], untouched())
    assert not np.array_equal(row_after(lambda _: None, next_token=18), untouched())


def test_poison_shows_in_every_row_that_reads_it():
    assert not np.array_equal(row_after(lambda engine: engine.poison([0])), untouched())
    engine = executor()
    engine.poison([3], [2])
    assert (engine.device[3] == POISON).all()
    assert (engine.host[2] == POISON).all()


def test_operations_happen_in_the_order_swap_in_swap_out_copy_forward():
    engine = executor()
    rows(engine, prefill((0, 1)))
    rows(engine, swap_out=[(0, 3), (1, 2)])
    engine.poison([0, 1])
    # Block 4 is swapped in, swapped out again, copied to 6, and only then written.
    result = rows(
        engine,
        Span(0, 6, [17], [5, 6]),
        Span(1, 6, [18], [5, 4]),
        swap_in=[(3, 5), (2, 4)],
        swap_out=[(4, 1)],
        copies=[(4, 6)],
    )
    np.testing.assert_array_equal(result[0], untouched())
    np.testing.assert_array_equal(result[1], row_after(lambda _: None, next_token=18))
    np.testing.assert_array_equal(engine.host[1, :2, 0], PROMPT[4:])
    assert engine.host[1, 2, 0] != 18


def test_all_spans_are_written_before_any_is_read():
    engine = executor()
    first = rows(engine, prefill((0, 1)), prefill((0, 2), tokens=[9] * 6, seq_id=1))[0]
    assert not np.array_equal(first, rows(executor(), prefill())[0])


def test_another_salt_is_another_model():
    assert not np.array_equal(rows(executor(salt=1), prefill()), rows(executor(), prefill()))
