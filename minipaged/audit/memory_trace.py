"""Every load and store of kernels that run in Triton's interpreter: counted, and checked first.

A wild pointer would end the process, or read what happens to lie there. So each address is held
against the tensors that the launch was given, before memory is touched::

    with trace_memory() as trace:
        paged_decode_v0(q, k_cache, v_cache, block_tables, context_lens, scale)
    trace.loaded["k_cache"]          # bytes, masked lanes excluded
    trace.programs[0].slots("k_cache")  # {(block, slot), ...} that program 0 touched

Tensors go by the names of the kernel's parameters. They must be on the CPU: so is the
interpreter.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minipaged.audit.compiler import AuditError
from minipaged.errors import MinipagedError

Ints = npt.NDArray[np.int64]

#: Of a tensor that has these dimensions an offset is also told as block, head, slot, dimension.
CACHE_DIMENSIONS = ("block", "head", "slot", "dim")
CACHES = ("k_cache", "v_cache")

_SHOWN = 4  # offsets in a message
# What computes pointers from pointers: the result points into the same tensor.
_POINTER_OPERATIONS = (
    "create_addptr", "create_splat", "create_broadcast", "create_expand_dims", "create_reshape",
    "create_trans",
)  # fmt: skip


class OutOfBounds(MinipagedError, IndexError):
    """A kernel would touch memory outside of the tensors that it was given."""


@dataclass(frozen=True)
class Access:
    """One load or store of one program.

    Attributes:
        kind: ``load``, ``store`` or ``atomic``.
        tensor: the name of the tensor.
        offsets: from the tensor's first element, in elements; masked lanes excluded.
    """

    kind: str
    tensor: str
    offsets: Ints


@dataclass
class Program:
    """One program of a launch.

    Attributes:
        kernel: its name.
        index: its ``tl.program_id`` in the three dimensions.
        accesses: its loads and stores, in order.
    """

    kernel: str
    index: tuple[int, int, int]
    tensors: dict[str, _Tensor] = field(repr=False)
    accesses: list[Access] = field(default_factory=list, repr=False)

    def offsets(self, tensor: str, kind: str | None = None) -> Ints:
        """The distinct elements that it touched, as offsets from the first, in order."""
        touched = [
            access.offsets
            for access in self.accesses
            if access.tensor == tensor and kind in (None, access.kind)
        ]
        return np.unique(np.concatenate(touched)) if touched else np.empty(0, np.int64)

    def slots(self, tensor: str, kind: str | None = None) -> set[tuple[int, int]]:
        """The ``(block, slot)`` that it touched of a cache ``[blocks, heads, slots, dims]``."""
        if tensor not in self.tensors or len(self.tensors[tensor].shape) != len(CACHE_DIMENSIONS):
            raise AuditError(f"{self.kernel} was given no cache {tensor}")
        block, _, slot, _ = self.tensors[tensor].indices(self.offsets(tensor, kind))
        return set(zip(block.tolist(), slot.tolist()))


@dataclass
class MemoryTrace:
    """What the launches of a traced region did.

    Attributes:
        loaded: tensor -> bytes that programs loaded of it, again for each time; an atomic
            operation loads and stores.
        stored: tensor -> bytes stored.
        programs: in the order in which they ran.
    """

    loaded: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    programs: list[Program] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        """Bytes loaded and stored."""
        return self.loaded.total() + self.stored.total()


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor lies: address of its first element, and how its elements follow."""

    name: str
    address: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> _Tensor:
        return cls(
            name, tensor.data_ptr(), tensor.element_size(), tuple(tensor.shape), tensor.stride()
        )

    @property
    def extent(self) -> int:
        """Elements from the first to the last, both included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))

    @property
    def is_dense(self) -> bool:
        return self.extent == int(np.prod(self.shape, dtype=np.int64))

    def offsets_of(self, addresses: npt.NDArray[np.uint64]) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Offsets in elements, and which of them are elements of the tensor."""
        distance = (addresses - np.uint64(self.address)).view(np.int64)
        offsets = distance // self.itemsize
        inside = (offsets >= 0) & (offsets < self.extent) & (distance % self.itemsize == 0)
        if not self.is_dense and inside.any():
            # A view with gaps: what lies between its elements is not its own.
            inside &= self._is_element(offsets)
        return offsets, inside

    def indices(self, offsets: Ints) -> list[Ints]:
        """The index in each dimension; what is past the end shows in the first."""
        found: dict[int, Ints] = {}
        rest = offsets
        for dim in sorted(range(len(self.shape)), key=lambda d: -self.strides[d]):
            if self.shape[dim] == 1 or not self.strides[dim]:
                found[dim] = np.zeros_like(rest)
            else:
                found[dim] = rest // self.strides[dim]
                rest = rest % self.strides[dim]
        return [found[dim] for dim in range(len(self.shape))]

    def _is_element(self, offsets: Ints) -> npt.NDArray[np.bool_]:
        indices = self.indices(offsets)
        at = np.zeros_like(offsets)
        inside = np.ones(offsets.shape, np.bool_)
        for index, size, stride in zip(indices, self.shape, self.strides):
            at += index * stride
            inside &= (index >= 0) & (index < size)
        inside &= at == offsets
        return inside


