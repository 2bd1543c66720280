"""What ``scripts/device_check.sh`` asks of a GPU beside the kernels' own tests and bench: decode
steps as CUDA graphs against single launches, and an engine under pressure of memory.

``python -m minipaged.bench.device_check PART --json FILE`` with one of :data:`PARTS`. Status 1: a
check failed. Checks are about being right; speed is measured, and told beside its target. With
``--device cpu --quick`` the same code runs a tiny model, which checks the script.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from minipaged.bench.kernels import copy_bandwidth, time_on_gpu
from minipaged.config import CacheConfig, ModelConfig, SchedulerConfig
from minipaged.contracts import Span, StepPlan
from minipaged.device import choose_device
from minipaged.executor.decode_graphs import Capture, CudaCapture
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.kvcache.pool import KVPool, available_memory
from minipaged.kvcache.sizing import kv_bytes_per_block, kv_bytes_per_token
from minipaged.llm import LLM
from minipaged.models.catalog import CATALOG, parameter_count
from minipaged.models.loader import LoadedModel
from minipaged.models.random_weights import random_model
from minipaged.outputs import RequestOutput
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams

BLOCK_SIZE = 16

#: Largest error of logits, of the largest logit: graphs and single launches split their sums
#: differently.
LOGITS_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}

#: A model that stands for the large ones where there is no GPU.
TINY = ModelConfig("opt", vocab_size=199, hidden_size=64, intermediate_size=128, num_layers=2,
                   num_heads=4, num_kv_heads=4, head_dim=16, max_model_len=256,
                   name="opt-tiny")  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    ok: bool
    found: str


@dataclass
class Report:
    """What a part found: checks, and figures by name."""

    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str, ok: bool, found: object) -> None:
        self.checks.append(Check(name, bool(ok), str(found)))


@dataclass(frozen=True)
class Setting:
    """Where, and how large.

    Attributes:
        quick: a tiny model and few requests, to try the script.
    """

    device: str
    quick: bool

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16 if self.on_gpu else torch.float32

    def model(self) -> LoadedModel:
        """OPT-13B in shape, or the largest that leaves a third of the memory to the pool."""
        config = TINY
        if not self.quick:
            room = available_memory(self.device) * 2 / 3 / self.dtype.itemsize
            sizes = ("opt-13b", "opt-6.7b", "opt-1.3b", "opt-125m")
            fitting = [CATALOG[size] for size in sizes if parameter_count(CATALOG[size]) <= room]
            config = fitting[0] if fitting else TINY
        return random_model(config, dtype=self.dtype, device=self.device)

    def bandwidth(self) -> float:
        """Bytes a second that the device reads and writes when it copies."""
        if self.on_gpu:
            return copy_bandwidth(time_on_gpu, torch.device(self.device))
        return copy_bandwidth(_time_on_cpu, torch.device("cpu"), 64 << 20)

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def _time_on_cpu(call: Callable[[int], object], turns: int) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for turn in range(turns):
            call(turn)
        times.append((time.perf_counter() - start) / turns)
    return median(times)


# --------------------------------------------------------------------------- the machine
def about(setting: Setting) -> Report:
    """Versions, and the card."""
    report = Report()
    report.figures = {
        "device": setting.device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "memory_bytes": available_memory(setting.device),
        "copy_bytes_per_s": setting.bandwidth(),
    }
    if setting.on_gpu:
        import triton

        properties = torch.cuda.get_device_properties(setting.device)
        report.figures |= {
            "name": properties.name,
            "arch": f"sm_{properties.major}{properties.minor}",
            "triton": triton.__version__,
        }
    report.check("there is a device", True, report.figures.get("name", setting.device))
    return report


# --------------------------------------------------------------------------- graphs
def run_again(work: Callable[[], None]) -> Callable[[], None]:
    """Stands for the capture of a graph where there is no GPU."""
    work()
    return work


def graphs(setting: Setting) -> Report:
    """Decode steps through graphs and through single launches, on the same pool."""
    report = Report()
    bandwidth = setting.bandwidth()
    loaded = setting.model()
    config, model = loaded.config, loaded.model
    steps = 3 if setting.quick else 20
    wanted = (1, 3, 8) if setting.quick else (1, 8, 32, 64)
    block_bytes = kv_bytes_per_block(config, loaded.dtype.itemsize, BLOCK_SIZE)
    room = int(available_memory(setting.device) * 0.8) // block_bytes
    for context in (48,) if setting.quick else (512, 256, 128):
        blocks_each = -(-(context + steps + 1) // BLOCK_SIZE)
        sizes = [size for size in wanted if size * blocks_each < room]
        if 32 in sizes:
            break
    pool = KVPool(
        config, BLOCK_SIZE, sizes[-1] * blocks_each + 1, dtype=loaded.dtype, device=setting.device
    )
    for cache in (*pool.k_cache, *pool.v_cache):
        cache.normal_()
    kind = "triton" if setting.on_gpu else "reference"
    model.use_kernels(setting.on_gpu)
    eager, graphed = (
        TorchExecutor(model, pool, Parts().make_attention(kind))  # type: ignore[arg-type]
        for _ in range(2)
    )
    capture: Capture = CudaCapture() if setting.on_gpu else run_again
    start = time.perf_counter()
    graphed.capture_decodes(sizes, config.max_model_len, capture)
    setting.synchronize()
    report.figures |= {
        "model": config.name,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "context": context,
        "copy_bytes_per_s": bandwidth,
        "capture_s": time.perf_counter() - start,
        "steps": [],
    }
    for size in sizes:
        report.figures["steps"].append(
            _compare_steps(report, setting, eager, graphed, size, context, steps, bandwidth)
        )
    return report


def _compare_steps(
    report: Report,
    setting: Setting,
    eager: TorchExecutor,
    graphed: TorchExecutor,
    size: int,
    context: int,
    steps: int,
    bandwidth: float,
) -> dict[str, Any]:
    """Both executors on the same plans: each writes the same keys and values to the same slots."""
    dice = random.Random(size)
    config = eager.model.config
    blocks_each = -(-(context + steps + 1) // BLOCK_SIZE)
    order = dice.sample(range(1, size * blocks_each + 1), size * blocks_each)
    tables = [order[i * blocks_each : (i + 1) * blocks_each] for i in range(size)]
    times: dict[str, list[float]] = {"single launches": [], "graph": []}
    error, same, decided = 0.0, 0, 0
    tolerance = LOGITS_TOLERANCE[eager.model.dtype]
    for step in range(steps):
        spans = [
            Span(i, context + step, [dice.randrange(config.vocab_size)], table)
            for i, table in enumerate(tables)
        ]
        rows = {}
        for name, executor in (("single launches", eager), ("graph", graphed)):
            setting.synchronize()
            start = time.perf_counter()
            rows[name] = executor.execute(StepPlan(step, spans)).rows
            rows[name].argmax(-1).tolist()  # what greedy sampling waits for
            times[name].append(time.perf_counter() - start)
        single, graph = rows["single launches"], rows["graph"]
        scale = float(single.abs().max())
        error = max(error, float((single - graph).abs().max()) / scale)
        best = single.topk(2, dim=-1).values
        clear = best[:, 0] - best[:, 1] > tolerance * scale
        agree = single.argmax(-1) == graph.argmax(-1)
        same += int((agree & clear).sum())
        decided += int(clear.sum())
    report.check(
        f"batch {size}: logits of a graph", error <= tolerance, f"{error:.1e}, at most {tolerance}"
    )
    report.check(f"batch {size}: tokens of a graph", same == decided, f"{same} of {decided} equal")
    floor = _bytes_read(eager.model.config, eager.model.dtype, [context] * size) / bandwidth
    # The first steps compile and warm up.
    found = {name: median(values[steps // 4 :]) for name, values in times.items()}
    return {
        "batch": size,
        "single_launches_s": found["single launches"],
        "graph_s": found["graph"],
        "floor_s": floor,
        "over_floor": found["graph"] / floor,
        "largest_error": error,
    }


def _bytes_read(config: ModelConfig, dtype: torch.dtype, contexts: Iterable[int]) -> int:
    """What a decode step must read: the weights (of an embedding that is not the head, only rows)
    and the keys and values of all contexts."""
    weights = parameter_count(config)
    if not config.tie_word_embeddings:
        weights -= config.vocab_size * config.embed_dim
    cached = sum(contexts) * kv_bytes_per_token(config, dtype.itemsize)
    return weights * dtype.itemsize + cached


# --------------------------------------------------------------------------- pressure
def pressure(setting: Setting) -> Report:
    """Requests through an engine whose pool was measured, and through pools that are too small
    for them, with preemption by swap and by recompute."""
    report = Report()
    bandwidth = setting.bandwidth()
    loaded = setting.model()
    config = loaded.config
    dice = random.Random(0)
    count, shortest, longest, output = (8, 10, 20, 24) if setting.quick else (32, 100, 300, 100)
    prompts = [
        [dice.randrange(config.vocab_size) for _ in range(dice.randint(shortest, longest))]
        for _ in range(count)
    ]
    needed = sum(-(-(len(prompt) + output) // BLOCK_SIZE) for prompt in prompts)
    few = max(needed // 3, -(-(longest + output) // BLOCK_SIZE) + 1)
    report.figures |= {"model": config.name, "requests": count, "blocks_needed": needed, "runs": {}}
    outputs: dict[str, list[list[int]]] = {}
    for name, cache in (
        ("undisturbed", CacheConfig(swap_space_bytes=0)),
        ("swap", CacheConfig(num_gpu_blocks=few, num_cpu_blocks=needed)),
        ("recompute", CacheConfig(num_gpu_blocks=few, num_cpu_blocks=0)),
    ):
        run, served = _serve(setting, loaded, cache, name, prompts, output, bandwidth)
        outputs[name] = [request.outputs[0].token_ids for request in served]
        report.figures["runs"][name] = run
        lengths = {len(tokens) for tokens in outputs[name]}
        report.check(
            f"{name}: every request has its {output} tokens", lengths == {output}, f"{lengths}"
        )
        if name == "undisturbed":
            report.check(f"{name}: the pool holds all", run["preemptions"] == 0, run["preemptions"])
            continue
        report.check(f"{name}: requests were preempted", run["preemptions"], run["preemptions"])
        moved = run["blocks_swapped"]
        right = moved > 0 if name == "swap" else moved == 0
        report.check(f"{name}: blocks that went to the host", right, moved)
        # In half precision another batch has other last bits, so near ties go the other way.
        run["requests_with_undisturbed_tokens"] = sum(
            a == b for a, b in zip(outputs[name], outputs["undisturbed"])
        )
        if loaded.dtype == torch.float32:
            equal = run["requests_with_undisturbed_tokens"]
            report.check(f"{name}: tokens of an undisturbed run", equal == count, equal)
    return report


def _serve(
    setting: Setting,
    loaded: LoadedModel,
    cache: CacheConfig,
    preemption: str,
    prompts: list[list[int]],
    output: int,
    bandwidth: float,
) -> tuple[dict[str, Any], list[RequestOutput]]:
    scheduler = SchedulerConfig(
        max_num_seqs=len(prompts),
        preemption="auto" if preemption == "undisturbed" else preemption,  # type: ignore[arg-type]
    )
    start = time.perf_counter()
    llm = LLM(loaded, cache=cache, scheduler=scheduler)
    setting.synchronize()
    ready = time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    ratios: list[float] = []
    swapped = 0
    last = ready

    def watch(engine: Any) -> None:
        nonlocal last, swapped
        now = time.perf_counter()
        plan: StepPlan = engine.last_plan
        swapped += len(plan.swap_out)
        if plan.spans and all(len(span.token_ids) == 1 for span in plan.spans):
            contexts = [span.context_len for span in plan.spans]
            floor = _bytes_read(loaded.config, loaded.dtype, contexts) / bandwidth
            ratios.append((now - last) / floor)
        last = now

    served = llm.generate(prompts, params, progress=False, on_step=watch)
    seconds = time.perf_counter() - ready
    run = {
        "gpu_blocks": llm.cache_config.num_gpu_blocks,
        "ready_s": ready - start,
        "seconds": seconds,
        "steps": llm.engine.num_steps,
        "output_tokens_per_s": len(prompts) * output / seconds,
        "preemptions": sum(request.metrics.num_preemptions for request in served),
        "blocks_swapped": swapped,
        "decode_step_over_floor": median(ratios) if ratios else None,
    }
    del llm
    gc.collect()
    if setting.on_gpu:
        torch.cuda.empty_cache()
    return run, served


# --------------------------------------------------------------------------- the command
PARTS: dict[str, Callable[[Setting], Report]] = {
    "about": about,
    "graphs": graphs,
    "pressure": pressure,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one part, print its checks, and write what it found."""
    parser = argparse.ArgumentParser(prog="python -m minipaged.bench.device_check")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument("--device", default="auto", help="default: a GPU if there is one")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to try the script")
    args = parser.parse_args(arguments)
    report = PARTS[args.part](Setting(choose_device(args.device), args.quick))
    if args.json:
        args.json.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    for check in report.checks:
        print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.found}")
    print(json.dumps(report.figures, indent=2))
    return 0 if all(check.ok for check in report.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
