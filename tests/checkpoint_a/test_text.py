"""Text: the engine on a student's own parts says what the reference says."""

from __future__ import annotations

from story_prompts import prompt_of

from minipaged.course.testing import expect, expect_same_outputs


def test_one_request_gets_the_text_of_the_reference(serve, reference_serve, rng):
    for _ in range(3):
        requests = [{"prompt": prompt_of(rng, int(rng.integers(5, 40))), "max_tokens": 20}]
        engine = {"model": "stories", "block_size": 8, "num_gpu_blocks": 16}
        mine, want = serve(requests, **engine), reference_serve(requests, **engine)
        expect_same_outputs(mine, want, requests, 8)


def test_requests_of_many_lengths_share_a_batch(serve, reference_serve, rng):
    lengths = [1, 4, *(int(n) for n in rng.integers(2, 40, size=4))]
    requests = [
        {"prompt": prompt_of(rng, n), "max_tokens": int(rng.integers(4, 24))} for n in lengths
    ]
    engine = {"model": "stories", "block_size": 4, "num_gpu_blocks": 100}
    mine, want = serve(requests, **engine), reference_serve(requests, **engine)
    expect_same_outputs(mine, want, requests, 4)


def test_every_block_is_free_at_the_end(serve, reference_serve, rng):
    """In a pool so small that most requests wait for what others give back."""
    block_size, blocks = 4, 12
    requests = [
        {
            "prompt": prompt_of(rng, int(rng.integers(3, 12))),
            "max_tokens": int(rng.integers(4, 10)),
            "n": n,
            "temperature": 0.8 if n > 1 else 0.0,
            "seed": int(rng.integers(1000)),
        }
        for n in (1, 2, 1, 3, 1, 2)
    ]
    engine = {"model": "stories", "block_size": block_size, "num_gpu_blocks": blocks}
    mine, want = serve(requests, **engine), reference_serve(requests, **engine)
    expect_same_outputs(mine, want, requests, block_size)
    expect(mine["free"][0], blocks, f"{len(requests)} requests have ended: free blocks of {blocks}")
