"""Swapping beside the computation: the order is right whenever the side stream does its work."""

import random

import pytest
import torch
from late_stream import LateStream

from minipaged.config import ModelConfig
from minipaged.kvcache.block_mover import BlockKernels, BlockMover, gather_blocks, scatter_blocks
from minipaged.kvcache.pool import KVPool

SHAPE = (3, 2, 4, 5)  # layers, K or V, and a block's own
GPU, CPU = 9, 11


@pytest.fixture
def world():
    device = torch.randn(SHAPE[0], 2, GPU, *SHAPE[2:])
    host = torch.randn(CPU, *SHAPE)
    stream = LateStream()
    mover = BlockMover(device, host, torch.empty(2, *SHAPE), stream)
    return device, host, stream, mover


def test_blocks_that_go_out_may_be_written_to_after_the_join(world):
    device, host, _, mover = world
    before = device.clone()
    mover.swap_out([(4, 0), (1, 3), (2, 7), (8, 2), (0, 9)])
    mover.join()
    device.fill_(torch.nan)
    for source, target in [(4, 0), (1, 3), (2, 7), (8, 2), (0, 9)]:
        assert torch.equal(host[target], before[:, :, source])


def test_blocks_that_come_in_are_there_after_the_join(world):
    device, host, _, mover = world
    before, untouched = device.clone(), [0, 1, 3, 5, 7, 8]
    mover.swap_in([(3, 4), (0, 2), (10, 6)])
    mover.join()
    for source, target in [(3, 4), (0, 2), (10, 6)]:
        assert torch.equal(device[:, :, target], host[source])
    assert torch.equal(device[:, :, untouched], before[:, :, untouched])


def test_a_step_without_moves_waits_for_nothing(world):
    *_, stream, mover = world
    stream.join = lambda: pytest.fail("there is nothing to wait for")
    mover.swap_out([])
    mover.swap_in([])
    mover.join()


@pytest.mark.parametrize("seed", range(5))
def test_many_moves_are_those_of_one_that_is_done_at_once(world, seed):
    """Against the definition, over steps that swap and then compute (write to some blocks)."""
    device, host, stream, mover = world
    dice = random.Random(seed)
    expected_device, expected_host = device.clone(), host.clone()
    for _ in range(40):
        count = dice.randrange(6)
        on_device, on_host = dice.sample(range(GPU), count), dice.sample(range(CPU), count)
        if dice.random() < 0.5:
            mover.swap_out(list(zip(on_device, on_host)))
            for d, h in zip(on_device, on_host):
                expected_host[h] = expected_device[:, :, d]
        else:
            mover.swap_in(list(zip(on_host, on_device)))
            for d, h in zip(on_device, on_host):
                expected_device[:, :, d] = expected_host[h]
        stream.rush(dice.randrange(3))
        mover.join()
        written = dice.randrange(GPU)
        value = torch.randn(())
        device[:, :, written] = value
        expected_device[:, :, written] = value
    assert torch.equal(device, expected_device)
    assert torch.equal(host, expected_host)


def test_kernels_take_the_place_of_pytorchs_operations():
    calls = []

    def gather(pool, blocks, staging):
        calls.append(("gather", blocks.tolist()))
        gather_blocks(pool, blocks, staging)

    def scatter(staging, pool, blocks):
        calls.append(("scatter", blocks.tolist()))
        scatter_blocks(staging, pool, blocks)

    def copy(pool, pairs):
        calls.append(("copy", pairs.tolist()))
        pool[:, :, pairs[:, 1]] = pool[:, :, pairs[:, 0]]

    config = ModelConfig("llama", vocab_size=10, hidden_size=32, intermediate_size=8, num_layers=3,
                         num_heads=4, num_kv_heads=2, head_dim=8, max_model_len=64)  # fmt: skip
    pool = KVPool(config, 4, 6, 5, kernels=BlockKernels(copy, gather, scatter))
    for block in range(6):
        pool.device_blocks[:, :, block] = block
    pool.swap_out([(5, 1), (3, 0)])
    pool.swap_in([(1, 0)])
    pool.copy([(0, 4)])
    assert calls == [("gather", [5, 3]), ("scatter", [0]), ("copy", [[0, 4]])]
    assert pool.device_blocks[0, 0, :, 0, 0, 0].tolist() == [5, 1, 2, 3, 5, 5]
