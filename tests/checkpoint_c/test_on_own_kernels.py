"""The whole engine on a student's own kernels: it says what the reference says in PyTorch."""

from __future__ import annotations

from minipaged.course.testing import expect, expect_same_outputs

#: In the interpreter each program takes some milliseconds, however small. So only one request has a
#: model that speaks; the others have one of two layers and two heads of keys.
TRITON = {"attention": "triton"}
VOCABULARY = 512


def prompt_of(rng, shortest, longest):
    length = int(rng.integers(shortest, longest + 1))
    return [int(token) for token in rng.integers(16, VOCABULARY, size=length)]


def expect_text(serve, reference_serve, requests, **engine):
    """Serve on both, compare all outputs, and count the blocks that came back.

    Returns:
        What was served on the submission.
    """
    mine = serve(requests, **TRITON, **engine)
    expect_same_outputs(
        mine, reference_serve(requests, **TRITON, **engine), requests, engine["block_size"]
    )
    blocks = (engine["num_gpu_blocks"], engine.get("num_cpu_blocks", 0))
    expect(mine["free"], blocks, "all have ended: free blocks on the device and the host")
    return mine


def test_one_request_gets_its_text_from_your_kernels(serve, reference_serve, rng):
    requests = [{"prompt": prompt_of(rng, 9, 20), "max_tokens": 7}]
    sizes = {"model": "stories", "block_size": 8, "num_gpu_blocks": 8}
    expect_text(serve, reference_serve, requests, **sizes)


def test_every_version_of_decode_says_the_same(serve, reference_serve, rng):
    """The engine takes the highest version that it is given."""
    requests = [{"prompt": prompt_of(rng, 9, 16), "max_tokens": 4, "ignore_eos": True}]
    sizes = {"model": "grouped", "block_size": 4, "num_gpu_blocks": 12, **TRITON}
    want = reference_serve(requests, **sizes)
    kernels = dict(serve.keywords["parts"])
    for better, version in (("v2", "v1"), ("v1", "v0")):
        del kernels[f"paged_decode_{better}"]
        mine = serve(requests, parts=kernels, **sizes)
        expect_same_outputs(mine, want, requests, sizes["block_size"])
        why = f"decoded by version {version[1:]}: free blocks at the end"
        expect(mine["free"], (sizes["num_gpu_blocks"], 0), why)


def test_prompts_chunks_and_decodes_share_a_step(serve, reference_serve, rng):
    """Prompts longer than what a step may compute come in pieces, while others decode."""
    lengths = [(1, 3), (18, 24), (5, 9)]
    requests = [
        {"prompt": prompt_of(rng, *length), "max_tokens": int(rng.integers(3, 6))}
        for length in lengths
    ]
    mine = expect_text(
        serve, reference_serve, requests, model="grouped", block_size=8, num_gpu_blocks=24,
        chunked_prefill=True, max_num_batched_tokens=16, max_num_seqs=8,
    )  # fmt: skip
    most = max(len(step["tables"]) for step in mine["steps"])
    expect(most > 1, True, "requests that arrive together share a step")


def test_query_heads_share_keys_in_the_engine(serve, reference_serve, rng):
    """One long context, which version 2 splits, and then several short ones."""
    sizes = {"model": "grouped", "block_size": 16, "num_gpu_blocks": 12}
    long = [{"prompt": prompt_of(rng, 65, 70), "max_tokens": 3}]
    expect_text(serve, reference_serve, long, **sizes)
    short = [{"prompt": prompt_of(rng, 2, 12), "max_tokens": 3} for _ in range(3)]
    expect_text(serve, reference_serve, short, **sizes)


def test_samples_are_copied_and_swapped_by_your_kernels(serve, reference_serve, rng):
    """Two samples share a prompt whose last block is not full: the first to write copies it. Two
    such groups do not fit, so one of them is swapped out and comes back."""
    requests = [
        {
            "prompt": prompt_of(rng, 5, 7),
            "max_tokens": 7,
            "n": 2,
            "temperature": 0.9,
            "seed": int(rng.integers(1000)),
            "ignore_eos": True,
        }
        for _ in range(2)
    ]
    sizes = {"model": "grouped", "block_size": 4, "num_gpu_blocks": 9, "num_cpu_blocks": 16}
    mine = serve(requests, preemption="swap", **TRITON, **sizes)
    want = reference_serve(requests, **{**sizes, "num_gpu_blocks": 100}, **TRITON)
    expect_same_outputs(mine, want, requests, sizes["block_size"])
    expect(mine["free"], (9, 16), "all have ended: free blocks on the device and the host")
    for what in ("copies", "swap_out", "swap_in"):
        count = sum(len(step[what]) for step in mine["steps"])
        expect(count > 0, True, f"a pool of 9 blocks is too small for both: {what}")
