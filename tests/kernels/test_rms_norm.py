"""RMSNorm against float64, on the rounded inputs."""

from __future__ import annotations

import pytest
import torch

from minipaged.kernels.rms_norm import MAX_WIDTH, rms_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def random(*shape, dtype=torch.float32, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def expected(x, weight, eps) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def check(out, want) -> None:
    assert (out.double() - want).abs().max() / want.abs().max() <= TOLERANCE[out.dtype]


@pytest.mark.parametrize("width", [1, 8, 31, 576, 2048, 5120])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norm(width, dtype):
    x, weight = random(5, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    before = x.clone()
    out = rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    check(out, expected(before, weight, 1e-5))
    assert torch.equal(x, before), "without a residual the input is only read"


@pytest.mark.parametrize("width", [8, 31, 576])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_residual_is_added_in_place_before_the_norm(width, dtype):
    x, residual = random(5, width, dtype=dtype), random(5, width, dtype=dtype, seed=2)
    weight = random(width, dtype=dtype, seed=1)
    stream, update = x + residual, residual.clone()
    out = rms_norm(x, weight, 1e-5, residual)
    # The interpreter cuts float32 off to bfloat16; a GPU rounds.
    cut_off = DEVICE == "cpu" and dtype == torch.bfloat16
    torch.testing.assert_close(x, stream, rtol=2**-7 if cut_off else 0, atol=0)
    assert torch.equal(residual, update)
    check(out, expected(x, weight, 1e-5))


def test_epsilon_counts_where_values_are_small():
    x, weight = random(2, 64) * 1e-3, random(64, seed=1)
    for eps in (1e-6, 1e-2):
        check(rms_norm(x, weight, eps), expected(x, weight, eps))


def test_a_row_of_zeros_gives_zeros():
    assert not rms_norm(torch.zeros(1, 48, device=DEVICE), random(48), 1e-6).any()


def test_squares_past_the_range_of_float16_are_no_problem():
    """300^2 is more than float16 can hold, and so is the sum."""
    x = torch.full((2, 4096), 300.0, dtype=torch.float16, device=DEVICE)
    out = rms_norm(x, torch.ones_like(x[0]), 1e-5)
    assert torch.equal(out, torch.ones_like(out))


def test_rows_may_be_views_and_others_are_not_written():
    wide, target = random(6, 100), torch.zeros(6, 70, device=DEVICE)
    x, residual, weight = wide[::2, 10:58], random(3, 48, seed=2), random(48, seed=1)
    kept, stream = wide.clone(), x + residual
    rms_norm(x, weight, 1e-5, residual, out=target[1::2, 5:53])
    check(target[1::2, 5:53], expected(stream, weight, 1e-5))
    kept[::2, 10:58] = stream
    assert torch.equal(wide, kept)
    assert not target[::2].any()
    assert not target[:, :5].any()
    assert not target[:, 53:].any()


def test_no_rows_are_no_work():
    assert rms_norm(random(0, 16), random(16), 1e-5).shape == (0, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((random(3, 8), random(9), 1e-5), r"weight \[9\]"),
        ((random(8), random(8), 1e-5), r"x \[8\] must be \[T, width\]"),
        ((random(3, 8), random(8).half(), 1e-5), "weight is torch.float16, but x torch.float32"),
        ((random(3, 8), random(8), 1e-5, random(2, 8)), r"residual is \[2, 8\], but x \[3, 8\]"),
        ((random(3, 8).double(), random(8).double(), 1e-5), "float64, not one of"),
        ((random(8, 3).T, random(8), 1e-5), "has stride 3, not 1"),
        (
            (random(1, 1).expand(1, MAX_WIDTH + 1), random(1).expand(MAX_WIDTH + 1), 1e-5),
            f"rows of {MAX_WIDTH + 1}, and a program holds {MAX_WIDTH}",
        ),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rms_norm(*arguments)
