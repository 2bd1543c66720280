"""What only a GPU does, on a small random model: nothing in a step waits, graphs give what single
launches give, blocks survive the way to the host and back, the pool fits. Without a GPU the same
kernels run in Triton's interpreter, and what needs a device is skipped."""

import random
from pathlib import Path

import pytest
import torch

from minipaged.config import CacheConfig, ConfigError, ModelConfig, SchedulerConfig
from minipaged.contracts import Span, StepPlan
from minipaged.executor.decode_graphs import CudaCapture
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.kvcache.block_mover import BlockKernels
from minipaged.kvcache.pool import KVPool
from minipaged.llm import LLM
from minipaged.models import build_model
from minipaged.models.loader import LoadedModel
from minipaged.models.random_weights import random_model
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, BLOCKS, LENGTH = 8, 24, 40

SHAPES = {
    "llama": ModelConfig("llama", vocab_size=90, hidden_size=32, intermediate_size=48, num_layers=2,
                         num_heads=4, num_kv_heads=2, head_dim=16, max_model_len=64),
    "opt": ModelConfig("opt", vocab_size=90, hidden_size=32, intermediate_size=48, num_layers=2,
                       num_heads=2, num_kv_heads=2, head_dim=16, max_model_len=64),
}  # fmt: skip


@pytest.fixture(params=SHAPES)
def config(request):
    return SHAPES[request.param]


def same_model(config, device):
    """Random weights, the same on every device: they are drawn on the CPU."""
    model = build_model(config, torch.float32, device)
    generator = torch.Generator().manual_seed(0)
    for name, shape in model.expected_weights().items():
        weight = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        model.load_weight(name, 1 + weight if name.endswith("norm.weight") else weight)
    model.finish_loading()
    return LoadedModel(model, config, None, torch.float32, Path("random"), [])


def make(config, attention="triton", *, device=DEVICE, graphs=()):
    """An executor over a pool of NaN, with the weights that every other one of that shape has."""
    pytest.importorskip("triton")
    loaded = same_model(config, device)
    parts, kernels = Parts(), None
    if attention == "triton":
        loaded.model.use_kernels()
        kernels = BlockKernels(parts.copy_blocks_in_pool, parts.gather_blocks, parts.scatter_blocks)
    pool = KVPool(config, B, BLOCKS, 8, device=device, kernels=kernels)
    pool.poison(range(BLOCKS), range(8))
    executor = TorchExecutor(loaded.model, pool, parts.make_attention(attention))
    if graphs:
        executor.capture_decodes(graphs, LENGTH, CudaCapture())
    return executor


def plans(seed=0):
    """Prompts, a chunk, decodes, a copy, and a way to the host and back, then decodes alone."""
    dice = random.Random(seed)

    def tokens(count):
        return [dice.randrange(90) for _ in range(count)]

    yield StepPlan(0, [Span(0, 0, tokens(11), [3, 7]), Span(1, 0, tokens(8), [5])])
    yield StepPlan(
        1,
        [Span(0, 11, tokens(1), [3, 7]), Span(1, 8, tokens(5), [5, 2]), Span(2, 0, tokens(3), [9])],
    )
    yield StepPlan(2, swap_out=[(3, 4), (7, 1), (5, 6), (2, 0)])
    yield StepPlan(
        3,
        [Span(0, 12, tokens(1), [10, 11]), Span(2, 3, tokens(1), [12])],
        swap_in=[(4, 10), (1, 11)],
        copies=[(9, 12)],
    )
    yield StepPlan(
        4,
        [Span(0, 13, tokens(1), [10, 11]), Span(1, 13, tokens(1), [20, 21]),
         Span(2, 4, tokens(1), [12])],
        swap_in=[(6, 20), (0, 21)],
    )  # fmt: skip
    tables = {0: [10, 11], 1: [20, 21], 2: [12]}
    for step in range(5, 7):
        starts = {0: step + 9, 1: step + 9, 2: step}
        for seq_id, table in tables.items():
            if starts[seq_id] // B == len(table):
                table.append(13 + seq_id)
        yield StepPlan(step, [Span(i, starts[i], tokens(1), tables[i]) for i in tables])


def test_kernels_give_what_pytorch_gives(config):
    """Fused norms, gates and rotation, attention, block copies, gathers and scatters."""
    fused, reference = make(config), make(config, "reference", device="cpu")
    for plan in plans():
        ours, expected = fused.execute(plan).rows, reference.execute(plan).rows
        torch.testing.assert_close(ours.cpu(), expected, atol=1e-4, rtol=0)


