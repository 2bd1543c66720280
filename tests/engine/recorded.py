"""What a CUDA graph does, on a CPU: the operations of PyTorch that a piece of work performs, and
the same operations on the same memory again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Operations whose result, or the size of whose result, the host would have to wait for.
SYNCHRONIZING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "equal",
    "is_nonzero",
    "repeat_interleave.Tensor",
)


class HostWaits(AssertionError):
    """An operation was performed that makes the host wait for the device."""


class _NoReading(TorchFunctionMode):
    """Refuses the methods that on a CPU come down to no operation."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.tolist, torch.Tensor.cpu):
            raise HostWaits(func.__name__)
        return func(*args, **(kwargs or {}))


class NoWaiting(TorchDispatchMode):
    """Refuses whatever would make the host wait for a GPU: values that become Python numbers, and
    results whose size depends on values (an index by a mask among them)."""

    def __enter__(self):
        self._no_reading = _NoReading()
        self._no_reading.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._no_reading.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if any(name.startswith(f"aten.{waits}") for waits in SYNCHRONIZING):
            raise HostWaits(name)
        if name.startswith(("aten.index.", "aten.index_put")):
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                raise HostWaits(f"{name} by a mask")
        return func(*args, **(kwargs or {}))


class _Recorder(NoWaiting):
    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self.calls.append((func, args, kwargs or {}, out))
        return out


def record(work: Callable[[], None]) -> Callable[[], None]:
    """A ``Capture``: what it returns does not run ``work`` again; it repeats the operations that
    the first run performed, with the numbers that the host had then, into the same memory."""
    with _Recorder() as recorder:
        work()

    def replay() -> None:
        for func, args, kwargs, out in recorder.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                # Views and operations in place are in the right memory already.
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    return replay
