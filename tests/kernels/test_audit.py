"""The audit: machine code read right, and kernels that fall short told so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minipaged.audit import results
from minipaged.audit.cache_loads import find_cache_loads, load_at
from minipaged.audit.cases import CASES, CONFIGURATIONS, HOST_FUNCTIONS, REQUIRED, Case, arguments
from minipaged.audit.compiler import AuditError, Ptx, capability_of, capture_launches
from minipaged.audit.machine_code import Instruction, bytes_in_flight, parse
from minipaged.audit.movement import Movement
from minipaged.audit.occupancy import Occupancy, occupancy
from minipaged.audit.report import AccessCount, Report, audit_ptx
from minipaged.audit.run import Audited
from minipaged.audit.thresholds import Thresholds, check
from minipaged.audit.toolchain import Position, number_sites
from minipaged.cli import main

KERNELS = Path(__file__).parents[2] / "kernels"

# --------------------------------------------------------------------------- machine code
LISTING = """
	.section	.text.k,"ax",@progbits
k:
.text.k:
	//## File "/somewhere/k.py", line 3
        /*0000*/                   LDG.E.U16 R2, [R4.64] ;
	//## File "/somewhere/k.py", line 1
        /*0010*/              @!P3 LDGSTS.E.BYPASS.LTC128B.128 [R62+0x10800], [R2.64], !P0 ;
        /*0020*/                   LDGDEPBAR ;
.L_x_0:
        /*0030*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0040*/                   ISETP.NE.AND P0, PT, R2, RZ, PT ;
        /*0050*/               @P0 BRA `(.L_x_0) ;
        /*0060*/                   STG.E.64 [R4.64], R8 ;
        /*0070*/                   EXIT ;
.L_x_1:
        /*0080*/                   BRA `(.L_x_1) ;
"""


def test_instructions_are_read():
    code = parse(LISTING)
    assert [i.name for i in code] == [
        "LDG", "LDGSTS", "LDGDEPBAR", "HMMA", "ISETP", "BRA", "STG", "EXIT", "BRA"
    ]  # fmt: skip
    assert [i.line for i in code[:4]] == [3, 1, 1, 1]
    assert [i.target for i in code] == [-1, -1, -1, -1, -1, 3, -1, -1, 8]
    assert (code[0].bits, code[1].bits, code[6].bits) == (16, 128, 64)


@pytest.mark.parametrize(
    ("opcode", "bits"),
    [
        ("LDG.E", 32), ("LDG.E.64", 64), ("LDG.E.128.CONSTANT", 128), ("LDG.E.U8", 8),
        ("LDG.E.EL.LTC128B", 32), ("LDGSTS.E.LTC128B.64", 64), ("LDG.E.ENL2.256", 256),
        ("STG.E.U16", 16),
    ],
)  # fmt: skip
def test_the_width_is_a_word_of_the_opcode(opcode, bits):
    assert Instruction(opcode, "", 0).bits == bits


def in_flight(*listing: str) -> int:
    """Of a thread, when every load counts. A line is an instruction, or a label."""
    lines = [row if row.startswith(".L") else f"/*0000*/ {row} ;" for row in listing]
    code = parse("\n".join(lines))
    return bytes_in_flight(code, frozenset(i for i, c in enumerate(code) if c.is_load))


def test_a_load_is_in_flight_until_its_register_is_named():
    load = ("LDG.E.128 R4, [R2.64]", "LDG.E.128 R8, [R2.64]")
    assert in_flight(*load, "FADD R0, R4, R8") == 32
    assert in_flight(load[0], "FADD R0, R7, R0", load[1], "FADD R0, R8, R0") == 16
    assert in_flight(load[0], "FADD R0, R3, R12", load[1]) == 32
    assert in_flight(load[0], load[0]) == 16  # the second waits for the first


def test_copies_are_in_flight_until_their_group_is_waited_for():
    copy, close = "LDGSTS.E.BYPASS.128 [R1], [R2.64]", "LDGDEPBAR"
    assert in_flight(copy, close, copy, close, "DEPBAR.LE SB0, 0x0", copy, close) == 32
    assert in_flight(copy, close, "DEPBAR.LE SB0, 0x0", copy, close) == 16
    assert in_flight(copy, close, copy, close, "DEPBAR.LE SB0, 0x1", copy, close) == 32
    assert in_flight(copy, close, copy, close, "DEPBAR.LE SB0, 0x2", copy, close) == 48


def test_what_a_loop_leaves_in_flight_meets_its_next_turn():
    load, use, back = "LDG.E.64 R4, [R2.64]", "FADD R0, R4, R0", "@P0 BRA `(.L_x_0)"
    assert in_flight(".L_x_0:", use, load, back, use) == 8
    assert in_flight(".L_x_0:", use, load, "LDG.E R9, [R2.64]", back, "FADD R0, R9, R4") == 12


# --------------------------------------------------------------------------- occupancy
@pytest.mark.parametrize(
    ("arch", "warps", "registers", "shared", "expected"),
    [
        ("sm_80", 8, 32, 0, Occupancy(64, 64, 8, "warps")),
        ("sm_80", 8, 64, 0, Occupancy(32, 64, 4, "registers")),
        ("sm_80", 8, 65, 0, Occupancy(24, 64, 3, "registers")),
        ("sm_80", 4, 96, 68096, Occupancy(8, 64, 2, "shared memory")),
        ("sm_80", 1, 16, 0, Occupancy(32, 64, 32, "blocks")),
        ("sm_80", 4, 255, 0, Occupancy(8, 64, 2, "registers")),
        ("sm_80", 4, 32, 163 * 1024, Occupancy(4, 64, 1, "shared memory")),
        ("sm_90", 4, 32, 113 * 1024, Occupancy(8, 64, 2, "shared memory")),
        ("sm_86", 8, 40, 0, Occupancy(48, 48, 6, "warps")),
    ],
)
def test_occupancy(arch, warps, registers, shared, expected):
    assert occupancy(arch, warps, registers, shared) == expected


def test_what_does_not_fit_or_is_not_known_is_refused():
    with pytest.raises(AuditError, match="too much shared memory"):
        occupancy("sm_80", 4, 32, 164 * 1024)
    with pytest.raises(AuditError, match="sm_61 are not known here"):
        occupancy("sm_61", 4, 32, 0)
    with pytest.raises(AuditError, match="'ampere' is no GPU architecture"):
        capability_of("ampere")
    assert capability_of("sm_90a") == 90


# --------------------------------------------------------------------------- which loads
SOURCE = """
@triton.jit
def _tile(start, mask):
    return tl.load(start, mask=mask)

