"""Task 8.5: the bytes that a kernel must move, those that it does move, and the machine code that
moves them."""

from __future__ import annotations

import numpy as np
import pytest
from fast_kernel_oracle import Batch, Bytes, blocks_for

from minipaged.course.testing import expect

#: Query heads, KV heads and head dimensions of the models that kernels are compiled for.
MODELS = {"13b": (40, 40, 128), "gqa": (32, 8, 128)}
TINY = (8, 2, 16)
NUM_BLOCKS, BLOCK_SIZE, CONTEXT_LEN, NUM_SEQS = 1024, 16, 2048, 8


def random_shape(rng):
    kv_heads = int(rng.integers(1, 5))
    heads = kv_heads * int(rng.integers(1, 5))
    return Bytes(
        heads, kv_heads, int(rng.choice([16, 64, 80])), int(rng.integers(3, 20)),
        int(rng.choice([2, 4])),
    )  # fmt: skip


def shape_of(parts, sizes):
    return parts.AttentionShape(
        sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.block_size, sizes.element
    )


def expect_traffic(found, wanted, call, sizes):
    got = found.loaded, found.stored
    expect(got, wanted, f"{call}, {sizes}: bytes loaded, and stored")


def random_lengths(rng, count, longest=60):
    return [int(n) for n in rng.integers(0, longest, count)]


# --------------------------------------------------------------------------- what must move
def test_decode_moves_each_key_and_value_once(parts, rng):
    for count in (1, 1, 3, 5):
        sizes = random_shape(rng)
        lengths = [*random_lengths(rng, count), sizes.block_size, 0]
        found = parts.decode_traffic(lengths, shape_of(parts, sizes))
        expect_traffic(found, sizes.decode(lengths), f"decode_traffic({lengths})", sizes)


def test_a_split_leaves_a_workspace(parts, rng):
    for splits in (1, 2, 3, 4, int(rng.integers(5, 12))):
        sizes, tile = random_shape(rng), int(rng.choice([8, 16]))
        lengths = [*random_lengths(rng, 3), 2 * tile, 0]
        found = parts.split_traffic(lengths, splits, tile, shape_of(parts, sizes))
        call = f"split_traffic({lengths}, {splits}, {tile})"
        expect_traffic(found, sizes.split(lengths, splits, tile), call, sizes)


def test_a_tile_of_queries_reads_what_its_last_one_sees(parts, rng):
    for rows in (None, 1, 4, 16, 64):
        sizes = random_shape(rng)
        queries = [*random_lengths(rng, 3, 30), 0]
        lengths = [n + int(rng.integers(0, 30)) for n in queries]
        found = parts.prefill_traffic(queries, lengths, shape_of(parts, sizes), rows)
        call = f"prefill_traffic({queries}, {lengths}, tile_rows={rows})"
        expect_traffic(found, sizes.prefill(queries, lengths, rows), call, sizes)


# --------------------------------------------------------------------------- what does move
def expect_near_the_floor(moved, must, least, why):
    """Keys and values are counted to the byte; the rest may be a little more than it must.

    Args:
        moved: by parameter of the kernels, as ``lab.traffic`` gives it.
        must: bytes.
        least: ``must / moved``, at least.
    """
    does = sum(moved[name][way] for name in moved for way in ("loaded", "stored"))
    reached = must / does
    if reached < least:
        raise AssertionError(
            f"{why}: of {does} bytes that move, {must} must: expected at least "
            f"{least:.0%}, got {reached:.0%}"
        )


def decodes(parts, lab, rng, heads, kv_heads):
    """A ragged batch in half precision, what a decode kernel is given, and what it must move."""
    lengths = [1, 150, *(int(n) for n in rng.integers(20, 100, 2))]
    sizes = Bytes(heads, kv_heads, 64, BLOCK_SIZE, 2)
    batch = Batch.random(
        lab, rng, lengths, heads=heads, kv_heads=kv_heads, head_dim=64, block_size=BLOCK_SIZE,
        dtype="float16",
    )  # fmt: skip
    must = parts.decode_traffic(lengths, shape_of(parts, sizes))
    expect_traffic(must, sizes.decode(lengths), f"decode_traffic({lengths})", sizes)
    return batch, [*batch.tensors().values()], sizes, must


def kv_bytes(moved):
    return moved["k_cache"]["loaded"] + moved["v_cache"]["loaded"]


