"""The gate of a LLaMA MLP: ``silu(gate) * up``, of both halves of one projection.

Bytes: ``3 * T * inner`` elements: two read, one written. As operations of a library it is two
launches and five elements.

Claimed for sm_80: no spills, all loads and stores at 128 bit where ``inner`` is a multiple of 8
(half types) or 4 (float32). Speed is not measured.
"""

import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_contiguous_rows, check_float

#: Columns that one program computes: 8 for each thread of 4 warps, 128 bits of a half type.
TILE_COLUMNS = 1024


@triton.jit
def silu_mul_kernel(
    out,
    gate_up,
    out_stride,
    gate_up_stride,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program ``(t, i)`` computes columns ``i*COLUMNS`` and on of row ``t``.

    Args:
        out: pointer to ``[T, INNER]``, rows ``out_stride`` elements apart.
        gate_up: pointer to ``[T, 2 * INNER]``, rows ``gate_up_stride`` elements apart.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < INNER
    gate_places = gate_up + row * gate_up_stride + columns
    gate = tl.load(gate_places, inside, other=0.0).to(tl.float32)
    up = tl.load(gate_places + INNER, inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out + row * out_stride + columns, product.to(out.dtype.element_ty), inside)


def silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up`` with ``silu(x) = x / (1 + exp(-x))``, computed in float32.

    Args:
        gate_up: ``[T, 2 * inner]``, float16, bfloat16 or float32: the gate, then what it gates.
            Rows are contiguous.
        out: ``[T, inner]`` of the same type, in memory of its own; None: a new tensor.

    Returns:
        ``out``.

    Raises:
        ValueError: shapes, types or strides that do not fit, with the value and what it must be.
    """
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up is {[*gate_up.shape]}, not [T, 2 * inner]")
    check_float("gate_up", gate_up)
    num_tokens, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_tokens, inner) if out is None else out
    if out.shape != (num_tokens, inner) or out.dtype != gate_up.dtype:
        raise ValueError(
            f"out is {[*out.shape]} {out.dtype}, not {[num_tokens, inner]} {gate_up.dtype}"
        )
    check_contiguous_rows(gate_up=gate_up, out=out)
    if num_tokens == 0:
        return out
    columns = min(TILE_COLUMNS, triton.next_power_of_2(inner))
    silu_mul_kernel[(num_tokens, triton.cdiv(inner, columns))](
        out,
        gate_up,
        out.stride(0),
        gate_up.stride(0),
        INNER=inner,
        COLUMNS=columns,
        num_warps=4,
    )
    return out
