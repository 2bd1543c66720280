"""Which implementation of each part an engine is built from.

A part is a module of the package that is one stage of the course. Everything that puts an engine
together takes its parts from here, and nowhere else, so that a student's own can stand in for any
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from minipaged.kvcache import (
    block_allocator,
    block_table,
    buddy,
    contiguous,
    copy_on_write,
    prefix_cache,
    sizing,
    swap,
)
from minipaged.scheduling import admission, preemption, scheduler

if TYPE_CHECKING:
    from minipaged.attention import AttentionBackend, AttentionKind

_PACKAGE = "minipaged."
_KERNELS = "minipaged.kernels."
#: The versions of decode attention, best first.
_DECODES = ("paged_decode_v2", "paged_decode_v1", "paged_decode_v0")


def reference_attention() -> AttentionBackend:
    """The reference's attention. It is imported here, when an engine with a model is built:
    planning and simulation need no torch."""
    from minipaged.attention.reference import ReferenceAttention

    return ReferenceAttention()


def _kernel(module: str, name: str) -> Callable[..., Any]:
    """A kernel's host function. It is imported when it is first called: an engine that runs no
    kernel needs no Triton."""

    @cache
    def load() -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(_KERNELS + module), name)
        return function

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return load()(*args, **kwargs)

    kernel.__module__ = _KERNELS + module
    kernel.__name__ = kernel.__qualname__ = name
    return kernel


_cache_write = _kernel("cache_write", "cache_write")
_copy_blocks_in_pool = _kernel("block_copy", "copy_blocks_in_pool")
_gather_blocks = _kernel("block_copy", "gather_blocks")
_scatter_blocks = _kernel("block_copy", "scatter_blocks")
_paged_decode_v0 = _kernel("paged_decode_v0", "paged_decode_v0")
_paged_decode_v1 = _kernel("paged_decode_v1", "paged_decode_v1")
_paged_decode_v2 = _kernel("paged_decode_v2", "paged_decode_v2")
_paged_prefill = _kernel("paged_prefill", "paged_prefill")
_rotate_and_write = _kernel("rotary", "rotate_and_write")


@dataclass(frozen=True)
class Parts:
    """What an engine is made of. The reference is the default for each."""

    watermark_blocks: Callable[[int, float], int] = sizing.watermark_blocks
    BuddyAllocator: Callable[..., buddy.BuddyAllocator] = buddy.BuddyAllocator
    ContiguousKVManager: Callable[..., contiguous.ContiguousKVManager] = (
        contiguous.ContiguousKVManager
    )
    BlockAllocator: Callable[..., block_allocator.BlockAllocator] = block_allocator.BlockAllocator
    BlockTable: Callable[..., block_table.BlockTable] = block_table.BlockTable
    attention: Callable[[], AttentionBackend] = reference_attention
    fork: Callable[..., block_table.BlockTable] = copy_on_write.fork
    make_writable: Callable[..., tuple[int, int] | None] = copy_on_write.make_writable
    blocks_for_next_token: Callable[..., int] = copy_on_write.blocks_for_next_token
    copy_blocks: Callable[..., None] = copy_on_write.copy_blocks
    unique_blocks: Callable[..., list[int]] = swap.unique_blocks
    move: Callable[..., list[tuple[int, int]]] = swap.move
    PrefixCache: Callable[..., prefix_cache.PrefixCache] = prefix_cache.PrefixCache
    Admission: Callable[..., admission.Admission] = admission.Admission
    Preemption: Callable[..., preemption.Preemption] = preemption.Preemption
    Scheduler: Callable[..., scheduler.Scheduler] = scheduler.Scheduler
    cache_write: Callable[..., None] = _cache_write
    copy_blocks_in_pool: Callable[..., None] = _copy_blocks_in_pool
    gather_blocks: Callable[..., None] = _gather_blocks
    scatter_blocks: Callable[..., None] = _scatter_blocks
    paged_decode_v0: Callable[..., Any] = _paged_decode_v0
    paged_decode_v1: Callable[..., Any] = _paged_decode_v1
    paged_decode_v2: Callable[..., Any] = _paged_decode_v2
    paged_prefill: Callable[..., Any] = _paged_prefill

    def make_attention(self, kind: AttentionKind) -> AttentionBackend:
        """A backend, as :func:`minipaged.attention.choose_attention` names it.

        ``reference`` is :attr:`attention`. ``triton`` is made of the kernels; :attr:`decode_kernel`
        says which version decodes. Keys are rotated on their way into the cache, unless somebody
        else's :attr:`cache_write` is to write them.
        """
        if kind == "reference":
            return self.attention()
        from minipaged.attention.triton import FusedTritonAttention, TritonAttention

        decode: Callable[..., Any] = getattr(self, self.decode_kernel)
        if self.decode_kernel != "paged_decode_v2":
            decode = _without_max_context_len(decode)
        if self._is_foreign("cache_write"):
            return TritonAttention(self.cache_write, decode, self.paged_prefill)
        return FusedTritonAttention(self.cache_write, decode, self.paged_prefill, _rotate_and_write)

    @property
    def decode_kernel(self) -> str:
        """The field whose kernel decodes: of the versions that are not this package's own the
        highest, so that a student sees theirs in the engine as soon as it is written; without
        any, version 2."""
        for name in _DECODES:
            if self._is_foreign(name):
                return name
        return "paged_decode_v2" if self._is_given("paged_decode_v2") else "paged_decode_v0"

    @property
    def own_kernels(self) -> tuple[str, ...]:
        """Kernels of attention that are not this package's own."""
        names = ("cache_write", *_DECODES, "paged_prefill")
        return tuple(name for name in names if self._is_foreign(name))

    @property
    def why_not_triton(self) -> str:
        """A reason why attention by kernels is not what these parts are for; or empty."""
        needed = ("cache_write", self.decode_kernel, "paged_prefill")
        missing = [n for n in needed if not (self._is_given(n) or self._is_foreign(n))]
        if missing:
            return f"{missing[0]} is not written"
        if self.attention is not reference_attention and not self.own_kernels:
            return "these parts have an attention of their own, and no kernel"
        return ""

    def _is_foreign(self, name: str) -> bool:
        return not getattr(self, name).__module__.startswith(_PACKAGE)

    def _is_given(self, name: str) -> bool:
        return getattr(self, name).__module__.startswith(_KERNELS)  # type: ignore[no-any-return]


def _without_max_context_len(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Versions 0 and 1 read all contexts to their ends, and are not told the longest."""

    def paged_decode(*args: Any) -> Any:
        *inputs, _, out = args
        return decode(*inputs, out)

    return paged_decode
