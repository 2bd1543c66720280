"""What the host functions of attention demand of their arguments.

A kernel is given pointers and numbers: of another shape, type or stride it reads what it should
not, and says nothing. So it is the host function that looks, before the launch. Nothing here looks
at what a tensor holds, which would wait for the device.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The types that attention computes with, by what Triton calls them.
FLOAT_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


def check_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    out: Tensor,
) -> None:
    """Are these the arguments of a decode, ``q: [S, num_heads, d]``?

    Raises:
        ValueError: shapes, types or strides that do not fit, with the value and what it must be.
    """
    _check_floats("S", q, k_cache, v_cache, out)
    num_seqs = len(q)
    _check_int32("block_tables", block_tables, (num_seqs, "max_blocks"))
    _check_int32("context_lens", context_lens, (num_seqs,))


def check_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    out: Tensor,
) -> None:
    """Are these the arguments of a ragged batch, ``q: [T, num_heads, d]``?

    Raises:
        ValueError: as :func:`check_decode`.
    """
    _check_floats("T", q, k_cache, v_cache, out)
    num_seqs = len(context_lens)
    _check_int32("block_tables", block_tables, (num_seqs, "max_blocks"))
    _check_int32("query_start", query_start, (num_seqs + 1,))
    _check_int32("context_lens", context_lens, (num_seqs,))


def dot_type(kernel: Any, dtype: torch.dtype) -> tl.dtype:
    """What the operands of ``tl.dot`` are converted to in a kernel: their own type, but for
    bfloat16 in the interpreter, which would multiply its bits."""
    if dtype == torch.bfloat16 and not isinstance(kernel, triton.JITFunction):
        return tl.float32
    return FLOAT_TYPES[dtype]


def _check_floats(rows: str, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor) -> None:
    if q.dim() != 3 or out.shape != q.shape:
        raise ValueError(f"q {[*q.shape]}, out {[*out.shape]}: both must be [{rows}, num_heads, d]")
    if k_cache.dim() != 4 or v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError(
            f"k_cache {[*k_cache.shape]}, v_cache {[*v_cache.shape]}: both must be "
            "[num_blocks, num_kv_heads, block_size, d], with the same strides"
        )
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k_cache.shape[1]
    if k_cache.shape[3] != head_dim:
        raise ValueError(f"q has head_dim {head_dim}, but the caches {k_cache.shape[3]}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are not a multiple of {num_kv_heads} KV heads")
    if q.dtype not in FLOAT_TYPES:
        raise ValueError(f"q is {q.dtype}, not one of {', '.join(map(str, FLOAT_TYPES))}")
    for name, tensor in {"k_cache": k_cache, "v_cache": v_cache, "out": out}.items():
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} is {tensor.dtype}, but q {q.dtype}")
    for name, tensor in {"q": q, "k_cache": k_cache, "out": out}.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: its last dimension has stride {tensor.stride(-1)}, not 1")


def _check_int32(name: str, tensor: Tensor, shape: tuple[int | str, ...]) -> None:
    """``shape``: its sizes; a name for one that is free."""
    fits = tensor.dim() == len(shape) and all(
        isinstance(wanted, str) or size == wanted for size, wanted in zip(tensor.shape, shape)
    )
    if not fits or tensor.dtype != torch.int32:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} is {[*tensor.shape]} {tensor.dtype}, not [{wanted}] torch.int32")
    if tensor.numel() and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: its last dimension has stride {tensor.stride(-1)}, not 1")
