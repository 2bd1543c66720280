"""Task 6.2: a group gives up its blocks, and computes again what was in them, each block once."""

from __future__ import annotations

from pressure_model import (
    Family,
    Memory,
    draw_pairs,
    draw_tokens,
    entries,
    letters,
    same_sharing,
    state,
)

from minipaged.course.testing import expect

GPU = 40


def family(rng, block_size, steps):
    """Siblings that have forked on their way."""
    found = Family(rng, block_size, prompt=int(rng.integers(1, 2 * block_size + 2)))
    found.fork()
    for _ in range(steps):
        found.step()
        if len(found.tokens) < 5 and rng.integers(3) == 0:
            found.fork(int(rng.integers(len(found.tokens))))
    return found


def test_a_recomputed_group_holds_nothing(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 7))):
        for count in (1, 3):
            siblings = Family.of(rng, block_size, count, 2 * block_size + int(rng.integers(3)))
            kv = lab.paged_kv(gpu=GPU, block_size=block_size)
            group = siblings.run(lab, kv, first_id=2)
            parts.Preemption(kv, "recompute").recompute(group)
            why = f"recompute() of a group of {count} with the tables {siblings.told()}"
            expect(kv.num_free_gpu_blocks, GPU, f"{why}: free blocks of {GPU}")
            ids = range(2, 2 + count)
            tables = {seq: kv.block_table(seq) for seq in ids}
            expect(tables, {seq: [] for seq in ids}, f"{why}: the tables")
            want = dict.fromkeys(ids, ("waiting", 0))
            expect(state(group), want, f"{why}: status and num_computed")
    on_host = lab.running_group(prompt=3, tokens=[draw_tokens(rng, 6)] * 2)
    kv = lab.block_counter(gpu=1, cpu=9, pairs={"r0": draw_pairs(rng, 4)})
    kv.swap_out(on_host)
    parts.Preemption(kv, "swap").recompute(on_host)
    expect(kv.held, {"r0": "nothing"}, "recompute() of a group on the host: where its blocks are")


def test_a_recompute_takes_no_token_away(parts, lab, rng):
    for count, ended in ((1, []), (3, []), (3, [1])):
        siblings = Family.of(rng, 4, count, int(rng.integers(6, 12)), own=3)
        group = lab.running_group(prompt=siblings.prompt, tokens=siblings.tokens, ended=ended)
        kv = lab.block_counter(gpu=0, cpu=0, pairs={"r0": draw_pairs(rng, 4)})
        was = {seq: found for seq, found in state(group).items() if seq in ended}
        preemption, plan = parts.Preemption(kv, "recompute"), lab.step_plan()
        preemption.preempt(group, plan)
        length = len(siblings.tokens[0])
        why = (
            f"a group of {count}, {len(ended)} of which have ended, with a prompt of "
            f"{siblings.prompt} and {length} tokens each, recomputed"
        )
        live = [i for i in range(count) if i not in ended]
        got = {seq.seq_id: seq.token_ids for seq in group.live}
        expect(got, {i: siblings.tokens[i] for i in live}, f"{why}: its tokens")
        for seq in group.live:
            expect(seq.num_prompt_tokens, siblings.prompt, f"{why}: num_prompt_tokens")
        now = {seq: found for seq, found in state(group).items() if seq in ended}
        expect(now, was, f"{why}: status and num_computed of who has ended")
        want = {"preempted": [("r0", "recompute")]}
        expect(entries(plan), want, f"{why}: the plan")
        expect(kv.held, {"r0": "nothing"}, f"{why}: where its blocks are")


