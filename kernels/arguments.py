"""What host functions demand of their arguments.

A kernel is given pointers and numbers: of another shape, type or stride it reads what it should
not, and says nothing. So it is the host function that looks, before the launch. Nothing here looks
at what a tensor holds, which would wait for the device.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The types that kernels compute with, by what Triton calls them.
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


def check_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Are these keys and values, ``[T, num_kv_heads, d]``, and slots of caches for them?

    Raises:
        ValueError: as :func:`check_decode`.
    """
    if k.dim() != 3 or v.shape != k.shape:
        raise ValueError(f"k {[*k.shape]}, v {[*v.shape]}: both must be [T, num_kv_heads, d]")
    _check_caches(k_cache, v_cache)
    num_tokens, num_kv_heads, head_dim = k.shape
    if (k_cache.shape[1], k_cache.shape[3]) != (num_kv_heads, head_dim):
        raise ValueError(
            f"k is {[*k.shape]}, but the caches {[*k_cache.shape]} have "
            f"{k_cache.shape[1]} KV heads of {k_cache.shape[3]}"
        )
    check_same_type("k_cache", k_cache, k=k, v=v, v_cache=v_cache)
    check_contiguous_rows(k=k, v=v, k_cache=k_cache)
    if slot_mapping.shape != (num_tokens,) or slot_mapping.dtype != torch.int64:
        raise ValueError(
            f"slot_mapping is {[*slot_mapping.shape]} {slot_mapping.dtype}, "
            f"not [{num_tokens}] torch.int64"
        )
    if not slot_mapping.is_contiguous():
        raise ValueError(f"slot_mapping has stride {slot_mapping.stride(0)}, not 1")


def check_float(name: str, tensor: Tensor) -> None:
    """Raise ValueError for a tensor that is of none of :data:`FLOAT_TYPES`."""
    if tensor.dtype not in FLOAT_TYPES:
        raise ValueError(f"{name} is {tensor.dtype}, not one of {', '.join(map(str, FLOAT_TYPES))}")


def check_same_type(name: str, tensor: Tensor, **others: Tensor) -> None:
    """Raise ValueError for one of the others that is not of the tensor's type."""
    for other, value in others.items():
        if value.dtype != tensor.dtype:
            raise ValueError(f"{other} is {value.dtype}, but {name} {tensor.dtype}")


def check_contiguous_rows(**tensors: Tensor) -> None:
    """Raise ValueError for a tensor whose last dimension is not contiguous."""
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: its last dimension has stride {tensor.stride(-1)}, not 1")


def dot_type(kernel: Any, dtype: torch.dtype) -> tl.dtype:
    """What the operands of ``tl.dot`` are converted to in a kernel: their own type, but for
    bfloat16 in the interpreter, which would multiply its bits."""
    if dtype == torch.bfloat16 and not isinstance(kernel, triton.JITFunction):
        return tl.float32
    return FLOAT_TYPES[dtype]


def _check_floats(rows: str, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor) -> None:
    if q.dim() != 3 or out.shape != q.shape:
        raise ValueError(f"q {[*q.shape]}, out {[*out.shape]}: both must be [{rows}, num_heads, d]")
    _check_caches(k_cache, v_cache)
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k_cache.shape[1]
    if k_cache.shape[3] != head_dim:
        raise ValueError(f"q has head_dim {head_dim}, but the caches {k_cache.shape[3]}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are not a multiple of {num_kv_heads} KV heads")
    check_float("q", q)
    check_same_type("q", q, k_cache=k_cache, v_cache=v_cache, out=out)
    check_contiguous_rows(q=q, k_cache=k_cache, out=out)


def _check_caches(k_cache: Tensor, v_cache: Tensor) -> None:
    if k_cache.dim() != 4 or v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError(
            f"k_cache {[*k_cache.shape]}, v_cache {[*v_cache.shape]}: both must be "
            "[num_blocks, num_kv_heads, block_size, d], with the same strides"
        )


def _check_int32(name: str, tensor: Tensor, shape: tuple[int | str, ...]) -> None:
    """``shape``: its sizes; a name for one that is free."""
    fits = tensor.dim() == len(shape) and all(
        isinstance(wanted, str) or size == wanted for size, wanted in zip(tensor.shape, shape)
    )
    if not fits or tensor.dtype != torch.int32:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} is {[*tensor.shape]} {tensor.dtype}, not [{wanted}] torch.int32")
    if tensor.numel():
        check_contiguous_rows(**{name: tensor})
