"""Task 5.4: what a step has computed and sampled is booked; the next plan shows it."""

from __future__ import annotations

from plan_oracle import World


def world(parts, lab, **options):
    return World(lab, parts.Scheduler, **options)


def draw(rng, low, high):
    return int(rng.integers(low, high))


def test_everyone_goes_on_by_its_own_token(parts, lab, rng):
    w = world(parts, lab, blocks=60)
    w.put("running", draw(rng, 4, 12), 3)
    w.put("running", draw(rng, 4, 12))
    w.add(draw(rng, 3, 9))
    for _ in range(4):
        w.step(token=draw(rng, 10, 90))
    # A step can be committed in which nobody was sampled, and one sampled group among others.
    w.plan()
    decisions = w.decisions(token=draw(rng, 10, 90))
    w.commit(dict(reversed(decisions.items())))
    w.plan()


def test_siblings_start_from_the_tables_of_the_step(parts, lab, rng):
    """After a prompt of P tokens, n siblings hold the blocks of P tokens; the first of them that
    writes takes the copies."""
    for block_size in (4, draw(rng, 3, 8)):
        for prompt in (2 * block_size, block_size + draw(rng, 1, block_size)):
            n = draw(rng, 2, 5)
            w = world(parts, lab, blocks=40, block_size=block_size)
            w.add(prompt, n)
            w.add(draw(rng, 2, 9))
            for _ in range(3):
                w.step(token=draw(rng, 10, 90))
    # Forking takes no block: those that are free are for others.
    w = world(parts, lab, blocks=5, block_size=4)
    w.add(8, 3)
    w.step()
    w.add(1)
    w.step()
    w.plan()


def test_who_ends_gives_its_blocks_back(parts, lab, rng):
    # b takes what the siblings of a leave when they end.
    n = draw(rng, 2, 4)
    w = world(parts, lab, blocks=2 + n)
    w.put("running", 9, n)
    w.add(draw(rng, 4 * (n - 1) - 3, 4 * (n - 1) + 1))
    w.step()
    w.step(ends=tuple(f"a{index}" for index in range(1, n)))
    w.step()
    w.step(ends=("a0",))
    w.plan()
    # Of a prompt that forks, some may end at once.
    w = world(parts, lab, blocks=8)
    w.add(draw(rng, 5, 8), 3)
    w.step(ends=("a0", "a2"))
    w.add(draw(rng, 9, 13))
    # The places of those that have ended are free as well.
    w.plan(asked=True)
    w.commit(w.decisions(ends=("a1",)))
    w.plan()


def test_beams_branch_and_are_dropped(parts, lab, rng):
    for prompt in (8, draw(rng, 5, 8)):
        w = world(parts, lab, blocks=7)
        w.add(prompt, 3, beam=True)
        w.step()
        w.step()
        w.plan()
        first, other = (0, 2) if rng.integers(2) else (2, 1)
        w.commit({"a": [(first, 0, 31), (other, 1, 32), (first, 2, 33)]})
        w.step()
        w.plan()
        w.commit({"a": [(1, 0, 41), (1, 1, 42), (1, 2, 43)]})
        w.add(draw(rng, 2, 5))
        w.step()
        w.plan()
    # With the last of its beams a search is over.
    w = world(parts, lab, blocks=4)
    w.put("running", draw(rng, 5, 8), 2, beam=True)
    w.plan()
    w.commit({"a": [(1, 1, 31)]})
    w.plan()
    w.commit({"a": []})
    w.add(16)
    w.plan()


def test_a_group_that_is_done_is_over(parts, lab, rng):
    w = world(parts, lab, blocks=7)
    w.put("running", draw(rng, 5, 9), 2, beam=True)
    w.put("running", draw(rng, 2, 5))
    w.plan()
    rows = w.decisions()
    w.commit(rows, done=("a",))
    w.add(draw(rng, 13, 17))
    w.step()
    w.plan()
    w.commit(w.decisions(), done=("b", "c"))
    w.plan()


def test_memory_is_given_back_before_it_is_taken(parts, lab, rng):
    """As with contiguous reservations: a fork shares nothing, and takes as much as its parent
    holds. There is just enough, once the losers have given back theirs."""
    size = draw(rng, 2, 4)
    tokens = 4 * size
    # b is dropped, and a branches into two.
    w = world(parts, lab, blocks=2 * size, copying=True)
    w.put("running", tokens, 2, beam=True)
    w.trial.schedule()
    w.model.schedule()
    w.commit({"a": [(1, 0, 31), (1, 1, 32)]})
    # One that ends needs no memory: the one that lives goes on in the parent's.
    w = world(parts, lab, blocks=2 * size, copying=True)
    w.put("running", tokens, 2, beam=True)
    w.trial.schedule()
    w.model.schedule()
    w.commit({"a": [(0, 0, 31, "stop"), (0, 1, 32), (1, 2, 33)]})
    # Nobody lives on in the first: the second has its memory.
    w = world(parts, lab, blocks=2 * size, copying=True)
    w.put("running", tokens, 2, beam=True)
    w.trial.schedule()
    w.model.schedule()
    w.commit({"a": [(1, 0, 31), (1, 1, 32), (0, 2, 33, "stop")]})
