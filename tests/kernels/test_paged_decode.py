"""Paged decode, versions 0 to 2, against attention in float64 on the rounded inputs."""

from __future__ import annotations

import functools
import itertools
import math
import re

import pytest
import torch
from reference_attention_f64 import DEVICE, far_blocks, make_decode_case

from minipaged.kernels.paged_decode_v0 import paged_decode_v0
from minipaged.kernels.paged_decode_v1 import paged_decode_v1
from minipaged.kernels.paged_decode_v2 import (
    MAX_SPLITS,
    PROGRAMS_PER_SM,
    choose_num_splits,
    paged_decode_v2,
    paged_decode_v2_reduce_kernel,
)

B = 16
CONTEXTS = [B + 1, 1, 5 * B + 3, B - 1, B]
LONGEST = max(CONTEXTS)
FEW = [2 * B + 1, 1, B]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEADS = ((2, 2), (4, 2))
DIMS = (8, 64, 80, 96, 112, 128, 256)
DECODES = {
    "v0": paged_decode_v0,
    "v1": paged_decode_v1,
    "v2": functools.partial(paged_decode_v2, max_context_len=LONGEST, num_splits=1),
    "v2-split": functools.partial(paged_decode_v2, max_context_len=LONGEST, num_splits=2),
}
each_decode = pytest.mark.parametrize("decode", DECODES.values(), ids=DECODES)
each_group = pytest.mark.parametrize(("heads", "kv_heads"), HEADS, ids=["mha", "gqa"])


# --------------------------------------------------------------------------- the right numbers
def shapes(every: bool):
    """``(dtype, (heads, kv_heads), d)``: all, or each of the first six with a third of ``d``."""
    for i, (dtype, heads) in enumerate(itertools.product(DTYPES, ((1, 1), (2, 1)))):
        for j, d in enumerate(DIMS):
            if every or (i + j) % 3 == 0:
                yield dtype, heads, d


@pytest.mark.parametrize("name", ["v0", "v1", "v2-split"])
def test_attention_of_ragged_contexts(name, exhaustive):
    for dtype, (heads, kv_heads), d in shapes(exhaustive):
        case = make_decode_case(CONTEXTS, heads=heads, kv_heads=kv_heads, d=d, dtype=dtype)
        case.check(case.run(DECODES[name]))


@each_decode
@pytest.mark.parametrize("block_size", [1, 3, 8, 128])
def test_any_block_size(decode, block_size):
    for heads, kv_heads in HEADS:
        contexts = [2 * block_size + 1, block_size]
        case = make_decode_case(
            contexts, heads=heads, kv_heads=kv_heads, block_size=block_size, seed=block_size
        )
        case.check(case.run(decode))


@each_decode
@each_group
@pytest.mark.parametrize("stale", [math.inf, -math.inf])
def test_what_stands_past_a_context_does_not_show(decode, heads, kv_heads, stale):
    # NaN stands there in all other tests.
    case = make_decode_case(FEW, heads=heads, kv_heads=kv_heads, stale=stale)
    case.check(case.run(decode))


@each_decode
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 4), (20, 1), (5, 5)])
def test_query_heads_read_the_kv_head_of_their_group(decode, heads, kv_heads):
    case = make_decode_case([B + 1, 3], heads=heads, kv_heads=kv_heads)
    case.check(case.run(decode))


@each_decode
@each_group
@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0])
def test_the_scale_is_the_one_given(decode, heads, kv_heads, scale):
    case = make_decode_case(FEW, heads=heads, kv_heads=kv_heads, scale=scale)
    case.check(case.run(decode))


@each_decode
@each_group
@pytest.mark.parametrize("shift", [-3000.0, 3000.0])
def test_scores_far_from_zero(decode, heads, kv_heads, shift):
    # exp of them is 0, or infinite: only differences may be raised.
    case = make_decode_case(FEW, heads=heads, kv_heads=kv_heads)
    case.q[..., 0] = 8.0
    for keys in case.keys:
        keys[..., 0] = shift / (8.0 * case.scale)
    case.k_cache[..., 0] = torch.where(
        case.k_cache[..., 0].isnan(), math.nan, shift / (8.0 * case.scale)
    )
    # float32 holds scores of 3000 to 2e-4, and so the weights.
    got, expected = case.run(decode).double().cpu(), case.expected()
    assert (got - expected).abs().max() <= 2e-3 * expected.abs().max()


