"""What a simulation runs on: a system, a model on its cards, and their memory."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from minipaged.capacity import find_model
from minipaged.config import PAPER_2023_CACHE, CacheConfig, ConfigError, SchedulerConfig
from minipaged.executor.cost_model import EFFICIENCIES, CostModel
from minipaged.sim.calibration import Calibration
from minipaged.sim.simulate import PAPER_DEPLOYMENTS, Deployment
from minipaged.sim.systems import SYSTEMS
from minipaged.sim.workloads.checks import require_at_least


def add_system_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the system, its hardware, memory and scheduler."""
    group = parser.add_argument_group("system")
    scheduler = SchedulerConfig()
    group.add_argument("--system", choices=tuple(SYSTEMS), default="vllm")
    group.add_argument("--model", help="such as opt-13b (default) or llama-7b")
    group.add_argument("--gpu", help="such as a100-40gb; default: the paper's for the model")
    group.add_argument("--tensor-parallel", "-tp", type=int, metavar="N", help="cards")
    group.add_argument(
        "--efficiency", choices=tuple(EFFICIENCIES), default="paper_2023",
        help="what the system gets out of the hardware (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--cost", metavar="FILE",
        help="step times and pool as `minipaged bench --calibrate` measured them, in place of "
        "--model, --gpu and --efficiency",
    )  # fmt: skip
    group.add_argument("--block-size", type=int, metavar="TOKENS", help="default: 16")
    group.add_argument("--num-gpu-blocks", type=int, metavar="N", help="default: as many as fit")
    group.add_argument("--num-cpu-blocks", type=int, metavar="N", help="blocks to swap to")
    group.add_argument(
        "--prefix-caching",
        action="store_true",
        help="share the full blocks that prompts begin with (texts of a Mooncake trace)",
    )
    group.add_argument("--max-model-len", type=int, metavar="N", help="prompt plus output")
    group.add_argument("--max-num-seqs", type=int, default=scheduler.max_num_seqs, metavar="N")
    group.add_argument(
        "--max-num-batched-tokens", type=int, default=scheduler.max_num_batched_tokens, metavar="N"
    )
    group.add_argument(
        "--preemption", choices=("auto", "swap", "recompute"), default=scheduler.preemption
    )
    group.add_argument("--prefill-first", action="store_true", help="prompts in steps of their own")
    group.add_argument("--chunked-prefill", action="store_true", help="prompts over several steps")


@dataclass(frozen=True)
class Target:
    """What a workload runs on.

    Attributes:
        name: for titles.
        deployment: the model on its cards.
        cost: how long steps take; None: what the deployment says.
        cache, scheduler: settings beside those that make a system what it is.
        max_model_len: positions of the model.
    """

    name: str
    deployment: Deployment
    cost: CostModel | None
    cache: CacheConfig
    scheduler: SchedulerConfig
    max_model_len: int


def read_target(args: argparse.Namespace) -> Target:
    """What :func:`add_system_arguments` describes.

    Raises:
        ConfigError, PlanError: a value is out of its range, two contradict each other, or a name
            is not known.
    """
    require_at_least(1, tensor_parallel=args.tensor_parallel)
    scheduler = SchedulerConfig.paper_2023(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        preemption=args.preemption,
        prefill_first=args.prefill_first,
        chunked_prefill=args.chunked_prefill,
    )
    if args.cost:
        return _measured(args, scheduler)
    model = args.model or "opt-13b"
    usual = PAPER_DEPLOYMENTS.get(model, Deployment(model))
    deployment = replace(
        usual,
        gpu=args.gpu or usual.gpu,
        tensor_parallel=args.tensor_parallel or usual.tensor_parallel,
        efficiency=args.efficiency,
    )
    cards = f"{deployment.tensor_parallel} x " if deployment.tensor_parallel > 1 else ""
    return Target(
        name=f"{model} on {cards}{deployment.gpu}",
        deployment=deployment,
        cost=None,
        cache=replace(
            PAPER_2023_CACHE,
            block_size=PAPER_2023_CACHE.block_size if args.block_size is None else args.block_size,
            num_gpu_blocks=args.num_gpu_blocks,
            num_cpu_blocks=args.num_cpu_blocks,
            prefix_caching=args.prefix_caching,
        ),
        scheduler=scheduler,
        max_model_len=_positions(args, find_model(model).max_model_len),
    )


def _measured(args: argparse.Namespace, scheduler: SchedulerConfig) -> Target:
    """The engine that a calibration was measured on."""
    measured = Calibration.load(args.cost)
    for option in ("model", "gpu", "tensor_parallel"):
        if (value := getattr(args, option)) is not None:
            raise ConfigError(
                f"--{option.replace('_', '-')} {value}: {args.cost} was measured with "
                f"{measured.model} on {measured.device}"
            )
    if args.block_size not in (None, measured.block_size):
        raise ConfigError(
            f"--block-size {args.block_size}: {args.cost} was measured with blocks of "
            f"{measured.block_size}"
        )
    given = (args.num_gpu_blocks, args.num_cpu_blocks)
    gpu_blocks, cpu_blocks = (
        measured_blocks if blocks is None else blocks
        for blocks, measured_blocks in zip(
            given, (measured.num_gpu_blocks, measured.num_cpu_blocks)
        )
    )
    return Target(
        name=f"{measured.model} on {measured.device}, as measured",
        deployment=Deployment(),
        cost=measured.cost,
        cache=replace(
            PAPER_2023_CACHE,
            block_size=measured.block_size,
            num_gpu_blocks=gpu_blocks,
            num_cpu_blocks=cpu_blocks,
            prefix_caching=args.prefix_caching,
        ),
        scheduler=scheduler,
        max_model_len=_positions(args, measured.max_model_len),
    )


def _positions(args: argparse.Namespace, limit: int) -> int:
    asked: int | None = args.max_model_len
    if asked is None:
        return limit
    if not 2 <= asked <= limit:
        raise ConfigError(f"--max-model-len {asked}: it must be from 2 to the model's {limit}")
    return asked
