"""Can Triton be trusted on this machine? One small kernel, compared with NumPy.

Some pairs of versions have run a kernel without complaint and returned zeros, or have got a loop
wrong whose bounds are read from memory, which is what attention over a block table consists of.
So the kernel sums ragged rows through a table of indices, and is given values whose sums are far
from zero.

``python -m minipaged.kernels.self_test [cpu|cuda]`` prints one line of JSON. On a CPU the variable
``TRITON_INTERPRET=1`` must be set before Python starts.
"""

import json
import sys

import numpy as np
import torch
import triton
import triton.language as tl


@triton.jit
def ragged_sums_kernel(values, table, row_start, out, WIDTH: tl.constexpr):
    """``out[r] = sum(values[table[i]] for i in row_start[r] .. row_start[r + 1])``."""
    row = tl.program_id(0)
    first = tl.load(row_start + row)
    last = tl.load(row_start + row + 1)
    total = tl.zeros([WIDTH], tl.float32)
    for base in range(first, last, WIDTH):
        entry = base + tl.arange(0, WIDTH)
        inside = entry < last
        index = tl.load(table + entry, mask=inside, other=0)
        total += tl.load(values + index, mask=inside, other=0.0)
    tl.store(out + row, tl.sum(total, axis=0))


def run(device: str) -> tuple[np.ndarray, np.ndarray]:
    """The kernel's sums and NumPy's, ``[rows]`` each: rows of 0 to 37 entries, width 8."""
    rng = np.random.default_rng(0)
    lengths = np.array([1, 8, 0, 37, 9, 16, 3])
    row_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = rng.uniform(1.0, 2.0, 64).astype(np.float32)
    table = rng.integers(0, values.size, row_start[-1]).astype(np.int32)
    rows = np.split(table, row_start[1:-1])
    expected = np.array([values[row].sum() for row in rows])

    out = torch.full((lengths.size,), -1.0, device=device)
    inputs = [torch.from_numpy(array).to(device) for array in (values, table, row_start)]
    ragged_sums_kernel[(lengths.size,)](*inputs, out, WIDTH=8)
    return out.cpu().numpy(), expected


if __name__ == "__main__":
    got, expected = run(sys.argv[1] if len(sys.argv) > 1 else "cpu")
    print(json.dumps({"got": got.tolist(), "expected": expected.tolist()}))