@triton.jit
def _either(one, other, first):
    pointer = one
    if first:
        pointer = other
    return tl.load(pointer)

@triton.jit
def kernel(out, q, k_cache, v_cache, block_tables, n, stride):
    query = tl.load(q)
    keys = k_cache + tl.arange(0, 16)
    a, b = keys, v_cache
    for i in range(n):
        block = tl.load(block_tables + i)
        k = tl.load(a + block * stride)
        v = _tile(b + block * stride, k_cache != 0)
        both = _either(keys, other=b, first=i)
        direct = tl.dot(tl.load(k_cache + i), tl.load(v_cache + tl.load(block_tables)))
        keys += stride
        tl.store(out, query + k + v)
        late = tl.load(b)
        b = k_cache
"""


def loads_of(source: str) -> list[tuple[str, str]]:
    """What each load of the cache reads, and its text with the calls around it."""
    return [
        ("+".join(sorted(load.tensors)), " in ".join(ast_text(source, load)))
        for load in find_cache_loads(source, "kernel")
    ]


def ast_text(source, load):
    lines = source.splitlines()
    return [lines[call.lineno - 1][call.col_offset : call.end_col_offset] for call in load.calls]


def test_loads_of_the_cache_are_found_through_names_helpers_and_loops():
    assert loads_of(SOURCE) == [
        ("k_cache", "tl.load(a + block * stride)"),
        (
            "k_cache+v_cache",  # b is v_cache in the first turn, and k_cache from then on
            "tl.load(start, mask=mask) in _tile(b + block * stride, k_cache != 0)",
        ),
        ("k_cache+v_cache", "tl.load(pointer) in _either(keys, other=b, first=i)"),
        ("k_cache", "tl.load(k_cache + i)"),
        ("v_cache", "tl.load(v_cache + tl.load(block_tables))"),
        ("k_cache+v_cache", "tl.load(b)"),
    ]


def test_an_instruction_belongs_to_the_load_at_its_place():
    loads = find_cache_loads(SOURCE, "kernel")
    line = next(n for n, row in enumerate(SOURCE.splitlines(), 1) if "direct" in row)
    column = SOURCE.splitlines()[line - 1].index

    def at(text):
        return load_at((Position("kernel.py", line, column(text)),), loads)

    assert at("k_cache + i").tensors == {"k_cache"}
    assert at("v_cache + tl").tensors == {"v_cache"}
    assert at("tl.dot") is None
    assert load_at((), loads) is None
    in_helper = (Position("kernel.py", 4, 19), Position("kernel.py", line - 2, 40))
    assert load_at(in_helper, loads).line == 4
    assert load_at(in_helper[:1], loads) is None


def test_what_is_no_kernel_is_refused():
    with pytest.raises(AuditError, match="does not define kernel"):
        find_cache_loads("x = 1", "kernel")
    with pytest.raises(AuditError, match="does not parse"):
        find_cache_loads("def kernel(:", "kernel")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    kernel(k_cache)\n", "call each other 8 deep"),
        ("    x = " + "-" * 5000 + "k_cache\n", "nested too deeply|does not parse"),
        (
            "".join(f"{' ' * 4 * (n + 1)}for i in range(n):\n" for n in range(18))
            + f"{' ' * 4 * 19}tl.load(k_cache)\n",
            "too many to follow",
        ),
    ],
)
def test_a_source_that_leads_nowhere_is_given_up(body, message):
    with pytest.raises(AuditError, match=message):
        find_cache_loads(f"def kernel(k_cache):\n{body}", "kernel")


def test_places_are_numbered_with_the_calls_around_them():
    text = (
        '\t.file\t1 "/a/b" "k.py"\n\t.loc\t1 7 3\n\tadd;\n'
        "\t.loc\t1 6 8   // k.py:6:8 @[ k.py:27:59 @[ k.py:40:4 ] ]\n\t.loc\t1 7 3 // k.py:7:3\n"
    )
    numbered, sites = number_sites(text)
    assert sites == (
        (Position("k.py", 7, 3),),
        (Position("k.py", 6, 8), Position("k.py", 27, 59), Position("k.py", 40, 4)),
    )
    assert [row.split() for row in numbered.splitlines() if ".loc" in row] == [
        [".loc", "1", str(number), "0"] for number in (1, 2, 1)
    ]


# --------------------------------------------------------------------------- thresholds
GOOD = Report(
    kernel="k", arch="sm_80", num_warps=4, registers=64, stack_bytes=0, spill_stores=0,
    spill_loads=0, shared_bytes=0, occupancy=Occupancy(32, 64, 8, "registers"),
    tensor_core_instructions=8,
    accesses=(
        AccessCount("k_cache", "LDG", 128, 41, 4),
        AccessCount("other", "LDG", 32, 0, 1),
        AccessCount("v_cache", "LDGSTS", 128, 42, 4),
    ),
    kv_bytes_in_flight=8192,
)  # fmt: skip
STRICT = Thresholds(
    kv_wide_share=1.0, wide_share=0.9, tensor_cores=True, min_warps=32, min_kv_bytes_in_flight=8192
)


def test_a_good_kernel_has_no_fault():
    assert check(GOOD, STRICT) == []
    assert (GOOD.kv_wide_share, GOOD.wide_share) == (1.0, 128 / 132)


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        (
            {"spill_stores": 3, "spill_loads": 2, "stack_bytes": 24},
            ["k spills registers to memory: 3 stores (STL), 2 loads (LDL), 24 bytes of stack a "
             "thread; it uses 64 registers a thread"],
        ),
        (
            {"accesses": (*GOOD.accesses, AccessCount("k_cache", "LDG", 16, 43, 3))},
            ["k: 3 of 7 loads of k_cache are 16 bit wide, not 128 (LDG, line 43)"],
        ),
        (
            {"accesses": GOOD.accesses[:2]},
            ["k has no load of v_cache"],
        ),
        (
            {"accesses": (*GOOD.accesses, AccessCount("other", "STG", 64, 0, 8))},
            ["k: 65% of the bytes that it moves are moved 128 bit at a time, at least 90% are "
             "asked for"],
        ),
        (
            {"tensor_core_instructions": 0},
            ["k has no tensor-core instruction: no tl.dot became one"],
        ),
        (
            {"occupancy": Occupancy(28, 64, 7, "registers")},
            ["k: 28 of 64 warps fit on a multiprocessor of sm_80, at least 32 are asked for; the "
             "limit is registers (64 registers a thread, 0 bytes of shared memory and 4 warps a "
             "block)"],
        ),
        (
            {"kv_bytes_in_flight": 4096},
            ["k: a thread block has at most 4096 bytes of K and V in flight, at least 8192 are "
             "asked for; they are loaded in lines 41, 42; loads of a loop run ahead by "
             "tl.range(..., num_stages=), and by the launch's num_stages if they feed a tl.dot "
             "in it"],
        ),
    ],
)  # fmt: skip
def test_a_fault_is_a_sentence(change, sentences):
    assert check(replace(GOOD, **change), STRICT) == sentences
    assert check(replace(GOOD, **change), Thresholds(no_spills=False)) == []


# --------------------------------------------------------------------------- the real compiler
IN_CHILD = """
import dataclasses, json, subprocess
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
from minipaged.audit.cases import arguments, host_function
from minipaged.audit.compiler import capture_launches, to_ptx
from minipaged.audit.machine_code import parse
from minipaged.audit.toolchain import Cubin, assemble, disassemble, ptx_version

