"""KV bytes, slots and blocks, against the paper's own numbers."""

import pytest

from minipaged.config import ConfigError, ModelConfig
from minipaged.kvcache.sizing import (
    blocks_for_tokens,
    blocks_that_fit,
    kv_budget_bytes,
    kv_bytes_per_block,
    kv_bytes_per_token,
    kv_growth,
    kv_heads_per_rank,
    sequences_that_fit,
    slots_that_fit,
    watermark_blocks,
)

GIB = 1 << 30


def model(layers=40, heads=40, kv_heads=None, head_dim=128):
    return ModelConfig(
        architecture="llama",
        vocab_size=50272,
        hidden_size=heads * head_dim,
        intermediate_size=4 * heads * head_dim,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads or heads,
        head_dim=head_dim,
        max_model_len=2048,
    )


OPT_13B = model(40, 40)
OPT_66B = model(64, 72)
OPT_175B = model(96, 96)


def test_opt_13b_needs_800_kb_a_token_and_1_6_gb_a_request():
    assert kv_bytes_per_token(OPT_13B, 2) == 819_200
    assert 2048 * kv_bytes_per_token(OPT_13B, 2) / GIB == pytest.approx(1.5625)


@pytest.mark.parametrize(
    ("config", "kv_bytes", "slots", "blocks"),
    [
        (OPT_13B, 12 * GIB, 15_728, 983),
        (OPT_66B, 21 * GIB, 9_557, 597),
        (OPT_175B, 264 * GIB, 60_074, 3_754),
    ],
)
def test_slots_and_blocks_of_the_papers_kv_memory(config, kv_bytes, slots, blocks):
    assert slots_that_fit(kv_bytes, kv_bytes_per_token(config, 2)) == slots
    assert blocks_that_fit(kv_bytes, kv_bytes_per_block(config, 2, 16)) == blocks


def test_float32_takes_twice_the_bytes_of_float16():
    assert kv_bytes_per_token(OPT_13B, 4) == 2 * kv_bytes_per_token(OPT_13B, 2)


def test_grouped_queries_count_kv_heads_only():
    smollm2 = model(layers=30, heads=9, kv_heads=3, head_dim=64)
    assert kv_bytes_per_token(smollm2, 4) == 46_080
    assert kv_bytes_per_block(smollm2, 4, 16) == 720 * 1024


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "expected"),
    [(40, 40, 4, 10), (32, 8, 4, 2), (32, 8, 8, 1), (32, 8, 16, 1), (32, 1, 32, 1), (9, 3, 9, 1)],
)
def test_kv_heads_are_spread_and_then_repeated(heads, kv_heads, ranks, expected):
    config = model(heads=heads, kv_heads=kv_heads)
    assert kv_heads_per_rank(config, ranks) == expected
    assert kv_bytes_per_token(config, 2, ranks) == 2 * 40 * expected * 128 * 2


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "names"),
    [(40, 40, 3, "40"), (40, 40, 0, "0"), (40, 40, -1, "-1"), (12, 6, 4, "6 KV heads")],
)
def test_heads_that_cannot_be_spread_are_refused_by_number(heads, kv_heads, ranks, names):
    with pytest.raises(ConfigError, match=names):
        kv_heads_per_rank(model(heads=heads, kv_heads=kv_heads), ranks)


def test_budget_is_what_weights_and_activations_leave_and_may_be_negative():
    assert kv_budget_bytes(1000, 0.9, 500, 100) == 300
    assert kv_budget_bytes(1000, 0.9, 1000, 100) == -200
    assert kv_budget_bytes(999, 0.5, 0, 0) == 499
    assert blocks_that_fit(-200, 10) == 0
    assert slots_that_fit(-1, 10) == 0


def test_partly_filled_last_block_is_a_whole_block():
    assert [blocks_for_tokens(n, 4) for n in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_seven_full_length_requests_in_the_13b_pool():
    assert sequences_that_fit(983, 2048, 16) == 7
    assert sequences_that_fit(983, 2049, 16) == 7
    assert sequences_that_fit(3, 17, 16) == 1
    assert sequences_that_fit(1, 17, 16) == 0


def test_watermark_is_rounded_down():
    assert watermark_blocks(983, 0.01) == 9
    assert watermark_blocks(99, 0.01) == 0
    assert watermark_blocks(100, 0.0) == 0


def test_growth_by_step():
    growth = kv_growth([3, 4], [2, 1], token_bytes=10, block_size=4, max_model_len=8)
    assert [g.step for g in growth] == [0, 1, 2]
    assert [g.needed_bytes for g in growth] == [70, 90, 50]
    assert [g.paged_bytes for g in growth] == [80, 120, 80]
    # The second sequence is over after step 1.
    assert [g.reserved_bytes for g in growth] == [160, 160, 80]


def test_growth_is_bounded_by_one_block_a_sequence_above_the_need():
    growth = kv_growth([17, 100, 31], [300, 5, 64], 1, block_size=16, max_model_len=2048)
    assert len(growth) == 301
    for g in growth:
        live = g.reserved_bytes // 2048
        assert g.needed_bytes <= g.paged_bytes < g.needed_bytes + 16 * live
        assert g.paged_bytes <= g.reserved_bytes


def test_growth_of_nothing():
    assert kv_growth([], [], 1, 16, 2048) == []


def test_growth_refuses_what_does_not_fit_together():
    with pytest.raises(ValueError, match="2 prompt lengths"):
        kv_growth([1, 2], [1], 1, 16, 2048)
    with pytest.raises(ValueError, match=r"2000 \+ 49.*2048"):
        kv_growth([2000], [49], 1, 16, 2048)
    assert len(kv_growth([2000], [48], 1, 16, 2048)) == 49
