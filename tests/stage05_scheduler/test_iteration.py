"""Task 5.2: who runs in a step, by the rules of each phase. Admission is scripted."""

from __future__ import annotations

from plan_oracle import World

from minipaged.course.testing import expect


def world(parts, lab, **options):
    return World(lab, parts.Scheduler, **options)


def draw(rng, low, high):
    return int(rng.integers(low, high))


def test_prompts_and_decodes_share_a_step(parts, lab, rng):
    for block_size in (4, draw(rng, 3, 8)):
        w = world(parts, lab, blocks=60, block_size=block_size)
        w.add(5)
        w.plan()
        w.advance(token=71)
        w.add(draw(rng, 2, 9))
        w.put("running", draw(rng, 2, 9))
        for _ in range(3):
            w.plan()
            w.advance(token=draw(rng, 50, 99))
        w.add(1)
        w.add(draw(rng, 8, 20))
        w.plan()
        w.advance(ends=("a0", "b0"))
        w.plan()


def test_admission_is_told_what_the_step_holds(parts, lab, rng):
    """The tokens that are planned by then, and the places of all who run by then."""
    for n in (3, draw(rng, 2, 5)):
        w = world(parts, lab, blocks=80, verdicts={"e": "token budget"}, max_num_seqs=30)
        w.put("running", draw(rng, 4, 12), n)
        w.put("running", draw(rng, 4, 12))
        w.add(draw(rng, 3, 9), n)
        w.add(draw(rng, 3, 9), 2, beam=True)
        w.add(draw(rng, 3, 9))
        w.plan(asked=True)
        w.advance()
        w.plan(asked=True)
        w.say("e", "")
        w.advance(ends=("a0", "b0"))
        w.plan(asked=True)
    # After a recompute preemption, what was generated is computed, too.
    w = world(parts, lab, blocks=4)
    w.put("running", 9)
    w.put("running", draw(rng, 2, 5))
    w.put("running", 5, priority=1)
    w.plan()
    w.advance(ends=("a0", "b0"))
    w.plan(asked=True)


def test_the_first_that_must_wait_stops_the_scan(parts, lab, rng):
    for wait in ("token budget", "sequence limit"):
        w = world(parts, lab, blocks=40, verdicts={"c": wait})
        w.put("running", draw(rng, 3, 12))
        for _ in range(4):
            w.add(draw(rng, 3, 12))
        w.plan()
        w.advance()
        w.plan()
        w.say("c", "")
        w.advance()
        w.plan()
    w = world(parts, lab, blocks=8)
    w.put("running", draw(rng, 6, 8))
    w.add(4 * draw(rng, 7, 9))
    w.add(draw(rng, 1, 4))
    w.plan()
    # b and d are preempted for a, and leave a block that would do for b.
    w = world(parts, lab, blocks=6, victims=("b",))
    w.put("running", 5, 3)
    w.put("running", draw(rng, 2, 5))
    w.put("running", draw(rng, 2, 5))
    w.put("running", 4 * 3)
    w.add(1)
    w.plan()


def test_whoever_can_never_run_makes_way_for_the_next(parts, lab, rng):
    w = world(parts, lab, blocks=40, verdicts={"b": "never", "c": "never", "e": "never"})
    w.put("running", draw(rng, 3, 12))
    for _ in range(4):
        w.add(draw(rng, 3, 12))
    w.plan()
    expect(w.trial.reason("c"), "c can never run here", "why c has ended: the decision's reason")
    w.advance(ends=("a0", "d0"))
    w.plan()
    # With nobody else there, it ends just so, and is told once.
    w = world(parts, lab, blocks=40, verdicts={"a": "never"})
    w.add(draw(rng, 3, 12))
    w.plan()
    w.plan()


def full_pool(parts, lab, rng, groups, spare, **options):
    """Groups that have filled their blocks, so that each needs one more now."""
    block_size = draw(rng, 3, 7)
    sizes = [draw(rng, 1, 4) for _ in range(groups)]
    w = world(parts, lab, blocks=sum(sizes) + spare, block_size=block_size, **options)
    for size in sizes:
        w.put("running", size * block_size + 1)
    return w