def test_the_parts_of_the_fused_path_are_in_use(monkeypatch):
    executor = make(SHAPES["llama"])
    used = set()
    from minipaged.models.layers import RMSNorm, SiluMul

    for module in executor.model.modules():
        if isinstance(module, RMSNorm | SiluMul):
            kernel = module.kernel
            module.kernel = lambda *args, kernel=kernel: used.add(kernel.__name__) or kernel(*args)
    rotate = executor._rotate_and_write
    executor._rotate_and_write = lambda *args: used.add("rotate") or rotate(*args)
    executor.execute(StepPlan(0, [Span(0, 0, [1, 2], [0])]))
    assert used == {"rms_norm", "silu_mul", "rotate"}
    executor.model.use_kernels(False)
    used.clear()
    executor.execute(StepPlan(0, [Span(0, 0, [1, 2], [0])]))
    assert used == {"rotate"}


def test_graphs_are_for_kernels_on_a_gpu():
    loaded = random_model(SHAPES["opt"])
    llm = LLM(loaded, cache=CacheConfig(num_gpu_blocks=8, num_cpu_blocks=0))
    assert not llm.cuda_graphs
    with pytest.raises(ConfigError, match="runs attention reference on cpu"):
        LLM(loaded, cache=CacheConfig(num_gpu_blocks=8), cuda_graphs=True)


# --------------------------------------------------------------------------- on a GPU alone
@on_gpu
@pytest.mark.parametrize("graphs", [(), (1, 2, 4)])
def test_no_step_waits_for_the_device(config, graphs):
    executor = make(config, graphs=graphs)
    for plan in plans():  # kernels are compiled
        executor.execute(plan)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for plan in plans():
            executor.execute(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_gpu
def test_graphs_give_what_single_launches_give(config):
    graphed, eager = make(config, graphs=(1, 2, 4)), make(config)
    used = []
    run = graphed._graphs.run
    graphed._graphs.run = lambda inputs: used.append(run(inputs)) or used[-1]
    for plan in plans():
        ours, expected = graphed.execute(plan).rows, eager.execute(plan).rows
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    assert sum(hidden is not None for hidden in used) == 4


@on_gpu
def test_swap_space_is_pinned_and_blocks_come_back_bit_for_bit():
    config = SHAPES["llama"]
    pool = KVPool(config, B, 200, 300, device=DEVICE)
    assert pool.host_blocks.is_pinned()
    pool.device_blocks.normal_()
    expected = pool.device_blocks.clone()
    dice = random.Random(0)
    for _ in range(20):
        blocks, hosts = dice.sample(range(200), 60), dice.sample(range(300), 60)
        pool.swap_out(list(zip(blocks, hosts)))
        pool.join()
        pool.device_blocks[:, :, blocks] = torch.nan  # computed behind the move, in its own stream
        pool.swap_in(list(zip(hosts, blocks)))
        pool.join()
    assert torch.equal(pool.device_blocks, expected)


@on_gpu
def test_a_pool_that_was_measured_fits():
    total = torch.cuda.mem_get_info()[1]
    before = total - torch.cuda.mem_get_info()[0]
    share = min(0.9, before / total + 0.1)
    config = SHAPES["llama"]
    llm = LLM(
        random_model(config, dtype=torch.float16, device=DEVICE),
        cache=CacheConfig(gpu_memory_utilization=share, swap_space_bytes=1 << 26),
        scheduler=SchedulerConfig(max_num_seqs=32),
    )
    assert llm.cuda_graphs
    llm.generate([[i] * 20 for i in range(32)], SamplingParams(max_tokens=20), progress=False)
    used = total - torch.cuda.mem_get_info()[0]
    assert used <= share * total
    assert used >= (share - 0.05) * total


@on_gpu
@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_an_engine_under_pressure_says_what_an_undisturbed_one_on_a_cpu_says(config, preemption):
    dice = random.Random(1)
    prompts = [[dice.randrange(90) for _ in range(dice.randrange(4, 20))] for _ in range(12)]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)

    def tokens(loaded, **cache):
        llm = LLM(
            loaded,
            cache=CacheConfig(block_size=B, num_cpu_blocks=40, **cache),
            scheduler=SchedulerConfig(preemption=preemption),
            check=True,
        )
        outputs = llm.generate(prompts, params, progress=False)
        preemptions = sum(output.metrics.num_preemptions for output in outputs)
        return [output.outputs[0].token_ids for output in outputs], preemptions

    ours, preemptions = tokens(same_model(config, DEVICE), num_gpu_blocks=20)
    assert preemptions
    assert ours == tokens(same_model(config, "cpu"), num_gpu_blocks=200)[0]
