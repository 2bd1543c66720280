"""Task 10.4: how many requests a cache holds at a time, with reservations and with blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from run_oracle import expect_number
from toy_model import Setting, check_means, check_records, draw_requests, work_out

from minipaged.course.testing import expect, expect_error
from minipaged.errors import ConfigError, RequestError

CONTIGUOUS = ("max", "pow2", "oracle")


@pytest.mark.parametrize("case", range(3))
def test_each_policy_reserves_by_its_own_rule(parts, rng, case):
    block, limit = int(rng.integers(2, 20)), 256
    lengths = [(int(rng.integers(1, 60)), int(rng.integers(1, 100))) for _ in range(3)]
    lengths += [(block - 1, 1), (block, 16), (block + 1, 17), (limit - 130, 129), (limit - 1, 1)]
    for prompt, output in lengths:
        for policy in (*CONTIGUOUS, "paged"):
            got = parts.slots_reserved(
                policy, prompt, output, block_size=block, max_model_len=limit
            )
            want = Setting([], 0, policy, block, limit).reserved(prompt, output)
            in_blocks = f", blocks of {block}" if policy == "paged" else f" of at most {limit}"
            expect(got, want, f"slots_reserved(): {policy}, {prompt} + {output} tokens{in_blocks}")


@pytest.mark.parametrize("policy", CONTIGUOUS)
def test_a_reservation_is_held_from_admission_to_the_end(parts, rng, policy):
    for count in (2, int(rng.integers(4, 9)), 12):
        limit = 40
        pool = int(rng.integers(80, 130) if policy == "max" else rng.integers(limit, 70))
        setting = Setting(draw_requests(rng, count), pool, policy, 4, limit)
        check_records(setting, setting.run(parts), work_out(setting))


@pytest.mark.parametrize("case", range(3))
def test_a_block_is_taken_when_it_is_needed(parts, rng, case):
    for count in (1, int(rng.integers(3, 9))):
        block = int(rng.integers(1, 7))
        requests = draw_requests(rng, count)
        # All of them fit to their ends, whole blocks and all.
        pool = sum(prompt + output + block for _, prompt, output in requests)
        setting = Setting(requests, pool, "paged", block)
        study, want = setting.run(parts), work_out(setting)
        check_records(setting, study, want)
        why = f"{setting.told()}: token_share"
        expect_number(study.token_share, want.full / want.held, why)


def squeezed(rng):
    """Three requests fill 7 blocks but for one, and all need another in their second step; a
    fourth one, which needs nearly all, waits."""
    block = int(rng.integers(3, 8))
    alike = [(0.0, 2 * block - 1, block + 1)] * 3
    fourth = (0.0, 5 * block, int(rng.integers(2, block)))
    return Setting([*alike, fourth], 7 * block, "paged", block)


@pytest.mark.parametrize("case", range(2))
def test_the_last_one_admitted_makes_room(parts, rng, case):
    setting = squeezed(rng)
    records, why = setting.run(parts).records, setting.told()
    expect(len(records), 4, f"{why}: records")
    got = [record.num_preemptions for record in records]
    expect(got, [0, 0, 1, 0], f"{why}: preemptions of each")
    ends = [record.finish_time for record in records]
    expect(None in ends, False, f"{why}: is there one without an end?")
    ahead = records[3].token_times[0] > ends[2]
    expect(ahead, True, f"{why}: does the preempted one end before request 3 is admitted?")


@pytest.mark.parametrize("case", range(3))
def test_what_was_made_is_kept(parts, rng, case):
    setting = squeezed(rng)
    check_records(setting, setting.run(parts), work_out(setting))
    block = int(rng.integers(1, 6))
    for count in (4, 10):
        requests = draw_requests(rng, count, (1, 12), (4, 16), within=1.0)
        longest = max(prompt + output for _, prompt, output in requests)
        pool = longest + 2 * block + int(rng.integers(0, 12))
        setting = Setting(requests, pool, "paged", block)
        want = work_out(setting)
        check_records(setting, setting.run(parts), want)


@pytest.mark.parametrize("policy", ["oracle", "paged"])
def test_batch_share_and_wait_are_means_of_their_own(parts, rng, policy):
    for _ in range(2):
        early = draw_requests(rng, 7, within=1.0)
        late = draw_requests(rng, 4, within=2.0)  # after a time in which nothing runs
        requests = early + [(at + 80, prompt, output) for at, prompt, output in late]
        setting = Setting(requests, int(rng.integers(45, 70)), policy)
        study, want = setting.run(parts), work_out(setting)
        check_records(setting, study, want)
        check_means(setting, study, want)


# --------------------------------------------------------------------------- robustness
def test_a_request_that_never_fits_is_refused(parts, rng):
    for policy in ("oracle", "pow2", "paged"):
        block = int(rng.integers(3, 7))
        fits, output = int(rng.integers(5, 9)) * block, 4
        # The first fills the pool to its last slot, the second would need one more.
        requests = [(0.0, fits - output, output), (0.0, fits - output + 1, output), (0.5, 2, 3)]
        setting = Setting(requests, fits, policy, block)
        study, want = setting.run(parts), work_out(setting)
        check_records(setting, study, want)
        need = fits + block if policy == "paged" else fits + 1
        error = study.records[1].error
        for slots in (need, fits):
            named = str(slots) in error
            expect(named, True, f"{setting.told()}: does the error name {slots} slots? {error!r}")
    nobody = Setting([(0.0, 9, 9)], 8, "oracle")
    for setting in (nobody, Setting([], 8, "paged")):
        study = setting.run(parts)
        for name in ("mean_batch", "token_share", "mean_wait"):
            value = getattr(study, name)
            is_nan = isinstance(value, float) and math.isnan(value)
            expect(is_nan, True, f"{setting.told()}: nobody is served, is {name} nan?")


def test_settings_that_cannot_be_are_refused(parts, rng):
    below = -int(rng.integers(0, 50))
    requests = [(0.0, 3, 3)]
    for word, call in (
        ("max_model_len", lambda: parts.slots_reserved("max", 1, 1, max_model_len=below)),
        ("block_size", lambda: parts.slots_reserved("paged", 1, 1, block_size=below)),
        ("block_size", lambda: parts.study(requests, 40, "paged", block_size=below)),
        ("pool_slots", lambda: parts.study(requests, below, "oracle")),
        ("step_seconds", lambda: parts.study(requests, 40, "max", step_seconds=float(below))),
    ):
        with expect_error(ConfigError, str(below), why=f"{word} is {below}"):
            call()
    for call in (
        lambda: parts.slots_reserved("random", 5, 5),
        lambda: parts.study(requests, 40, "random"),
    ):
        with expect_error(ConfigError, "random", why="the policy 'random'"):
            call()
    for prompt, output in ((0, 5), (5, 0), (60, 5)):
        why = f"a request of {prompt} + {output} tokens, at most 64"
        with expect_error(RequestError, str(prompt), str(output), why=f"slots_reserved(): {why}"):
            parts.slots_reserved("oracle", prompt, output, max_model_len=64)
        with expect_error(RequestError, str(prompt), str(output), why=f"study(): {why}"):
            Setting([(0.0, prompt, output)], 400, "paged").run(parts)
    with expect_error(RequestError, "1.5", why="study(): a request at 1.5 s behind one at 2 s"):
        Setting([(2.0, 3, 3), (1.5, 3, 3)], 400, "paged").run(parts)


def test_the_papers_result_comes_out(parts, rng):
    """A quarter of the paper's lengths in a cache that is short, as in figures 2, 12 and 18b."""
    prompts = np.clip(rng.lognormal(3.0, 1.2, 150), 1, 300).astype(int).tolist()
    outputs = np.clip(rng.exponential(80, 150), 1, 200).astype(int).tolist()
    arrivals = np.cumsum(rng.exponential(0.1, 150)).tolist()
    requests = list(zip(arrivals, prompts, outputs))

    def study(policy, block=16):
        return parts.study(requests, 4000, policy, block_size=block, max_model_len=512)

    found = {policy: study(policy) for policy in (*CONTIGUOUS, "paged")}
    for name in ("mean_batch", "token_share"):
        values = {policy: getattr(each, name) for policy, each in found.items()}
        told = ", ".join(f"{policy} {value:.3g}" for policy, value in values.items())
        in_order = list(values.values()) == sorted(values.values())
        why = f"study() of 150 requests in 4,000 slots, {name}: {told}: does it rise?"
        expect(in_order, True, why)
    wait = {policy: each.mean_wait for policy, each in found.items()}
    told = ", ".join(f"{policy} {value:.2g}" for policy, value in wait.items())
    why = f"study() of 150 requests in 4,000 slots, mean_wait: {told}: does it fall?"
    expect(list(wait.values()) == sorted(wait.values(), reverse=True), True, why)
    shares = [study("paged", block).token_share for block in (1, 16, 64, 256)]
    told = ", ".join(f"{share:.3g}" for share in shares)
    why = f"study(), paged in blocks of 1, 16, 64 and 256, token_share: {told}: does it fall?"
    expect(shares[0] == 1.0 and shares == sorted(shares, reverse=True), True, why)
