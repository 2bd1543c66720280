"""The engine on the Triton kernels, which a CPU interprets; and which attention an engine takes.

What an interpreted program costs does not depend on the sizes of its tiles, so models and pools
are as small as they can be, and one scenario holds all that can happen to a request.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
import torch
from test_attention import dense, make_case

from minipaged import LLM, SamplingParams
from minipaged.attention import choose_attention
from minipaged.cli import main
from minipaged.config import CacheConfig, ModelConfig, SchedulerConfig
from minipaged.errors import ConfigError, CourseError
from minipaged.models import build_model
from minipaged.models.loader import LoadedModel
from minipaged.parts import Parts
from minipaged.sequence import Status

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
TRITON = pytest.importorskip("triton")


# --------------------------------------------------------------------------- one call
def on_device(case):
    q, k_cache, v_cache, batch, keys, values = case
    tensors = {
        name: value.to(DEVICE) for name, value in vars(batch).items() if torch.is_tensor(value)
    }
    batch = replace(batch, **tensors)
    return q.to(DEVICE), k_cache.to(DEVICE), v_cache.to(DEVICE), batch, keys, values


@pytest.mark.parametrize("stale", [math.nan, math.inf])
def test_decodes_chunks_and_prompts_in_one_call(stale):
    spans = [(3, 1), (36, 1), (0, 1), (20, 7), (0, 18), (16, 2), (0, 16)]
    q, k_cache, v_cache, batch, keys, values = on_device(make_case(spans, padding=3, stale=stale))
    out = Parts().make_attention("triton").attend(q, k_cache, v_cache, batch, 0.25)
    total = int(batch.query_start[-1])
    expected = dense(q[:total].cpu(), keys, values, batch, 0.25)
    assert (out[:total].cpu() - expected).abs().max() < 1e-5
    assert out.isfinite().all()


@pytest.mark.parametrize("spans", [[(5, 1), (18, 1)], [(0, 3), (5, 2)]])
def test_a_step_of_one_kind(spans):
    q, k_cache, v_cache, batch, keys, values = on_device(make_case(spans, padding=2))
    out = Parts().make_attention("triton").attend(q, k_cache, v_cache, batch, 0.25)
    total = int(batch.query_start[-1])
    expected = dense(q[:total].cpu(), keys, values, batch, 0.25)
    assert (out[:total].cpu() - expected).abs().max() < 1e-5
    assert out.isfinite().all()


def test_keys_rotated_by_the_backend_are_those_that_a_model_rotates():
    from minipaged.models.layers import RotaryEmbedding, rotate

    q, k_cache, v_cache, batch, *_ = on_device(make_case([(4, 1), (0, 3)], padding=4, stale=7.0))
    k, v = torch.randn(2, len(q), 2, 16, device=DEVICE)
    positions = torch.tensor([4, 0, 1, 2, 0, 0, 0, 0], device=DEVICE)
    rotary = RotaryEmbedding(16, 8, 1e4, dtype=torch.float32, device=DEVICE)(positions)
    caches = [(k_cache.clone(), v_cache.clone()) for _ in range(2)]
    backend = Parts().make_attention("triton")
    want = rotate(q, rotary)
    backend.write(rotate(k, rotary), v, *caches[0], batch)
    got = backend.rotate_and_write(q, k, v, *rotary, *caches[1], batch)
    torch.testing.assert_close(got[:4], want[:4])
    for apart, fused in zip(*caches):
        torch.testing.assert_close(fused, apart)


# --------------------------------------------------------------------------- whole engines
def tiny_model(architecture: str) -> LoadedModel:
    """A random decoder of two layers and two heads of 8."""
    config = ModelConfig(
        architecture=architecture,
        vocab_size=97,
        hidden_size=16,
        intermediate_size=24,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1 if architecture == "llama" else 2,
        head_dim=8,
        max_model_len=64,
        tie_word_embeddings=False,
    )
    model = build_model(config, torch.float32, DEVICE)
    generator = torch.Generator().manual_seed(3)
    for name, shape in model.expected_weights().items():
        tensor = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            tensor = 0.3 * tensor + ("norm" in name and name.endswith("weight"))
        else:
            tensor = 2 * tensor / shape[-1] ** 0.5  # sharp logits
        model.load_weight(name, tensor)
    model.finish_loading()
    return LoadedModel(model, config, None, torch.float32, Path("tiny"))


class Recorder:
    """An executor that keeps what another one computed, and spoils every block that no one holds
    after each step."""

    def __init__(self, engine) -> None:
        self.engine, self.executor = engine, engine.executor
        self.logits: list[torch.Tensor] = []
        self.happened: Counter[str] = Counter()

    def execute(self, plan):
        logits = self.executor.execute(plan)
        self.logits.append(logits.rows.clone())
        self.happened.update(
            copies=len(plan.copies),
            swapped_in=len(plan.swap_in),
            swapped_out=len(plan.swap_out),
            recomputed=sum(one.mode == "recompute" for one in plan.preempted),
            chunks_after_history=sum(s.start > 0 and len(s.token_ids) > 1 for s in plan.spans),
            mixed_steps=len({len(span.token_ids) > 1 for span in plan.spans}) == 2,
        )
        return logits

    def spoil(self, engine) -> None:
        held: dict[bool, set[int]] = {True: set(), False: set()}
        for group in engine.scheduler.groups:
            for seq in group.live:
                held[seq.status is Status.SWAPPED].update(engine.kv.block_table(seq.seq_id))
        free = set(range(engine.kv.num_gpu_blocks)) - held[False]
        free_host = set(range(engine.kv.num_cpu_blocks)) - held[True]
        self.executor.poison(sorted(free), sorted(free_host))


def prompt(length: int) -> list[int]:
    return torch.randint(97, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def serve(attention: str, architecture: str, parts: Parts | None = None):
    """Three requests in a pool of seven blocks of 4: chunks of prompts, decodes, a fork that
    copies a block, a swap of two siblings, a preemption by recomputation."""
    llm = LLM(
        tiny_model(architecture),
        attention=attention,
        parts=parts,
        cache=CacheConfig(block_size=4, num_gpu_blocks=7, num_cpu_blocks=8, watermark=0.0),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=8, chunked_prefill=True),
        check=True,
    )
    recorder = llm.engine.executor = Recorder(llm.engine)
    recorder.spoil(llm.engine)
    outputs = llm.generate(
        [prompt(7), prompt(7), prompt(5)],
        [
            SamplingParams(temperature=0, max_tokens=4),
            SamplingParams(n=2, seed=7, max_tokens=5),
            SamplingParams(temperature=0, max_tokens=3),
        ],
        progress=False,
        on_step=recorder.spoil,
    )
    tokens = [[one.token_ids for one in output.outputs] for output in outputs]
    return tokens, recorder, llm


@pytest.mark.parametrize("architecture", ["opt", "llama"])
def test_the_engine_says_on_kernels_what_it_says_on_the_reference(architecture):
    expected, reference, _ = serve("reference", architecture)
    tokens, kernels, _ = serve("triton", architecture)
    assert tokens == expected
    assert len(kernels.logits) == len(reference.logits)
    for step, (ours, theirs) in enumerate(zip(kernels.logits, reference.logits)):
        assert (ours - theirs).abs().max() < 1e-4, f"step {step}"
    assert kernels.happened == reference.happened
    assert all(kernels.happened[what] for what in kernels.happened), kernels.happened


def test_the_engine_says_on_kernels_what_transformers_says(tmp_path):
    model = tiny_models.hf_model("llama-gqa")
    llm = LLM(
        tiny_models.save(model, tmp_path),
        device=DEVICE,
        dtype="float32",
        attention="triton",
        cache=CacheConfig(block_size=4, num_gpu_blocks=16, num_cpu_blocks=0),
    )
    prompts = [tiny_models.prompt(n, seed=n).tolist() for n in (3, 5)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2), progress=False)
    for tokens, output in zip(prompts, outputs):
        with torch.inference_mode():
            row = model.generate(
                torch.tensor([tokens]), do_sample=False, max_new_tokens=2, pad_token_id=1
            )[0]
        assert output.outputs[0].token_ids == row[len(tokens) :].tolist()


# --------------------------------------------------------------------------- parts
def students(parts: Parts, name: str, calls: Counter[str]):
    """The reference's kernel, as if a student had written it, counted."""
    kernel = getattr(parts, name)

    def theirs(*args):
        calls[name] += 1
        return kernel(*args)

    theirs.__module__ = f"minipaged_part_{name}_0123456789abcdef"
    return theirs


