"""The four classes of KV memory, by hand and against the paper's figure 2."""

import bisect
import csv
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.kvcache.accounting import (
    MemoryClasses,
    MemoryMeter,
    SequenceMemory,
    memory_classes,
    sequence_memory,
)
from minipaged.kvcache.buddy import BuddyAllocator
from minipaged.kvcache.contiguous import ContiguousKVManager
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup

PAPER_HISTOGRAMS = (
    Path(__file__).parents[2].parent / "shared" / "paper" / "paper_fig11_length_histograms.csv"
)


class Paged:
    """Only what accounting looks at."""

    def __init__(self, tables, block_size=4):
        self.tables = tables
        self.block_size = block_size

    def block_table(self, seq_id):
        return self.tables.get(seq_id, [])


def group(seq_id, prompt, output, n=1, computed=0, beam=False):
    seq = Sequence(seq_id, range(prompt))
    seq.num_computed = computed
    params = SamplingParams(n=n, max_tokens=output, use_beam_search=beam)
    return SequenceGroup(f"r{seq_id}", seq, params)


@pytest.mark.parametrize(
    ("seq", "classes"),
    [
        (SequenceMemory(5, 7, 8), (5, 2, 1)),
        (SequenceMemory(5, 7, 16, 10), (5, 2, 3)),
        (SequenceMemory(8, 8, 8), (8, 0, 0)),
        # A paged sequence will outgrow the blocks that it holds now.
        (SequenceMemory(5, 700, 8), (5, 3, 0)),
        # It was expected to end before.
        (SequenceMemory(7, 5, 8), (7, 0, 1)),
        # A region that no sequence is in yet.
        (SequenceMemory(0, 7, 16, 10), (0, 7, 3)),
        # The second holder of one full block adds what is its own.
        (SequenceMemory(5, 7, 8, shared_slots=4), (1, 2, 1)),
        (SequenceMemory(5, 7, 8, shared_slots=8), (0, 0, 0)),
    ],
)
def test_one_sequence(seq, classes):
    result = memory_classes([seq], 32)
    assert (result.token_states, result.reserved, result.internal) == classes
    assert result.external == 32 - sum(classes)
    assert result.total == 32


def test_seven_requests_of_orca_max_leave_the_papers_external_share():
    slots = 12 * 2**30 // 819_200
    requests = [SequenceMemory(458, 499, 2048)] * 7
    shares = memory_classes(requests, slots).shares()
    assert shares.external == pytest.approx(8.85, abs=0.01)
    assert shares.token_states == pytest.approx(20.4, abs=0.1)
    assert shares.total == pytest.approx(100)


def test_more_than_the_pool_is_an_error():
    with pytest.raises(ValueError, match="8 slots more than the 8"):
        memory_classes([SequenceMemory(5, 8, 8)] * 2, 8)
    with pytest.raises(ValueError, match="9 tokens in 8 slots"):
        memory_classes([SequenceMemory(9, 9, 8)], 8)


@given(
    st.lists(
        st.tuples(*[st.integers(0, 40)] * 5).map(
            lambda t: SequenceMemory(min(t[0], t[2]), t[1], t[2], min(t[3], t[2]), min(t[4], t[2]))
        ),
        max_size=5,
    )
)
def test_every_slot_is_in_one_class(sequences):
    result = memory_classes(sequences, 1000)
    assert result.total == 1000
    assert min(result.token_states, result.reserved, result.internal, result.external) >= 0


# -- from managers
def test_paged_blocks_shared_by_siblings_count_once():
    # 6 prompt tokens: a full block that both share, and a second of which each has its copy.
    grp = group(0, prompt=6, output=3, n=2, computed=7)
    grp.seqs[1] = grp.live[0].fork(1, 1)
    memory = sequence_memory(Paged({0: [7, 2], 1: [7, 9]}), [grp], max_model_len=64)
    assert memory == [SequenceMemory(7, 9, 8), SequenceMemory(7, 9, 8, shared_slots=4)]
    classes = memory_classes(memory, 40)
    assert classes == MemoryClasses(token_states=10, reserved=2, internal=0, external=28)


def test_shared_blocks_of_different_groups_count_once():
    groups = [group(0, 9, 5, computed=9), group(1, 6, 5, computed=6), group(2, 4, 5, computed=4)]
    memory = sequence_memory(Paged({0: [3, 4, 5], 1: [3, 6], 2: [8]}), groups, 64)
    assert [m.shared_slots for m in memory] == [0, 4, 0]
    assert memory_classes(memory, 64).token_states == 9 + 2 + 4