def test_the_last_gives_way_to_those_before_it(parts, lab, rng):
    for groups in (2, 3, draw(rng, 4, 7)):
        for spare in (0, 1):
            modes = {"b": "swap", "d": "swap"} if groups > 2 and spare else {}
            w = full_pool(parts, lab, rng, groups, spare, modes=modes)
            w.add(1)
            for _ in range(2):
                step = w.plan()
                if step.swapped[1]:
                    break
                w.advance()
    # The paper's authors demand free blocks whether or not they are needed, but of one alone.
    for spare in (1, 0):
        w = world(parts, lab, blocks=4 + spare, demand_free_block_per_seq=True)
        w.put("running", draw(rng, 6, 9))
        w.put("running", draw(rng, 6, 9))
        for _ in range(2):
            w.plan()
            w.advance()
    w = world(parts, lab, blocks=6, demand_free_block_per_seq=True)
    w.put("running", draw(rng, 6, 8), 2)
    w.put("running", draw(rng, 5, 8))
    for _ in range(2):
        w.plan()
        w.advance()
    w = world(parts, lab, blocks=2, demand_free_block_per_seq=True)
    w.put("running", draw(rng, 6, 9))
    w.plan()


def test_only_those_without_slots_can_be_victims(parts, lab, rng):
    for groups, spare in ((3, 1), (4, 1), (5, 2), (draw(rng, 4, 8), draw(rng, 1, 3))):
        w = full_pool(parts, lab, rng, groups, spare)
        w.plan(asked=True)
    # One that needs no block goes on beside one that finds none.
    w = world(parts, lab, blocks=3)
    for tokens in (draw(rng, 2, 5), 5, draw(rng, 2, 5)):
        w.put("running", tokens)
    w.plan(asked=True)


def test_a_shared_block_is_copied_before_it_is_written(parts, lab, rng):
    for queue in ("running", "swapped"):
        for n in (2, draw(rng, 3, 6)):
            for tokens in (draw(rng, 6, 9), 9):  # in the middle of a block, and at its end
                w = world(parts, lab, blocks=12)
                w.put(queue, tokens, n)
                w.put("running", draw(rng, 2, 5), 2)
                w.plan()
                w.advance()
                w.plan()


def test_swapped_groups_come_back_in_order(parts, lab, rng):
    for watermark in (2, draw(rng, 1, 4)):
        # b needs 3 blocks, and one more for its next token; a holds 2 and keeps them.
        for free in (4 + watermark, 3 + watermark):
            w = world(parts, lab, blocks=max(2 + free, 11), watermark=watermark)
            w.put("running", draw(rng, 6, 8))
            w.put("swapped", 13)
            w.put("swapped", draw(rng, 2, 4))
            for _ in range(w.model.free - free):
                w.put("running", 3, priority=-1)
            w.plan(asked=True)
            w.advance()
            w.plan(asked=True)
        # Nothing runs: nothing has to be left free for its growth.
        w = world(parts, lab, blocks=5, watermark=watermark)
        w.put("swapped", draw(rng, 14, 16))
        w.put("swapped", draw(rng, 2, 4))
        w.plan(asked=True)
    for wait in ("sequence limit", "token budget"):
        w = world(parts, lab, blocks=30, verdicts={"c": wait})
        w.put("running", draw(rng, 3, 9))
        for n in (2, 3, 1):
            w.put("swapped", draw(rng, 3, 9), n)
        w.plan(asked=True)


def test_nobody_is_admitted_past_a_swapped_group(parts, lab, rng):
    # In the step in which one is swapped out, and as long as it is out.
    w = world(parts, lab, blocks=5, modes={"b": "swap"})
    w.put("running", 9)
    w.put("running", draw(rng, 10, 13))
    w.add(draw(rng, 1, 4))
    for _ in range(3):
        w.plan()
        w.advance()
    w.advance(ends=("a0",))
    w.plan()
    w.advance()
    w.plan()
    # What a swap-out leaves free is not for others to come back to.
    w = world(parts, lab, blocks=6, modes={"c": "swap"})
    w.put("swapped", draw(rng, 2, 4))
    w.put("running", 9)
    w.put("running", 17)
    w.add(1)
    w.plan()


