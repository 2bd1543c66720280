"""SiLU times up against float64, on the rounded inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minipaged.kernels.silu_mul import TILE_COLUMNS, silu_mul

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def random(*shape, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.randn(shape, generator=generator)).to(dtype).to(DEVICE)


def check(out, gate_up) -> None:
    gate, up = gate_up.double().chunk(2, dim=-1)
    want = F.silu(gate) * up
    assert (out.double() - want).abs().max() / want.abs().max() <= TOLERANCE[out.dtype]


@pytest.mark.parametrize("inner", [1, 8, 31, 96, 1536, TILE_COLUMNS, TILE_COLUMNS + 1])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_product(inner, dtype):
    gate_up = random(5, 2 * inner, dtype=dtype)
    before = gate_up.clone()
    out = silu_mul(gate_up)
    assert out.shape == (5, inner)
    assert out.dtype == dtype
    check(out, before)
    assert torch.equal(gate_up, before)


def test_gates_far_from_zero_are_open_or_shut():
    gate_up = torch.tensor([[1000.0, -1000.0, 2.0, 3.0]], device=DEVICE)
    assert silu_mul(gate_up).tolist() == [[2000.0, 0.0]]


def test_rows_may_be_views_and_others_are_not_written():
    gate_up = random(6, 100)[::2, 10:50]
    target = torch.zeros(6, 30, device=DEVICE)
    silu_mul(gate_up, out=target[1::2, 5:25])
    check(target[1::2, 5:25], gate_up)
    assert not target[::2].any()
    assert not target[:, :5].any()
    assert not target[:, 25:].any()


def test_no_rows_are_no_work():
    assert silu_mul(random(0, 16)).shape == (0, 8)


@pytest.mark.parametrize(
    ("gate_up", "out", "message"),
    [
        (random(3, 7), None, r"gate_up is \[3, 7\], not \[T, 2 \* inner\]"),
        (random(8), None, r"gate_up is \[8\]"),
        (random(3, 8).double(), None, "float64, not one of"),
        (random(3, 8), random(3, 8), r"out is \[3, 8\] torch.float32, not \[3, 4\]"),
        (random(3, 8), random(3, 4).half(), "out is .* torch.float16, not"),
        (random(8, 3).T, None, "gate_up: its last dimension has stride 3, not 1"),
        (random(3, 8), random(4, 3).T, "out: its last dimension has stride 3, not 1"),
    ],
)
def test_what_does_not_fit_is_refused(gate_up, out, message):
    with pytest.raises(ValueError, match=message):
        silu_mul(gate_up, out)
