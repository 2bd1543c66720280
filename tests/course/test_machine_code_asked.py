"""What stage 8 asks of machine code is what stage 7's kernel does not have."""

from __future__ import annotations

import pytest

from minipaged.audit.compiler import Ptx
from minipaged.audit.report import audit_ptx
from minipaged.audit.thresholds import Thresholds, check
from minipaged.audit.toolchain import ptx_version
from minipaged.course.catalog import load_course
from minipaged.course.judge.auditing import ARCH
from minipaged.course.judge.compiling import compile_apart

triton = pytest.importorskip("triton", reason="Triton is for Linux alone")

COURSE = load_course()
STAGE = COURSE.stage("8")
CACHE = ["float16", [64, 8, 16, 128]]
ARGUMENTS = {
    "q": ["float16", [8, 32, 128]],
    "k_cache": CACHE,
    "v_cache": CACHE,
    "block_tables": ["int32", [8, 64]],
    "context_lens": ["int32", [8]],
    "scale": 0.088,
}


@pytest.fixture(scope="module")
def version_0():
    """Version 0, compiled as the grader compiles a submission."""
    path = COURSE.root / COURSE.stage("7").part("paged_decode_v0").source
    source = path.read_text(encoding="utf-8")
    call = ("paged_decode_v0", ARGUMENTS, ARCH, ptx_version(ARCH))
    (kernel,) = compile_apart("paged_decode_v0", str(path), source, *call)
    return audit_ptx(Ptx(**kernel), source, ARCH)


def asked(name):
    fields = dict(STAGE.audit[name])
    fields.pop("kernel", None)
    return Thresholds(**fields)


@pytest.mark.parametrize("name", [name for name in STAGE.audit if name != "float32"])
def test_version_0_falls_short_of_what_is_asked(version_0, name):
    said = check(version_0, asked(name))
    assert any("bytes of K and V in flight" in sentence for sentence in said)
    assert any("tensor-core" in sentence for sentence in said) == asked(name).tensor_cores


def test_it_does_not_fall_short_for_want_of_registers_or_width(version_0):
    """The difference is in what is asked for at one time: it is no careless kernel."""
    assert check(version_0, Thresholds(kv_wide_share=1.0, min_warps=16)) == []


def test_what_float32_is_compiled_for_is_counted_by_the_test_itself():
    assert asked("float32") == Thresholds(no_spills=False)


def test_the_lesson_says_what_is_asked():
    """Its table has a row for each of the demands, or one for all shapes of a kernel."""
    lesson = (COURSE.root / STAGE.lesson).read_text(encoding="utf-8")
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in lesson.splitlines()
        if line.startswith("| `paged_") and line.count("|") == 8
    ]
    heads = {"13b": "40 over 40", "gqa": "32 over 8"}
    for name in STAGE.audit:
        if name == "float32":
            continue
        kind, model = name.rsplit("_", 1)
        kernel = dict(STAGE.audit[name]).get("kernel", f"paged_{kind}_kernel")
        (row,) = [r for r in rows if r[0] == kernel and r[1] in (heads[model], "both")]
        wanted = asked(name)
        assert (wanted.no_spills, wanted.kv_wide_share) == (True, 1.0)
        cores = "yes" if wanted.tensor_cores else "–"
        flight = f"{wanted.min_kv_bytes_in_flight:,}"
        assert row[2:6] == ["all", cores, str(wanted.min_warps), flight]
