"""n = 3: three continuations of one prompt, which is in memory once."""

from __future__ import annotations

from itertools import combinations

import pytest
from story_prompts import prompt_of

from minipaged.course.testing import expect, expect_same_outputs


def request_of(rng, length, max_tokens=12):
    return {
        "prompt": prompt_of(rng, length),
        "max_tokens": max_tokens,
        "n": 3,
        "temperature": 0.9,
        "seed": int(rng.integers(1000)),
        "ignore_eos": True,
    }


@pytest.mark.parametrize("block_size", [2, 3, 16])
def test_three_samples_are_those_of_the_reference(serve, reference_serve, rng, block_size):
    """Whether the prompt fills its last block or not, and beside requests that do not fork."""
    whole = block_size * int(rng.integers(1, 30 // block_size + 1))
    requests = [
        request_of(rng, whole),
        {"prompt": prompt_of(rng, 7), "max_tokens": 10},
        request_of(rng, whole + 1),
        request_of(rng, whole + block_size - 1),
    ]
    engine = {"model": "stories", "block_size": block_size, "num_gpu_blocks": 240}
    mine, want = serve(requests, **engine), reference_serve(requests, **engine)
    expect_same_outputs(mine, want, requests, block_size)


@pytest.mark.parametrize("over", [0, 1, 3])
def test_the_samples_hold_their_prompt_once(serve, reference_serve, rng, over):
    """``P`` tokens of prompt in blocks of 4, ``P % 4 == over``: after one more token each, the full
    blocks are still one copy, and each sample has one block of its own."""
    block_size = 4
    full = int(rng.integers(2, 8))
    length = block_size * full + over
    requests = [request_of(rng, length)]
    engine = {"model": "stories", "block_size": block_size, "num_gpu_blocks": 64}
    mine, want = serve(requests, **engine), reference_serve(requests, **engine)
    expect_same_outputs(mine, want, requests, block_size)
    prompt = f"3 samples of a prompt of {length} tokens, in blocks of {block_size}"
    step = mine["steps"][1]
    tables = list(step["tables"].values())
    expect(len(tables), 3, f"{prompt}: sequences in the step after the prompt's")
    for table in tables:
        expect(len(table), full + 1, f"{prompt}: blocks of each, its next token included")
    for one, other in combinations(tables, 2):
        shared = [a for a, b in zip(one, other) if a == b]
        expect(len(shared), full, f"{prompt}, one token more each: blocks that two of them share")
    # The last one that writes does so in place.
    expect(len(step["copies"]), 2 if over else 0, f"{prompt}: blocks that this step copies")
    # One token more: nobody shares what it writes to, so nothing is copied.
    expect(mine["steps"][2]["copies"], [], f"{prompt}: copies of the step after that")
