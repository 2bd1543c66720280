"""Flat inputs against the definition in DESIGN's words: one token, one position, one slot."""

import random

import pytest
import torch

from minipaged.contracts import Span, StepPlan
from minipaged.executor import inputs as inputs_module
from minipaged.executor.inputs import TOKEN_MULTIPLE, InputBuilder


def check(inputs, plan, block_size):
    """Compare with what the plan says, token by token."""
    batch = inputs.batch
    ones = [span for span in plan.spans if len(span.token_ids) == 1]
    ordered = ones + [span for span in plan.spans if len(span.token_ids) > 1]
    tokens, positions, slots, last = [], [], [], {}
    for span in ordered:
        for j, token in enumerate(span.token_ids):
            p = span.start + j
            tokens.append(token)
            positions.append(p)
            slots.append(span.block_table[p // block_size] * block_size + p % block_size)
        last[span.seq_id] = len(tokens) - 1
    padding = len(inputs.tokens) - len(tokens)
    assert len(inputs.tokens) % TOKEN_MULTIPLE == 0
    assert 0 <= padding < TOKEN_MULTIPLE
    assert inputs.tokens.tolist() == tokens + [0] * padding
    assert inputs.positions.tolist() == positions + [0] * padding
    assert batch.slot_mapping.tolist() == slots + [-1] * padding
    assert batch.query_start.diff().tolist() == [len(span.token_ids) for span in ordered]
    assert batch.context_lens.tolist() == [span.context_len for span in ordered]
    assert batch.num_decodes == len(ones)
    assert batch.max_query_len == max(len(span.token_ids) for span in ordered)
    assert batch.max_context_len == max(span.context_len for span in ordered)
    assert batch.block_size == block_size
    assert batch.block_tables.shape == (len(ordered), -(-batch.max_context_len // block_size))
    for row, span in zip(batch.block_tables.tolist(), ordered):
        used = -(-span.context_len // block_size)
        assert row[:used] == span.block_table[:used]
    assert inputs.sample_rows.tolist() == [last[s.seq_id] for s in plan.spans if s.sample]
    wanted = {s.seq_id: len(s.token_ids) for s in plan.spans if s.prompt_logprobs}
    assert inputs.prompt_rows == {
        seq_id: slice(last[seq_id] + 1 - length, last[seq_id] + 1)
        for seq_id, length in wanted.items()
    }
    for tensor in (inputs.tokens, inputs.positions, batch.slot_mapping, inputs.sample_rows):
        assert tensor.dtype == torch.int64
    for tensor in (batch.query_start, batch.context_lens, batch.block_tables):
        assert tensor.dtype == torch.int32


def test_decodes_come_first_and_rows_go_back_to_the_order_of_the_plan():
    plan = StepPlan(
        spans=[
            Span(7, 0, [1, 2, 3], [9]),
            Span(3, 5, [4], [2, 8]),
            Span(4, 2, [5, 6], [1], sample=False),
            Span(5, 0, [7], [6], prompt_logprobs=True),
            Span(6, 4, [8, 9, 10, 11, 12], [0, 5, 4], prompt_logprobs=True),
        ]
    )
    inputs = InputBuilder(4).build(plan)
    check(inputs, plan, 4)
    assert inputs.tokens.tolist() == [4, 7, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 0, 0, 0, 0]
    assert inputs.sample_rows.tolist() == [4, 0, 1, 11]  # the plan's order, the chunk left out
    assert inputs.prompt_rows == {5: slice(1, 2), 6: slice(7, 12)}


def test_a_step_in_which_nothing_is_sampled():
    plan = StepPlan(spans=[Span(0, 0, [1, 2], [0], sample=False)])
    assert InputBuilder(4).build(plan).sample_rows.shape == (0,)


def test_a_model_length_that_is_no_multiple_of_the_block_size():
    """B17: 18 tokens in blocks of 4, three sequences, up to the last of 5 entries each."""
    builder = InputBuilder(4, max_seqs=3, max_blocks=-(-18 // 4))
    tables = [[10 * i + j for j in range(5)] for i in range(3)]
    for step, start in enumerate(range(14, 18)):
        spans = [Span(i, start - i, [1], tables[i]) for i in range(3)]
        plan = StepPlan(step=step, spans=spans)
        check(builder.build(plan), plan, 4)


class CountingTable(list):
    """A block table that counts the entries that are looked at."""

    reads = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.reads += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self):
        raise AssertionError("a table is not walked through")


def test_a_decode_looks_at_one_entry_however_long_the_sequence():
    builder = InputBuilder(4)
    tables = [CountingTable(range(i * 100, i * 100 + 100)) for i in range(3)]
    for step in range(8):
        for table in tables:
            table.reads = 0
        builder.build(StepPlan(step, [Span(i, 390 + step, [1], tables[i]) for i in range(3)]))
        assert {table.reads for table in tables} == ({1} if step else {1 + 98})


def test_tables_in_the_same_order_are_a_view():
    builder = InputBuilder(4)
    spans = [Span(0, 9, [1], [1, 2, 3]), Span(1, 9, [1], [4, 5, 6])]
    first = builder.build(StepPlan(0, spans)).batch.block_tables
    for span in spans:
        span.start += 1
    assert builder.build(StepPlan(1, spans)).batch.block_tables.data_ptr() == first.data_ptr()


def test_on_another_device_rows_of_the_tables_begin_at_multiples_of_16(monkeypatch):
    """Or Triton would compile a kernel for each kind of row length."""
    plan = StepPlan(0, [Span(0, 9, [1], [1, 2, 3]), Span(1, 75, [1], list(range(19)))])
    tables = InputBuilder(4).build(plan, "meta").batch.block_tables
    assert tables.shape == (2, 19)
    assert tables.stride() == (32, 1)
    # The values, where they can be seen:
    monkeypatch.setattr(
        inputs_module, "to_device", lambda arrays, device: [torch.tensor(a) for a in arrays]
    )
    check(InputBuilder(4).build(plan, "meta"), plan, 4)


@pytest.mark.parametrize("steps_between", [1, 2])
def test_a_sequence_that_was_away_for_a_step_is_looked_up_again(steps_between):
    """Swapped out and in, it has other blocks, though its position has not moved."""
    builder = InputBuilder(4)
    builder.build(StepPlan(0, [Span(0, 9, [1], [1, 2, 3]), Span(1, 0, [1], [4])]))
    if steps_between == 2:
        builder.build(StepPlan(1, [Span(1, 1, [1], [4])]))
    plan = StepPlan(2, [Span(0, 10, [1], [7, 8, 9]), Span(1, 2, [1], [4])])
    check(builder.build(plan), plan, 4)


def test_a_sequence_that_starts_over_is_looked_up_again():
    builder = InputBuilder(4)
    builder.build(StepPlan(0, [Span(0, 9, [1], [1, 2, 3])]))
    plan = StepPlan(1, [Span(0, 0, [1] * 10, [7, 8, 9])])
    check(builder.build(plan), plan, 4)
    plan = StepPlan(2, [Span(0, 5, [1], [4, 5, 6])])
    check(builder.build(plan), plan, 4)


class World:
    """Sequences that grow, fork, copy on write, chunk, swap, restart, reorder and end, with
    tables of made-up blocks: what a scheduler could send."""

    EVENTS = ("end", "add", "fork", "copy", "swap", "restart", "shuffle", "skip")

    def __init__(self, seed, block_size, reserve):
        self.dice = random.Random(seed)
        self.block_size = block_size
        self.reserve = reserve
        """Blocks held ahead of need, as contiguous managers do."""
        self.seqs = {}  # seq_id -> [computed, table]
        self.counts = dict.fromkeys(self.EVENTS, 0)
        self.next_id = self.step = 0

    def cover(self, seq, length):
        table = seq[1]
        while len(table) < -(-length // self.block_size) + self.reserve:
            table.append(self.dice.randrange(10**6))

    def happen(self, event):
        ids = list(self.seqs)
        if event == "add":
            self.seqs[self.next_id] = [0, []]
            self.next_id += 1
        elif event == "shuffle":
            self.dice.shuffle(ids)
            self.seqs = {i: self.seqs[i] for i in ids}
        elif event == "skip":
            self.step += 1
        elif not ids:
            return
        else:
            seq_id = self.dice.choice(ids)
            seq = self.seqs[seq_id]
            if event == "end":
                del self.seqs[seq_id]
            elif event == "fork":
                self.seqs[self.next_id] = [seq[0], list(seq[1])]
                self.next_id += 1
            elif event == "copy" and (self.block_size == 1 or seq[0] % self.block_size):
                # With blocks of one token the block that is written to is always a new one.
                seq[1][seq[0] // self.block_size :] = []
                seq[1].append(self.dice.randrange(10**6))
            elif event == "swap":
                seq[1][:] = [self.dice.randrange(10**6) for _ in seq[1]]
                self.away.add(seq_id)
            elif event == "restart":
                seq[0] = 0
                seq[1].clear()
                self.away.add(seq_id)
            else:
                return
        self.counts[event] += 1

    def plan(self):
        self.away = set()
        for _ in range(self.dice.choice((0, 0, 1, 3))):
            self.happen(self.dice.choice(self.EVENTS))
        spans = []
        for seq_id, seq in self.seqs.items():
            if seq_id in self.away:
                continue
            count = 1 if seq[0] and self.dice.random() < 0.9 else self.dice.randint(1, 20)
            self.cover(seq, seq[0] + count)
            tokens = [self.dice.randrange(100) for _ in range(count)]
            spans.append(
                Span(seq_id, seq[0], tokens, seq[1], self.dice.random() < 0.9,
                     self.dice.random() < 0.1)
            )  # fmt: skip
            seq[0] += count
        self.step += 1
        return StepPlan(self.step, spans)


@pytest.mark.parametrize("reserve", [0, 5])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_whatever_happens_the_inputs_are_those_of_the_plan(block_size, reserve):
    world = World(block_size, block_size, reserve)
    builder = InputBuilder(block_size, max_seqs=1, max_blocks=1)
    for _ in range(600):
        plan = world.plan()
        if plan.spans:
            check(builder.build(plan), plan, block_size)
        while len(world.seqs) > 12:
            world.happen("end")
    assert min(world.counts.values()) > 30, world.counts