@each_decode
@each_group
def test_the_largest_score_may_stand_anywhere(decode, heads, kv_heads):
    # What was summed before it must lose its weight; what comes after gains none.
    for position in (0, B + 3, LONGEST - 1):
        case = make_decode_case([LONGEST], heads=heads, kv_heads=kv_heads, scale=1.0)
        block = case.block_tables[0, position // B].item()
        for head in range(kv_heads):
            key = 3 * case.q[0, head * (heads // kv_heads)]
            case.keys[0][position, head] = key.cpu()
            case.k_cache[block, head, position % B] = key
        case.check(case.run(decode))


@each_decode
@each_group
def test_a_row_of_padding_is_zero(decode, heads, kv_heads):
    case = make_decode_case([0, B + 1, 0], heads=heads, kv_heads=kv_heads)
    got = case.run(decode)
    case.check(got)
    assert not got[0].any()
    assert not got[2].any()
    alone = make_decode_case([0], heads=heads, kv_heads=kv_heads)
    assert not alone.run(decode).any()


@each_decode
def test_no_sequence_at_all(decode):
    case = make_decode_case([])
    assert case.run(decode).shape == (0, 4, 16)


# --------------------------------------------------------------------------- where things lie
@each_decode
@each_group
def test_views_with_strides_of_their_own(decode, heads, kv_heads):
    case = make_decode_case(FEW, heads=heads, kv_heads=kv_heads)
    seqs, _, d = case.q.shape
    packed = torch.full((seqs, heads + 2 * kv_heads, d + 4), math.nan, device=DEVICE)
    packed[:, :heads, :d] = case.q
    out = torch.full((seqs, heads + 3, 2 * d), 7.0, device=DEVICE)
    tables = torch.full((seqs, case.block_tables.shape[1] + 5), -1, device=DEVICE)
    tables = tables.to(torch.int32)
    tables[:, 2:-3] = case.block_tables
    wide = [torch.full_like(case.k_cache.repeat(2, 2, 2, 2), math.nan) for _ in range(2)]
    for cache, content in zip(wide, (case.k_cache, case.v_cache)):
        cache[1::2, :kv_heads, :B, :d] = content
    target = out[:, 1 : heads + 1, :d]
    got = case.run(
        decode,
        q=packed[:, :heads, :d],
        out=target,
        block_tables=tables[:, 2:-3],
        k_cache=wide[0][1::2, :kv_heads, :B, :d],
        v_cache=wide[1][1::2, :kv_heads, :B, :d],
    )
    assert got is target
    case.check(got)
    target.fill_(7.0)
    assert (out == 7.0).all(), "the kernel wrote outside of out"


@each_decode
@each_group
def test_offsets_beyond_32_bits(decode, heads, kv_heads):
    shape = (kv_heads, B, 64)
    k_cache, far = far_blocks(shape, torch.float16)
    v_cache = k_cache  # half the memory, where it is real
    case = make_decode_case([5], heads=heads, kv_heads=kv_heads, d=64, dtype=torch.float16)
    k_cache[far] = case.k_cache[case.block_tables[0, 0].item()]
    case.values = case.keys
    table = torch.full_like(case.block_tables, far)
    case.check(case.run(decode, k_cache=k_cache, v_cache=v_cache, block_tables=table))


# --------------------------------------------------------------------------- splits
@each_group
@pytest.mark.parametrize(("num_splits", "contexts"), [(2, [64, 65, 0]), (5, [200]), (20, [130])])
def test_any_number_of_parts(heads, kv_heads, num_splits, contexts):
    case = make_decode_case(contexts, heads=heads, kv_heads=kv_heads, d=32)
    case.check(case.run(paged_decode_v2, max_context_len=200, num_splits=num_splits))


def test_a_longest_context_that_is_not_the_true_one_changes_nothing():
    case = make_decode_case([70, 3])
    for said in (0, 70, 100_000):
        case.check(case.run(paged_decode_v2, max_context_len=said))


def reduce(partial, lse):
    """``[S, H, parts, d]`` and ``[S, H, parts]`` -> ``[S, H, d]``."""
    seqs, heads, parts, d = partial.shape
    out = torch.full((seqs, heads, d), 7.0, device=DEVICE)
    paged_decode_v2_reduce_kernel[(seqs, heads)](
        out, partial.contiguous(), lse.contiguous(), heads * d, d, parts,
        HEAD_DIM=d, DIMS=16, SPLITS=1 << (parts - 1).bit_length(),
    )  # fmt: skip
    return out.cpu()


def test_the_reduction_is_the_softmax_over_all_parts():
    generator = torch.Generator().manual_seed(0)
    partial = torch.randn(3, 2, 5, 11, generator=generator).to(DEVICE)
    lse = (torch.randn(3, 2, 5, generator=generator) * 4 + 500).to(DEVICE)
    weights = (lse.double() * math.log(2)).softmax(-1)
    expected = torch.einsum("shp,shpd->shd", weights, partial.double()).cpu()
    assert (reduce(partial, lse) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_the_reduction_ignores_parts_without_a_position():
    partial = torch.randn(1, 2, 5, 11, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    lse = torch.zeros(1, 2, 5, device=DEVICE)
    partial[:, 0, 1:], lse[:, 0, 1:] = math.nan, -math.inf
    partial[:, 1], lse[:, 1] = math.inf, -math.inf
    got = reduce(partial, lse)
    assert torch.allclose(got[0, 0], partial[0, 0, 0].cpu())
    assert not got[0, 1].any()


@pytest.mark.parametrize(
    ("max_context_len", "seqs", "kv_heads", "sms", "tile", "splits"),
    [
        (1000, 1, 8, 108, 64, 16),  # the documentation's
        (1000, 8, 8, 108, 64, 8),
        (2048, 32, 40, 108, 32, 1),  # enough programs without
        (2048, 8, 40, 108, 32, 3),
        (16384, 1, 8, 108, 64, MAX_SPLITS),
        (31, 1, 1, 108, 32, 1),  # one tile
        (0, 1, 1, 108, 32, 1),
    ],
)
def test_the_choice_of_the_number_of_parts(max_context_len, seqs, kv_heads, sms, tile, splits):
    assert choose_num_splits(max_context_len, seqs, kv_heads, sms, tile) == splits


def test_what_every_choice_keeps():
    for context, programs, sms, tile in itertools.product(
        (1, 15, 16, 17, 500, 1023, 40_000), (1, 2, 7, 40, 1280), (1, 4, 108), (16, 64)
    ):
        splits = choose_num_splits(context, programs, 1, sms, tile)
        tiles = -(-context // tile)
        part = -(-tiles // splits)
        assert 1 <= splits <= MAX_SPLITS
        assert (splits - 1) * part < tiles, "a part is empty"
        wanted = min(MAX_SPLITS, -(-PROGRAMS_PER_SM * sms // programs))
        assert splits <= wanted
        assert part == 1 or -(-tiles // (part - 1)) > wanted, "shorter parts would do better"


# --------------------------------------------------------------------------- the host
@pytest.mark.skipif(DEVICE != "cuda", reason="there is no device to wait for")
@each_decode
def test_the_host_does_not_wait_for_the_device(decode):
    case = make_decode_case(CONTEXTS)
    case.run(decode)
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.run(decode)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@each_decode
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda q: q[0], "q [4, 16], out [4, 16]: both must be [S, num_heads, d]"),
        ("q", lambda q: q[..., :8], "q has head_dim 8, but the caches 16"),
        ("q", lambda q: q[:, :3], "3 query heads are not a multiple of 2 KV heads"),
        ("q", lambda q: q.double(), "q is torch.float64, not one of torch.float16, torch.bfloat16"),
        ("q", lambda q: q.half(), "k_cache is torch.float32, but q torch.float16"),
        ("q", lambda q: q.mT.contiguous().mT, "q: its last dimension has stride 4, not 1"),
        ("k_cache", lambda k: k[:1], "k_cache [1, 2, 16, 16], v_cache [6, 2, 16, 16]: both"),
        ("k_cache", lambda k: k.mT.contiguous().mT, "with the same strides"),
        ("v_cache", lambda v: v.half(), "v_cache is torch.float16, but q torch.float32"),
        (
            "block_tables",
            lambda t: t[:1],
            "block_tables is [1, 4] torch.int32, not [2, max_blocks]",
        ),
        ("block_tables", lambda t: t.long(), "block_tables is [2, 4] torch.int64, not"),
        ("block_tables", lambda t: t.repeat(1, 2)[:, ::2], "block_tables: its last dimension has"),
        ("context_lens", lambda c: c[:1], "context_lens is [1] torch.int32, not [2] torch.int32"),
        ("context_lens", lambda c: c.long(), "context_lens is [2] torch.int64, not [2]"),
        ("out", lambda q: q[:1], "q [2, 4, 16], out [1, 4, 16]: both must be"),
        ("out", lambda q: q.half(), "out is torch.float16, but q torch.float32"),
    ],
)
def test_refusals(decode, name, change, message):
    case = make_decode_case([B + 1, 3])
    value = getattr(case, "q" if name == "out" else name)
    with pytest.raises(ValueError, match=re.escape(message)):
        case.run(decode, **{name: change(value)})


@pytest.mark.parametrize("num_splits", [0, MAX_SPLITS + 1])
def test_refused_numbers_of_parts(num_splits):
    case = make_decode_case([5])
    with pytest.raises(ValueError, match=f"num_splits is {num_splits}, not 1 to {MAX_SPLITS}"):
        case.run(paged_decode_v2, max_context_len=5, num_splits=num_splits)
