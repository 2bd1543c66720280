"""RMSNorm, with the sum that stands before it.

In a transformer every norm but the first follows ``x += f(x)``, where ``x`` is the residual
stream. One launch does both: as two, the sum would be written, and read once more.

Bytes: with a residual ``4 * T * width`` elements (``x`` and the residual read, the sum and the
norm written), without one half of that, and the weight. One program holds one row in registers,
so that it is read once for the mean square and the product.

Claimed for sm_80: no spills, all loads and stores at 128 bit where the width is a multiple of 8
(half types) or 4 (float32). Speed is not measured.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.arguments import check_contiguous_rows, check_float, check_same_type

#: The widest row that a program can hold: 32 numbers for each thread of 32 warps.
MAX_WIDTH = 32768


@triton.jit
def rms_norm_kernel(
    out,
    x,
    weight,
    residual,
    eps,
    out_stride,
    x_stride,
    residual_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program ``t`` norms row ``t``: ``out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight``, once
    ``residual[t]`` is added to ``x[t]``.

    Args:
        out, x, residual: pointers to ``[T, WIDTH]``, rows ``*_stride`` elements apart. Without a
            residual that is None, and ``x`` is not written.
        weight: pointer to ``[WIDTH]``.
        COLUMNS: ``WIDTH`` rounded up to a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    x += row * x_stride
    values = tl.load(x + columns, inside, other=0.0)
    if residual is not None:
        update = tl.load(residual + row * residual_stride + columns, inside, other=0.0)
        # The norm sees the sum as it is stored: rounded to its type.
        values = (values.to(tl.float32) + update.to(tl.float32)).to(values.dtype)
        tl.store(x + columns, values, inside)
    values = values.to(tl.float32)
    mean_square = tl.sum(values * values, axis=0) / WIDTH
    scaled = values * tl.rsqrt(mean_square + eps)
    scaled *= tl.load(weight + columns, inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, scaled.to(out.dtype.element_ty), inside)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich, 2019) of each row.

    Args:
        x: ``[T, width]``, float16, bfloat16 or float32, the rows contiguous. The mean square is
            float32 whatever the type.
        weight: ``[width]`` of ``x``'s type.
        residual: ``[T, width]`` of ``x``'s type, what a layer adds to the stream ``x``. It is
            added to ``x`` in place, and the sum, as it is stored, is what is normed.
        out: where the result goes: memory of its own. None: a new tensor.

    Returns:
        ``out``: ``[T, width]``.

    Raises:
        ValueError: shapes, types or strides that do not fit, with the value and what it must be.
    """
    out = torch.empty_like(x) if out is None else out
    _check(x, weight, residual, out)
    num_tokens, width = x.shape
    if num_tokens == 0:
        return out
    columns = triton.next_power_of_2(width)
    rms_norm_kernel[(num_tokens,)](
        out,
        x,
        weight,
        residual,
        eps,
        out.stride(0),
        x.stride(0),
        0 if residual is None else residual.stride(0),
        WIDTH=width,
        COLUMNS=columns,
        # 16 numbers a thread: two 128-bit loads of a half type.
        num_warps=min(32, max(1, columns // 512)),
    )
    return out


def _check(x: Tensor, weight: Tensor, residual: Tensor | None, out: Tensor) -> None:
    if x.dim() != 2 or weight.shape != x.shape[1:]:
        raise ValueError(f"x {[*x.shape]} must be [T, width], and weight {[*weight.shape]} [width]")
    if x.shape[1] > MAX_WIDTH:
        raise ValueError(f"x has rows of {x.shape[1]}, and a program holds {MAX_WIDTH}")
    check_float("x", x)
    rows = {"out": out} if residual is None else {"out": out, "residual": residual}
    for name, tensor in rows.items():
        if tensor.shape != x.shape:
            raise ValueError(f"{name} is {[*tensor.shape]}, but x {[*x.shape]}")
    check_same_type("x", x, weight=weight, **rows)
    check_contiguous_rows(x=x, weight=weight, **rows)
