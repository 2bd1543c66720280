"""Task 3.4: attention over the paged cache equals attention over dense storage."""

import numpy as np
import pytest
from dense_oracle import Step, expect_array

from minipaged.course.testing import expect


def attend(parts, lab, step, layer, scale, batch=None):
    """What the submission makes of one layer of a step: an array of all rows."""
    batch = step.batch(lab) if batch is None else batch
    tensors = (lab.tensor(x) for x in (layer.q, layer.k_cache, layer.v_cache))
    out = lab.read(parts.paged_attention(*tensors, batch, scale))
    expect(out.dtype.name, layer.q.dtype.name, f"{about(step)}: the type of the result")
    expect(out.shape, layer.q.shape, f"{about(step)}: the shape of the result")
    return out


def compare(parts, lab, step, layer, *, scale=None, batch=None, tolerance=1e-5):
    """Rows of tokens with the oracle's. All rows are returned, those of padding included."""
    scale = layer.q.shape[2] ** -0.5 if scale is None else scale
    out = attend(parts, lab, step, layer, scale, batch)
    rows = step.starts[-1]
    heads = f"{layer.q.shape[1]} heads, {layer.k_cache.shape[1]} of keys"
    what = f"{about(step)}; {heads}; {layer.q.dtype.name}: [token, head, i]"
    expect_array(out[:rows], step.want(layer, scale)[:rows], what, tolerance)
    return out


def about(step):
    """``a decode after 7, a chunk of 4 after 6, a prompt of 5; blocks of 4``"""

    def name(history, queries):
        if queries == 1:
            return f"a decode after {history}"
        return f"a chunk of {queries} after {history}" if history else f"a prompt of {queries}"

    return f"{', '.join(name(*span) for span in step.spans)}; blocks of {step.block_size}"


def test_a_decode_attends_to_its_whole_context(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 7)), 1):
        for history in (0, max(0, block_size - 2), block_size - 1, block_size, 3 * block_size + 1):
            step = Step(rng, [(history, 1)], block_size)
            compare(parts, lab, step, step.layer(), scale=float(rng.uniform(0.2, 0.9)))
    eight = Step(rng, [(history, 1) for history in rng.integers(0, 20, 8).tolist()], 4)
    compare(parts, lab, eight, eight.layer())


def test_a_prompt_is_causal(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 7)), 1):
        for length in (2, block_size, block_size + 1, 2 * block_size + 3):
            step = Step(rng, [(0, max(length, 2))], block_size)
            compare(parts, lab, step, step.layer(heads=1, kv_heads=1))


def test_a_chunk_sees_what_came_before_it(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 7)), 1):
        for history in (1, block_size, 2 * block_size + 1):
            for queries in (2, block_size + 1):
                step = Step(rng, [(history, queries)], block_size)
                compare(parts, lab, step, step.layer())
    long = Step(rng, [(int(rng.integers(256, 300)), 300)], 16)
    compare(parts, lab, long, long.layer(heads=1, kv_heads=1, head_dim=4))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_query_heads_share_kv_heads(parts, lab, rng, kv_heads):
    step = Step(rng, [(5, 1), (8, 1), (0, 6)], 4)
    compare(parts, lab, step, step.layer(heads=8, kv_heads=kv_heads))
    # Numbers that are easily taken for each other are equal here: whoever tells apart what is
    # shared by the wrong axis shares nothing.
    alike = Step(rng, [(0, kv_heads), (0, 8)], 4)
    compare(parts, lab, alike, alike.layer(heads=8, kv_heads=kv_heads, head_dim=kv_heads))


def test_a_ragged_batch_keeps_its_sequences_apart(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 7))):
        decodes = [(history, 1) for history in rng.integers(0, 20, 3).tolist()]
        prompts = [(0, queries) for queries in rng.integers(2, 12, 2).tolist()]
        chunks = [(int(rng.integers(1, 12)), queries) for queries in (2, 5)]
        others = rng.permutation([*prompts, *chunks]).tolist()
        step = Step(rng, [*decodes, *map(tuple, others)], block_size)
        batch = step.batch(lab)
        for _ in range(2):  # layers: the batch is the same, keys and values are not
            out = compare(parts, lab, step, step.layer(head_dim=4), batch=batch)
            padding = out[step.starts[-1] :]
            zeros = np.zeros(padding.shape)
            expect_array(padding, zeros, f"{about(step)}: rows of padding, [row, head, i]")


@pytest.mark.parametrize("stale", [np.nan, np.inf, -np.inf])
def test_stale_slots_do_not_show(parts, lab, rng, stale):
    for spans in ([(0, 5)], [(4, 1)], [(2, 1), (7, 1), (0, 1), (0, 5), (6, 1)]):
        step = Step(rng, spans, 4)
        compare(parts, lab, step, step.layer(stale=stale))


def test_half_types_are_computed_in_float32(parts, lab, rng):
    for spans in ([(7, 1), (12, 1)], [(0, 9)], [(6, 4)]):
        step = Step(rng, spans, 4)
        # Products of queries and keys are about 100,000, more than float16 holds; times the scale
        # about 8, where its steps are too coarse. What comes out is rounded to float16 once.
        layer = step.layer(dtype=np.float16, size=150.0, head_dim=32)
        compare(parts, lab, step, layer, scale=6e-5, tolerance=1e-3)
        compare(parts, lab, step, step.layer(cache_dtype=np.float16))
