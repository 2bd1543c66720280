"""``python -m minipaged.audit.child ARCH CASE...``: compile cases, and write PTX as JSON.

The child of :func:`minipaged.audit.run.audit`, without TRITON_INTERPRET. It starts no process, and
writes one line for each kernel.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Sequence

from minipaged.audit.cases import Case
from minipaged.audit.compiler import capture_launches, to_ptx


def main(argv: Sequence[str]) -> None:
    """Compile and print; an error ends the child with its traceback."""
    arch, version, *names = argv
    for name in names:
        case = Case(*name.split(":"))
        launches = capture_launches(case.call, arch)
        # Its lines must be those that were imported: somebody may be editing the file.
        source = inspect.getsource(sys.modules[launches[0].kernel.__module__])
        for launch in launches:
            ptx = dataclasses.asdict(to_ptx(launch, int(version)))
            print(json.dumps({"case": name, "ptx": ptx, "source": source}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
