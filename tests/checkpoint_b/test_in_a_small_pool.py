"""Too little memory: whoever is preempted and comes back says what he would have said."""

from __future__ import annotations

import pytest

from minipaged.course.testing import expect, expect_same_outputs

BLOCK_SIZE = 4
#: Enough for everybody at once.
AMPLE = {"block_size": BLOCK_SIZE, "num_gpu_blocks": 400}


def prompt_of(rng, shortest, longest, vocabulary=64):
    length = int(rng.integers(shortest, longest + 1))
    return [int(token) for token in rng.integers(0, vocabulary, size=length)]


def expect_pressure(result, modes, blocks):
    """The pool was too small indeed, and what was preempted came back as it was meant to."""
    seen = {mode for step in result["steps"] for _, mode in step["preempted"]}
    why = f"a pool of {blocks} blocks that is too small: how groups were preempted"
    expect(sorted(seen), sorted(modes), why)
    for number, step in enumerate(result["steps"]):
        if step["swap_in"] and step["swap_out"]:
            raise AssertionError(f"step {number} swaps both in and out: expected one of the two")


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_pressure_takes_no_token_away(serve, reference_serve, rng, mode):
    requests = [
        {"prompt": prompt_of(rng, 5, 12), "max_tokens": int(rng.integers(18, 26))} for _ in range(8)
    ]
    blocks = 24
    mine = serve(
        requests,
        model="hash",
        block_size=BLOCK_SIZE,
        num_gpu_blocks=blocks,
        num_cpu_blocks=100,
        preemption=mode,
    )
    want = reference_serve(requests, model="hash", **AMPLE)
    expect_same_outputs(mine, want, requests, BLOCK_SIZE)
    expect_pressure(mine, ["swap" if mode == "swap" else "recompute"], blocks)


@pytest.mark.parametrize(("mode", "host"), [("auto", 100), ("recompute", 0), ("swap", 12)])
def test_groups_come_back_whole(serve, reference_serve, rng, mode, host):
    """Samples and beams share blocks before, and after. With little room on the host some groups
    are swapped, and others computed again."""
    requests = []
    for number in range(6):
        prompt, seed = prompt_of(rng, 9, 16), int(rng.integers(1000))
        wishes = (
            {"n": 3, "temperature": 0.9, "seed": seed},
            {"n": 2, "best_of": 3, "use_beam_search": True},
            {"n": 2, "temperature": 1.1, "seed": seed},
        )[number % 3]
        requests.append({"prompt": prompt, "max_tokens": 16, **wishes})
    blocks = 36
    mine = serve(
        requests,
        model="hash",
        block_size=BLOCK_SIZE,
        num_gpu_blocks=blocks,
        num_cpu_blocks=host,
        preemption=mode,
    )
    want = reference_serve(requests, model="hash", **AMPLE)
    expect_same_outputs(mine, want, requests, BLOCK_SIZE)
    modes = {"auto": ["swap"], "recompute": ["recompute"], "swap": ["recompute", "swap"]}[mode]
    expect_pressure(mine, modes, blocks)


def test_a_real_model_tells_the_same_stories(serve, reference_serve, rng):
    """Attention and copies of bytes included."""
    requests = [
        {"prompt": prompt_of(rng, 5, 12, 1000), "max_tokens": 16, "ignore_eos": True}
        for _ in range(3)
    ]
    group = {"n": 3, "temperature": 0.8, "seed": int(rng.integers(1000))}
    requests.append({**requests[0], **group})
    blocks = 20
    mine = serve(
        requests, model="stories", block_size=BLOCK_SIZE, num_gpu_blocks=blocks, num_cpu_blocks=40
    )
    want = reference_serve(requests, model="stories", **AMPLE)
    expect_same_outputs(mine, want, requests, BLOCK_SIZE)
    preempted = [victim for step in mine["steps"] for victim, _ in step["preempted"]]
    if not preempted:
        raise AssertionError(f"a pool of {blocks} blocks is too small: nobody was preempted")


def test_every_request_ends_and_every_block_comes_back(serve, rng):
    """A prompt that no pool of this size can hold, one that grows beyond it, and three places for
    eight others, which are thrown out at random."""
    blocks = 16
    hopeless = {"prompt": prompt_of(rng, 70, 80), "max_tokens": 4}
    growing = {"prompt": prompt_of(rng, 40, 44), "max_tokens": 60}
    others = [
        {"prompt": prompt_of(rng, 2, 20), "max_tokens": int(rng.integers(2, 12))} for _ in range(8)
    ]
    at = int(rng.integers(1, 8))
    requests = [*others[:at], hopeless, growing, *others[at:]]
    mine = serve(
        requests,
        model="hash",
        block_size=BLOCK_SIZE,
        num_gpu_blocks=blocks,
        num_cpu_blocks=8,
        max_num_seqs=3,
        forced_preemption=0.2,
        forced_preemption_seed=int(rng.integers(1000)),
    )
    for number, request in enumerate(requests):
        (output,) = mine["outputs"][number]
        who = f"request {number} of a prompt of {len(request['prompt'])} tokens"
        pool = f"in a pool of {blocks} blocks of {BLOCK_SIZE}"
        got = len(output["token_ids"])
        if request is hopeless:
            expect((got, output["finish"]), (0, "error"), f"{who} {pool}: tokens, and its end")
        elif request is growing:
            most = blocks * BLOCK_SIZE - len(request["prompt"]) + 1
            expect((got, output["finish"]), (most, "length"), f"{who} {pool}: tokens, and its end")
        else:
            expect(got, request["max_tokens"], f"{who}, who asks for so many: tokens")
    for number, step in enumerate(mine["steps"]):
        if len(step["tables"]) > 3:
            raise AssertionError(
                f"step {number} has {len(step['tables'])} sequences: expected at most 3"
            )
    expect(mine["free"], (blocks, 8), "all have ended: free blocks on the device and the host")
