"""``minipaged plan``: what fits on which card, before anything is loaded.

Weights, KV bytes a token, slots and blocks of a model on a GPU, and the paper's table 1 derived
from the two; and what a preemption costs, with the paper's figure 19a. Needs no GPU and no weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType

from minipaged.capacity import (
    ACTIVATION_BYTES,
    DTYPE_BYTES,
    PAPER_TABLE_1,
    Plan,
    PlanError,
    find_gpu,
    find_model,
    gib,
    least_tensor_parallel,
    make_plan,
)
from minipaged.config import PAPER_2023_CACHE, CacheConfig, ConfigError, ModelConfig
from minipaged.course.student_parts import default_spec, explained, load_parts
from minipaged.hardware import GPUS, GiB, Gpu
from minipaged.kvcache import sizing
from minipaged.models.catalog import CATALOG
from minipaged.scheduling import transfer_cost
from minipaged.scheduling.machines import machine_of
from minipaged.sim.paper.published import points
from minipaged.text_table import align


# --------------------------------------------------------------------------- table 1
@dataclass(frozen=True)
class Table1Row:
    """One model of the paper's table 1, and what we derive for it.

    Attributes:
        cards, gpu: the paper's server.
        paper_params_gb, paper_kv_gb, paper_kslots: as printed.
        params_gb: parameters times 2 bytes.
        kv_gib: what 0.95 of the cards, less weights and activations, leaves on all cards.
        kslots: thousands of slots in that.
        kslots_of_paper_kv: thousands of slots in the paper's KV memory, read as GiB.
    """

    model: str
    cards: int
    gpu: str
    paper_params_gb: float
    paper_kv_gb: float
    paper_kslots: float
    params_gb: float
    kv_gib: float
    kslots: float
    kslots_of_paper_kv: float


def table1(arithmetic: ModuleType = sizing) -> list[Table1Row]:
    """The paper's table 1, derived from the models' shapes and the cards' sizes.

    Args:
        arithmetic: has the functions of :mod:`minipaged.kvcache.sizing`.
    """
    rows = []
    for name, cards, gpu, params_gb, kv_gb, kslots in PAPER_TABLE_1:
        plan = make_plan(
            CATALOG[name],
            GPUS[gpu],
            tensor_parallel=cards,
            cache=PAPER_2023_CACHE,
            arithmetic=arithmetic,
        )
        token_bytes = plan.kv_bytes_per_token * cards
        rows.append(
            Table1Row(
                model=name,
                cards=cards,
                gpu=gpu,
                paper_params_gb=params_gb,
                paper_kv_gb=kv_gb,
                paper_kslots=kslots,
                params_gb=plan.parameters * DTYPE_BYTES[plan.dtype] / 1e9,
                kv_gib=plan.kv_bytes * cards / GiB,
                kslots=arithmetic.slots_that_fit(plan.kv_bytes * cards, token_bytes) / 1e3,
                kslots_of_paper_kv=arithmetic.slots_that_fit(int(kv_gb * GiB), token_bytes) / 1e3,
            )
        )
    return rows


# --------------------------------------------------------------------------- preemption
FIGURE_19A_MODEL = "opt-13b"


def figure_19a() -> dict[int, tuple[float, float, float]]:
    """The paper's figure: milliseconds to swap out, to swap in and to recompute, by block size."""
    series = ("Swap out", "Swap in", "Recompute")
    curves = [points("fig19a", "ms_vs_block_size", name) for name in series]
    return {
        int(out.x): (out.value, back.value, again.value)
        for out, back, again in zip(*curves)
        if out.x is not None
    }


@dataclass(frozen=True)
class PreemptionRow:
    """One block size: milliseconds to swap a sequence out and in, and to recompute it."""

    block_size: int
    num_blocks: int
    transfers: int
    swap_out_ms: float
    swap_in_ms: float
    recompute_ms: float
    cheaper: str


@dataclass(frozen=True)
class PreemptionCosts:
    """What it costs to preempt one sequence of ``num_tokens`` tokens, on one card.

    Attributes:
        machine: in words.
        rows: by block size.
        crossover_block_size: the smallest with which swapping is the cheaper; None: with none.
        block_size, crossover_tokens: with these blocks, the fewest tokens for which recomputing is
            the cheaper; None: for no number up to ``max_model_len``.
    """

    model: str
    dtype: str
    machine: str
    num_tokens: int
    rows: list[PreemptionRow]
    crossover_block_size: int | None
    block_size: int
    crossover_tokens: int | None
    max_model_len: int


