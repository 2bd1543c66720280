"""Block copy: whole blocks of all layers, bit for bit, and nothing else."""

from __future__ import annotations

import re

import pytest
import torch
from reference_attention_f64 import DEVICE, address_space

from minipaged.kernels import block_copy
from minipaged.kernels.block_copy import copy_blocks_in_pool, gather_blocks, scatter_blocks

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def make_pool(layers=3, blocks=7, block=(2, 4, 8), dtype=torch.float32):
    """``[layers, 2, blocks, *block]`` of arbitrary bits, NaN and infinities among them. There is
    memory behind the last block: what runs past its end is wrong, and does not end the process."""
    shape = (layers, 2, blocks + 1, *block)
    size = torch.Size(shape).numel() * dtype.itemsize
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).view(shape).to(DEVICE)[:, :, :blocks]


def numbers(*values, shape=None):
    return torch.tensor(values, dtype=torch.int64, device=DEVICE).view(shape or (len(values),))


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.fixture
def small_tiles(monkeypatch):
    """A piece takes several programs, the last of them in part."""
    monkeypatch.setattr(block_copy, "TILE_ELEMENTS", 16)


# --------------------------------------------------------------------------- within the pool
def check_copy(pool, pairs):
    expected = pool.clone()
    for source, target in pairs:
        expected[:, :, target] = pool[:, :, source]
    copy_blocks_in_pool(pool, numbers(*sum(pairs, ()), shape=(-1, 2)))
    assert same_bits(pool, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_block_is_copied_in_all_layers(dtype):
    check_copy(make_pool(dtype=dtype), [(5, 0), (2, 6), (5, 3)])


@pytest.mark.parametrize("block", [(1, 1, 1), (3, 5, 7), (16,), (2, 1, 3, 5)], ids=str)
def test_any_shape_of_a_block(block):
    check_copy(make_pool(block=block), [(5, 0), (2, 6)])


@pytest.mark.parametrize("block", [(3, 5, 7), (2, 16), (17,)], ids=str)
def test_pieces_of_several_programs(small_tiles, block):
    check_copy(make_pool(block=block), [(5, 0), (2, 6)])


def test_one_layer_and_some_layers():
    check_copy(make_pool(layers=1), [(0, 6)])
    pool = make_pool(layers=4)
    others = pool[[0, 3]].clone()
    check_copy(pool[1:3], [(0, 6), (1, 5)])
    assert same_bits(pool[[0, 3]], others)


def test_no_pair_at_all():
    check_copy(make_pool(), [])


# --------------------------------------------------------------------------- out and back
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block", [(2, 4, 8), (3, 5, 7)], ids=str)
def test_a_gathered_block_is_one_piece(small_tiles, dtype, block):
    pool = make_pool(block=block, dtype=dtype)
    before = pool.clone()
    staging = torch.zeros(3, 3, 2, *block, dtype=dtype, device=DEVICE)
    gather_blocks(pool, numbers(6, 0, 3), staging)
    for i, number in enumerate((6, 0, 3)):
        assert same_bits(staging[i], before[:, :, number])
    assert same_bits(pool, before)


def test_scattered_blocks_come_back_elsewhere(small_tiles):
    pool = make_pool()
    expected, staging = pool.clone(), make_pool(layers=2, blocks=3).transpose(1, 2).contiguous()
    scatter_blocks(staging, pool, numbers(4, 1))
    expected[:, :, 4], expected[:, :, 1] = staging[0], staging[1]
    assert same_bits(pool, expected)


def test_there_and_back():
    pool = make_pool()
    before = pool.clone()
    staging = torch.empty(7, 3, 2, 2, 4, 8, device=DEVICE)
    order = numbers(3, 1, 6, 0, 5, 2, 4)
    gather_blocks(pool, order, staging)
    pool.zero_()
    scatter_blocks(staging, pool, order)
    assert same_bits(pool, before)


def test_block_numbers_may_be_a_column():
    pool = make_pool()
    pairs = numbers(6, 0, 2, 1, shape=(2, 2))
    staging = torch.zeros(2, 3, 2, 2, 4, 8, device=DEVICE)
    gather_blocks(pool, pairs[:, 0], staging)
    assert same_bits(staging, pool[:, :, [6, 2]].movedim(2, 0))
    expected = pool.clone()
    expected[:, :, [0, 1]] = pool[:, :, [6, 2]]
    copy_blocks_in_pool(pool, torch.stack([pairs, pairs], dim=2)[:, :, 0])
    assert same_bits(pool, expected)


def test_no_block_to_gather_or_scatter():
    pool = make_pool()
    before, staging = pool.clone(), torch.empty(0, 3, 2, 2, 4, 8, device=DEVICE)
    gather_blocks(pool, numbers(), staging)
    scatter_blocks(staging, pool, numbers())
    assert same_bits(pool, before)


# --------------------------------------------------------------------------- far
def far_pool():
    """32 layers of 2**19 blocks of 128 float16: the last layers begin 2**31 elements and more
    behind the first. Cut to 32 bits, their offsets are negative: the memory there is the test's
    too, and zero."""
    memory = address_space(2**31 + 2**32, torch.float16)
    return memory[2**31 :].view(32, 2, 2**19, 128)


def test_offsets_beyond_32_bits():
    pool, last = far_pool(), 2**19 - 1
    content = make_pool(layers=32, blocks=1, block=(128,), dtype=torch.float16)
    pool[:, :, :1] = content
    copy_blocks_in_pool(pool, numbers(0, last, shape=(1, 2)))
    assert same_bits(pool[:, :, last:], content)
    staging = torch.zeros(1, 32, 2, 128, dtype=torch.float16, device=DEVICE)
    gather_blocks(pool, numbers(last), staging)
    assert same_bits(staging[0], content[:, :, 0])
    scatter_blocks(staging, pool, numbers(1))
    assert same_bits(pool[:, :, 1:2], content)


# --------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p[0], "pool is [2, 7, 2, 4, 8], not [layers, 2, num_blocks, ...]"),
        (lambda p: p[:, :1], "pool is [3, 1, 7, 2, 4, 8], not [layers, 2, num_blocks, ...]"),
        (lambda p: p[:, :, 0, 0, 0, 0], "pool is [3, 2], not [layers, 2, num_blocks, ...]"),
        (lambda p: p[..., :4], "what a block holds in one cache must be contiguous"),
        (lambda p: p.repeat(1, 2, 1, 1, 1, 1)[:, :2], "its caches must lie at equal distances"),
    ],
)
def test_refused_pools(change, message):
    pool = change(make_pool())
    staging = torch.empty(1, 3, 2, 2, 4, 8, device=DEVICE)
    for call in (
        lambda: copy_blocks_in_pool(pool, numbers(0, 1, shape=(1, 2))),
        lambda: gather_blocks(pool, numbers(0), staging),
        lambda: scatter_blocks(staging, pool, numbers(0)),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (numbers(0, 1), "pairs is [2] torch.int64, not [P, 2] torch.int64"),
        (numbers(0, 1, 2, shape=(1, 3)), "pairs is [1, 3] torch.int64, not [P, 2]"),
        (numbers(0, 1, shape=(1, 2)).int(), "pairs is [1, 2] torch.int32, not [P, 2]"),
    ],
)
def test_refused_pairs(pairs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        copy_blocks_in_pool(make_pool(), pairs)


@pytest.mark.parametrize(
    ("blocks", "staging", "message"),
    [
        (numbers(0).int(), lambda s: s, "blocks is [1] torch.int32, not [n] torch.int64"),
        (numbers(0, shape=(1, 1)), lambda s: s, "blocks is [1, 1] torch.int64, not [n]"),
        (numbers(0, 1), lambda s: s,
         "staging is [1, 3, 2, 2, 4, 8] torch.float32, not [2, 3, 2, 2, 4, 8] torch.float32"),
        (numbers(0), lambda s: s.half(), "staging is [1, 3, 2, 2, 4, 8] torch.float16, not"),
        (numbers(0), lambda s: s.mT.contiguous().mT, "it must be contiguous"),
    ],
)  # fmt: skip
def test_refused_stagings(blocks, staging, message):
    pool, buffer = make_pool(), staging(torch.empty(1, 3, 2, 2, 4, 8, device=DEVICE))
    for call in (
        lambda: gather_blocks(pool, blocks, buffer),
        lambda: scatter_blocks(buffer, pool, blocks),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()
