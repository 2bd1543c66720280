"""Tasks 5.1 and 5.3: whether one group may join one batch, and whether it ever may."""

from __future__ import annotations

import re

from minipaged.course.testing import expect

BUDGET = 100


def ask(desk, call, wanted, rules, **asked):
    """One call, whose answer must be this."""
    told = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    expect(getattr(desk, call)(**asked), wanted, f"{call} of a group with {told} ({rules})")


def ask_both(desk, wanted, rules, **asked):
    """Of the limits of a step, over_limit() tells, and so does shortage()."""
    ask(desk, "over_limit", wanted, rules, **asked)
    ask(desk, "shortage", wanted, rules, **asked)


# --------------------------------------------------------------------------- 5.1
def test_a_group_waits_for_places_for_all_its_sequences(parts, lab, rng):
    for limit in (8, int(rng.integers(5, 20))):
        desk = lab.admission(parts.Admission, max_num_seqs=limit)
        rules = f"max_num_seqs={limit}"
        some = int(rng.integers(2, limit))
        for n, beam in ((1, False), (3, False), (some, False), (some, True)):
            group = {"prompt": 6, "n": n, "beam": beam, "tokens": 6}
            ask_both(desk, "", rules, **group, batch=(9, limit - n))
            ask_both(desk, "sequence limit", rules, **group, batch=(9, limit - n + 1))


def test_who_has_started_takes_the_places_that_are_left_to_it(parts, lab, rng):
    """A group that comes back: its siblings that have ended take no place, but for a beam search,
    which may branch again, and for those who count as the paper's authors did."""
    limit, n = 10, int(rng.integers(4, 7))
    for count_max in (False, True):
        desk = lab.admission(parts.Admission, max_num_seqs=limit, count_max_seqs=count_max)
        rules = f"max_num_seqs={limit}, count_max_seqs={count_max}"
        for beam in (False, True):
            live = int(rng.integers(1, n - 1))
            places = n if beam or count_max else live
            group = {"prompt": 6, "n": n, "live": live, "beam": beam, "tokens": 7}
            ask_both(desk, "", rules, **group, batch=(9, limit - places))
            ask_both(desk, "sequence limit", rules, **group, batch=(9, limit - places + 1))


def test_a_group_waits_for_the_token_budget(parts, lab, rng):
    for budget in (20, int(rng.integers(30, 90))):
        desk = lab.admission(parts.Admission, max_num_batched_tokens=budget, max_num_seqs=8)
        rules = f"max_num_batched_tokens={budget}, max_num_seqs=8"
        for tokens in (1, 5, int(rng.integers(6, 15))):
            group = {"prompt": tokens, "n": 2, "tokens": tokens}
            ask_both(desk, "", rules, **group, batch=(budget - tokens, 3))
            ask_both(desk, "token budget", rules, **group, batch=(budget - tokens + 1, 3))
            # After a recompute preemption there is more to compute than the prompt.
            group["tokens"] = tokens + 3
            ask_both(desk, "token budget", rules, **group, batch=(budget - tokens, 3))
            # If both limits are in the way, the first is told.
            ask_both(desk, "sequence limit", rules, **group, batch=(budget, 7))


def test_a_chunk_is_enough_to_begin(parts, lab, rng):
    for budget in (20, int(rng.integers(30, 90))):
        desk = lab.admission(parts.Admission, max_num_batched_tokens=budget, chunked_prefill=True)
        rules = f"max_num_batched_tokens={budget}, chunked_prefill=True"
        tokens = int(rng.integers(10, 40))
        group = {"prompt": tokens, "tokens": tokens}
        ask(desk, "shortage", "", rules, **group, batch=(budget - 1, 3))
        ask(desk, "shortage", "token budget", rules, **group, batch=(budget, 3))
        # over_limit() is told how many tokens come: it is not for it to know of chunks.
        ask(desk, "over_limit", "token budget", rules, **group, batch=(budget - tokens + 1, 3))


