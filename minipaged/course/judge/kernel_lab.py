"""Kernels of a submission, watched in Triton's interpreter or compiled as far as PTX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from minipaged.errors import CourseError

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A function that launches kernels, and its arguments."""


def launch(call: Call) -> Any:
    """What the call returns. In the interpreter every address is checked before it is used; a GPU
    checks for itself."""
    from minipaged.audit.memory_trace import trace_memory

    function, args, kwargs = call
    with _nothing_is_zero_by_luck():
        if not _is_interpreted():
            return function(*args, **kwargs)
        with trace_memory():
            return function(*args, **kwargs)


def traffic(call: Call) -> dict[str, dict[str, int]]:
    """Bytes that the kernels of a call load and store: parameter -> ``loaded``, ``stored``.

    Raises:
        CourseError: kernels are compiled in this process, and nobody sees what they load.
    """
    from minipaged.audit.memory_trace import trace_memory

    if not _is_interpreted():
        raise CourseError("bytes are counted where kernels are interpreted: TRITON_INTERPRET=1")
    function, args, kwargs = call
    with trace_memory() as trace:
        function(*args, **kwargs)
    return {
        name: {"loaded": trace.loaded[name], "stored": trace.stored[name]}
        for name in sorted({*trace.loaded, *trace.stored})
    }


def milliseconds(call: Call) -> float:
    """The median of many calls on a GPU. The caches are emptied between them.

    Raises:
        CourseError: there is no GPU to measure.
    """
    import torch
    from triton.testing import do_bench

    if _is_interpreted() or not torch.cuda.is_available():
        raise CourseError("nothing is measured without a GPU: the interpreter's time means nothing")
    function, args, kwargs = call
    return float(do_bench(lambda: function(*args, **kwargs), return_mode="median"))


def copy_bandwidth(size: int) -> float:
    """Bytes a second that a GPU reads and writes when it copies ``size`` bytes.

    Raises:
        CourseError: there is no GPU to measure.
    """
    import torch

    if not torch.cuda.is_available():
        raise CourseError("nothing is measured without a GPU: the interpreter's time means nothing")
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / (milliseconds((target.copy_, (source,), {})) * 1e-3)


def ptx(
    function: Callable[..., Any], arguments: Mapping[str, Any], arch: str, version: int
) -> list[dict[str, Any]]:
    """PTX of each kernel that a call would launch; nothing runs, and no process is started.

    Args:
        arguments: by name; a tensor is ``[type, shape]``, as ``["float16", [32, 40, 128]]``, and
            has no memory.
        version: of PTX, as the assembler takes it: 84 for 8.4.

    Returns:
        The fields of :class:`minipaged.audit.compiler.Ptx`, launch by launch.
    """
    from minipaged.audit.compiler import capture_launches, to_ptx

    given = {name: _without_memory(value) for name, value in arguments.items()}
    launches = capture_launches(lambda: function(**given), arch)
    return [asdict(to_ptx(each, version)) for each in launches]


@contextmanager
def _nothing_is_zero_by_luck() -> Iterator[None]:
    """New tensors that nobody has filled, as a workspace, hold NaN."""
    import torch

    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _without_memory(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    import torch

    dtype, shape = value
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _is_interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)