# --------------------------------------------------------------------------- robustness
def test_nothing_waits_for_ever(parts, lab, rng):
    """If a group has the pool for itself, and there is no room, none will ever come."""
    # Running: its siblings give up, the youngest first; a beam search ends as a whole.
    for n, beam in ((1, False), (3, False), (draw(rng, 2, 4), True)):
        w = world(parts, lab, blocks=3)
        w.put("running", 11, n, beam=beam)
        w.add(draw(rng, 2, 9))
        for _ in range(6):
            w.plan()
            w.advance()
    # Swapped: it comes back as soon as few enough are left.
    for tokens in (11, 13):
        w = world(parts, lab, blocks=4)
        w.put("swapped", tokens, 3)
        w.add(draw(rng, 2, 9))
        w.plan()
        w.plan()
    # One that is finished makes way for the next.
    w = world(parts, lab, blocks=4)
    w.put("swapped", 17)
    w.put("swapped", draw(rng, 2, 9))
    w.plan()
    # Waiting: LATER is for ever, where nothing runs.
    w = world(parts, lab, blocks=9, verdicts={"a": "memory"})
    w.add(draw(rng, 2, 9))
    w.add(draw(rng, 2, 9))
    w.plan()
    w.advance()
    w.plan()


def test_any_candidate_may_be_the_victim(parts, lab, rng):
    for victims in (("b",), ("a",), ("b", "c"), ("c",)):
        w = full_pool(parts, lab, rng, draw(rng, 4, 7), 0, victims=victims)
        w.plan(asked=True)
        w.advance()
        w.plan()


def test_priority_comes_before_arrival(parts, lab, rng):
    w = world(parts, lab, blocks=6, modes={"c": "swap"})
    for priority in (draw(rng, 5, 9), 0, 2, 0):
        w.put("running", 5, priority=priority)
    for priority in (draw(rng, 3, 9), draw(rng, -3, 0), draw(rng, 0, 3)):
        w.add(draw(rng, 2, 6), priority=priority)
    w.plan()
    w.advance(ends=("b0",))
    for _ in range(4):
        w.plan()
        w.advance()


def test_a_request_level_batch_ends_before_the_next(parts, lab, rng):
    w = world(parts, lab, blocks=40, batching="request")
    for _ in range(3):
        w.add(draw(rng, 2, 9))
    w.plan()
    w.advance()
    w.add(draw(rng, 2, 9))
    w.add(draw(rng, 2, 9))
    for ends in (("a0",), (), ("c0",), ("b0",), ()):
        w.plan()
        w.advance(ends=ends)
    w.plan()


def test_prompts_can_have_steps_of_their_own(parts, lab, rng):
    w = world(parts, lab, blocks=9, prefill_first=True, verdicts={"d": "token budget"})
    w.put("running", draw(rng, 3, 8))
    for _ in range(3):
        w.add(draw(rng, 2, 5))
    for _ in range(2):
        w.plan()
        w.advance()
    w.say("d", "")
    for _ in range(2):
        w.plan()
        w.advance()
    # As long as one is swapped, there is no such step, and none is admitted.
    w = world(parts, lab, blocks=9, prefill_first=True)
    w.put("running", draw(rng, 3, 8))
    w.put("swapped", draw(rng, 14, 17), 3)
    w.add(draw(rng, 2, 5))
    w.plan()
    w.advance(ends=("a0",))
    w.plan()
    w.advance()
    w.plan()


def test_chunks_take_what_decodes_leave(parts, lab, rng):
    budget = draw(rng, 9, 13)
    rules = {"chunked_prefill": True, "max_num_batched_tokens": budget}
    w = world(parts, lab, blocks=30, verdicts={"d": "token budget"}, **rules)
    w.put("running", draw(rng, 3, 8), 3)
    w.add(draw(rng, 20, 24), priority=-1)
    w.add(draw(rng, 20, 24))
    w.add(draw(rng, 2, 5))
    for _ in range(7):
        w.plan()
        w.advance()
    # One that is still prefilling can be a victim, and needs no slots itself.
    w = world(parts, lab, blocks=9, chunked_prefill=True, max_num_batched_tokens=8)
    w.put("running", 11)
    w.add(4 * 6 - draw(rng, 0, 3))
    for _ in range(4):
        w.plan()
        w.advance()


def test_a_manager_that_cannot_preempt_ends_its_group(parts, lab, rng):
    w = world(parts, lab, blocks=6, preemptible=False)
    w.put("running", 5)
    w.put("running", 9, draw(rng, 2, 4))
    w.put("running", draw(rng, 6, 8))
    for _ in range(3):
        w.plan(asked=True)
        w.advance()
    # The region that was reserved for a is full, and what is free beside it is no help.
    w = world(parts, lab, blocks=20, preemptible=False, needs={"a": 2})
    w.put("running", draw(rng, 6, 9))
    w.put("running", draw(rng, 2, 9))
    for _ in range(4):
        w.plan(asked=True)
        w.advance()
