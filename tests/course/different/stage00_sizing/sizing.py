"""A right answer that has nothing in common with the reference's: heads and blocks are counted out,
fractions are exact, and a batch is lived sequence by sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from itertools import accumulate, repeat

from minipaged.errors import ConfigError


def kv_heads_per_rank(model, tensor_parallel=1):
    if tensor_parallel < 1:
        raise ConfigError(f"{tensor_parallel} ranks are too few")
    queries, odd = divmod(model.num_heads, tensor_parallel)
    if odd:
        raise ConfigError(f"{model.num_heads} heads on {tensor_parallel} ranks: {odd} are left")
    if math.gcd(model.num_kv_heads, tensor_parallel) not in (model.num_kv_heads, tensor_parallel):
        raise ConfigError(f"{tensor_parallel} ranks cannot store {model.num_kv_heads} KV heads")
    group = model.num_heads // model.num_kv_heads
    return len({query // group for query in range(queries)})


def kv_bytes_per_token(model, dtype_bytes, tensor_parallel=1):
    return kv_bytes_per_block(model, dtype_bytes, 1, tensor_parallel)


def kv_bytes_per_block(model, dtype_bytes, block_size, tensor_parallel=1):
    shape = (2, model.num_layers, block_size, kv_heads_per_rank(model, tensor_parallel))
    return math.prod((*shape, model.head_dim)) * dtype_bytes


def _share(whole, part):
    exact = Decimal(str(part)) * whole
    return int(exact.to_integral_value(rounding=ROUND_FLOOR))


def kv_budget_bytes(card_bytes, utilization, weight_bytes, activation_bytes):
    return _share(card_bytes, utilization) - (weight_bytes + activation_bytes)


def slots_that_fit(budget_bytes, token_bytes):
    return (
        0
        if budget_bytes < token_bytes
        else (budget_bytes - budget_bytes % token_bytes) // (token_bytes)
    )


def blocks_that_fit(budget_bytes, block_bytes):
    return slots_that_fit(budget_bytes, block_bytes)


def watermark_blocks(num_blocks, watermark):
    return _share(num_blocks, watermark)


def blocks_for_tokens(num_tokens, block_size):
    full, rest = divmod(num_tokens, block_size)
    return full + (rest > 0)


def sequences_that_fit(num_blocks, num_tokens, block_size):
    count = 0
    while num_blocks >= blocks_for_tokens(num_tokens, block_size):
        num_blocks -= blocks_for_tokens(num_tokens, block_size)
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class KVGrowth:
    step: int
    needed_bytes: int
    paged_bytes: int
    reserved_bytes: int


def kv_growth(prompt_lens, output_lens, token_bytes, block_size, max_model_len):
    pairs = list(zip(prompt_lens, output_lens))
    if len(pairs) < max(len(prompt_lens), len(output_lens)):
        raise ValueError(f"{len(prompt_lens)} prompts and {len(output_lens)} outputs")
    totals = [[0, 0, 0] for _ in range(max(output_lens, default=-1) + 1)]
    for prompt, output in pairs:
        if prompt + output > max_model_len:
            raise ValueError(f"{prompt} and {output} tokens are more than {max_model_len}")
        lengths = accumulate(repeat(1, output), initial=prompt)
        for total, length in zip(totals, lengths):
            total[0] += length
            total[1] += blocks_for_tokens(length, block_size) * block_size
            total[2] += max_model_len
    return [
        KVGrowth(step, *(slots * token_bytes for slots in total))
        for step, total in enumerate(totals)
    ]