@pytest.mark.parametrize(
    ("written", "decodes"),
    [
        ((), "paged_decode_v2"),
        (("cache_write", "paged_decode_v0"), "paged_decode_v0"),
        (("paged_decode_v0", "paged_decode_v1"), "paged_decode_v1"),
        (("paged_decode_v0", "paged_decode_v2"), "paged_decode_v2"),
        (("paged_prefill",), "paged_decode_v2"),
    ],
)
def test_the_highest_version_of_a_student_decodes(written, decodes):
    parts = Parts()
    own = replace(parts, **{name: students(parts, name, Counter()) for name in written})
    assert own.decode_kernel == decodes
    assert set(own.own_kernels) == set(written)


def test_a_students_kernels_run_in_the_engine():
    """Keys are rotated apart, for else a student's cache write would never be called."""
    calls: Counter[str] = Counter()
    parts, names = Parts(), ("cache_write", "paged_decode_v1")
    own = replace(parts, **{name: students(parts, name, calls) for name in names})
    tokens, recorder, llm = serve("triton", "llama", own)
    assert tokens == serve("reference", "llama")[0]
    assert calls["cache_write"] == 2 * len(recorder.logits)
    assert calls["paged_decode_v1"]
    assert "paged_decode_v1 computes the decodes" in llm.notes


