"""What a preemption costs: to swap the blocks out and in again, or to compute them again?
(paper, sections 4.5 and 7.3). Arithmetic only; one sequence, on one card.

Units are in the names: ``_bytes`` are bytes, ``_seconds`` seconds, ``_per_s`` something a second.
Counts are whole numbers, and so are bytes and FLOPs: each is an ``int``. Times are floats.

Where the constants come from
-----------------------------

:data:`A100_2023` is the paper's machine, as figure 19a shows it: OPT-13B on an A100-40GB. Fitted
on two block sizes, 16 and 256: bandwidth and cost of a transfer, each way, on the two points of a
curve, and the FLOP/s on the time to recompute at 16. Judged on the block sizes 2 to 128 that are
left: swap-in is within 1 %, swap-out within 4 %, recomputation within 5 %. At block size 1 swap-in
comes out 10 % too slow. The figure does not say how long its sequence is; 256 tokens is the only
power of two that leaves recomputation possible (512 would take more FLOP/s than the card has) and
lets a block of 256 be filled.

"Recomputation overhead is never higher than 20% of swapping's latency" (section 7.3) cannot be
read as it stands: in figure 19a recomputing takes from 26 % (blocks of 1) to 117 % (blocks of
256) of swapping out and in. What holds in the data is that it is never more than 20 % *above* it.

Stage 6, preemption::

    read    lessons/06-preemption.md
    write   6.4  Swap or recompute?  10 points
    also    robustness 14 points, counterexample.toml 6 points
    check   minipaged grade 6
    stuck   minipaged hint 6.4
    use it  minipaged plan --preemption --parts mine
    next    lessons/07-kernel.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minipaged.config import ModelConfig


@dataclass(frozen=True)
class Link:
    """The way between device and host, in one direction.

    Attributes:
        bytes_per_s: that one long transfer reaches.
        transfer_seconds: what every transfer costs on top, however small it is: the host has to
            launch it. Small blocks are many transfers, and do not fill the link.
    """

    bytes_per_s: float
    transfer_seconds: float


@dataclass(frozen=True)
class Machine:
    """What a card and its host do in a second; not what their data sheets promise.

    Attributes:
        flops_per_s: floating-point operations that a prefill reaches.
        memory_bytes_per_s: at which the card reads its own memory.
        launch_seconds: that the host takes to launch the kernels of one layer.
        swap_out, swap_in: the link to host memory, and back.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    launch_seconds: float
    swap_out: Link
    swap_in: Link


#: The paper's A100-40GB and its host; fitted on figure 19a as the module says. The bandwidth of the
#: card's memory is its data sheet's; a layer is taken to be 10 kernels of 5 µs. Neither shows in
#: the figure.
A100_2023 = Machine(
    flops_per_s=167.5e12,
    memory_bytes_per_s=1555e9,
    launch_seconds=50e-6,
    swap_out=Link(13.15e9, 2.03e-6),
    swap_in=Link(12.33e9, 3.59e-6),
)


def matrix_weights(model: ModelConfig) -> int:
    """Weights of the layers' matrices: those that every token is multiplied with.

    Queries, keys, values, the output of attention, and the MLP; LLaMA's MLP has three matrices,
    OPT's two. Embeddings are looked up, and the head is for one token only: both are left out.

    Example: OPT-13B has 12,582,912,000.
    """
    hidden = model.hidden_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = hidden * (2 * queries + 2 * keys)
    mlp = (3 if model.architecture == "llama" else 2) * hidden * model.intermediate_size
    return model.num_layers * (attention + mlp)


# --------------------------------------------------------------------------- swap
def swap_bytes(model: ModelConfig, dtype_bytes: int, num_blocks: int, block_size: int) -> int:
    """Bytes of keys and values that go over the link in one direction.

    Whole blocks travel, the empty slots of a partly filled one included. A key is ``head_dim``
    numbers of ``dtype_bytes`` each for every *KV* head of every layer, and so is a value.

    Args:
        num_blocks: physical blocks; one that siblings share is one.

    Example: OPT-13B (40 layers, 40 KV heads of 128) in float16: 16 blocks of 16 are
    209,715,200 B.
    """
    raise NotImplementedError("stage 6, task 6.4: see lessons/06-preemption.md")


