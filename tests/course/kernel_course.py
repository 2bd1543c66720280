"""A small course for the tests of what the judge does with kernels: one stage of two of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import minipaged
from minipaged.course.catalog import Course, load_course
from minipaged.course.mutants import reference_source
from minipaged.course.submission import Submission, submission_in_memory

COURSE = """
[course]
title = "The judge's own kernels"
version = "1"

[[stage]]
number = "07"
name = "kernel"
title = "Kernels"
hours = 1
triton = true
gpu = [{ name = "the_card_agrees", points = 3 }, { name = "the_card_is_busy", points = 2 }]

[[stage.part]]
name = "cache_write"
module = "minipaged.kernels.cache_write"
contract = 1

[[stage.part]]
name = "paged_decode_v0"
module = "minipaged.kernels.paged_decode_v0"
contract = 1

[[stage.task]]
id = "7.1"
title = "Cache write"
part = "cache_write"
symbols = ["cache_write_kernel"]
question = "Which?"
pointer = "That."
checks = [{ name = "each_token_is_in_its_slot", points = 4 }]

[[stage.task]]
id = "7.2"
title = "Decode"
part = "paged_decode_v0"
symbols = ["paged_decode_v0_kernel"]
question = "Which?"
pointer = "That."
checks = [{ name = "a_query_sees_its_context", points = 6 }]

[stage.robustness]
checks = [
  { name = "half_precision_is_enough", points = 2, parent = "7.2" },
  { name = "the_machine_code_keeps_its_numbers_in_registers", points = 1, parent = "7.2" },
]

[stage.audit.decode]
kernel = "paged_decode_v0_kernel"
min_warps = 32
"""

TESTS = '''
import numpy as np
import pytest

from minipaged.course.testing import expect


def test_each_token_is_in_its_slot(parts, lab, rng):
    """A tensor of queries, keys and values is split, as the engine splits it."""
    heads, kv_heads, dim, blocks, size, tokens = 4, 2, 12, 5, 3, 7
    qkv = rng.normal(size=(tokens, heads + 2 * kv_heads, dim)).astype(np.float32)
    _, k, v = lab.split(lab.tensor(qkv), [heads, kv_heads, kv_heads], axis=1)
    slots = rng.permutation(blocks * size)[:tokens].astype(np.int64)
    slots[3] = -1
    caches = [lab.tensor(np.full((blocks, kv_heads, size, dim), np.nan, np.float32)) for _ in "kv"]
    lab.launch(parts.cache_write, k, v, *caches, lab.tensor(slots))
    for cache, first in zip(caches, (heads, heads + kv_heads)):
        expected = np.full((blocks, kv_heads, size, dim), np.nan, np.float32)
        for token, slot in enumerate(slots):
            if slot >= 0:
                new = qkv[token, first : first + kv_heads]
                expected[slot // size, :, slot % size] = new
        wrong = np.argwhere(~np.isclose(lab.read(cache), expected, equal_nan=True))
        expect(len(wrong), 0, "every number of both caches")


def test_a_query_sees_its_context(parts, lab, rng):
    check(parts, lab, rng, "float32", 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_enough(parts, lab, rng, dtype):
    check(parts, lab, rng, dtype, 2e-2)


def test_the_machine_code_keeps_its_numbers_in_registers(audit):
    arguments = {
        "q": ["float16", [8, 40, 128]],
        "k_cache": ["float16", [64, 40, 16, 128]],
        "v_cache": ["float16", [64, 40, 16, 128]],
        "block_tables": ["int32", [8, 16]],
        "context_lens": ["int32", [8]],
        "scale": 0.25,
    }
    expect(audit("paged_decode_v0", arguments, "decode").sentences, [], "no spills, 32 warps")


def check(parts, lab, rng, dtype, tolerance):
    heads, kv_heads, dim, blocks, size = 4, 2, 12, 9, 3
    lens = [1, 3, int(rng.integers(4, 9))]
    q = lab.tensor(rng.normal(size=(len(lens), heads, dim)), dtype)
    k, v = (lab.tensor(rng.normal(size=(blocks, kv_heads, size, dim)), dtype) for _ in "kv")
    tables = np.stack([rng.permutation(blocks)[:3] for _ in lens]).astype(np.int32)
    context = np.array(lens, np.int32)
    out = lab.launch(
        parts.paged_decode_v0, q, k, v, lab.tensor(tables), lab.tensor(context), 0.25
    )
    expect(lab.dtype(out), dtype, "the output is of the queries' type")
    got = lab.read(out).astype(np.float64)
    want = np.zeros_like(got)
    q, k, v = (lab.read(x).astype(np.float64) for x in (q, k, v))
    for s, length in enumerate(lens):
        for h in range(heads):
            keys, values = (
                x[tables[s], h // 2].reshape(-1, dim)[:length] for x in (k, v)
            )
            weights = np.exp(keys @ q[s, h] * 0.25)
            want[s, h] = weights @ values / weights.sum()
    wrong = np.abs(got - want).max() / np.abs(want).max()
    expect(bool(wrong < tolerance), True, f"contexts {lens}")
'''

ON_DEVICE = """
import numpy as np

from minipaged.course.testing import expect


def test_the_card_agrees(parts, lab, rng):
    expect(lab.device, "cuda", "these tests are for a GPU")


def test_the_card_is_busy(parts, lab, rng):
    raise AssertionError("it is not")
"""

PARTS = ("cache_write", "paged_decode_v0")


def make_course(root: Path) -> Course:
    """Write the course into a folder that only its owner can read."""
    kernels = Path(minipaged.__file__).parent / "kernels"
    (root / "kernels").mkdir()
    (root / "minipaged").mkdir()
    (root / "minipaged" / "kernels").symlink_to("../kernels")
    for name in PARTS:
        shutil.copy(kernels / f"{name}.py", root / "kernels")
    (root / "course.toml").write_text(COURSE)
    tests = root / "tests" / "stage07_kernel"
    tests.mkdir(parents=True)
    (tests / "test_judged_kernels.py").write_text(TESTS)
    (tests / "test_judged_on_device.py").write_text(ON_DEVICE)
    (root / "exercises" / "stage07_kernel").mkdir(parents=True)
    root.chmod(0o700)
    return load_course(root)


def changed(course: Course, **changes: tuple[str, str]) -> Submission:
    """The reference with a text replaced in some parts, as handed in by somebody."""
    stage = course.stage("7")
    sources = {name: reference_source(course, stage, name) for name in PARTS}
    for part, (find, replace) in changes.items():
        assert sources[part].count(find) == 1, f"{find!r} in {part}"
        sources[part] = sources[part].replace(find, replace)
    return submission_in_memory(course, stage, sources, "somebody")
