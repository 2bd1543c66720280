"""Task 1.4: where does the memory go? Every slot of the pool gets one label."""

from __future__ import annotations

import pytest
from contiguous_oracle import classes, classes_of, memory_of

from minipaged.course.testing import expect, expect_error


def check_classes(parts, sequences, pool_slots, why):
    memory = [parts.SequenceMemory(**seq) for seq in sequences]
    got = parts.memory_classes(memory, pool_slots)
    want = classes(sequences, pool_slots)
    what = f"{why}: token states, reserved, internal, external of {pool_slots} slots"
    expect(classes_of(got), want, what)


def some_sequence(rng):
    """A sequence that lives as it was expected to, in a region or in paged blocks."""
    tokens = int(rng.integers(1, 30))
    final = tokens + int(rng.integers(1, 20))
    requested = final + int(rng.integers(1, 15))
    kinds = [
        {"slots": requested + int(rng.integers(1, 20)), "requested_slots": requested},
        {"slots": requested},
        {"slots": tokens + int(rng.integers(0, final - tokens))},  # its blocks so far
    ]
    return {"tokens": tokens, "final_tokens": final, **kinds[int(rng.integers(3))]}


@pytest.mark.parametrize("case", range(3))
def test_every_slot_is_in_one_class(parts, rng, case):
    sequences = [some_sequence(rng) for _ in range(case + 1)]
    used = sum(seq["slots"] for seq in sequences)
    check_classes(parts, sequences[:1], used + 5, "one sequence")
    check_classes(parts, sequences, used + int(rng.integers(1, 50)), f"{case + 1} sequences")
    check_classes(parts, sequences, used, "no slot is free")
    full = [{"tokens": n, "final_tokens": n, "slots": n} for n in rng.integers(1, 30, 2).tolist()]
    check_classes(parts, full, sum(seq["slots"] for seq in full), "every slot holds a token")
    check_classes(parts, [], int(rng.integers(1, 99)), "nobody is there")