def starts_of(tables, num_tokens, block_size):
    """Where each must begin: at its first token whose slot nobody has filled yet."""
    filled, starts = set(), []
    for table, tokens in zip(tables, num_tokens):
        slots = [(table[p // block_size], p % block_size) for p in range(tokens - 1)]
        starts.append(next((p for p, at in enumerate(slots) if at not in filled), tokens - 1))
        filled.update(slots)
    return starts


def check_starts(parts, lab, block_size, tables, num_tokens):
    kv = lab.block_counter(gpu=0, cpu=0, pairs={}, block_size=block_size)
    got = parts.Preemption(kv, "auto").refill_starts(tables, num_tokens)
    want = starts_of(tables, num_tokens, block_size)
    why = f"refill_starts() of {letters(tables)}, {num_tokens} tokens in blocks of {block_size}"
    expect(got, want, why)


def test_a_shared_block_is_computed_once(parts, lab, rng):
    """Each sibling has tokens of its own in the end."""
    for block_size in (4, int(rng.integers(2, 7)), 1):
        a, b, c, d, e, f = (int(block) for block in rng.permutation(40)[:6])
        for tables, own in (
            ([[a, b], [a, c]], [1, 1]),
            ([[a], [a, b], [a, c]], [0, 1, 1]),
            ([[a, b, c], [a, b, d], [a, e, f]], [1, 1, 1]),
            ([[a], [b, c], [b, d], [e]], [1, 1, 1, 1]),
        ):
            lengths = [
                (len(table) - more) * block_size + more * int(rng.integers(1, block_size + 1)) + 1
                for table, more in zip(tables, own)
            ]
            check_starts(parts, lab, block_size, tables, lengths)
        for _ in range(3):
            grown = family(rng, block_size, block_size + 2)
            for _ in range(block_size):
                grown.step()
            check_starts(parts, lab, block_size, grown.tables, grown.num_tokens)


def test_the_last_token_is_left_to_the_decode(parts, lab, rng):
    """Siblings that have just forked share all that there is."""
    for block_size in (4, int(rng.integers(3, 7))):
        for cached in (block_size + 1, 2 * block_size - 1, int(rng.integers(1, block_size))):
            twins = Family.of(rng, block_size, int(rng.integers(2, 5)), cached, own=0)
            check_starts(parts, lab, block_size, twins.tables, twins.num_tokens)
            twins.step()
            twins.fork()
            check_starts(parts, lab, block_size, twins.tables, twins.num_tokens)
    check_starts(parts, lab, 4, [[], []], [1, 1])


def refill(kv, group, starts, memory, why):
    """What the steps after a recompute do: siblings compute, in order, what is missing."""
    for seq, start in zip(group.live, starts):
        table, tokens = kv.block_table(seq.seq_id), seq.token_ids
        memory.check(table, tokens, start, f"{why}; before sequence {seq.seq_id} begins at {start}")
        for position in range(start, len(tokens) - 1):
            memory.write(table, tokens, position)
            seq.num_computed = position + 1


def test_what_was_in_the_cache_is_there_again(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 6)), int(rng.integers(2, 6))):
        siblings = family(rng, block_size, 2 * block_size)
        kv = lab.paged_kv(gpu=GPU, block_size=block_size)
        group = siblings.run(lab, kv)
        preemption = parts.Preemption(kv, "recompute")
        for again in range(2):
            preemption.preempt(group, lab.step_plan())
            shape = [group.shape[seq.seq_id] for seq in group.live]
            lengths = [seq.num_tokens for seq in group.live]
            starts = preemption.refill_starts(shape, lengths)
            kv.allocate(group)
            why = f"recompute {again + 1} of {siblings.told()}, {lengths} tokens"
            tables = [kv.block_table(seq.seq_id) for seq in group.live]
            expect(
                same_sharing(tables), same_sharing(siblings.tables), f"{why}; the tables after it"
            )
            memory = Memory(block_size)
            refill(kv, group, starts, memory, why)
            for seq, table in zip(group.live, tables):
                memory.check(table, seq.token_ids, seq.num_tokens - 1, f"{why}; in the end")


def test_a_host_without_room_takes_no_part_of_a_group(parts, lab, rng):
    for mode in ("auto", "swap"):
        for count, room in ((3, 0), (2, 1), (int(rng.integers(2, 5)), 2)):
            blocks = room + 1 + int(rng.integers(0, 3)) * (room > 0)
            group = lab.running_group(prompt=3, tokens=[draw_tokens(rng, 7) for _ in range(count)])
            kv = lab.block_counter(gpu=2, cpu=room, pairs={"r0": draw_pairs(rng, blocks)})
            plan = lab.step_plan()
            parts.Preemption(kv, mode).preempt(group, plan)
            why = (
                f"preempt() in mode {mode}: {count} sequences, {blocks} blocks, {room} on the host"
            )
            want = {"preempted": [("r0", "recompute")]}
            expect(entries(plan), want, f"{why}: the plan")
            states = dict.fromkeys(range(count), ("waiting", 0))
            expect(state(group), states, f"{why}: status and num_computed")
            free = kv.num_free_gpu_blocks, kv.num_free_cpu_blocks
            expect(free, (2 + blocks, room), f"{why}: free blocks on the device and the host")
            expect(group.num_preemptions, 1, f"{why}: its num_preemptions")


def test_a_half_computed_group_starts_again(parts, lab, rng):
    for mode in ("auto", "swap", "recompute"):
        prompt = draw_tokens(rng, int(rng.integers(5, 12)))
        computed = int(rng.integers(1, len(prompt)))
        group = lab.running_group(prompt=len(prompt), tokens=[prompt], computed=computed)
        kv = lab.block_counter(gpu=0, cpu=9, pairs={"r0": draw_pairs(rng, 3)})
        plan = lab.step_plan()
        parts.Preemption(kv, mode).preempt(group, plan)
        why = f"preempt() in mode {mode}, with {computed} of {len(prompt)} prompt tokens computed"
        expect(entries(plan)["preempted"], [("r0", "recompute")], f"{why}: the plan's preempted")
        expect(state(group), {0: ("waiting", 0)}, f"{why}: status and num_computed")
        expect(group.prefilling, False, f"{why}: prefilling")
        expect(kv.held, {"r0": "nothing"}, f"{why}: where its blocks are")