def test_a_group_waits_for_memory_beyond_the_watermark(parts, lab, rng):
    for block_size, watermark in ((4, 2), (int(rng.integers(3, 9)), int(rng.integers(1, 5)))):
        need, used = int(rng.integers(2, 6)), int(rng.integers(0, 9))
        tokens = need * block_size - int(rng.integers(0, block_size))
        group = {"prompt": tokens, "tokens": tokens, "batch": (5, 2)}
        for spare in (0, 1, -1, -watermark):
            free = need + watermark + spare
            rules = f"{free} blocks of {block_size} free, watermark {watermark}"
            desk = lab.admission(
                parts.Admission,
                blocks=used + free,
                used=used,
                block_size=block_size,
                watermark=watermark,
            )
            ask(desk, "shortage", "memory" if spare < 0 else "", rules, **group)
            late = {**group, "batch": (BUDGET, 2)}
            ask(desk, "shortage", "token budget", rules, **late)


def test_nothing_is_kept_back_where_nothing_runs(parts, lab, rng):
    """To wait would not help: neither the watermark nor the budget holds."""
    for budget, watermark in ((10, 3), (int(rng.integers(8, 16)), int(rng.integers(1, 6)))):
        need = 6
        tokens = 4 * need - int(rng.integers(0, 4))
        group = {"prompt": tokens, "tokens": tokens, "batch": (0, 0)}
        for free in (need, need + watermark, need - 1):
            desk = lab.admission(
                parts.Admission,
                blocks=free,
                watermark=watermark,
                max_num_batched_tokens=budget,
            )
            rules = f"{free} blocks of 4 free, watermark {watermark}, budget {budget}"
            ask(desk, "over_limit", "", rules, **group)
            ask(desk, "shortage", "memory" if free < need else "", rules, **group)


def test_the_manager_says_what_fits(parts, lab, rng):
    """A manager may reserve more, or less, than the tokens fill."""
    for needs in (9, int(rng.integers(5, 12)), 1):
        for free in (needs + 2, needs + 1):
            desk = lab.admission(parts.Admission, blocks=free, watermark=2, needs=needs)
            rules = f"{free} blocks free, watermark 2, the manager takes {needs}"
            wanted = "" if free == needs + 2 else "memory"
            ask(desk, "shortage", wanted, rules, prompt=14, tokens=14, batch=(5, 2))


# --------------------------------------------------------------------------- 5.3
def refused(desk, rules, **group):
    """The reason, which there must be."""
    told = ", ".join(f"{name}={value!r}" for name, value in group.items())
    reason = desk.refusal(**group)
    is_reason = type(reason) is str and reason != ""
    expect(is_reason, True, f"is there a refusal of a group with {told} ({rules})?")
    for batch in ((0, 0), (9, 3)):
        got = desk.decide(**group, tokens=group["prompt"], batch=batch)
        expect(got, ("never", reason), f"decide on it, for a batch of {batch}")
    return reason


def welcome(desk, rules, wanted, **asked):
    """There is no refusal, and the decision is this."""
    group = {name: value for name, value in asked.items() if name not in ("tokens", "batch")}
    if not group.get("live"):
        ask(desk, "refusal", "", rules, **group)
    ask(desk, "decide", wanted, rules, **asked)


OK, MEMORY = ("ok", ""), ("later", "memory")


def test_more_sequences_than_the_limit_are_refused(parts, lab, rng):
    for limit in (4, int(rng.integers(5, 12))):
        desk = lab.admission(parts.Admission, max_num_seqs=limit)
        rules = f"max_num_seqs={limit}"
        for beam in (False, True):
            group = {"prompt": 5, "beam": beam}
            refused(desk, rules, **group, n=limit + 1)
            welcome(desk, rules, OK, **group, n=limit, tokens=5, batch=(0, 0))
            late = ("later", "sequence limit")
            welcome(desk, rules, late, **group, n=limit, tokens=5, batch=(1, 1))