def test_kernels_that_do_not_run_are_named():
    parts = Parts()
    own = replace(parts, paged_decode_v0=students(parts, "paged_decode_v0", Counter()))
    llm = LLM(
        tiny_model("opt"),
        attention="reference",
        parts=own,
        cache=CacheConfig(num_gpu_blocks=4, num_cpu_blocks=0),
    )
    assert "not in use: paged_decode_v0 (attention triton runs them)" in llm.notes


def test_the_kernels_of_parts_carry_the_names_that_a_student_replaces_them_by():
    import importlib

    kernels = [kernel for kernel in vars(Parts()).values() if ".kernels." in kernel.__module__]
    assert len(kernels) == 8
    for kernel in kernels:
        assert hasattr(importlib.import_module(kernel.__module__), kernel.__name__)
        assert getattr(Parts(), kernel.__name__) is kernel


def test_attention_of_their_own_is_not_passed_over_for_kernels():
    def own():
        raise AssertionError("nobody asked for it")

    parts = Parts()
    assert parts.why_not_triton == ""
    assert "attention of their own" in replace(parts, attention=own).why_not_triton
    both = replace(parts, attention=own, cache_write=students(parts, "cache_write", Counter()))
    assert both.why_not_triton == ""


def test_a_kernel_that_a_class_has_not_written_yet_is_no_kernel():
    from minipaged.course.student_parts import _absent

    absent = {
        name: _absent(f"write {name} first")
        for name in ("cache_write", "paged_decode_v1", "paged_decode_v2", "paged_prefill")
    }
    parts = replace(Parts(), **absent, paged_decode_v0=_absent("write paged_decode_v0 first"))
    assert parts.why_not_triton == "cache_write is not written"
    assert parts.decode_kernel == "paged_decode_v0"
    with pytest.raises(CourseError, match="write cache_write first"):
        serve("triton", "opt", parts)


