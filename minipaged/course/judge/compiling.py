"""PTX of kernels from a process of its own, for tests that run in a process that interprets them.

It trusts the submission, as all debugging does; under the judge a worker compiles.

A request on standard input, the answer on standard output, both JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from minipaged.audit.compiler import AuditError
from minipaged.course.judge import isolated
from minipaged.course.judge.kernel_lab import ptx
from minipaged.course.kernel_errors import chain_of, message_of
from minipaged.course.source_module import run_as_module

#: Of a part's kernels; a solution takes a tenth of it.
_SECONDS = 120.0


def compile_apart(
    name: str,
    path: str,
    source: str,
    function: str,
    arguments: Mapping[str, Any],
    arch: str,
    version: int,
) -> list[dict[str, Any]]:
    """What :func:`~.kernel_lab.ptx` gives, from a new process.

    Args:
        name, path, source: of the part whose function it is.

    Raises:
        AuditError: it does not compile; the message is the compiler's.
    """
    request = {"part": [name, path, source], "call": [function, dict(arguments), arch, version]}
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        isolated.command("minipaged.course.judge.compiling"),
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise AuditError(done.stderr.strip() or f"compiling ended with status {done.returncode}")
    kernels: list[dict[str, Any]] = json.loads(done.stdout)
    return kernels


def main() -> None:
    """Answer one request; what goes wrong is said on standard error."""
    request = json.load(sys.stdin)
    function, arguments, arch, version = request["call"]
    try:
        module = run_as_module(*request["part"])
        kernels = ptx(getattr(module, function), arguments, arch, version)
    except Exception as error:
        inner = chain_of(error)[-1]
        sys.exit(message_of(inner) or f"{type(inner).__name__}: {inner}")
    print(json.dumps(kernels))


if __name__ == "__main__":
    main()
