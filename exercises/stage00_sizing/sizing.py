"""How large is the KV cache, and how many tokens fit? Arithmetic only (paper, section 3 and
table 1).

Units are in the names: ``_bytes`` are bytes, ``num_tokens`` and slots are tokens, blocks are
``block_size`` slots. A *rank* is one of the cards that a model is spread over (tensor parallelism).
Every number of bytes or blocks here is that of *one* rank: all ranks hold the same blocks, each
with its own heads (paper, section 4.6).

Bytes, tokens, slots and blocks are whole numbers; so is every result, and each is an ``int``.
Sizes of tokens and blocks, in bytes or in slots, are at least 1.

Stage 0, sizing the KV cache::

    read    lessons/00-sizing.md
    write   0.1  Bytes a token      5 points
            0.2  Slots and blocks   6 points
            0.3  Growth             4 points
    also    robustness 3 points, counterexample.toml 2 points
    check   minipaged grade 0
    stuck   minipaged hint 0.1
    use it  minipaged plan --table1 --parts mine
    next    lessons/01-contiguous.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minipaged.config import ModelConfig
from minipaged.errors import ConfigError


# --------------------------------------------------------------------------- bytes a token
def kv_heads_per_rank(model: ModelConfig, tensor_parallel: int = 1) -> int:
    """KV heads that one of ``tensor_parallel`` ranks stores.

    Heads are never cut: query heads are spread evenly over the ranks, and a rank stores each
    KV head that one of its query heads reads. So where there are fewer KV heads than ranks,
    several ranks store the same one.

    Args:
        model: has ``num_heads`` query heads and ``num_kv_heads`` KV heads in each layer; the
            second divides the first.

    Example: of 32 query heads with 8 KV heads, each of 4 ranks stores 2 KV heads.

    Raises:
        ConfigError: ``tensor_parallel`` is below 1 or does not divide the query heads; or,
            of KV heads and ranks, neither number is a multiple of the other. The message names
            the value of ``tensor_parallel`` and, where heads are the reason, how many.
    """
    raise NotImplementedError("stage 0, task 0.1: see lessons/00-sizing.md")


def kv_bytes_per_token(model: ModelConfig, dtype_bytes: int, tensor_parallel: int = 1) -> int:
    """Bytes of keys and values of one token, over all layers, on one rank.

    Args:
        model: has ``num_layers`` layers; a key is ``head_dim`` numbers for each KV head, and so
            is a value.
        dtype_bytes: bytes of one number (float16: 2).

    Example: OPT-13B (40 layers, 40 heads of 128) in float16 needs 819,200 B: the paper's
    800 KB a token (section 3; its KB are 1,024 bytes).

    Raises:
        ConfigError: as :func:`kv_heads_per_rank`.
    """
    raise NotImplementedError("stage 0, task 0.1: see lessons/00-sizing.md")


def kv_bytes_per_block(
    model: ModelConfig, dtype_bytes: int, block_size: int, tensor_parallel: int = 1
) -> int:
    """Bytes of one physical block of ``block_size`` tokens, over all layers, on one rank.

    Raises:
        ConfigError: as :func:`kv_heads_per_rank`.
    """
    raise NotImplementedError("stage 0, task 0.1: see lessons/00-sizing.md")


# --------------------------------------------------------------------------- slots and blocks
def kv_budget_bytes(
    card_bytes: int, utilization: float, weight_bytes: int, activation_bytes: int
) -> int:
    """Bytes of one card that are left for its KV cache.

    Args:
        card_bytes: memory of the card.
        utilization: fraction of it that the engine may use for everything.
        weight_bytes: parameters that this rank holds.
        activation_bytes: kept for all that is neither weights nor KV cache.

    Returns:
        Whole bytes: what the engine may use is rounded down, as the product comes out in floats,
        before anything is taken from it. Negative by as much as the model is too large.
    """
    raise NotImplementedError("stage 0, task 0.2: see lessons/00-sizing.md")


def slots_that_fit(budget_bytes: int, token_bytes: int) -> int:
    """Token slots in a budget, before they are cut into blocks; 0 for a negative budget.

    Example: 12 GiB, neither more nor less, at OPT-13B's 819,200 B are 15,728 slots: the paper's
    15.7K (table 1).
    """
    raise NotImplementedError("stage 0, task 0.2: see lessons/00-sizing.md")


def blocks_that_fit(budget_bytes: int, block_bytes: int) -> int:
    """Whole blocks of ``block_bytes`` in a budget; 0 for a budget that is negative.

    The pool on the card and the swap space in host memory are sized in the same way.
    """
    raise NotImplementedError("stage 0, task 0.2: see lessons/00-sizing.md")


def watermark_blocks(num_blocks: int, watermark: float) -> int:
    """Blocks that admission leaves free: that fraction of the pool, rounded down.

    The product is that of floats: 0.29 of 100 blocks are 28, as ``100 * 0.29`` is 28.999….
    """
    raise NotImplementedError("stage 0, task 0.2: see lessons/00-sizing.md")


def blocks_for_tokens(num_tokens: int, block_size: int) -> int:
    """Blocks that a sequence with ``num_tokens`` tokens holds: filled from the first on, so that
    only the last may be partly filled; none without a token."""
    raise NotImplementedError("stage 0, task 0.2: see lessons/00-sizing.md")


def sequences_that_fit(num_blocks: int, num_tokens: int, block_size: int) -> int:
    """Sequences of ``num_tokens`` tokens each that ``num_blocks`` blocks hold at once, when
    they share nothing.

    Args:
        num_tokens: at least 1.
    """
    raise NotImplementedError("stage 0, task 0.2: see lessons/00-sizing.md")


# --------------------------------------------------------------------------- growth
@dataclass(frozen=True, slots=True)
class KVGrowth:
    """Bytes of KV cache that a batch occupies after ``step`` decode steps.

    Attributes:
        needed_bytes: one slot for each token.
        paged_bytes: whole blocks for each sequence.
        reserved_bytes: ``max_model_len`` slots for each sequence.
    """

    step: int
    needed_bytes: int
    paged_bytes: int
    reserved_bytes: int


def kv_growth(
    prompt_lens: Sequence[int],
    output_lens: Sequence[int],
    token_bytes: int,
    block_size: int,
    max_model_len: int,
) -> list[KVGrowth]:
    """How the cache of a batch grows while it decodes.

    All sequences start together. After step ``t``, sequence ``i`` has ``prompt_lens[i] + t``
    tokens in the cache as long as ``t <= output_lens[i]``; from the next step on it is finished
    and occupies nothing. No sequence shares anything.

    Returns:
        One entry for each of the steps ``0 .. max(output_lens)``; none for an empty batch.

    Example: a prompt of 2 with 1 output token, 1 B a token, blocks of 4, at most 8 tokens:
    step 0 needs 2 B, pages 4 B and reserves 8 B; step 1 needs 3, pages 4 and reserves 8.

    Raises:
        ValueError: the two lists differ in length, or a sequence outgrows ``max_model_len``.
            The message names the two lengths; or the two lengths of the sequence and
            ``max_model_len``.
    """
    raise NotImplementedError("stage 0, task 0.3: see lessons/00-sizing.md")