# --------------------------------------------------------------------------- which one
def test_auto_is_the_obvious_one_and_says_nothing():
    assert choose_attention("auto", "cpu") == ("reference", "")
    assert choose_attention("auto", "mps") == ("reference", "")


@pytest.fixture
def compiling(monkeypatch):
    """A process whose Triton compiles kernels."""
    monkeypatch.setattr(TRITON, "JITFunction", type(TRITON.language.zeros))


@pytest.fixture
def interpreting(monkeypatch):
    """A process whose Triton interprets kernels."""
    monkeypatch.setattr(TRITON, "JITFunction", type("SomethingElse", (), {}))


@pytest.mark.usefixtures("compiling")
def test_a_gpu_takes_triton():
    assert choose_attention("auto", "cuda:1") == ("triton", "")
    assert choose_attention("triton", "cuda") == ("triton", "")
    kind, note = choose_attention("reference", "cuda")
    assert kind == "reference"
    assert note == "attention runs in PyTorch, not in Triton kernels"
    kind, note = choose_attention("auto", "cuda", why_not_triton="nobody wrote it")
    assert kind == "reference"
    assert note.endswith("kernels: nobody wrote it")


@pytest.mark.usefixtures("compiling")
def test_a_process_that_compiles_does_not_interpret():
    with pytest.raises(ConfigError, match="set TRITON_INTERPRET=1 in the environment before"):
        choose_attention("triton", "cpu")


@pytest.mark.usefixtures("interpreting")
def test_a_process_that_interprets_does_not_serve_on_a_gpu():
    kind, note = choose_attention("auto", "cuda")
    assert kind == "reference"
    assert "TRITON_INTERPRET is set" in note
    with pytest.raises(ConfigError, match="TRITON_INTERPRET is set"):
        choose_attention("triton", "cuda")


@pytest.mark.usefixtures("interpreting")
def test_on_a_cpu_triton_is_the_interpreter_and_told():
    kind, note = choose_attention("triton", "cpu")
    assert kind == "triton"
    assert "interpreter" in note


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_triton_there_is_a_sentence(monkeypatch, device):
    monkeypatch.setitem(sys.modules, "triton", None)  # what an import then finds is nothing
    with pytest.raises(ConfigError, match="attention triton is not possible: Triton cannot be"):
        choose_attention("triton", device)
    kind, note = choose_attention("auto", device)
    assert kind == "reference"
    assert ("Triton cannot be imported here" in note) == (device == "cuda")


def test_other_devices_and_other_names_are_refused():
    with pytest.raises(ConfigError, match="not on 'mps'"):
        choose_attention("triton", "mps")
    with pytest.raises(ConfigError, match="must be auto, reference or triton, not 'flash'"):
        choose_attention("flash", "cpu")


def test_the_command_line_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "triton", None)
    command = ["generate", "--model", "opt-stories", "--device", "cpu", "--attention", "triton"]
    assert main([*command, "Once"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("minipaged: error: attention triton is not possible: Triton cannot be")
    assert told.count("\n") == 1


FRESH = """
import json, os, sys
import minipaged.parts
light = not {"torch", "triton"} & set(sys.modules)
from minipaged.attention import choose_attention
parts = minipaged.parts.Parts()
parts.make_attention("triton"), parts.why_not_triton
late = "triton" not in sys.modules
kind, note = choose_attention("triton", "cpu")
import torch
k = torch.ones(1, 1, 16)
k_cache, v_cache = torch.zeros(2, 1, 4, 16), torch.zeros(2, 1, 4, 16)
parts.cache_write(k, k, k_cache, v_cache, torch.tensor([5]))
print(json.dumps([light, late, kind, k_cache.sum().item()]))
"""


def test_a_fresh_process_imports_triton_late_and_interprets():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, True, "triton", 16.0]