def test_paged_waste_is_less_than_a_block_a_sequence():
    tables = {i: [10 * i + j for j in range(-(-(i + 3) // 4))] for i in range(6)}
    groups = [group(i, i + 3, 1, computed=i + 3) for i in range(6)]
    classes = memory_classes(sequence_memory(Paged(tables), groups, 64), 400)
    assert classes.token_states == sum(range(3, 9))
    assert classes.reserved + classes.internal == sum(-n % 4 for n in range(3, 9))


def test_rounding_of_the_buddy_allocator_is_external():
    kv = ContiguousKVManager(BuddyAllocator(16, 16), 4, 64, "oracle")
    grp = group(0, prompt=6, output=11, computed=7)
    kv.allocate(grp)
    memory = sequence_memory(kv, [grp], 64, kv.reservation)
    assert memory == [SequenceMemory(7, 17, 32, 17)]
    assert memory_classes(memory, 64) == MemoryClasses(7, 10, 0, 47)


def test_spare_regions_of_a_group_are_reserved():
    kv = ContiguousKVManager(BuddyAllocator(32, 16), 4, 64, "pow2")
    grp = group(0, prompt=6, output=9, n=3, computed=6)
    kv.allocate(grp)
    memory = sequence_memory(kv, [grp], 64, kv.reservation)
    assert len(memory) == 3
    # 6 + 16 asked for by each, 15 of it to be used.
    assert memory_classes(memory, 128) == MemoryClasses(6, 3 * 15 - 6, 3 * 7, 128 - 66)
    assert sequence_memory(kv, [], 64, kv.reservation) == []


def test_length_of_a_sequence_is_bounded_by_the_model():
    grp = group(0, prompt=6, output=None, computed=6)
    (memory,) = sequence_memory(Paged({0: [0, 1]}), [grp], 64)
    assert memory.final_tokens == 64
    grp.expected_output_len = 1
    (memory,) = sequence_memory(Paged({0: [0, 1]}), [grp], 64)
    assert memory.final_tokens == 7


# -- the mean
def test_mean_over_steps_and_over_time():
    meter = MemoryMeter()
    with pytest.raises(ValueError, match="no step"):
        meter.mean()
    meter.add(MemoryClasses(10, 0, 0, 0))
    meter.add(MemoryClasses(0, 4, 2, 4))
    assert meter.mean() == MemoryClasses(5, 2, 1, 2)
    timed = MemoryMeter()
    timed.add(MemoryClasses(10, 0, 0, 0), weight=3.0)
    timed.add(MemoryClasses(0, 4, 2, 4), weight=1.0)
    assert timed.mean() == MemoryClasses(7.5, 1, 0.5, 1)


# -- figure 2
def lengths(field, count, rng):
    """Draws from a histogram; every 500 in a row are spread evenly over its quantiles, so that
    a short run has the mean of a long one."""
    with PAPER_HISTOGRAMS.open() as file:
        rows = [
            (float(row["probability"]), float(row["bin_lo_tokens"]), float(row["bin_hi_tokens"]))
            for row in csv.DictReader(file)
            if (row["dataset"], row["field"]) == ("sharegpt", field)
        ]
    cumulative = list(itertools.accumulate(probability for probability, _, _ in rows))
    drawn = []
    while len(drawn) < count:
        quantiles = [(i + rng.random()) / 500 * cumulative[-1] for i in range(500)]
        rng.shuffle(quantiles)
        for quantile in quantiles:
            _, low, high = rows[bisect.bisect_left(cumulative, quantile)]
            drawn.append(max(1, round(rng.uniform(low, high))))
    return drawn


@pytest.mark.skipif(not PAPER_HISTOGRAMS.exists(), reason="the paper's length histograms")
@pytest.mark.parametrize(
    ("reservation", "expected", "batch"),
    [
        ("max", (20.4, 13.3, 57.3, 8.9), 7.0),
        ("pow2", (26.8, 17.9, 13.6, 41.6), 9.81),
        ("oracle", (38.2, 25.2, 0.0, 36.6), 13.62),
    ],
)
def test_saturated_orca_on_sharegpt_wastes_what_figure_2_says(reservation, expected, batch):
    rng = random.Random(0)
    pairs = zip(lengths("input", 2000, rng), lengths("output", 2000, rng))
    waiting = [(i, p, o) for i, (p, o) in enumerate(pairs) if p + o < 2048][::-1]
    kv = ContiguousKVManager(BuddyAllocator(983), 16, 2048, reservation)
    meter, counts, running = MemoryMeter(), [], []
    for step in range(16_000):
        while waiting:
            grp = group(*waiting[-1])
            if not kv.fits(grp):
                break
            kv.allocate(grp)
            running.append(grp)
            waiting.pop()
        assert waiting, "the trace is too short"
        for grp in running:
            seq = grp.live[0]
            seq.num_computed = seq.num_tokens
            seq.token_ids.append(0)
        if step > 1000 and step % 10 == 0:
            memory = sequence_memory(kv, running, 2048, kv.reservation)
            meter.add(memory_classes(memory, 15_728).shares())
            counts.append(len(running))
        for grp in running:
            seq = grp.live[0]
            if seq.num_output_tokens == grp.params.max_tokens:
                kv.free(seq)
                del grp.seqs[seq.seq_id]
        running = [grp for grp in running if not grp.finished]
    mean = meter.mean()
    measured = (mean.token_states, mean.reserved, mean.internal, mean.external)
    assert measured == pytest.approx(expected, abs=3)
    assert sum(counts) / len(counts) == pytest.approx(batch, rel=0.08)