def compiled_for(sizes, dtype="float16", **changes):
    """The arguments of a step, as the audit takes them: shapes and types, and no memory."""
    heads, kv_heads, head_dim = sizes
    cache = [dtype, [NUM_BLOCKS, kv_heads, BLOCK_SIZE, head_dim]]
    return {
        "q": [dtype, [NUM_SEQS, heads, head_dim]],
        "k_cache": cache,
        "v_cache": cache,
        "block_tables": ["int32", [NUM_SEQS, CONTEXT_LEN // BLOCK_SIZE]],
        "context_lens": ["int32", [NUM_SEQS]],
        "scale": head_dim**-0.5,
        **changes,
    }


def prompts_for(sizes, dtype="float16"):
    heads, _, head_dim = sizes
    return compiled_for(
        sizes,
        dtype,
        q=[dtype, [NUM_SEQS * CONTEXT_LEN, heads, head_dim]],
        query_start=["int32", [NUM_SEQS + 1]],
        max_query_len=CONTEXT_LEN,
    )


PARTS = {"max_context_len": CONTEXT_LEN, "num_splits": 8}


@pytest.fixture
def machine_code(request, audit):
    """Audits a function. Nothing is random in there: it is compiled for the seed that everybody
    sees, and passes without a look for others."""

    def look(function, arguments, asked):
        return audit(function, arguments, asked) if request.config.getoption("seed") == 0 else None

    return look


def expect_full_width(machine_code, function, arguments, asked):
    audited = machine_code(function, arguments, asked)
    found = audited.sentences if audited else []
    if found:
        dtype, (_, heads, head_dim) = arguments["q"]
        shape = f"{heads} heads over {arguments['k_cache'][1][1]}, {head_dim} dims, {dtype}"
        raise AssertionError(f"{function}, compiled for sm_80; {shape}: {'; '.join(found)}")


@pytest.mark.parametrize("model", MODELS)
def test_version_1_moves_what_it_must_at_full_width(parts, lab, rng, machine_code, model):
    heads, kv_heads = (4, 4) if model == "13b" else (8, 2)
    batch, (*given, out), sizes, must = decodes(parts, lab, rng, heads, kv_heads)
    moved = lab.traffic(parts.paged_decode_v1, *given, 0.125, out)
    why = f"version 1; {batch.told()}"
    wanted = 2 * sum(batch.lengths) * kv_heads * sizes.head_dim * sizes.element
    expect(kv_bytes(moved), wanted, f"{why}: bytes of keys and values loaded")
    expect_near_the_floor(moved, must.total, 0.95, why)
    expect_full_width(machine_code, "paged_decode_v1", compiled_for(MODELS[model]), f"v1_{model}")


@pytest.mark.parametrize("model", MODELS)
def test_version_2_moves_what_it_must_at_full_width(parts, lab, rng, machine_code, model):
    heads, kv_heads = (4, 4) if model == "13b" else (8, 2)
    batch, (*given, out), sizes, must = decodes(parts, lab, rng, heads, kv_heads)
    splits, tile = 3, 64
    more = parts.split_traffic(batch.lengths, splits, tile, shape_of(parts, sizes))
    call = f"split_traffic({batch.lengths}, {splits}, {tile})"
    expect_traffic(more, sizes.split(batch.lengths, splits, tile), call, sizes)
    moved = lab.traffic(
        parts.paged_decode_v2, *given, 0.125, max(batch.lengths), out, splits
    )  # fmt: skip
    why = f"version 2, {splits} parts; {batch.told()}"
    wanted = 2 * sum(batch.lengths) * kv_heads * sizes.head_dim * sizes.element
    expect(kv_bytes(moved), wanted, f"{why}: bytes of keys and values loaded")
    stored = moved["partial"]["stored"] + moved["lse"]["stored"]
    expect(stored, more.stored, f"{why}: bytes that the parts leave")
    expect_near_the_floor(moved, must.total + more.total, 0.9, why)
    expect_full_width(
        machine_code, "paged_decode_v2", compiled_for(MODELS[model], **PARTS), f"v2_{model}"
    )


@pytest.mark.parametrize("model", MODELS)
def test_prefill_moves_what_its_tiles_must_at_full_width(parts, lab, rng, machine_code, model):
    heads, kv_heads = (2, 2) if model == "13b" else (4, 1)
    queries = [70, int(rng.integers(20, 60)), 1]
    lengths = [150, queries[1], int(rng.integers(2, 40))]
    sizes = Bytes(heads, kv_heads, 64, BLOCK_SIZE, 2)
    batch = Batch.random(
        lab, rng, lengths, queries, heads=heads, kv_heads=kv_heads, head_dim=64,
        block_size=BLOCK_SIZE, dtype="float16",
    )  # fmt: skip
    rows = 64
    must = parts.prefill_traffic(queries, lengths, shape_of(parts, sizes), rows)
    call = f"prefill_traffic({queries}, {lengths}, tile_rows={rows})"
    expect_traffic(must, sizes.prefill(queries, lengths, rows), call, sizes)
    given = batch.tensors()
    out, context_lens = given.pop("out"), given.pop("context_lens")
    starts = lab.tensor(np.array([0, *queries], np.int32).cumsum(dtype=np.int32))
    moved = lab.traffic(
        parts.paged_prefill, *given.values(), starts, context_lens, 0.125, max(queries), out
    )
    why = f"prefill; {batch.told()}"
    others = must.loaded - 4 * (2 * len(queries) + 1) - 2 * sum(queries) * heads * 64
    wanted = others - 4 * sum(blocks_for(length, BLOCK_SIZE) for length in lengths)
    expect(kv_bytes(moved), wanted, f"{why}: bytes of keys and values loaded")
    expect_near_the_floor(moved, must.total, 0.95, why)
    expect_full_width(machine_code, "paged_prefill", prompts_for(MODELS[model]), f"prefill_{model}")


# --------------------------------------------------------------------------- robustness
def expect_float32_throughout(machine_code, function, arguments):
    """The interpreter multiplies in float32 whatever is asked. On a card a product of float32 is
    made on tensor cores, of 10 bits of each number, if nobody forbids it."""
    audited = machine_code(function, arguments, "float32")
    for report in audited.reports if audited else []:
        why = f"{report.kernel}, compiled for sm_80 in float32: tensor-core instructions"
        expect(report.tensor_core_instructions, 0, f"{why}, which would round to TF32")


def test_groups_are_not_rounded_to_tf32(machine_code):
    arguments = compiled_for(TINY, "float32")
    expect_float32_throughout(machine_code, "paged_decode_v1", arguments)


def test_parts_are_not_rounded_to_tf32(machine_code):
    arguments = compiled_for(TINY, "float32", **PARTS)
    expect_float32_throughout(machine_code, "paged_decode_v2", arguments)


def test_prompts_are_not_rounded_to_tf32(machine_code):
    expect_float32_throughout(machine_code, "paged_prefill", prompts_for(TINY, "float32"))