@pytest.mark.parametrize("case", range(2))
def test_a_shared_slot_counts_once(parts, rng, case):
    first = some_sequence(rng)
    for shared in {1, first["tokens"] // 2, first["tokens"], first["slots"]}:
        other = {**first, "shared_slots": shared}
        pool_slots = 2 * first["slots"] + int(rng.integers(1, 20))
        why = (
            f"a second sequence of {first['tokens']} tokens, whose first {shared} slots are shared"
        )
        check_classes(parts, [first, other], pool_slots, why)


@pytest.mark.parametrize("case", range(2))
def test_tables_that_share_blocks_are_seen(parts, lab, rng, case):
    size = int(rng.integers(3, 9))
    a, b, c, d, e, f, g = (int(block) for block in rng.permutation(50)[:7])
    tables = {0: [a, b], 1: [a, c], 2: [a, b], 10: [d, e, f], 20: [d, e, g], 30: []}
    kv = lab.block_tables(size, tables)
    prompt, output = size + 1, int(rng.integers(4, 20))
    computed = [size + 2, size + 1, size + 3]
    three = lab.sequence_group(prompt=prompt, computed=computed, n=3, max_tokens=output)
    long = 2 * size + 1
    others = [
        lab.sequence_group(prompt=long, computed=[long], first_id=10, max_tokens=output),
        lab.sequence_group(prompt=long, computed=[2], first_id=20, max_tokens=output),
        lab.sequence_group(prompt=2, computed=[0], first_id=30, max_tokens=1),  # holds nothing
    ]
    limit = long + output - 1
    got = parts.sequence_memory(kv, [three, *others], limit)
    want = [
        *((count, prompt + output, 2 * size, None) for count in computed),
        (long, limit, 3 * size, None),
        (2, limit, 3 * size, None),
        (0, 3, 0, None),
    ]
    shared = [0, size, 2 * size, 0, 2 * size, 0]
    for i, (seq, row, slots) in enumerate(zip(got, want, shared, strict=True)):
        seq_id, table = list(tables.items())[i]
        why = f"sequence {seq_id}, with table {table} of all {list(tables.values())}"
        fields = "tokens, final tokens, slots, requested slots, shared slots"
        expect(memory_of(seq), (*row, slots), f"{why}, blocks of {size}: {fields}")


@pytest.mark.parametrize("case", range(2))
def test_spare_regions_are_counted_too(parts, lab, rng, case):
    size, blocks = int(rng.integers(2, 9)), 1 << int(rng.integers(2, 5))
    slots = size * blocks
    kv = lab.block_tables(size, {5: list(range(blocks)), 6: list(range(blocks, 2 * blocks))})
    prompt, limit, expected = int(rng.integers(3, 20)), 500, int(rng.integers(5, 40))
    spare, requested = int(rng.integers(1, 4)), slots - int(rng.integers(1, size + 1))
    group = lab.sequence_group(
        prompt=prompt,
        computed=[prompt + 1, prompt],
        first_id=5,
        n=4,
        max_tokens=400,
        expected_output_len=expected,
    )
    got = parts.sequence_memory(kv, [group], limit, lab.reservation(requested, slots, spare))
    what = f"two sequences and {spare} spare regions of {slots} slots, {requested} asked for"
    expect(len(got), 2 + spare, f"{what}: how many entries")
    tokens = [prompt + 1, prompt, *[0] * spare]
    for i, (seq, count) in enumerate(zip(got, tokens)):
        want = (count, prompt + expected, slots, requested, 0)
        fields = "tokens, final tokens, slots, requested slots, shared slots"
        expect(memory_of(seq), want, f"{what}: {fields} of entry {i}")


@pytest.mark.parametrize("case", range(2))
def test_the_meter_weighs_its_steps(parts, rng, case):
    meter, other = parts.MemoryMeter(), parts.MemoryMeter()
    with expect_error(ValueError, why="mean() when nothing was added"):
        meter.mean()
    other.add(parts.MemoryClasses(1, 2, 3, 4), 0)
    with expect_error(ValueError, why="mean() when all that was added has the weight 0"):
        other.mean()
    sums, total = [0.0] * 4, 0.0
    for weight in (None, 3, 0.25, float(rng.integers(2, 9)), 0):
        values = rng.integers(0, 100, 4).tolist()
        meter.add(parts.MemoryClasses(*values), *([] if weight is None else [weight]))
        share = 1 if weight is None else weight
        sums = [have + share * value for have, value in zip(sums, values)]
        total += share
        want = tuple(round(have / total, 6) for have in sums)
        got = classes_of(meter.mean())
        same = all(abs(have - right) < 1e-5 for have, right in zip(got, want))
        why = f"mean() after {values} with weight {share}, the weights being {total:g} in all"
        expect(want if same else got, want, why)


# --------------------------------------------------------------------------- robustness
@pytest.mark.parametrize("case", range(2))
def test_a_wrong_guess_of_the_length_makes_no_class_negative(parts, rng, case):
    tokens = int(rng.integers(5, 20))
    slots = tokens + int(rng.integers(4, 20))
    for what, final, requested in (
        ("a sequence that has outlived its guess", tokens - int(rng.integers(1, 5)), slots),
        ("one that has outlived its request too", tokens - 3, tokens - 2),
        ("one that will need more than was asked for", tokens + 3, tokens + 1),
        ("one that will need more than its region", slots + 9, slots - 1),
    ):
        seq = {"tokens": tokens, "final_tokens": final, "slots": slots}
        check_classes(parts, [{**seq, "requested_slots": requested}], 2 * slots, what)


def test_a_pool_that_is_too_small_is_an_error(parts, rng):
    seq = some_sequence(rng)
    seq = {"tokens": seq["tokens"], "final_tokens": seq["final_tokens"], "slots": seq["slots"]}
    memory = parts.SequenceMemory(**seq)
    why = f"{seq['slots']} slots in a pool of {seq['slots'] - 1}"
    with expect_error(ValueError, why=why):
        parts.memory_classes([memory], seq["slots"] - 1)
    many = parts.SequenceMemory(seq["slots"] + 1, seq["slots"] + 2, seq["slots"])
    why = f"{seq['slots'] + 1} tokens in {seq['slots']} slots"
    with expect_error(ValueError, why=why):
        parts.memory_classes([many], 10 * seq["slots"])
