"""The kernel benchmark on a CPU: inputs, agreement, what is passed over, tables and JSON.

The timer is a stand-in; kernels run in the interpreter, on sizes of a toy.
"""

from __future__ import annotations

import json

import pytest
import torch

from minipaged.bench import kernel_commands, kernels
from minipaged.bench.kernels import (
    FIGURE_18A,
    GQA,
    IMPLEMENTATIONS,
    MHA,
    SWEEP,
    Case,
    Inputs,
    Measured,
    copy_bandwidth,
    measure,
    overhead_of_paging,
)
from minipaged.cli import main
from minipaged.kernels.traffic import AttentionShape, decode_traffic

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TINY = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=16, block_size=4, element_bytes=4)
CASE = Case(TINY, batch=2, context=11)
PLENTY = {"memory_bytes": 1 << 30, "deadline": 1e9, "clock": lambda: 0.0}


@pytest.fixture(autouse=True)
def two_turns(monkeypatch):
    monkeypatch.setattr(kernels, "COLD_BYTES", 2 * CASE.kv_bytes)


def one_second(call, turns):
    for turn in range(turns):
        call(turn)
    return 1.0


def test_the_sweep_covers_what_is_asked():
    assert {case.batch for case in SWEEP} >= {1, 32, 256}
    assert {case.context for case in SWEEP} >= {128, 16384}
    assert {case.shape for case in SWEEP} == {MHA, GQA}
    assert {(case.batch, case.context) for case in FIGURE_18A} == {
        (batch, context) for batch in (8, 32) for context in (64, 128, 256)
    }


def test_inputs_together_are_larger_than_a_cache(monkeypatch):
    monkeypatch.undo()
    for case in (*SWEEP, *FIGURE_18A):
        assert case.turns * case.kv_bytes >= 256 << 20
        assert (case.turns - 1) * case.kv_bytes < 256 << 20
        assert case.must_bytes == decode_traffic([case.context] * case.batch, case.shape).total