def test_a_prompt_that_leaves_no_room_for_an_output_is_refused(parts, lab, rng):
    for longest in (20, int(rng.integers(21, 60))):
        desk = lab.admission(parts.Admission, max_model_len=longest)
        rules = f"max_model_len={longest}"
        refused(desk, rules, prompt=longest)
        refused(desk, rules, prompt=longest + int(rng.integers(1, 9)))
        welcome(desk, rules, OK, prompt=longest - 1, tokens=longest - 1, batch=(1, 1))


def test_a_prompt_larger_than_the_pool_is_refused(parts, lab, rng):
    for blocks, block_size in ((8, 4), (int(rng.integers(3, 8)), int(rng.integers(2, 8)))):
        slots = blocks * block_size
        desk = lab.admission(parts.Admission, blocks=blocks, block_size=block_size)
        rules = f"a pool of {blocks} blocks of {block_size}"
        refused(desk, rules, prompt=slots + 1)
        welcome(desk, rules, OK, prompt=slots, tokens=slots, batch=(1, 1))
    desk = lab.admission(parts.Admission, blocks=8, needs=9)
    refused(desk, "a pool of 8 blocks, of which the manager would take 9", prompt=5)


def test_what_can_run_some_day_is_not_refused(parts, lab, rng):
    """What others hold will be free some day."""
    for used in (7, int(rng.integers(2, 8)), 8):
        desk = lab.admission(
            parts.Admission, blocks=8, used=used, watermark=1, max_num_batched_tokens=40
        )
        rules = f"{used} blocks of 8 are used, watermark 1, budget 40"
        welcome(desk, rules, MEMORY, prompt=30, tokens=30, batch=(2, 2))
        welcome(desk, rules, ("later", "token budget"), prompt=30, tokens=30, batch=(11, 2))
        welcome(desk, rules, ("later", "sequence limit"), prompt=3, tokens=3, batch=(9, 8))
        small = 4 * (8 - used)
        if small:
            welcome(desk, rules, OK, prompt=small, tokens=small, batch=(0, 0))
            welcome(desk, rules, MEMORY, prompt=small, tokens=small, batch=(2, 2))


def test_never_comes_before_later(parts, lab, rng):
    """Whoever can never run is refused at once, whatever it would have to wait for; and whoever
    has run here before is not refused."""
    longest = int(rng.integers(20, 28))
    desk = lab.admission(parts.Admission, blocks=8, used=6, max_model_len=longest)
    rules = f"6 blocks of 8 are used, max_model_len={longest}"
    for batch in ((BUDGET, 8), (BUDGET, 2), (1, 1)):
        got = desk.decide(prompt=longest, tokens=longest, batch=batch)
        expect(got[0], "never", f"decide on a prompt of {longest}, batch {batch} ({rules})")
        back = {"prompt": longest - 1, "tokens": longest, "live": 1, "batch": batch}
        wanted = {8: "sequence limit", 2: "token budget", 1: "memory"}[batch[1]]
        welcome(desk, rules, ("later", wanted), **back)
    desk = lab.admission(parts.Admission, max_model_len=longest)
    back = {"prompt": longest - 1, "tokens": longest, "live": 1, "batch": (1, 1)}
    welcome(desk, f"max_model_len={longest}", OK, **back)


def test_a_refusal_names_the_value_and_the_limit(parts, lab, rng):
    """A sentence that can be sent to whoever asked. The first reason that holds is told."""
    prompt, blocks = int(rng.integers(46, 60)), int(rng.integers(5, 9))
    desk = lab.admission(parts.Admission, blocks=blocks, max_num_seqs=3, max_model_len=45)
    rules = f"a pool of {blocks} blocks of 4, max_num_seqs=3, max_model_len=45"
    for group, numbers in (
        ({"prompt": prompt, "n": 37}, (37, 3)),
        ({"prompt": prompt, "n": 2}, (prompt, 45)),
        ({"prompt": 41, "n": 2}, (11, blocks)),
    ):
        reason = refused(desk, rules, **group)
        for number in numbers:
            found = re.search(rf"\b{number}\b", reason) is not None
            expect(found, True, f"is {number} in the refusal {reason!r} ({rules})?")
        words = len(reason.split()) > 3
        expect(words, True, f"is the refusal {reason!r} a sentence?")
