"""Command-line options that several commands share, and what they build."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.course.student_parts import default_spec
from minipaged.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minipaged.course.student_parts import StudentParts
    from minipaged.llm import LLM
    from minipaged.trace import TraceWriter

GIB = 1 << 30
DEFAULT_MODEL = "smollm2-135m"


def add_parts_argument(parser: argparse.ArgumentParser) -> None:
    """Whose parts the engine is built from."""
    parser.add_argument(
        "--parts",
        default=default_spec(),
        metavar="SPEC",
        help="whose parts the engine is built from: ref, mine (what is written in exercises/), "
        "a folder laid out like it, or PART=mine,PART=FOLDER,… (default: %(default)s)",
    )


def add_latency_arguments(group: argparse._ArgumentGroup) -> None:
    """What is reported of latencies."""
    group.add_argument(
        "--slo", "--goodput", nargs="+", metavar="NAME:MS",
        help='count requests within these bounds, as in "ttft:200 tpot:50"',
    )  # fmt: skip
    group.add_argument(
        "--percentiles", default="50,90,99", metavar="P,…", help="default: %(default)s"
    )


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the engine: model, parts, memory, scheduling."""
    cache, scheduler = CacheConfig(), SchedulerConfig()
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help="smollm2-135m, opt-stories, a folder, a GGUF file or a hub id (default: %(default)s)",
    )
    group.add_argument("--revision", help="branch, tag or commit of a hub id")
    group.add_argument("--dtype", default="auto", help="auto, float32, float16 or bfloat16")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, …")
    group.add_argument("--max-model-len", type=int, metavar="N", help="prompt plus output")
    group.add_argument("--seed", type=int, default=0, help="for requests without a seed")
    group.add_argument(
        "--attention",
        choices=("auto", "reference", "triton"),
        default="auto",
        help="by PyTorch (reference) or by Triton kernels, which a CPU interprets; auto: triton on "
        "a GPU (default: %(default)s)",
    )
    group.add_argument(
        "--no-cuda-graphs", action="store_true", help="launch the kernels of a decode step singly"
    )
    add_parts_argument(parser)
    group = parser.add_argument_group("memory")
    group.add_argument("--block-size", type=int, default=cache.block_size, metavar="TOKENS")
    group.add_argument("--num-gpu-blocks", type=int, metavar="N", help="blocks on the device")
    group.add_argument("--num-cpu-blocks", type=int, metavar="N", help="blocks to swap to")
    group.add_argument(
        "--swap-space",
        type=float,
        default=cache.swap_space_bytes / GIB,
        metavar="GIB",
        help="host memory to swap to, where --num-cpu-blocks is not given (default: %(default)g)",
    )
    group.add_argument(
        "--gpu-memory-utilization", type=float, default=cache.gpu_memory_utilization, metavar="F"
    )
    group.add_argument("--watermark", type=float, default=cache.watermark, metavar="F")
    group.add_argument(
        "--reservation",
        choices=("paged", "max", "pow2", "oracle"),
        default=cache.reservation,
        help="paged blocks, or one of the paper's contiguous baselines",
    )
    group.add_argument(
        "--prefix-caching",
        action="store_true",
        help="share the full blocks that prompts begin with",
    )
    group = parser.add_argument_group("scheduling")
    group.add_argument("--max-num-seqs", type=int, default=scheduler.max_num_seqs, metavar="N")
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=scheduler.max_num_batched_tokens,
        metavar="N",
    )
    group.add_argument(
        "--preemption", choices=("auto", "swap", "recompute"), default=scheduler.preemption
    )
    group.add_argument("--batching", choices=("iteration", "request"), default=scheduler.batching)
    group.add_argument("--prefill-first", action="store_true")
    group.add_argument("--chunked-prefill", action="store_true")
    group = parser.add_argument_group("looking inside")
    group.add_argument("--trace", metavar="FILE", help="write one JSON line a step")
    group.add_argument("--check", action="store_true", help="verify the invariants every step")


def build_llm(
    args: argparse.Namespace, parts: StudentParts, trace: TraceWriter | None = None
) -> LLM:
    """The model and engine that :func:`add_engine_arguments` describes.

    Args:
        parts: those of ``--parts``, loaded; their notes come first among the model's.
    """
    cache = CacheConfig(
        block_size=args.block_size,
        num_gpu_blocks=args.num_gpu_blocks,
        num_cpu_blocks=args.num_cpu_blocks,
        gpu_memory_utilization=args.gpu_memory_utilization,
        swap_space_bytes=int(args.swap_space * GIB),
        watermark=args.watermark,
        reservation=args.reservation,
        prefix_caching=args.prefix_caching,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        preemption=args.preemption,
        batching=args.batching,
        prefill_first=args.prefill_first,
        chunked_prefill=args.chunked_prefill,
    )
    from minipaged.llm import LLM  # torch takes a second: bad options are told at once

    llm = LLM(
        args.model,
        dtype=args.dtype,
        device=args.device,
        revision=args.revision,
        cache=cache,
        scheduler=scheduler,
        max_model_len=args.max_model_len,
        seed=args.seed,
        parts=parts,
        attention=args.attention,
        cuda_graphs=False if args.no_cuda_graphs else "auto",
        check=args.check,
        trace=trace,
    )
    llm.notes[:0] = parts.notes
    return llm


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a request."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, default=128, metavar="N")
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    group.add_argument("--top-k", type=int, default=0, metavar="K")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P")
    group.add_argument("--min-p", type=float, default=0.0, metavar="P")
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X")
    group.add_argument("-n", type=int, default=1, help="outputs a prompt")
    group.add_argument("--best-of", type=int, metavar="N")
    group.add_argument("--beam", action="store_true", help="beam search of width --best-of or -n")
    group.add_argument("--length-penalty", type=float, default=1.0, metavar="X")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT")
    group.add_argument("--ignore-eos", action="store_true")
    group.add_argument("--logprobs", type=int, metavar="K")
    group.add_argument("--sampling-seed", type=int, metavar="S", help="this request's own seed")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The request options that :func:`add_sampling_arguments` describes."""
    return SamplingParams(
        n=args.n,
        best_of=args.best_of,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        seed=args.sampling_seed,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
        ignore_eos=args.ignore_eos,
        logprobs=args.logprobs,
        use_beam_search=args.beam,
        length_penalty=args.length_penalty,
    )
