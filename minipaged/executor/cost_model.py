"""How long a step takes: a closed form, with a term for everything that a step waits for.

A step reads the weights once, multiplies every token with them, reads the keys and values of every
context, and has a host that prepares it. On several cards it adds up activations; when memory is
short it moves blocks. Each of these is a term, so that a run can be asked where its time went.

What a card promises is in :mod:`minipaged.hardware`, what a model needs in its shape. An
:class:`Efficiency` says what fraction of the promise a system gets; :data:`EFFICIENCIES` has them
by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from minipaged.config import ModelConfig
from minipaged.hardware import Gpu
from minipaged.kvcache.sizing import kv_bytes_per_token
from minipaged.models.catalog import parameter_count


class StepLoad(NamedTuple):
    """What a step has to do.

    Attributes:
        tokens: that it computes.
        sequences: that it computes tokens of.
        context: tokens whose keys and values it reads from the cache: for each sequence those
            before the tokens that it computes.
        pairs: (query, key) pairs of prompts and chunks: what causal attention over ``n`` tokens
            computes at once, ``n (n + 1) / 2`` and the history before it.
        copied: blocks that are copied on the card.
        swapped_out, swapped_in: blocks that go to the host, and come from it.
    """

    tokens: int
    sequences: int
    context: int
    pairs: int = 0
    copied: int = 0
    swapped_out: int = 0
    swapped_in: int = 0


class StepSeconds(NamedTuple):
    """Where the time of a step goes. The terms add up to the step (units: seconds).

    Attributes:
        weights: reading the weights from the card's memory.
        compute: multiplying; where a system does that while it reads the weights, what it takes
            beyond that.
        kv: reading keys and values, and copying blocks on the card.
        host: preparing the step, launching kernels, sampling and booking.
        network: adding up the activations of several cards.
        link: blocks on their way between card and host.
    """

    weights: float = 0.0
    compute: float = 0.0
    kv: float = 0.0
    host: float = 0.0
    network: float = 0.0
    link: float = 0.0


@dataclass(frozen=True)
class Efficiency:
    """What a serving system gets out of the hardware. Fractions are of the data sheet.

    Attributes:
        weights_bandwidth, kv_bandwidth: of the card's memory bandwidth, for reading the weights
            and for reading keys and values.
        half_block: keys and values come at half of ``kv_bandwidth`` with blocks of this many
            tokens: at ``B / (B + half_block)`` of it with blocks of B. 0: any block size is alike.
        matrix_flops, attention_flops: of the tensor cores' peak, for the products with the
            weights and for attention over a prompt.
        overlap: are tokens multiplied while the weights are read? A step takes the longer of the
            two then, and otherwise both.
        step_seconds: the host's time for a step, whatever is in it.
        layer_seconds: for launching the kernels of one layer.
        sequence_seconds: for each sequence of the step.
        link_bandwidth: of the nominal bandwidth to the host; one number for each direction.
        transfer_seconds: fixed cost of a transfer to the host, and from it. A block is two
            transfers (keys, values) in every layer.
        reduce_seconds: fixed cost of adding up the activations of all cards, of which a layer
            has two.
        reduce_bandwidth: of the nominal bandwidth between the cards.
    """

    weights_bandwidth: float = 1.0
    kv_bandwidth: float = 1.0
    half_block: float = 0.0
    matrix_flops: float = 1.0
    attention_flops: float = 1.0
    overlap: bool = True
    step_seconds: float = 0.0
    layer_seconds: float = 0.0
    sequence_seconds: float = 0.0
    link_bandwidth: tuple[float, float] = (1.0, 1.0)
    transfer_seconds: tuple[float, float] = (0.0, 0.0)
    reduce_seconds: float = 0.0
    reduce_bandwidth: float = 1.0


@dataclass(frozen=True)
class CostModel:
    """The terms of a step for one model on one kind of card, in seconds a unit.

    Attributes:
        weights: reading all weights once.
        per_token, per_pair: multiplying a token with the weights; a query with a key.
        per_context_token: reading the keys and values of a token.
        per_copied_block: a block on the card.
        step, per_sequence: the host.
        reduce, per_reduced_token: adding up over the cards.
        per_block_out, per_block_in: a block over the link.
        overlap: see :class:`Efficiency`.
    """

    weights: float
    per_token: float
    per_pair: float
    per_context_token: float
    per_copied_block: float
    step: float
    per_sequence: float
    reduce: float
    per_reduced_token: float
    per_block_out: float
    per_block_in: float
    overlap: bool

    def seconds(self, load: StepLoad) -> StepSeconds:
        """The terms of a step. One that computes no token (it only moves blocks) reads no
        weights."""
        if load.tokens:
            weights, network = self.weights, self.reduce + load.tokens * self.per_reduced_token
        else:
            weights = network = 0.0
        compute = load.tokens * self.per_token + load.pairs * self.per_pair
        if self.overlap:
            compute = max(0.0, compute - weights)
        return StepSeconds(
            weights,
            compute,
            load.context * self.per_context_token + load.copied * self.per_copied_block,
            self.step + load.sequences * self.per_sequence,
            network,
            load.swapped_out * self.per_block_out + load.swapped_in * self.per_block_in,
        )


def make_cost_model(
    model: ModelConfig,
    gpu: Gpu,
    tensor_parallel: int = 1,
    block_size: int = 16,
    efficiency: Efficiency | None = None,
    dtype_bytes: int = 2,
) -> CostModel:
    """The terms for a model that is spread evenly over ``tensor_parallel`` cards.

    Args:
        efficiency: None: what the hardware allows.
        dtype_bytes: of a weight, a key and a value.
    """
    get = efficiency or Efficiency()
    parameters, layers = parameter_count(model), model.num_layers
    token_bytes = kv_bytes_per_token(model, dtype_bytes, tensor_parallel)
    block_bytes = token_bytes * block_size
    matrix_flops = tensor_parallel * gpu.fp16_flops * get.matrix_flops
    attention_flops = tensor_parallel * gpu.fp16_flops * get.attention_flops
    kv_bytes_per_s = gpu.hbm_bytes_per_s * get.kv_bandwidth
    block_share = block_size / (block_size + get.half_block)
    several = tensor_parallel > 1
    out, back = (
        block_bytes / (gpu.host_link_bytes_per_s * share) + 2 * layers * fixed
        for share, fixed in zip(get.link_bandwidth, get.transfer_seconds)
    )
    # A ring passes each value on once to be added up and once to be known, in parts.
    reduced_bytes = 2.0 * layers * model.hidden_size * dtype_bytes
    reduced_bytes *= 2 * (tensor_parallel - 1) / tensor_parallel
    weights_bytes_per_s = tensor_parallel * gpu.hbm_bytes_per_s * get.weights_bandwidth
    return CostModel(
        weights=parameters * dtype_bytes / weights_bytes_per_s,
        per_token=2 * parameters / matrix_flops,
        per_pair=4 * layers * model.num_heads * model.head_dim / attention_flops,
        per_context_token=token_bytes / (kv_bytes_per_s * block_share),
        per_copied_block=2 * block_bytes / kv_bytes_per_s,
        step=get.step_seconds + layers * get.layer_seconds,
        per_sequence=get.sequence_seconds,
        reduce=2 * layers * get.reduce_seconds if several else 0.0,
        per_reduced_token=reduced_bytes / (gpu.peer_link_bytes_per_s * get.reduce_bandwidth),
        per_block_out=out,
        per_block_in=back,
        overlap=get.overlap,
    )


#: What the hardware allows: the data sheets, and nothing else takes time.
ROOFLINE = Efficiency()

#: vLLM and the baselines of the paper's experiments. All of them run on the same kernels there, so
#: they differ in nothing here. Where the numbers come from:
#:
#: * Fitted on figure 1 and the rates of the three Orca systems in figure 12a (OPT-13B, ShareGPT),
#:   by ``scripts/fit_paper_2023.py``: ``layer_seconds``, and ``kv_bandwidth``, which stays at its
#:   bound. The two figures disagree on how long a step takes; what stands here is in between.
#: * Fitted on one curve of figure 18b (ShareGPT), by hand to a whole number: ``half_block``.
#: * Fitted on figure 19a (see :mod:`minipaged.scheduling.transfer_cost`): both directions of the
#:   link, ``transfer_seconds``, and ``matrix_flops``.
#: * Measured by others on A100s: ``weights_bandwidth`` (65 to 78 % of the peak in decode products),
#:   ``attention_flops`` (30 to 59 TFLOP/s over prompts), ``overlap`` (a layer takes as long for 64
#:   tokens as for one).
#: * Judgment: ``sequence_seconds`` (0.2 ms were measured on an engine that was half a year younger,
#:   0.14 of them for what comes out), ``reduce_seconds``, ``reduce_bandwidth``.
PAPER_2023 = Efficiency(
    weights_bandwidth=0.77,
    kv_bandwidth=1.0,
    half_block=4.0,
    matrix_flops=0.537,
    attention_flops=0.15,
    layer_seconds=0.183e-3,
    sequence_seconds=0.25e-3,
    link_bandwidth=(0.411, 0.385),
    transfer_seconds=(2.03e-6, 3.59e-6),
    reduce_seconds=30e-6,
    reduce_bandwidth=0.5,
)

EFFICIENCIES: Mapping[str, Efficiency] = MappingProxyType(
    {"roofline": ROOFLINE, "paper_2023": PAPER_2023}
)