@contextmanager
def trace_memory(**tensors: Tensor) -> Iterator[MemoryTrace]:
    """Count and check the memory accesses of every kernel launched inside.

    Args:
        tensors: names for tensors that should not go by the names of kernel parameters.

    Raises:
        OutOfBounds: a live lane of a load, store or atomic operation is outside of the tensors
            that its kernel was given. Nothing was read or written by it.
        AuditError: kernels are not interpreted in this process, or a tensor is not on the CPU.
    """
    import triton
    from triton.runtime import interpreter

    if not triton.knobs.runtime.interpret:
        raise AuditError(
            "memory can be traced only where kernels are interpreted: set TRITON_INTERPRET=1 "
            "before Triton is imported"
        )
    trace = MemoryTrace()
    hooks = _Hooks(interpreter, trace, {_key(tensor): name for name, tensor in tensors.items()})
    with hooks.installed():
        try:
            yield trace
        except interpreter.InterpreterError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OutOfBounds):
                cause = cause.__cause__
            if cause is None:
                raise
            raise cause from None


def _key(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.numel(), tensor.dtype


class _Hooks:
    """What stands before the interpreter's memory operations while a trace is on."""

    def __init__(self, interpreter: Any, trace: MemoryTrace, names: dict[Any, str]) -> None:
        self.interpreter = interpreter
        self.builder = interpreter.interpreter_builder
        self.trace = trace
        self.names = names
        self.kernel = ""
        self.given: dict[str, _Tensor] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        executor, builder = self.interpreter.GridExecutor, self.builder
        launch = executor.__call__
        replaced: dict[str, Callable[..., Any]] = {
            "create_masked_load": self.load,
            "create_masked_store": self.store,
            "create_atomic_cas": self.atomic_cas,
            "create_atomic_rmw": self.atomic_rmw,
            **dict.fromkeys(_POINTER_OPERATIONS, self.pointing),
        }
        before = {name: builder.__dict__.get(name) for name in replaced}
        for name, hook in replaced.items():
            setattr(builder, name, _bound(hook, getattr(builder, name)))
        executor.__call__ = _method(self.launch, launch)
        try:
            yield
        finally:
            executor.__call__ = launch
            for name, attribute in before.items():
                delattr(builder, name)
                if attribute is not None:
                    setattr(builder, name, attribute)

    # ----------------------------------------------------------------- launches
    def launch(self, original: Callable[..., Any], executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the tensors of a launch, then run it."""
        self.kernel = executor.fn.__name__
        given: dict[str, Any] = dict(zip(executor.arg_names, args)) | kwargs
        self.given = {}
        for parameter, value in given.items():
            if not isinstance(value, Tensor):
                continue
            if value.device.type != "cpu":
                raise AuditError(f"{parameter} is on {value.device}: a trace needs the CPU")
            name = self.names.get(_key(value), parameter)
            self.given[name] = _Tensor.of(name, value)
        return original(executor, *args, **kwargs)

    # ----------------------------------------------------------------- memory
    def load(
        self, original: Callable[..., Any], ptrs: Any, mask: Any, *rest: Any, **named: Any
    ) -> Any:
        self.access("load", ptrs, mask)
        return original(ptrs, mask, *rest, **named)

    def store(
        self,
        original: Callable[..., Any],
        ptrs: Any,
        value: Any,
        mask: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        self.access("store", ptrs, mask)
        return original(ptrs, value, mask, *rest, **named)

    def atomic_cas(self, original: Callable[..., Any], ptr: Any, *rest: Any, **named: Any) -> Any:
        self.access("atomic", ptr, None)
        return original(ptr, *rest, **named)

    def atomic_rmw(
        self, original: Callable[..., Any], op: Any, ptr: Any, val: Any, mask: Any, *rest: Any,
        **named: Any,
    ) -> Any:  # fmt: skip
        self.access("atomic", ptr, mask)
        return original(op, ptr, val, mask, *rest, **named)

    def pointing(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        result = original(*args, **named)
        for value in args:
            if isinstance(value, self.interpreter.TensorHandle) and (name := self.origin(value)):
                result.attr["tensor"] = name
                break
        return result

    def origin(self, pointers: Any) -> str:
        """The tensor that these pointers were computed from; ``""`` where that is not known."""
        attributes: dict[str, Any] = pointers.attr
        if "tensor" not in attributes and pointers.dtype.is_ptr() and pointers.data.size == 1:
            address = int(pointers.data.reshape(-1)[0])
            bases = (t.name for t in self.given.values() if t.address == address)
            attributes["tensor"] = next(bases, "")
        return str(attributes.get("tensor", ""))

    def access(self, kind: str, pointers: Any, mask: Any) -> None:
        addresses = pointers.data.reshape(-1)
        if mask is not None:
            # Masks that were made with `&` may be integers: as an index they would be places.
            live = np.asarray(mask.data).astype(np.bool_)
            addresses = addresses[np.broadcast_to(live, pointers.data.shape).reshape(-1)]
        if not addresses.size:
            return
        origin = self.given.get(self.origin(pointers))
        # A pointer stays in the tensor that it came from, even where another lies next to it. Of
        # several tensors at one address, views of one memory, it may be any.
        candidates = [t for t in self.given.values() if not origin or t.address == origin.address]
        left, found = addresses, []
        for tensor in candidates:
            offsets, inside = tensor.offsets_of(left)
            found.append((tensor, offsets[inside]))
            left = left[~inside]
            if not left.size:
                break
        else:
            raise OutOfBounds(self.describe(kind, origin or self.nearest(left), left))
        for tensor, offsets in found:
            if offsets.size:
                self.count(kind, tensor, offsets)

    def count(self, kind: str, tensor: _Tensor, offsets: Ints) -> None:
        size = offsets.size * tensor.itemsize
        if kind != "store":
            self.trace.loaded[tensor.name] += size
        if kind != "load":
            self.trace.stored[tensor.name] += size
        index = self.builder.grid_idx
        programs = self.trace.programs
        if not programs or programs[-1].tensors is not self.given or programs[-1].index != index:
            programs.append(Program(self.kernel, index, self.given))
        programs[-1].accesses.append(Access(kind, tensor.name, offsets))

    # ----------------------------------------------------------------- what went wrong
    def nearest(self, addresses: npt.NDArray[np.uint64]) -> _Tensor | None:
        def distance(tensor: _Tensor) -> int:
            end = tensor.address + tensor.extent * tensor.itemsize
            at = int(addresses[0])
            return max(tensor.address - at, at - end, 0)

        return min(self.given.values(), key=distance, default=None)

    def describe(self, kind: str, tensor: _Tensor | None, addresses: npt.NDArray[np.uint64]) -> str:
        where = f"program {self.builder.grid_idx} of {self.kernel}{_line_of_kernel()}"
        if tensor is None:
            return (
                f"out of bounds: {kind} of {addresses.size} addresses by {where}: it has no tensor"
            )
        offsets = np.unique(tensor.offsets_of(addresses)[0])
        shown = ", ".join(map(str, offsets[:_SHOWN].tolist()))
        if offsets.size > _SHOWN:
            shown += f" and {offsets.size - _SHOWN} more"
        text = (
            f"out of bounds: {kind} of {tensor.name} {[*tensor.shape]} at offset"
            f"{'s' * (offsets.size > 1)} {shown} (in elements, of {tensor.extent}) by {where}"
        )
        if tensor.name in CACHES and len(tensor.shape) == len(CACHE_DIMENSIONS):
            first = [int(index[0]) for index in tensor.indices(offsets[:1])]
            place = zip(CACHE_DIMENSIONS, first, tensor.shape)
            text += ": " + ", ".join(f"{name} {i} of {size}" for name, i, size in place)
        return text


def _bound(hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: hook(original, *args, **kwargs)


def _method(hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: hook(original, self, *args, **kwargs)


def _line_of_kernel() -> str:
    """The line of the innermost frame that is neither the interpreter's nor this module's."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and module.partition(".")[0] not in ("triton", "contextlib"):
            return f", line {frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
