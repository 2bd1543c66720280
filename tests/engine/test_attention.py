"""The reference attention against a dense one in float64."""

import math

import pytest
import torch

from minipaged.attention import AttentionBatch
from minipaged.attention.reference import (
    ReferenceAttention,
    gather_kv,
    paged_attention,
    write_kv,
)

B = 16


def make_case(
    spans,
    *,
    heads=4,
    kv_heads=2,
    d=16,
    block_size=B,
    dtype=torch.float32,
    stale=math.nan,
    seed=0,
    padding=0,
):
    """A batch of ``(history, query)`` lengths, decodes first, over shuffled block tables.

    Slots that hold no token of any context hold ``stale``, and so do blocks of nobody.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    lengths = [history + query for history, query in spans]
    needed = [-(-length // block_size) for length in lengths]
    num_blocks = sum(needed) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    k_cache = torch.full((num_blocks, kv_heads, block_size, d), stale, dtype=dtype)
    v_cache = k_cache.clone()
    tables = torch.zeros(len(spans), max(needed), dtype=torch.int32)
    keys, values, slots = [], [], []
    for s, (length, count) in enumerate(zip(lengths, needed)):
        table = [order.pop() for _ in range(count)]
        tables[s, :count] = torch.tensor(table)
        tables[s, count:] = order[0]  # valid, and somebody else's or nobody's
        slot = torch.tensor([table[p // block_size] * block_size + p % block_size
                             for p in range(length)])  # fmt: skip
        keys.append(random(length, kv_heads, d))
        values.append(random(length, kv_heads, d))
        slots.append(slot)
        k_cache[slot // block_size, :, slot % block_size] = keys[-1]
        v_cache[slot // block_size, :, slot % block_size] = values[-1]
    query_lens = [query for _, query in spans]
    start = torch.tensor([0, *query_lens]).cumsum(0).int()
    new = torch.cat([slot[history:] for slot, (history, _) in zip(slots, spans)])
    batch = AttentionBatch(
        slot_mapping=torch.cat([new, torch.full((padding,), -1)]),
        query_start=start,
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        block_tables=tables,
        num_decodes=sum(query == 1 for query in query_lens),
        max_query_len=max(query_lens),
        max_context_len=max(lengths),
        block_size=block_size,
    )
    q = random(int(start[-1]) + padding, heads, d)
    return q, k_cache, v_cache, batch, keys, values


def dense(q, keys, values, batch, scale):
    """Attention in float64, one query and one head at a time, from the definition."""
    heads, group = q.shape[1], q.shape[1] // keys[0].shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    starts = batch.query_start.tolist()
    for s, (k, v) in enumerate(zip(keys, values)):
        k, v = k.double(), v.double()
        for t in range(starts[s], starts[s + 1]):
            seen = len(k) - (starts[s + 1] - 1 - t)
            for h in range(heads):
                g = h // group
                weights = (k[:seen, g] @ q[t, h].double() * scale).softmax(0)
                out[t, h] = weights @ v[:seen, g]
    return out


def check(spans, tolerance=1e-5, **options):
    q, k_cache, v_cache, batch, keys, values = make_case(spans, **options)
    scale = q.shape[-1] ** -0.5
    out = paged_attention(q, k_cache, v_cache, batch, scale)
    assert out.dtype == q.dtype
    assert out.isfinite().all()
    total = int(batch.query_start[-1])
    expected = dense(q[:total], keys, values, batch, scale)
    assert (out[:total].double() - expected).abs().max() < tolerance
    assert not out[total:].any()
    return batch


CONTEXTS = [1, B - 1, B, B + 1, 5 * B + 3]


@pytest.mark.parametrize("context", CONTEXTS)
def test_one_decode(context):
    check([(context - 1, 1)])


@pytest.mark.parametrize("context", CONTEXTS)
def test_one_prompt(context):
    check([(0, context)])


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("chunk", [2, 5, B + 1])
def test_one_chunk_after_history(context, chunk):
    check([(context, chunk)])


def test_a_chunk_longer_than_a_tile_of_queries():
    check([(37, 300)], heads=2, kv_heads=1, d=16)


def test_decodes_of_all_lengths_at_once():
    check([(context - 1, 1) for context in CONTEXTS])


def test_decodes_chunks_and_prompts_in_one_call():
    batch = check([(3, 1), (40, 1), (0, 1), (20, 7), (0, 33), (16, 2), (0, 16)], padding=3)
    assert batch.num_decodes == 3


@pytest.mark.parametrize("stale", [math.nan, math.inf, -math.inf])
def test_stale_slots_do_not_show(stale):
    """B34: zero times NaN is NaN, so a mask on the scores alone does not hide stale values."""
    check([(context - 1, 1) for context in CONTEXTS] + [(4, 3), (0, B + 1)], stale=stale)


def test_a_broken_sequence_does_not_touch_its_neighbors():
    q, k_cache, v_cache, batch, keys, values = make_case([(5, 1), (40, 1), (2, 1), (0, 9)])
    q[1] = math.nan
    out = paged_attention(q, k_cache, v_cache, batch, 0.25)
    kept = [0, 2, *range(3, 12)]
    expected = dense(q, keys, values, batch, 0.25)
    assert (out[kept] - expected[kept]).abs().max() < 1e-5


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_a_query_head_reads_the_kv_head_of_its_group(kv_heads):
    """B39: head h reads KV head h // group, not h % kv_heads."""
    check([(20, 1), (0, 1), (33, 1), (0, 18), (7, 4)], heads=8, kv_heads=kv_heads)


@pytest.mark.parametrize("d", [16, 64, 80, 128])
def test_head_dims(d):
    check([(50, 1), (B, 1), (0, 20), (3, 2)], d=d)