def test_every_input_has_blocks_of_its_own_and_the_same_contiguous_cache():
    inputs = Inputs(CASE, DEVICE, torch.float32)
    assert inputs.tables.shape == (2, 2, 3)
    assert inputs.tables.flatten().sort().values.tolist() == list(range(12))
    assert inputs.tables.flatten().tolist() != list(range(12))
    for turn, seq, position in ((0, 0, 0), (1, 1, 10), (1, 0, 7)):
        block = inputs.tables[turn, seq, position // 4]
        slot = (block, slice(None), position % 4)
        assert torch.equal(inputs.keys[turn, seq, :, position], inputs.k_cache[slot])
        assert torch.equal(inputs.values[turn, seq, :, position], inputs.v_cache[slot])


def test_all_implementations_agree_and_are_timed_on_every_input():
    seen = []

    def timer(call, turns):
        seen.append([call(turn).clone() for turn in range(turns)])
        return 0.5

    found = measure([CASE], timer, DEVICE, torch.float32, **PLENTY)
    assert [entry.implementation for entry in found] == list(IMPLEMENTATIONS)
    timed = [entry for entry in found if entry.seconds is not None]
    assert {"contiguous sdpa", "paged v0", "paged v1", "paged v2"} <= {
        entry.implementation for entry in timed
    }
    # flash-attn, where it is installed, takes no float32.
    untimed = [entry for entry in found if entry.seconds is None]
    assert all(entry.implementation == "contiguous flash-attn" for entry in untimed)
    assert all(entry.why_not for entry in untimed)
    assert timed[0].bytes_per_s == CASE.must_bytes / 0.5
    for results in seen:
        for turn in range(2):
            torch.testing.assert_close(results[turn], seen[0][turn], rtol=1e-4, atol=1e-4)
    assert not torch.equal(seen[0][0], seen[0][1])


def test_a_wrong_result_is_not_timed():
    def right(inputs):
        return lambda turn: torch.ones(4)

    def wrong(inputs):
        return lambda turn: torch.tensor([1.0, 1.0, 1.0, 1.2])

    def not_a_number(inputs):
        return lambda turn: torch.full((4,), torch.nan)

    def fails(inputs):
        raise RuntimeError("no kernel for this shape\nand more")

    made = {"right": right, "wrong": wrong, "nan": not_a_number, "fails": fails}
    found = measure(
        [CASE], one_second, DEVICE, torch.float32, implementations=made, **PLENTY
    )  # fmt: skip
    assert [entry.seconds for entry in found] == [1.0, None, None, None]
    assert [entry.why_not for entry in found] == [
        "",
        "its result is wrong: off by 0.2 of the largest",
        "its result is wrong: off by nan of the largest",
        "it failed: no kernel for this shape",
    ]


def test_what_has_no_room_or_no_time_is_passed_over():
    made = {"right": lambda inputs: lambda turn: torch.ones(4)}
    clock = iter([0.0, 2.0]).__next__
    large = Case(TINY, batch=2, context=1 << 20)
    found = measure(
        [CASE, large, CASE], one_second, DEVICE, torch.float32, implementations=made,
        memory_bytes=1 << 20, deadline=1.0, clock=clock,
    )  # fmt: skip
    assert [entry.seconds for entry in found] == [1.0, None, None]
    assert found[1].why_not == "its inputs take 1536 MiB, of 1 MiB free"
    assert found[2].why_not == "the time was up"


def test_the_copy_bandwidth_counts_both_directions():
    assert copy_bandwidth(lambda call, turns: (call(0), 0.5)[1], DEVICE, size=1000) == 4000


def test_overhead_of_paging_is_best_over_best():
    times = {
        "contiguous sdpa": 2.0,
        "contiguous flash-attn": None,
        "paged v0": 9.0,
        "paged v2": 3.0,
    }
    found = [Measured(CASE, name, seconds) for name, seconds in times.items()]
    other = Case(TINY, batch=1, context=4)
    found.append(Measured(other, "paged v2", 1.0))
    assert overhead_of_paging(found) == {CASE: 1.5}


def test_without_a_gpu_it_prints_floors(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "bench.json"
    assert main(["kernels", "bench", "--json", str(file)]) == 0
    captured = capsys.readouterr()
    assert "no GPU here: nothing is measured" in captured.err
    found = json.loads(file.read_text())
    assert found["device"] is None
    assert "measured" not in found
    assert len(found["floors"]) == len({*SWEEP, *FIGURE_18A})
    first = found["floors"][0]
    assert first["floor_s"] == pytest.approx(first["bytes"] / 1555e9)
    assert len(captured.out.splitlines()) == 3 + len(found["floors"])


def test_with_a_gpu_it_measures_and_reports(monkeypatch, capsys):
    def on_cpu(cases, timer, device, dtype, **limits):
        assert limits == {"memory_bytes": 800, "deadline": 107.0}
        return [Measured(CASE, name, 1.0) for name in IMPLEMENTATIONS]

    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr(cuda, "get_device_name", lambda device: "A Card")
    monkeypatch.setattr(kernels, "measure", on_cpu)
    monkeypatch.setattr(kernels, "copy_bandwidth", lambda timer, device: 1e6)
    monkeypatch.setattr(kernel_commands.time, "monotonic", lambda: 100.0)
    assert main(["kernels", "bench", "--seconds", "7", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["copy_bytes_per_s"]) == ("A Card", 1e6)
    rows = {entry["implementation"]: entry for entry in found["measured"]}
    assert rows["paged v2"]["of_copy"] == pytest.approx(CASE.must_bytes / 1e6)
    assert [row["paged_over_contiguous"] for row in found["figure_18a"]] == [1.0]
    assert main(["kernels", "bench", "--seconds", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Figure 18a: paged over contiguous attention" in lines
    assert lines[2].split()[:3] == ["heads", "batch", "context"]
    assert lines[3].startswith("4 over 2 2     11      1,000,000.0 us")


def test_the_time_must_be_positive(capsys):
    assert main(["kernels", "bench", "--seconds", "0"]) == 1
    assert "--seconds must be above 0" in capsys.readouterr().err