def preemption_costs(
    model: ModelConfig,
    machine: transfer_cost.Machine,
    name: str,
    num_tokens: int = 256,
    dtype: str = "float16",
    block_size: int = 16,
    costs: ModuleType = transfer_cost,
) -> PreemptionCosts:
    """Swap and recompute by block size.

    Args:
        name: of the machine.
        num_tokens: of the sequence.
        block_size: for which the crossover in tokens is looked up.
        costs: has the functions of :mod:`minipaged.scheduling.transfer_cost`.
    """
    item = DTYPE_BYTES[dtype]
    recompute = costs.recompute_seconds(model, item, num_tokens, machine)

    def row(size: int) -> PreemptionRow:
        blocks = -(-num_tokens // size)
        return PreemptionRow(
            block_size=size,
            num_blocks=blocks,
            transfers=costs.swap_transfers(model, blocks),
            swap_out_ms=1e3 * costs.swap_seconds(model, item, blocks, size, machine.swap_out),
            swap_in_ms=1e3 * costs.swap_seconds(model, item, blocks, size, machine.swap_in),
            recompute_ms=1e3 * recompute,
            cheaper=costs.cheaper(model, item, num_tokens, size, machine),
        )

    return PreemptionCosts(
        model=model.name,
        dtype=dtype,
        machine=name,
        num_tokens=num_tokens,
        rows=[row(size) for size in figure_19a()],
        crossover_block_size=costs.crossover_block_size(model, item, num_tokens, machine),
        block_size=block_size,
        crossover_tokens=costs.crossover_tokens(
            model, item, block_size, machine, model.max_model_len
        ),
        max_model_len=model.max_model_len,
    )


# --------------------------------------------------------------------------- text
def render_preemption(
    costs: PreemptionCosts, paper: Mapping[int, tuple[float, float, float]] | None = None
) -> str:
    """The costs as a table.

    Args:
        paper: figure 19a, to stand beside it.
    """
    head = ["block size", "transfers"]
    for way in ("swap out", "swap in", "recompute"):
        head += [way, "paper"] if paper else [way]
    table = [[*head, "cheaper"]]
    for row in costs.rows:
        cells = [f"{row.block_size}", f"{row.transfers:,}"]
        for at, ms in enumerate((row.swap_out_ms, row.swap_in_ms, row.recompute_ms)):
            cells.append(f"{ms:.1f}")
            if paper:
                cells.append(f"{paper[row.block_size][at]:.1f}")
        table.append([*cells, row.cheaper])
    blocks = f"{costs.crossover_block_size}" if costs.crossover_block_size else "none up to 256"
    shortest = f"none up to {costs.max_model_len:,} tokens"
    if costs.crossover_tokens:
        shortest = f"{costs.crossover_tokens:,} tokens"
    return "\n".join(
        [
            f"{costs.model} in {costs.dtype} on {costs.machine}: one sequence of "
            f"{costs.num_tokens:,} tokens, milliseconds",
            "",
            *align(table, right=range(len(head))),
            "",
            "Transfers are those of one way; the cheaper is found over both, out and in.",
            f"The smallest blocks with which swapping is the cheaper: {blocks}.",
            f"The shortest sequence, in blocks of {costs.block_size}, for which recomputing is the "
            f"cheaper: {shortest}.",
        ]
    )


def render_plan(plan: Plan) -> str:
    """The plan as a table of plain text, each number with where it comes from."""
    cards = f" x {plan.tensor_parallel}" if plan.tensor_parallel > 1 else ""
    block = plan.block_size
    rows = [
        ("parameters", f"{plan.parameters:,}", ""),
        ("weights", gib(plan.weight_bytes), f"{plan.weight_bytes / 1e9:.1f} GB in {plan.dtype}"),
        ("activations", gib(plan.activation_bytes), "kept for all that is not weights or KV"),
        (
            "KV cache",
            gib(plan.kv_bytes),
            f"{plan.utilization:g} x {gib(plan.card_bytes)} - weights - activations",
        ),
        (
            "KV bytes a token",
            f"{plan.kv_bytes_per_token:,} B",
            f"2 x {plan.num_layers} layers x {plan.kv_heads} KV heads x {plan.head_dim} x "
            f"{DTYPE_BYTES[plan.dtype]} B",
        ),
        ("KV bytes a block", f"{plan.kv_bytes_per_block:,} B", f"{block} tokens"),
        ("blocks", f"{plan.num_blocks:,}", "KV cache / bytes a block"),
        ("slots", f"{plan.num_slots:,}", f"blocks x {block}"),
        ("watermark", f"{plan.watermark_blocks:,} blocks", f"{plan.watermark:g} x blocks"),
        ("swap", f"{plan.swap_blocks:,} blocks", f"in {gib(plan.swap_bytes)} of host memory"),
        ("sequences", f"{plan.max_sequences:,}", f"of {plan.max_model_len:,} tokens at a time"),
    ]
    lines = [f"{plan.model} on {plan.gpu}{cards}", "", *align(rows, right=(1,))]
    if plan.tensor_parallel > 1:
        lines += ["", "Bytes are those of one card; every card holds all blocks, with its heads."]
    if not plan.max_sequences:
        lines += [
            "",
            f"No sequence of {plan.max_model_len:,} tokens fits: the longest has "
            f"{plan.num_slots:,}. Use more cards, or a smaller --max-model-len.",
        ]
    return "\n".join(lines)


def render_overview(plans: Iterable[Plan], gpu: Gpu, left_out: Sequence[str] = ()) -> str:
    """One line for each plan.

    Args:
        left_out: names of the models that do not fit.
    """
    head = ("model", "cards", "weights", "KV a token", "blocks", "slots", "watermark",
            "swap blocks", "sequences")  # fmt: skip
    rows = [
        (
            plan.model,
            f"{plan.tensor_parallel}",
            gib(plan.weight_bytes),
            f"{plan.kv_bytes_per_token:,} B",
            f"{plan.num_blocks:,}",
            f"{plan.num_slots:,}",
            f"{plan.watermark_blocks:,}",
            f"{plan.swap_blocks:,}",
            f"{plan.max_sequences:,} x {plan.max_model_len:,}",
        )
        for plan in plans
    ]
    lines = [
        f"On {gpu.name} ({gib(gpu.memory_bytes)}), bytes of one card:",
        "",
        *align([head, *rows], right=range(1, len(head))),
    ]
    if left_out:
        lines += ["", f"Not on {gpu.name}: {', '.join(left_out)}."]
    return "\n".join(lines)


def render_table1(rows: Sequence[Table1Row]) -> str:
    """The paper's table 1 beside ours, and why they differ."""
    table = [("model", "cards", "", "paper", "ours", "difference")]
    for row in rows:
        table += [
            (row.model, f"{row.cards} x {row.gpu}", "parameters (GB)",
             *_compare(row.paper_params_gb, row.params_gb, "{:.0f}")),
            ("", "", "KV cache (GiB)", *_compare(row.paper_kv_gb, row.kv_gib, "{:.0f}")),
            ("", "", "slots (K)", *_compare(row.paper_kslots, row.kslots, "{:.1f}")),
            ("", "", "slots (K) in the paper's KV cache",
             *_compare(row.paper_kslots, row.kslots_of_paper_kv, "{:.1f}")),
        ]  # fmt: skip
    activations = f"{ACTIVATION_BYTES / GiB:.2f}"
    return "\n".join(
        [
            "Table 1 of the paper",
            "",
            *align(table, right=(3, 4, 5)),
            "",
            "ours: KV cache = 0.95 x memory that CUDA reports - weights - "
            f"{activations} GiB, for each card.",
            "The 0.95 is the setting of the authors' experiments. The "
            f"{activations} GiB are not in the paper: they",
            "are what its 13B row leaves, and the other two rows follow from them.",
            "parameters: the paper has the nominal size times 2 bytes, we count every tensor.",
            "KV cache: the paper's GB must be GiB, as 12e9 bytes would be 14.6K slots; and its 21",
            "for 66B is about 21.3, as 21 GiB are 9.6K slots.",
        ]
    )


def _compare(paper: float, ours: float, style: str) -> tuple[str, str, str]:
    percent = round(100 * (ours - paper) / paper, 1) or 0.0
    return style.format(paper), f"{ours:.2f}", f"{percent:+.1f} %"


# --------------------------------------------------------------------------- command line
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged plan``."""
    default = CacheConfig()
    parser.add_argument("--model", help="such as opt-13b; without it, every model on this GPU")
    parser.add_argument("--gpu", default="a100-40gb", help="default: %(default)s")
    parser.add_argument(
        "--tensor-parallel", "-tp", type=int, metavar="N",
        help="cards that share the model (default: 1; without --model the least that fit)",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=sorted(DTYPE_BYTES), default="float16")
    parser.add_argument("--block-size", type=int, default=default.block_size, metavar="TOKENS")
    parser.add_argument(
        "--gpu-memory-utilization", type=float, default=default.gpu_memory_utilization,
        metavar="FRACTION", help="of the card that the engine may use (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--swap-space", type=float, default=default.swap_space_bytes / GiB, metavar="GIB",
        help="host memory for each card (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--watermark", type=float, default=default.watermark, metavar="FRACTION")
    parser.add_argument("--max-model-len", type=int, metavar="TOKENS")
    parser.add_argument(
        "--activations", type=float, default=ACTIVATION_BYTES / GiB, metavar="GIB",
        help="kept on each card for all that is neither weights nor KV (default: %(default).2f)",
    )  # fmt: skip
    parser.add_argument("--table1", action="store_true", help="the paper's table 1 and ours")
    parser.add_argument(
        "--preemption", action="store_true",
        help="swap or recompute, by block size; without --model the paper's figure 19a and ours",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", type=int, default=256, metavar="N",
        help="of the sequence that is preempted (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--link", type=float, metavar="GB/S",
        help="that a long transfer to host memory reaches (default: 0.78 of the link's nominal)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--parts", default=default_spec(), metavar="SPEC",
        help="whose arithmetic: ref, mine (exercises/stage00_sizing/, and for --preemption "
        "stage06_preemption/) or a folder laid out like exercises/ (default: %(default)s)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print what was asked for; returns the exit status.

    Raises:
        CourseError: the parts cannot be had, or the student's arithmetic does not work.
        PlanError: a name is unknown, a value is out of range, or the model does not fit.
    """
    part = "transfer_cost" if args.preemption else "sizing"
    parts = load_parts(args.parts, only=[part])
    for note in parts.notes:
        print(f"minipaged: {note}", file=sys.stderr)
    with explained(parts):
        try:
            if args.preemption:
                data, text = _preemption(args, parts.module(transfer_cost.__name__))
            else:
                data, text = _answer(args, parts.module(sizing.__name__))
        except ConfigError as error:
            raise PlanError(str(error)) from None
    print(json.dumps(data, indent=2) if args.json else text)
    return 0


def _preemption(args: argparse.Namespace, costs: ModuleType) -> tuple[object, str]:
    """The costs of a preemption, as data and as text."""
    if args.tokens < 1:
        raise ConfigError(f"tokens must be at least 1, not {args.tokens}")
    if args.link is not None and args.link <= 0:
        raise ConfigError(f"link must be above 0 GB/s, not {args.link:g}")
    block_size = CacheConfig(block_size=args.block_size).block_size
    if args.model is None:
        model = CATALOG[FIGURE_19A_MODEL]
        machine, name = transfer_cost.A100_2023, "the paper's A100"
        found = preemption_costs(model, machine, name, block_size=block_size, costs=costs)
        return asdict(found), render_preemption(found, figure_19a())
    gpu = find_gpu(args.gpu)
    machine = machine_of(gpu, None if args.link is None else args.link * 1e9)
    name = f"{gpu.name}, {machine.swap_out.bytes_per_s / 1e9:.3g} GB/s to host memory"
    found = preemption_costs(
        find_model(args.model), machine, name, args.tokens, args.dtype, block_size, costs
    )
    return asdict(found), render_preemption(found)


def _answer(args: argparse.Namespace, arithmetic: ModuleType) -> tuple[object, str]:
    """What was asked for, as data and as text."""
    if args.table1:
        rows = table1(arithmetic)
        return [asdict(row) for row in rows], render_table1(rows)
    if args.max_model_len is not None and args.max_model_len < 1:
        raise ConfigError(f"max_model_len must be at least 1, not {args.max_model_len}")
    if args.activations < 0:
        raise ConfigError(f"activations must be at least 0 GiB, not {args.activations:g}")
    if args.tensor_parallel is not None and args.tensor_parallel < 1:
        raise ConfigError(f"tensor_parallel must be at least 1, not {args.tensor_parallel}")
    gpu = find_gpu(args.gpu)
    cache = CacheConfig(
        block_size=args.block_size,
        gpu_memory_utilization=args.gpu_memory_utilization,
        swap_space_bytes=round(args.swap_space * GiB),
        watermark=args.watermark,
    )
    rest = (args.dtype, cache, args.max_model_len, round(args.activations * GiB), arithmetic)
    if args.model is not None:
        ranks = 1 if args.tensor_parallel is None else args.tensor_parallel
        plan = make_plan(find_model(args.model), gpu, ranks, *rest)
        return asdict(plan), render_plan(plan)
    plans, left_out = [], []
    for model in CATALOG.values():
        ranks = args.tensor_parallel or least_tensor_parallel(model, gpu, *rest)
        try:
            plans.append(make_plan(model, gpu, ranks or 1, *rest))
        except (PlanError, ConfigError):
            left_out.append(model.name)
    return [asdict(plan) for plan in plans], render_overview(plans, gpu, left_out)
