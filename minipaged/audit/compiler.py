"""From a host function to PTX, exactly as the JIT would compile what it launches.

The host function runs on tensors without memory (device ``meta``): shapes, strides and alignment
are real, so Triton specializes on the same facts as for a real launch. In place of a GPU's driver
stands one that only knows its architecture, and where the JIT would compile, the launch is
recorded. No code of the kernels knows of this.

No other process is started when the PTX version is given, so a process that may not start any can
compile too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minipaged.errors import MinipagedError

WARP_SIZE = 32


class AuditError(MinipagedError):
    """A kernel cannot be audited: it does not compile, or a tool is missing."""


@dataclass(frozen=True)
class Launch:
    """One launch as the JIT specialized it.

    Attributes:
        kernel: the ``triton.jit`` function.
        grid: programs in each dimension.
        signature: parameter -> type: ``*fp16``, ``i32``, ``constexpr``, ...
        constants: path of a parameter -> value known when compiling.
        attributes: path of a parameter -> what is known of it: divisibility by 16.
        options: of the backend: warps, stages, ...
        capability: 80 for ``sm_80``.
    """

    kernel: Any
    grid: tuple[int, ...]
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: Any
    capability: int

    @property
    def name(self) -> str:
        """The name of the kernel's function."""
        return str(self.kernel.__name__)


@dataclass(frozen=True)
class Ptx:
    """A compiled kernel as text.

    Attributes:
        text: PTX with line numbers.
        kernel: name of its one entry.
        num_warps: warps of a thread block.
        shared_bytes: shared memory of a thread block, allocated at the launch.
    """

    text: str
    kernel: str
    num_warps: int
    shared_bytes: int


def capability_of(arch: str) -> int:
    """80 for ``"sm_80"``, 90 for ``"sm_90"`` and ``"sm_90a"``.

    Raises:
        AuditError: it is no name of an architecture.
    """
    match = re.fullmatch(r"sm_?(\d{2,3})[af]?", arch)
    if not match:
        raise AuditError(f"{arch!r} is no GPU architecture: give one like sm_80")
    return int(match[1])


def capture_launches(call: Callable[[], object], arch: str = "sm_80") -> list[Launch]:
    """Run ``call`` and record each kernel that it launches; none is compiled or run.

    Args:
        call: calls host functions on tensors of device ``meta``. It must not read a tensor's
            contents.
        arch: the GPU that the launch is for.

    Raises:
        AuditError: this process interprets kernels, or ``call`` launched none.
    """
    with _recording(capability_of(arch)) as launches:
        call()
    if not launches:
        raise AuditError("the host function launched no kernel")
    return launches


@contextmanager
def _recording(capability: int) -> Iterator[list[Launch]]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    if triton.knobs.runtime.interpret:
        raise AuditError(
            "this process interprets kernels (TRITON_INTERPRET is set): it cannot compile them"
        )
    launches: list[Launch] = []
    grids: list[tuple[int, ...]] = []

    class NoGpu:
        # The number of the device is a key of the JIT's caches: one for each architecture.
        def get_current_device(self) -> int:
            return capability

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", capability, WARP_SIZE)

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        # A grid that is a function of the arguments is called with them by name.
        named = dict(zip((parameter.name for parameter in self.params), args)) | kwargs
        grids.append(tuple(grid(named)) if callable(grid) else tuple(grid))
        original_run(self, *args, grid=grid, warmup=warmup, **kwargs)

    def record(
        self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any,
        attributes: Any, warmup: bool,
    ) -> None:  # fmt: skip
        launches.append(
            Launch(self, grids[-1], signature, constants, attributes, options, capability)
        )

    original_run, original_compile = JITFunction.run, JITFunction._do_compile
    active = driver._active
    driver.set_active(NoGpu())
    JITFunction.run, JITFunction._do_compile = run, record
    try:
        yield launches
    finally:
        JITFunction.run, JITFunction._do_compile = original_run, original_compile
        driver._active = active


def to_ptx(launch: Launch, ptx_version: int | None = None) -> Ptx:
    """Compile a launch as far as PTX.

    Args:
        ptx_version: 84 for PTX 8.4; None: what this machine's ``ptxas`` takes, which it is asked
            by starting it. Give :func:`minipaged.audit.toolchain.ptx_version` where no process
            may be started.

    Raises:
        AuditError: the kernel does not compile; the message is the compiler's.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend
    from triton.compiler.errors import CompilationError

    target = GPUTarget("cuda", launch.capability, WARP_SIZE)
    backend = make_backend(target)
    options = dict(launch.options.__dict__)
    if ptx_version is not None:
        options["ptx_version"] = ptx_version
    parsed = backend.parse_options(options)
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    metadata: dict[str, Any] = {"target": target, **parsed.__dict__}
    try:
        module = _lower(source, target, backend, parsed, metadata)
    except (CompilationError, RuntimeError) as error:
        raise AuditError(f"{launch.name} does not compile: {error}") from error
    # The compiler may add warps of its own; threads of the block is what the PTX requires.
    threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", module)
    if threads is None:
        raise AuditError(f"the PTX of {launch.name} does not say how many threads a block has")
    return Ptx(module, metadata["name"], int(threads[1]) // WARP_SIZE, metadata["shared"])


def _lower(source: Any, target: Any, backend: Any, options: Any, metadata: dict[str, Any]) -> str:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    module = source.make_ir(
        target,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name == "ptx":
            return str(module)
    raise AssertionError(f"no stage ptx among {', '.join(stages)}")
