"""What an interpreted kernel loads and stores: counted, and refused where it is out of bounds."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import triton
import triton.language as tl

from minipaged.audit.compiler import AuditError
from minipaged.audit.memory_trace import OutOfBounds, trace_memory
from minipaged.kernels.paged_decode_v0 import paged_decode_v0

pytestmark = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="kernels are compiled in this process"
)


@triton.jit
def copy_kernel(source, target, n, stride, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target + at, tl.load(source + at * stride, mask=at < n, other=0), mask=at < n)


@triton.jit
def copy_if_kernel(source, target, wanted, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    live = (at < n) & (tl.load(wanted) > 0)
    tl.store(target + at, tl.load(source + at, mask=live), mask=live)


@triton.jit
def add_kernel(total, index):
    tl.atomic_add(total + tl.load(index + tl.program_id(0)), 1)


@triton.jit
def _read(pointer, offset):
    return tl.load(pointer + offset)


@triton.jit
def helper_kernel(source, target, offset):
    tl.store(target, _read(source, offset))


@triton.jit
def block_pointer_kernel(source, target, rows, columns, SIZE: tl.constexpr):
    block = tl.make_block_ptr(source, (rows, columns), (columns, 1), (0, 0), (SIZE, SIZE), (1, 0))
    values = tl.load(block, boundary_check=(0, 1), padding_option="zero")
    at = tl.arange(0, SIZE)
    tl.store(target + at[:, None] * SIZE + at[None, :], values)


def copy(source, target, n, stride=1, programs=1, size=16):
    copy_kernel[(programs,)](source, target, n, stride, SIZE=size)


@contextmanager
def out_of_bounds(match):
    """What is launched inside is refused with this message; gives the trace."""
    with pytest.raises(OutOfBounds, match=match), trace_memory() as trace:
        yield trace


def test_live_lanes_are_counted_by_tensor():
    source, target = torch.arange(20.0), torch.zeros(20)
    with trace_memory() as trace:
        copy(source, target, 19, programs=2)
    assert dict(trace.loaded) == {"source": 19 * 4}
    assert dict(trace.stored) == {"target": 19 * 4}
    assert trace.total_bytes == 2 * 19 * 4
    assert target.tolist() == [*range(19), 0]


def test_each_time_counts():
    source, target = torch.arange(4.0), torch.zeros(16)
    with trace_memory() as trace:
        copy(source, target, 16, stride=0)
        copy(source, target, 16, stride=0)
    assert trace.loaded["source"] == 2 * 16 * 4


def test_programs_tell_what_they_touched():
    source, target = torch.arange(20), torch.zeros(20, dtype=torch.int64)
    with trace_memory() as trace:
        copy(source, target, 20, programs=2)
    assert [program.index for program in trace.programs] == [(0, 0, 0), (1, 0, 0)]
    assert [program.kernel for program in trace.programs] == ["copy_kernel"] * 2
    assert trace.programs[1].offsets("source").tolist() == [16, 17, 18, 19]
    assert trace.programs[1].offsets("target", "load").tolist() == []


@pytest.mark.parametrize("length", [15, 1])
def test_a_load_past_the_end_is_refused(length):
    with pytest.raises(OutOfBounds) as refused, trace_memory():
        copy(torch.zeros(64)[:length], torch.zeros(16), 16)
    message = str(refused.value)
    assert f"load of source [{length}] at offset" in message
    assert f" {length}" in message.partition("at offset")[2]
    assert "program (0, 0, 0) of copy_kernel, line " in message


def test_a_store_past_the_end_is_refused_before_memory_is_touched():
    memory = torch.zeros(64)
    with out_of_bounds(r"store of target \[15\] at offset 15 \(in elements") as trace:
        copy(torch.ones(16), memory[:15], 16)
    assert memory.sum() == 0
    assert not trace.stored


def test_a_load_before_the_start_is_refused():
    with out_of_bounds("offsets -15, -14, -13, -12 and 11 more"):
        copy(torch.zeros(64)[32:], torch.zeros(16), 16, stride=-1)


def test_the_neighbor_of_a_tensor_is_not_its_own():
    pool = torch.zeros(2, 16)  # source and target lie next to each other
    with out_of_bounds(r"load of source \[16\] at offsets 16, 17"):
        copy(pool[0], pool[1], 32, size=32)


def test_the_gaps_of_a_view_are_not_its_own():
    rows = torch.arange(64.0).view(8, 8)
    with trace_memory() as trace:
        copy(rows[:, 3], torch.zeros(8), 8, stride=8, size=8)
    assert trace.loaded["source"] == 8 * 4
    with out_of_bounds(r"load of source \[8\] at offsets 4, 12, 20, 28"):
        copy(rows[:, 3], torch.zeros(16), 15, stride=4)


def test_masked_lanes_may_point_anywhere():
    with trace_memory() as trace:
        copy(torch.zeros(1), torch.zeros(1), 1, stride=1 << 30)
    assert trace.loaded["source"] == 4


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_mask_may_be_made_of_a_tile_and_a_number(wanted):
    source, target = torch.ones(3), torch.zeros(3)
    with trace_memory() as trace:
        copy_if_kernel[(1,)](source, target, torch.tensor([wanted]), 3, SIZE=8)
    assert target.tolist() == [wanted] * 3
    assert trace.loaded["source"] == trace.stored["target"] == wanted * 3 * 4


def test_atomic_operations_load_and_store():
    total, index = torch.zeros(3, dtype=torch.int32), torch.tensor([0, 2, 2], dtype=torch.int32)
    with trace_memory() as trace:
        add_kernel[(3,)](total, index)
    assert total.tolist() == [1, 0, 2]
    assert (trace.loaded["total"], trace.stored["total"]) == (12, 12)
    with out_of_bounds(r"atomic of total \[3\] at offset 3 "):
        add_kernel[(3,)](total, index + 1)
    assert total.tolist() == [1, 1, 2]


def test_the_load_of_a_helper_is_found():
    with out_of_bounds(r"load of source \[4\] at offset 9 "):
        helper_kernel[(1,)](torch.zeros(64)[:4], torch.zeros(1), 9)


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_are_checked_too():
    source, target = torch.ones(3, 5), torch.full((8, 8), 7.0)
    with trace_memory() as trace:
        block_pointer_kernel[(1,)](source, target, 3, 5, SIZE=8)
    assert trace.loaded["source"] == 15 * 4
    with out_of_bounds("load of"):
        block_pointer_kernel[(1,)](source.new_ones(64)[:15], target, 4, 5, SIZE=8)


def decode_inputs(num_blocks=9):
    torch.manual_seed(0)
    k_cache, v_cache = torch.randn(2, 12, 2, 4, 16)[:, :num_blocks]
    tables = torch.tensor([[7, 2, 5], [1, 8, 3]], dtype=torch.int32)
    context_lens = torch.tensor([9, 4], dtype=torch.int32)
    return torch.randn(2, 4, 16), k_cache, v_cache, tables, context_lens, 0.25


def test_a_program_of_paged_decode_reads_the_slots_of_its_context():
    with trace_memory() as trace:
        paged_decode_v0(*decode_inputs())
    contexts = [
        {(block, slot) for block in (7, 2) for slot in range(4)} | {(5, 0)},
        {(1, slot) for slot in range(4)},
    ]
    assert len(trace.programs) == 2 * 4
    for program in trace.programs:
        for cache in ("k_cache", "v_cache"):
            assert program.slots(cache) == contexts[program.index[0]]
    assert trace.loaded["k_cache"] == (9 + 4) * 4 * 16 * 4  # positions, query heads, dims, bytes
    with pytest.raises(AuditError, match="no cache q"):
        trace.programs[0].slots("q")


def test_an_offset_into_a_cache_is_told_as_block_and_slot():
    with out_of_bounds("block 8 of 8, head 0 of 2, slot 0 of 4, dim 0 of 16"):
        q, *caches, tables, context_lens, scale = decode_inputs(num_blocks=8)
        paged_decode_v0(q, *caches, tables, context_lens + 4, scale)


def test_a_tensor_can_be_given_a_name():
    source, target = torch.zeros(16), torch.zeros(16)
    with trace_memory(keys=source) as trace:
        copy(source, target, 16)
    assert set(trace.loaded) == {"keys"}


def test_nothing_is_left_behind():
    builder = triton.runtime.interpreter.interpreter_builder
    launch = triton.runtime.interpreter.GridExecutor.__call__
    before = dict(builder.__dict__)
    for n in (16, 17):
        try:
            with trace_memory() as outer, trace_memory() as inner:
                copy(torch.zeros(17), torch.zeros(64)[:16], n, size=32)
        except OutOfBounds:
            assert n == 17
        assert outer.loaded == inner.loaded != {}
        after = {name: value for name, value in builder.__dict__.items() if name in before}
        assert after == before | {k: after[k] for k in ("grid_idx", "grid_dim") if k in after}
        assert not {name for name in builder.__dict__ if name.startswith("create_")} - set(before)
        assert triton.runtime.interpreter.GridExecutor.__call__ is launch


def test_other_errors_of_a_kernel_pass():
    with pytest.raises(triton.runtime.errors.InterpreterError), trace_memory():
        copy_kernel[(1,)](torch.zeros(4), torch.zeros(4), 4, 1, SIZE=3)  # no power of two


def test_a_process_that_compiles_cannot_trace(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(AuditError, match="TRITON_INTERPRET=1"), trace_memory():
        pass