def code(cubin):
    return [(i.opcode, i.operands) for i in parse(disassemble(cubin))]

version, found = ptx_version(), {}
grouped = arguments("paged_decode_v2", "gqa-bf16")
launches = capture_launches(lambda: host_function("paged_decode_v2")(**grouped))
found["launches"] = [[launch.name, launch.grid] for launch in launches]
theirs = triton.compile(
    ASTSource(launches[0].kernel, launches[0].signature, launches[0].constants,
              launches[0].attributes),
    target=GPUTarget("cuda", 80, 32), options=dict(launches[0].options.__dict__),
)

inputs = arguments("paged_decode_v1", "13b-fp16")
odd = torch.empty(64, 40, 16, 129, dtype=torch.float16, device="meta")[..., :128]
inputs |= {"k_cache": odd, "v_cache": odd}
misaligned = capture_launches(lambda: host_function("paged_decode_v1")(**inputs))

steps = [
    capture_launches(lambda: host_function(name)(**arguments(name, "13b-fp16")))[0]
    for name in ("paged_decode_v0", "paged_decode_v1")
]

def refuse(*args, **kwargs):
    raise AssertionError("a process was started")

popen, subprocess.Popen = subprocess.Popen, refuse
found["ptx"] = dataclasses.asdict(to_ptx(launches[0], version))
found["v0"], found["v1"] = (dataclasses.asdict(to_ptx(step, version)) for step in steps)
found["misaligned"] = dataclasses.asdict(to_ptx(misaligned[0], version))
subprocess.Popen = popen
ours = to_ptx(launches[0], version)
found["same ptx"] = ours.text == theirs.asm["ptx"]
found["same code"] = code(assemble(ours)) == code(Cubin(theirs.asm["cubin"], ()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-c", IN_CHILD], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def source(function):
    return (KERNELS / f"{HOST_FUNCTIONS[function]}.py").read_text(encoding="utf-8")


def test_all_launches_of_a_host_function_are_seen(compiled):
    assert compiled["launches"] == [
        ["paged_decode_v2_kernel", [8, 8, 8]], ["paged_decode_v2_reduce_kernel", [8, 32]]
    ]  # fmt: skip


def test_the_machine_code_is_the_one_that_triton_makes(compiled):
    assert compiled["same ptx"]
    assert compiled["same code"]


def test_loads_in_helpers_are_told_by_their_lines(compiled):
    report = audit_ptx(Ptx(**compiled["ptx"]), source("paged_decode_v2"))
    lines = source("paged_decode_v2").splitlines()
    assert {load.tensor for load in report.cache_loads} == {"k_cache", "v_cache"}
    assert all(load.tensor in lines[load.line - 1] for load in report.cache_loads)
    assert report.tensor_core_instructions > 0


def test_a_stride_that_is_not_a_multiple_of_16_is_found_out(compiled):
    report = audit_ptx(Ptx(**compiled["misaligned"]), source("paged_decode_v1"))
    faults = check(report, REQUIRED["paged_decode_v1_kernel"])
    assert any("loads of k_cache are 16 bit wide, not 128 (LDG, line" in fault for fault in faults)
    assert any("loads of v_cache are 16 bit wide, not 128 (LDG, line" in fault for fault in faults)
    assert report.kv_wide_share == 0


def test_what_the_assembler_refuses_is_told():
    with pytest.raises(AuditError, match="ptxas refuses the kernel"):
        audit_ptx(Ptx(".version 8.0\n.target sm_80\nnonsense", "k", 4, 0), "def k(): pass")


def test_version_1_reaches_what_it_claims_and_version_0_does_not(compiled):
    v0 = audit_ptx(Ptx(**compiled["v0"]), source("paged_decode_v0"))
    v1 = audit_ptx(Ptx(**compiled["v1"]), source("paged_decode_v1"))
    required = REQUIRED["paged_decode_v1_kernel"]
    assert check(v0, Thresholds()) == check(v1, required) == []
    assert [fault for fault in check(v0, required) if "bytes of K and V in flight" in fault]


def test_every_case_can_be_called_by_name():
    assert len({case.name for case in CASES}) == len(HOST_FUNCTIONS) * len(CONFIGURATIONS)
    with pytest.raises(AuditError, match="no kernel 'softmax'"):
        arguments("softmax", "13b-fp16")
    with pytest.raises(AuditError, match="no configuration '7b'"):
        arguments("rms_norm", "7b")
    assert set(arguments("cache_write", "13b-fp16")) == {
        "k", "v", "k_cache", "v_cache", "slot_mapping"
    }  # fmt: skip


def test_a_process_that_interprets_cannot_compile(monkeypatch):
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(AuditError, match="TRITON_INTERPRET is set"):
        capture_launches(lambda: None)


# --------------------------------------------------------------------------- the command
def test_the_command_gives_json_and_status_0(capsys):
    assert main(["kernels", "audit", "silu_mul", "--json", "-", "--processes", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["case"] for entry in found["kernels"]] == [
        f"silu_mul:{name}" for name in CONFIGURATIONS
    ]
    assert all(entry["registers"] > 0 and not entry["faults"] for entry in found["kernels"])


def test_a_fault_is_printed_and_the_status_is_1(monkeypatch, capsys):
    entry = Audited(Case("silu_mul", "13b-fp16"), GOOD, ("it is too slow",))
    monkeypatch.setattr("minipaged.audit.run.audit", lambda *args: [entry])
    assert main(["kernels", "audit", "silu_mul"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "13b-fp16: it is too slow\n"
    assert "Machine code for sm_80" in captured.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["softmax"], "no kernel 'softmax'"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["--write", "silu_mul"], "--write takes all kernels"),
        (["--write", "--arch", "sm_90"], "--write takes all kernels"),
        (["--write", "--code-only"], "--write takes all kernels"),
    ],
)
def test_bad_options_are_refused(options, message, capsys):
    assert main(["kernels", "audit", *options]) == 1
    assert message in capsys.readouterr().err


def test_results_are_written_between_the_markers(tmp_path):
    file = tmp_path / "RESULTS.md"
    entry = Audited(Case("paged_decode_v1", "13b-fp16"), GOOD, ())
    moved = Movement("paged_decode_v1", "4 over 4", 90, 100)
    with pytest.raises(AuditError, match="no place for the tables"):
        results.write_results("sm_80", [entry], [moved], file)
    file.write_text(f"# before\n{results.BEGIN}\nold\n{results.END}\nafter\n")
    for _ in range(2):
        results.write_results("sm_80", [entry], [moved], file)
    text = file.read_text()
    assert text.startswith(f"# before\n{results.BEGIN}\n")
    assert text.endswith(f"{results.END}\nafter\n")
    assert "old" not in text
    assert "| k | 13b-fp16 | 64 | - | - | 32 regs | 8 | 4 LDG, 4 LDGSTS | 100% | 8K |" in text
    assert "| paged_decode_v1 | 4 over 4 | 90 | 100 | 0.900 |" in text


def test_the_committed_tables_have_all_kernels():
    text = (KERNELS / "RESULTS.md").read_text(encoding="utf-8")
    rows = {
        tuple(cell.strip() for cell in row.split("|")[1:3])
        for row in text.splitlines() if row.startswith("| ")
    }  # fmt: skip
    for case in CASES:
        name = case.function.removeprefix("paged_").replace("copy_blocks_in_pool", "block_copy")
        assert {kernel for kernel, inputs in rows if inputs == case.configuration} & {
            name, f"{name}_gqa"
        }, case  # fmt: skip
