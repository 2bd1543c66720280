"""Task 6.1: one group gives way, with all its sequences, and comes back with all of them."""

from __future__ import annotations

from pressure_model import draw_pairs, draw_tokens, entries, state

from minipaged.course.testing import expect


def running(lab, rng, first_id=0, count=3, ended=(), computed=None):
    """A group of so many sequences, as long as each other."""
    prompt = int(rng.integers(2, 9))
    length = prompt + int(rng.integers(1, 9))
    tokens = [draw_tokens(rng, length) for _ in range(count)]
    if computed is not None:
        tokens, computed = [draw_tokens(rng, prompt)], int(rng.integers(1, prompt))
    return lab.running_group(
        prompt=prompt, tokens=tokens, first_id=first_id, ended=ended, computed=computed
    )


def with_status(states, status, ended=()):
    """The same states, with another status for those that have not ended."""
    return {
        seq: (was if seq in ended else status, computed) for seq, (was, computed) in states.items()
    }


def test_the_last_of_the_candidates_is_the_victim(parts, lab, rng):
    for count in (4, 1, 2, int(rng.integers(3, 6))):
        groups = [running(lab, rng, 10 * i, int(rng.integers(1, 4))) for i in range(count)]
        names = [group.request_id for group in groups]
        # Neither the smallest nor the largest is the last.
        sizes = sorted(int(size) for size in rng.choice(range(1, 12), count, replace=False))
        sizes.append(sizes.pop(len(sizes) // 2))
        pairs = {name: draw_pairs(rng, size) for name, size in zip(names, sizes)}
        kv = lab.block_counter(gpu=0, cpu=12, pairs=pairs)
        before = [state(group) for group in groups]
        victim = parts.Preemption(kv, "swap").evict(groups, lab.step_plan())
        why = f"evict() with the candidates {', '.join(names)}, of {sizes} blocks"
        expect(victim.request_id, names[-1], f"{why}: the victim")
        held = dict.fromkeys(names, "device") | {names[-1]: "host"}
        expect(kv.held, held, f"{why}: where the blocks are")
        for name, group, was in zip(names[:-1], groups, before):
            expect(state(group), was, f"{why}: the sequences of {name}")


def test_all_siblings_leave_together(parts, lab, rng):
    pairs = {f"r{i}": draw_pairs(rng, int(rng.integers(2, 6))) for i in (0, 10, 20)}
    kv = lab.block_counter(gpu=0, cpu=20, pairs=pairs)
    preemption, plan = parts.Preemption(kv, "swap"), lab.step_plan()
    want = {"swap_out": [], "preempted": []}
    for first_id, count in ((0, 3), (20, 1), (10, int(rng.integers(2, 5)))):
        group = running(lab, rng, first_id, count)
        name, was = group.request_id, state(group)
        times = int(rng.integers(0, 3))
        group.num_preemptions = times
        preemption.preempt(group, plan)
        want["swap_out"] = [*want["swap_out"], *pairs[name]]
        want["preempted"] = [*want["preempted"], (name, "swap")]
        why = f"preempt({name}), which swaps a group of {count}"
        expect(state(group), with_status(was, "swapped"), f"{why}: status and num_computed")
        expect(entries(plan), want, f"{why}: the plan")
        expect(group.num_preemptions, times + 1, f"{why}: its num_preemptions")
        expect(kv.held[name], "host", f"{why}: where its blocks are")


def test_who_has_ended_stays_as_it_was(parts, lab, rng):
    for ended in ([1], [0], [2, 0]):
        group = running(lab, rng, 4, 4, ended)
        pairs = {"r4": draw_pairs(rng, 4)}
        kv = lab.block_counter(gpu=0, cpu=9, pairs=pairs)
        preemption = parts.Preemption(kv, "auto")
        was, gone = state(group), [4 + index for index in ended]
        why = f"of four siblings {gone} have ended"
        preemption.preempt(group, lab.step_plan())
        want = with_status(was, "swapped", gone)
        expect(state(group), want, f"{why}; status and num_computed after preempt()")
        expect(preemption.resume(group, lab.step_plan(), 0), True, f"{why}; is the group back?")
        expect(state(group), was, f"{why}; status and num_computed after resume()")


def test_how_depends_on_the_group_the_mode_and_the_host(parts, lab, rng):
    for mode in ("auto", "swap", "recompute"):
        for count, ended in ((1, []), (3, []), (3, [0, 2]), (3, [1])):
            for missing in (0, 1):
                group = running(lab, rng, 5, count, ended)
                check_choice(parts, lab, rng, mode, group, missing, count - len(ended))
    for mode in ("auto", "swap"):
        group = running(lab, rng, 5, computed=True)
        check_choice(parts, lab, rng, mode, group, 0, live=0)


def check_choice(parts, lab, rng, mode, group, missing, live):
    """
    Args:
        live: its sequences; 0 for a group that is not fully computed yet.
    """
    blocks = int(rng.integers(2, 8))
    kv = lab.block_counter(gpu=0, cpu=blocks - missing, pairs={"r5": draw_pairs(rng, blocks)})
    was = state(group), kv.held, kv.num_free_cpu_blocks
    swap = live > (mode == "auto") and mode != "recompute" and not missing
    what = f"{live} live of {len(was[0])} sequences" if live else "a group that is being computed"
    why = f"choose() in mode {mode}: {what}, {blocks} blocks, {blocks - missing} free on the host"
    got = parts.Preemption(kv, mode).choose(group)
    expect(got, "swap" if swap else "recompute", why)
    now = state(group), kv.held, kv.num_free_cpu_blocks
    expect(now, was, f"{why}; sequences, blocks and host after it")


def swapped(parts, lab, rng, gpu, blocks, next_token, count=2):
    """A group on the host, whose device has so many free blocks."""
    group = running(lab, rng, 3, count)
    kv = lab.block_counter(
        gpu=gpu - blocks,
        cpu=9,
        pairs={"r3": draw_pairs(rng, blocks)},
        next_token={"r3": next_token},
    )
    preemption = parts.Preemption(kv, "swap")
    plan = lab.step_plan()
    preemption.preempt(group, plan)
    return kv, preemption, group, plan.swap_out


def test_a_group_comes_back_if_its_next_token_fits_too(parts, lab, rng):
    for headroom in (0, 2, int(rng.integers(3, 7))):
        blocks, next_token = int(rng.integers(2, 7)), int(rng.integers(1, 4))
        room = blocks + next_token + headroom
        why = f"resume() of {blocks} blocks, with a next token of {next_token}, headroom {headroom}"
        kv, preemption, group, _ = swapped(parts, lab, rng, room - 1, blocks, next_token)
        got = preemption.resume(group, lab.step_plan(), headroom)
        expect(got, False, f"{why} and {room - 1} free blocks")
        kv, preemption, group, out = swapped(parts, lab, rng, room, blocks, next_token)
        was, plan = state(group), lab.step_plan()
        others = [(90, 91), (92, 93)]
        plan.swap_in, plan.resumed = list(others), ["r1"]
        expect(preemption.resume(group, plan, headroom), True, f"{why} and {room} free blocks")
        pairs = [*others, *((host, device) for device, host in out)]
        want = {"swap_in": pairs, "resumed": ["r1", "r3"]}
        expect(entries(plan), want, f"{why}: the plan, in which r1 is back already")
        expect(state(group), with_status(was, "running"), f"{why}: status and num_computed")
        expect(kv.held, {"r3": "device"}, f"{why}: where the blocks are")


def test_a_group_that_does_not_fit_changes_nothing(parts, lab, rng):
    for next_token, headroom in ((0, 0), (2, 0), (1, int(rng.integers(1, 5)))):
        blocks = int(rng.integers(2, 7))
        room = blocks + next_token + headroom - 1
        kv, preemption, group, _ = swapped(parts, lab, rng, room, blocks, next_token)
        was, plan = state(group), lab.step_plan()
        why = (
            f"resume() of {blocks} blocks, with a next token of {next_token}, headroom {headroom} "
            f"and {room} free blocks"
        )
        for _ in range(2):
            expect(preemption.resume(group, plan, headroom), False, why)
            expect(entries(plan), {}, f"{why}: the plan")
            expect(state(group), was, f"{why}: status and num_computed")
            expect(kv.held, {"r3": "host"}, f"{why}: where the blocks are")
        if headroom:
            got = preemption.resume(group, plan, headroom - 1)
            expect(got, True, f"{why}; with one less in headroom")