def test_forty_heads():
    check([(18, 1), (2, 1), (1, 3)], heads=40, kv_heads=40, d=128)


@pytest.mark.parametrize("block_size", [1, 4, 7, 32])
def test_block_sizes(block_size):
    check([(20, 1), (0, 1), (0, 9), (8, 3)], block_size=block_size)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_types(dtype, tolerance):
    check([(200, 1), (0, 1), (40, 1), (0, 30), (30, 5)], dtype=dtype, tolerance=tolerance)


def test_half_types_are_summed_in_float32():
    """4000 equal weights: a float16 sum of values would stop growing at 2048 terms of 1."""
    q, k_cache, v_cache, batch, *_ = make_case([(3999, 1)], dtype=torch.float16, heads=2)
    k_cache.nan_to_num_().zero_()
    v_cache.nan_to_num_().fill_(1.0)
    out = paged_attention(q, k_cache, v_cache, batch, 1.0)
    assert torch.equal(out, torch.ones_like(out))


def test_scores_past_the_range_of_float16_are_no_problem():
    q, k_cache, v_cache, batch, *_ = make_case([(9, 1), (0, 5)], dtype=torch.float16, d=64)
    q.fill_(100.0)
    k_cache.fill_(100.0)  # 64 * 100 * 100 = 640,000
    v_cache.fill_(2.0)
    out = paged_attention(q, k_cache, v_cache, batch, 1.0)
    assert torch.equal(out, torch.full_like(out, 2.0))


def test_layers_of_a_step_share_what_was_prepared_and_not_results():
    q, k_cache, v_cache, batch, *_ = make_case([(20, 1), (3, 1), (4, 2)])
    first = paged_attention(q, k_cache, v_cache, batch, 0.25)
    doubled = paged_attention(q, k_cache, v_cache * 2, batch, 0.25)
    again = paged_attention(q, k_cache, v_cache, batch, 0.25)
    assert torch.equal(first, again)
    assert torch.allclose(doubled, first * 2, atol=1e-6)


def test_arguments_may_be_views_of_one_projection():
    q, k_cache, v_cache, batch, keys, values = make_case([(20, 1), (3, 1), (4, 2)])
    wide = torch.cat([q, torch.randn(4, 3, 16)], dim=1)
    out = paged_attention(wide[:, :4], k_cache, v_cache, batch, 0.25)
    assert (out - dense(q, keys, values, batch, 0.25)).abs().max() < 1e-5


def test_the_backend_writes_before_it_attends():
    q, k_cache, v_cache, batch, keys, values = make_case([(20, 1), (0, 1), (15, 3)], padding=3)
    backend = ReferenceAttention()
    new = batch.slot_mapping[:5]
    k, v = (torch.cat([x[-n:] for x, n in zip(kv, (1, 1, 3))]) for kv in (keys, values))
    k_cache[new // B, :, new % B] = math.nan
    v_cache[new // B, :, new % B] = math.nan
    pad = torch.full((3, 2, 16), math.nan)
    backend.write(torch.cat([k, pad]), torch.cat([v, pad]), k_cache, v_cache, batch)
    out = backend.attend(q, k_cache, v_cache, batch, 0.25)
    assert (out[:5] - dense(q[:5], keys, values, batch, 0.25)).abs().max() < 1e-5


# --------------------------------------------------------------------------- write and gather
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_write_puts_each_token_at_its_slot_and_nothing_elsewhere(dtype):
    k_cache, v_cache = (torch.full((5, 2, 4, 8), 7.0, dtype=dtype) for _ in range(2))
    k, v = torch.randn(3, 2, 8).to(dtype), torch.randn(3, 2, 8).to(dtype)
    write_kv(k, v, k_cache, v_cache, torch.tensor([18, 0, 7]))
    for token, (block, offset) in enumerate([(4, 2), (0, 0), (1, 3)]):
        assert torch.equal(k_cache[block, :, offset], k[token])
        assert torch.equal(v_cache[block, :, offset], v[token])
        k_cache[block, :, offset] = v_cache[block, :, offset] = 7.0
    assert (k_cache == 7).all()
    assert (v_cache == 7).all()


@pytest.mark.parametrize("slots", [[-1, -1], [-1, 5], [5, -1]])
def test_padding_is_written_nowhere(slots):
    """B34: neither to block 0 nor, as -1 is to Python, to the last slot."""
    k_cache, v_cache = (torch.zeros(4, 1, 4, 8) for _ in range(2))
    ones = torch.ones(2, 1, 8)
    write_kv(ones, ones, k_cache, v_cache, torch.tensor(slots))
    written = [slot for slot in slots if slot >= 0]
    for cache in (k_cache, v_cache):
        touched = cache.view(16, 8).any(dim=1).nonzero().flatten().tolist()
        assert touched == written


def test_gather_follows_the_table():
    heads = torch.tensor([0.0, 100.0]).view(2, 1, 1)
    cache = (torch.arange(6 * 4.0).view(6, 1, 4, 1) + heads).expand(6, 2, 4, 3).contiguous()
    table = torch.tensor([5, 0, 3, 1], dtype=torch.int32)
    got = gather_kv(cache, table, 6)
    assert got.shape == (6, 2, 3)
    assert got[:, 0, 0].tolist() == [20, 21, 22, 23, 0, 1]
    assert got[:, 1, 2].tolist() == [120, 121, 122, 123, 100, 101]
    assert gather_kv(cache, table, 4)[:, 0, 0].tolist() == [20, 21, 22, 23]
    assert gather_kv(cache, table, 13)[-1, 0, 0] == 4