def swap_transfers(model: ModelConfig, num_blocks: int) -> int:
    """Transfers that these are, in one direction.

    Each layer has a cache of keys and one of values, apart from all others. In each, a block is
    one piece of memory, and two blocks need not be neighbors: a piece is a transfer.

    Example: 16 blocks of OPT-13B, which has 40 layers, are 1,280.
    """
    raise NotImplementedError("stage 6, task 6.4: see lessons/06-preemption.md")


def swap_seconds(
    model: ModelConfig, dtype_bytes: int, num_blocks: int, block_size: int, link: Link
) -> float:
    """Time that blocks take over a link: their bytes at its bandwidth, and on top of that its
    fixed cost for each transfer.

    Example: 16 blocks of 16 of OPT-13B in float16 over ``A100_2023.swap_in``: 17.0 ms for the
    bytes and 4.6 ms for 1,280 transfers are 21.6 ms, as in figure 19a.
    """
    raise NotImplementedError("stage 6, task 6.4: see lessons/06-preemption.md")


# --------------------------------------------------------------------------- recompute
def recompute_flops(model: ModelConfig, num_tokens: int) -> int:
    """Floating-point operations of one prefill over ``num_tokens`` tokens.

    A multiplication and the addition to the sum are two operations. Each token is multiplied with
    every weight of :func:`matrix_weights`. In each layer, each *query* head of a token has a
    product of ``head_dim`` numbers with the key of every token up to and with itself, and adds
    each of their values, ``head_dim`` numbers, times a weight.

    Example: OPT-13B, 256 tokens: 6.442 TFLOP in the matrices and 0.027 in attention.
    """
    raise NotImplementedError("stage 6, task 6.4: see lessons/06-preemption.md")


def recompute_seconds(
    model: ModelConfig, dtype_bytes: int, num_tokens: int, machine: Machine
) -> float:
    """Time of this prefill, as a roofline: three things go on at the same time, and the slowest
    one is what it takes.

    * the FLOPs are computed;
    * the weights of the matrices, ``dtype_bytes`` each, are read from the card's memory, once for
      all tokens;
    * the host launches one layer after the other.

    Example: OPT-13B in float16 on ``A100_2023``: 16 tokens take 16.2 ms, since reading the weights
    takes that long; 256 tokens 38.6 ms, for their FLOPs.
    """
    raise NotImplementedError("stage 6, task 6.4: see lessons/06-preemption.md")


# --------------------------------------------------------------------------- which is cheaper?
def cheaper(
    model: ModelConfig, dtype_bytes: int, num_tokens: int, block_size: int, machine: Machine
) -> Literal["swap", "recompute"]:
    """What takes less time for a sequence with ``num_tokens`` tokens in the cache: to swap its
    blocks out and later in again, or to compute its tokens again? ``recompute`` if it is the same:
    that needs no host memory.

    Example: OPT-13B in float16, 256 tokens on ``A100_2023``: ``recompute`` with blocks of 16
    (38.6 ms against 18.5 + 21.6), ``swap`` with blocks of 32 (38.6 against 17.2 + 19.3).
    """
    raise NotImplementedError("stage 6, task 6.4: see lessons/06-preemption.md")


def crossover_block_size(
    model: ModelConfig, dtype_bytes: int, num_tokens: int, machine: Machine, largest: int = 256
) -> int | None:
    """The smallest block size, of the powers of two up to ``largest``, with which swapping is the
    cheaper; None if it is with none of them.

    Example: OPT-13B in float16, 256 tokens on ``A100_2023``: 32.
    """
    raise NotImplementedError("stage 6, task 6.4: see lessons/06-preemption.md")


def crossover_tokens(
    model: ModelConfig, dtype_bytes: int, block_size: int, machine: Machine, most: int
) -> int | None:
    """The fewest tokens, of 1 to ``most``, for which recomputing is the cheaper; None if it is for
    none of them.

    A short sequence is swapped in no time, and a prefill takes its time however short it is. How
    it goes on depends on the two slopes.

    Example: OPT-13B in float16 with blocks of 16 on ``A100_2023``: 97.
    """
    raise NotImplementedError("stage 6, task 6.4: see lessons/06-preemption.md")
