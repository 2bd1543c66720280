"""Text: the engine on a student's own parts says what the reference says."""

from __future__ import annotations

from own_parts import expect_same_outputs, prompt_of, serve_both


def test_one_request_gets_the_text_of_the_reference(parts, lab, reference, rng):
    for _ in range(3):
        requests = [{"prompt": prompt_of(rng, int(rng.integers(5, 40))), "max_tokens": 20}]
        mine, want = serve_both(parts, lab, reference, requests, block_size=8, num_gpu_blocks=16)
        expect_same_outputs(mine, want, requests, 8)


def test_requests_of_many_lengths_share_a_batch(parts, lab, reference, rng):
    lengths = [1, 4, *(int(n) for n in rng.integers(2, 40, size=4))]
    requests = [
        {"prompt": prompt_of(rng, n), "max_tokens": int(rng.integers(4, 24))} for n in lengths
    ]
    mine, want = serve_both(parts, lab, reference, requests, block_size=4, num_gpu_blocks=100)
    expect_same_outputs(mine, want, requests, 4)


def test_every_block_is_free_at_the_end(parts, lab, reference, rng):
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
    mine, want = serve_both(
        parts, lab, reference, requests, block_size=block_size, num_gpu_blocks=blocks
    )
    expect_same_outputs(mine, want, requests, block_size)
    if mine["free"][0] != blocks:
        raise AssertionError(
            f"{len(requests)} requests have ended in a pool of {blocks} blocks: expected all of "
            f"them to be free, got {mine['free'][0]} free blocks"
        )
