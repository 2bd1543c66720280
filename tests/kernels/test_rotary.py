"""Rotary embedding with the cache write against float64, and against the model's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from minipaged.kernels.rotary import rotate_and_write
from minipaged.models.layers import RotaryEmbedding, rotate

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
THETA = 10000.0
EMPTY = 7.0


@dataclass
class Case:
    """Arguments of the kernel: q, k and v are views of one projection, as a model has them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    slot_mapping: torch.Tensor
    positions: list[int]

    def run(self, **changes) -> None:
        names = ("q", "k", "v", "cos", "sin", "k_cache", "v_cache", "slot_mapping")
        rotate_and_write(**({name: getattr(self, name) for name in names} | changes))


def make_case(
    *, slots=(18, 0, -1, 7), heads=4, kv_heads=2, d=16, block_size=4, dtype=torch.float32
) -> Case:
    positions = [0, 1, 5, 1000][: len(slots)]
    generator = torch.Generator().manual_seed(0)
    width = heads + 2 * kv_heads
    projection = torch.randn((len(slots), width, d), generator=generator).to(dtype).to(DEVICE)
    pair = torch.arange(0, d, 2) / d
    angle = torch.outer(torch.tensor(positions).float(), 1.0 / THETA**pair)  # [T, d/2]
    cache = torch.full((6, kv_heads, block_size, d), EMPTY, dtype=dtype, device=DEVICE)
    return Case(
        q=projection[:, :heads],
        k=projection[:, heads : heads + kv_heads],
        v=projection[:, heads + kv_heads :],
        cos=angle.cos().to(DEVICE),
        sin=angle.sin().to(DEVICE),
        k_cache=cache,
        v_cache=cache.clone(),
        slot_mapping=torch.tensor(slots, dtype=torch.int64, device=DEVICE),
        positions=positions,
    )


def rotated(x: torch.Tensor, case: Case) -> torch.Tensor:
    """Each pair of ``x: [T, heads, d]`` as a complex number, turned by its angle; float64."""
    low, high = x.double().chunk(2, dim=-1)
    turn = torch.complex(case.cos.double(), case.sin.double())[:, None]
    turned = torch.complex(low, high) * turn
    return torch.cat((turned.real, turned.imag), dim=-1)


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert (got.double() - want.double()).abs().max() / want.abs().max() <= TOLERANCE[got.dtype]


def check(case: Case) -> None:
    q, k, v = case.q.clone(), case.k.clone(), case.v.clone()
    case.run()
    assert torch.equal(case.k, k)
    assert torch.equal(case.v, v)
    block_size = case.k_cache.shape[2]
    slots = case.slot_mapping.tolist()
    live = [token for token, slot in enumerate(slots) if slot >= 0]
    padding = [token for token, slot in enumerate(slots) if slot < 0]
    assert_close(case.q[live], rotated(q, case)[live])
    assert torch.equal(case.q[padding], q[padding])
    keys = rotated(k, case)
    for token in live:
        block, place = divmod(slots[token], block_size)
        assert_close(case.k_cache[block, :, place], keys[token])
        assert torch.equal(case.v_cache[block, :, place], v[token])
        case.k_cache[block, :, place] = case.v_cache[block, :, place] = EMPTY
    assert (case.k_cache == EMPTY).all()
    assert (case.v_cache == EMPTY).all()


@pytest.mark.parametrize("d", [2, 8, 64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_head_dims(d, dtype):
    check(make_case(d=d, dtype=dtype))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (40, 40), (9, 3), (32, 1), (5, 5)])
def test_heads(heads, kv_heads):
    check(make_case(heads=heads, kv_heads=kv_heads, d=128))


@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_block_sizes(block_size):
    check(make_case(slots=(5, 0, 3, -1), block_size=block_size))


def test_padding_is_written_nowhere_even_where_it_holds_nan():
    """B34: neither to block 0 nor, as -1 is to Python, to the last slot."""
    case = make_case(slots=(-1, 6, -1))
    case.k[0] = case.v[0] = math.nan
    case.run()
    assert not case.k_cache.isnan().any()
    assert not case.v_cache.isnan().any()
    assert (case.v_cache != EMPTY).any(dim=(1, 3)).nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_it_is_the_models_own_rotation(theta):
    """B36: the rotate-half form, by the same tables, at the first positions and at a far one."""
    case = make_case()
    tables = RotaryEmbedding(16, 1001, theta, dtype=torch.float32, device=DEVICE)
    rotary = tables(torch.tensor(case.positions, device=DEVICE))
    want_q, want_k = rotate(case.q, rotary), rotate(case.k, rotary)
    case.run(cos=rotary.cos.squeeze(1), sin=rotary.sin.squeeze(1))
    live = [0, 1, 3]
    assert_close(case.q[live], want_q[live])
    blocks, places = case.slot_mapping[live] // 4, case.slot_mapping[live] % 4
    assert_close(case.k_cache[blocks, :, places], want_k[live])


def test_half_types_are_rotated_in_float32():
    """q and its pair nearly cancel: products that are rounded to float16 first would not."""
    case = make_case(slots=(0,), d=2, dtype=torch.float16)
    case.q.copy_(torch.tensor([1.0, 1.0]))
    case.cos.fill_(0.70703125 + 2.0**-12)  # between two numbers of float16
    case.sin.fill_(0.70703125)
    case.run()
    assert (case.q[..., 0] == 2.0**-12).all()


def test_no_tokens_are_no_work():
    case = make_case(slots=())
    case.run()
    assert (case.k_cache == EMPTY).all()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda q: q[:, :, :8], r"q \[4, 4, 8\] must be"),
        ("q", lambda q: q.half(), "k is torch.float32, but q torch.float16"),
        ("v", lambda v: v[:, :1], r"and k \[4, 2, 16\] and v \[4, 1, 16\]"),
        ("cos", lambda cos: cos[:3], r"cos is \[3, 8\], not \[4, 8\] or wider"),
        ("sin", lambda sin: sin[:, :7], r"sin is \[4, 7\], not \[4, 8\] or wider"),
        ("cos", lambda cos: cos.T.contiguous().T, "cos: its last dimension has stride 4"),
        ("k_cache", lambda cache: cache[:, :1], "with the same strides"),
        ("slot_mapping", lambda slots: slots.int(), r"\[4\] torch.int32, not \[4\] torch.int64"),
        ("slot_mapping", lambda slots: slots.repeat(2)[::2], "slot_mapping has stride 2"),
    ],
)
def test_what_does_not_fit_is_refused(name, change, message):
    case = make_case()
    with pytest.raises(ValueError, match=message):
        case.run(**{name: change(getattr(case, name))})


def test_an_odd_head_dim_is_refused():
    case = make_case()
    with pytest.raises(ValueError, match="needs an even head_dim, not 15"):
        case.run(q=case.q[..., :15], k=case.k[..., :15], v=case.v[..., :15])
