"""Robustness of tasks 7.1 to 7.3: kernels that the interpreter runs, a compiler takes as well."""

from __future__ import annotations

import pytest

NUM_TOKENS, NUM_SEQS, MAX_BLOCKS = 24, 8, 16
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
LAYERS, NUM_BLOCKS, BLOCK_SIZE = 40, 64, 16


def floats(*shape):
    """A tensor as the audit takes it: a type and a shape, and no memory."""
    return ["float16", [*shape]]


BLOCK = KV_HEADS, BLOCK_SIZE, HEAD_DIM
CACHES = {name: floats(NUM_BLOCKS, *BLOCK) for name in ("k_cache", "v_cache")}
CALLS = {
    "cache_write": {
        **{name: floats(NUM_TOKENS, KV_HEADS, HEAD_DIM) for name in "kv"},
        **CACHES,
        "slot_mapping": ["int64", [NUM_TOKENS]],
    },
    "copy_blocks_in_pool": {
        "pool": floats(LAYERS, 2, NUM_BLOCKS, *BLOCK),
        "pairs": ["int64", [3, 2]],
    },
    "paged_decode_v0": {
        "q": floats(NUM_SEQS, HEADS, HEAD_DIM),
        **CACHES,
        "block_tables": ["int32", [NUM_SEQS, MAX_BLOCKS]],
        "context_lens": ["int32", [NUM_SEQS]],
        "scale": HEAD_DIM**-0.5,
    },
}


@pytest.mark.parametrize("function", CALLS)
def test_kernels_compile_for_a_card(request, audit, function):
    """For an A100, in half precision. Nothing is random in there: it is compiled for the seed that
    everybody sees, and passes without a look for others."""
    if request.config.getoption("seed") == 0:
        audit(function, CALLS[function], "a_card")
