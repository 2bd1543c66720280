"""The doctor finds what is broken, says how to mend it, and never falls over itself."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from minipaged import doctor
from minipaged.doctor import Check

PACKAGE = Path(doctor.__file__).parent


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def versions(monkeypatch):
    """Pretend that distributions have other versions (None: are not installed)."""
    real, changed = importlib.metadata.version, {}

    def version(name):
        if name not in changed:
            return real(name)
        if changed[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return changed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return changed


def answering(monkeypatch, stdout="", stderr="", returncode=0):
    """Let every process that the doctor starts answer so."""
    monkeypatch.setattr(
        doctor,
        "_python",
        lambda *args, env=None: subprocess.CompletedProcess(args, returncode, stdout, stderr),
    )


# --------------------------------------------------------------------------- this machine
def test_a_kernel_runs_in_the_interpreter_here():
    check = doctor.check_interpreter()
    assert check.ok, check
    assert "agrees with NumPy" in check.detail


def test_this_environment_is_as_the_tests_need_it(monkeypatch):
    monkeypatch.setattr(doctor, "_cuda", lambda: ("", ""))
    for check in (doctor.check_python(), doctor.check_torch(), doctor.check_triton()):
        assert check.ok, check
    assert doctor.check_link().ok


# --------------------------------------------------------------------------- versions
@pytest.mark.parametrize(
    ("version", "told", "remedy"),
    [
        (None, "not installed", "pip install 'torch"),
        ("2.3.1+cu121", "2.3.1+cu121, and", "<2.14"),
        ("3.0.0", "3.0.0, and", ">=2.11"),
    ],
)
def test_a_torch_that_does_not_fit(versions, version, told, remedy):
    versions["torch"] = version
    check = doctor.check_torch()
    assert check.ok is False
    assert told in check.detail
    assert remedy in check.remedy


def test_a_torch_that_cannot_be_imported(monkeypatch):
    answering(monkeypatch, stderr="Traceback ...\nImportError: libcudart.so.13\n", returncode=1)
    check = doctor.check_torch()
    assert check.ok is False
    assert "cannot be imported: ImportError: libcudart.so.13" in check.detail


@pytest.mark.parametrize(
    ("cuda", "told"),
    [
        (("", ""), "CPU build"),
        (("13.0", "True"), "built for CUDA 13.0"),
        (("13.0", ""), "built for CUDA 13.0, which is not usable here"),
    ],
)
def test_the_build_of_torch_is_told(monkeypatch, cuda, told):
    monkeypatch.setattr(doctor, "_cuda", lambda: cuda)
    check = doctor.check_torch()
    assert check.ok
    assert check.detail.endswith(told)


def test_a_triton_that_does_not_fit(versions):
    versions["triton"] = "3.1.0"
    check = doctor.check_triton()
    assert check.ok is False
    assert check.remedy.startswith("pip install 'triton")
    versions["triton"] = None
    assert doctor.check_triton().ok is False


def test_a_triton_that_is_not_the_one_of_torch(monkeypatch, versions):
    real = importlib.metadata.requires
    asked = ["triton==3.6.0; platform_system == 'Linux'", "sympy"]
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda name: asked if name == "torch" else real(name)
    )
    versions["triton"] = "3.7.0"
    check = doctor.check_triton()
    assert check.ok is False
    assert "works with ==3.6.0" in check.detail
    assert check.remedy == "pip install 'triton==3.6.0'"
    versions["triton"] = "3.6.0"
    assert doctor.check_triton().ok


def test_a_system_without_triton_is_not_broken(monkeypatch, versions):
    versions["triton"] = None
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert doctor.check_triton().ok is None


def test_a_transformers_that_cannot_load_its_models(monkeypatch):
    error = "ImportError: cannot import name 'CUDAProperties' from 'kernels'"
    answering(monkeypatch, stderr=error, returncode=1)
    check = doctor.check_transformers()
    assert check.ok is False
    assert "CUDAProperties" in check.detail
    assert "__init__.py" in check.remedy


def test_an_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    check = doctor.check_python()
    assert check.ok is False
    assert "3.11" in check.remedy


# --------------------------------------------------------------------------- the interpreter
FAKE_TRITON = """
class Kernel:
    def __init__(self, function): pass
    def __getitem__(self, grid): return self.launch
    def launch(self, *tensors, **constants): {body}

def jit(function): return Kernel(function)
"""


def fake_triton(folder: Path, body: str) -> None:
    (folder / "triton").mkdir()
    (folder / "triton" / "__init__.py").write_text(FAKE_TRITON.format(body=body))
    (folder / "triton" / "language.py").write_text("constexpr = int\n")


def test_a_triton_that_returns_zeros_without_a_word_is_found_out(tmp_path, monkeypatch):
    fake_triton(tmp_path, "tensors[-1].zero_()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = doctor.check_interpreter()
    assert check.ok is False
    assert "wrong values without an error: 6 of 7 sums, row 0 is 0 and should be" in check.detail
    assert f"triton {importlib.metadata.version('triton')} with torch" in check.detail
    assert check.remedy


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"stdout": '{"got": [1, NaN], "expected": [1, 2]}'}, "row 1 is nan and should be 2"),
        ({"stdout": '{"got": [1, 2.001], "expected": [1, 2]}'}, "1 of 2 sums"),
        ({"stdout": '{"got": [1], "expected": [1, 2]}'}, "a small kernel printed"),
        ({"stdout": "hello"}, "a small kernel printed 'hello'"),
        ({"stdout": ""}, "a small kernel printed ''"),
        ({"stderr": "TypeError: bounds", "returncode": 1}, "fails: TypeError: bounds"),
        ({"returncode": -11}, "fails: exit status -11, no message"),
    ],
)
def test_whatever_else_the_kernel_may_answer(monkeypatch, answer, told):
    answering(monkeypatch, **answer)
    check = doctor.check_interpreter()
    assert check.ok is False
    assert told in check.detail


def test_a_kernel_that_never_ends(tmp_path, monkeypatch):
    fake_triton(tmp_path, "while True: pass")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "TIMEOUT", 0.5)
    check = doctor.check_interpreter()
    assert check.ok is False
    assert "no answer within 0.5 s" in check.detail


# --------------------------------------------------------------------------- the link
@pytest.fixture
def tree(tmp_path):
    """A copy of the package's surroundings: the link, and the folder that it leads to."""
    shutil.copytree(PACKAGE / "kernels", tmp_path / "kernels")
    (tmp_path / "minipaged").mkdir()
    (tmp_path / "minipaged" / "kernels").symlink_to("../kernels")
    return tmp_path


def test_a_link_in_order(tree):
    check = doctor.check_link(tree / "minipaged")
    assert check.ok
    assert check.detail.endswith("-> ../kernels")


def test_a_folder_in_place_of_the_link_as_an_install_has_it(tree):
    (tree / "minipaged" / "kernels").unlink()
    shutil.move(tree / "kernels", tree / "minipaged" / "kernels")
    assert doctor.check_link(tree / "minipaged").ok


def test_a_text_file_in_place_of_the_link(tree):
    link = tree / "minipaged" / "kernels"
    link.unlink()
    link.write_text("../kernels")
    check = doctor.check_link(tree / "minipaged")
    assert check.ok is False
    assert "text file" in check.detail
    assert "core.symlinks" in check.remedy


def test_a_link_that_leads_nowhere(tree):
    shutil.rmtree(tree / "kernels")
    check = doctor.check_link(tree / "minipaged")
    assert check.ok is False
    assert "leads to ../kernels, which is not there" in check.detail


def test_a_folder_that_is_not_the_kernels(tree):
    (tree / "kernels" / "self_test.py").unlink()
    assert doctor.check_link(tree / "minipaged").ok is False


def test_without_the_link_the_interpreter_is_not_blamed(monkeypatch):
    monkeypatch.setattr(doctor, "check_link", lambda: Check("kernels link", False, ""))
    assert doctor.check_interpreter().remedy == "mend the kernels link first"


# --------------------------------------------------------------------------- GPU, model, disk
def nvidia_smi(folder: Path, monkeypatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_no_gpu_is_fine(monkeypatch):
    monkeypatch.setattr(doctor, "_gpus", list)
    assert doctor.check_gpu() == Check("GPU", None, "none: CPU and the interpreter are used")
    assert doctor.check_compiled().ok is None


def test_a_gpu_is_named(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA A100-SXM4-40GB, 40960 MiB, 570.86.15'")
    monkeypatch.setattr(doctor, "_cuda", lambda: ("13.0", "True"))
    check = doctor.check_gpu()
    assert check.ok
    assert check.detail == "NVIDIA A100-SXM4-40GB, 40960 MiB, driver 570.86.15"


def test_a_gpu_that_torch_cannot_use(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA T4, 15360 MiB, 470.1'")
    monkeypatch.setattr(doctor, "_cuda", lambda: ("", ""))
    check = doctor.check_gpu()
    assert check.ok is None
    assert "torch cannot use it" in check.detail
    assert check.remedy
    assert doctor.check_compiled().ok is None


@pytest.mark.parametrize("script", ["echo 'NVIDIA-SMI has failed'; exit 9", "echo no devices"])
def test_a_driver_that_fails_is_no_gpu(tmp_path, monkeypatch, script):
    nvidia_smi(tmp_path, monkeypatch, script)
    assert doctor.check_gpu().ok is None


def test_the_model_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    check = doctor.check_model()
    assert (check.ok, check.remedy) == (None, "minipaged fetch")
    folder = tmp_path / doctor.SMOLLM2.name
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1234")
    check = doctor.check_model()
    assert check.ok is False
    assert "minipaged fetch" in check.remedy
    monkeypatch.setattr(doctor, "is_complete", lambda folder: True)
    check = doctor.check_model()
    assert check.ok
    assert str(folder) in check.detail


def test_a_full_disk_matters_only_without_the_model(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 10**6))
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "not" / "there"))
    check = doctor.check_disk()
    assert check.ok is False
    assert "MINIPAGED_CACHE" in check.remedy
    monkeypatch.setattr(doctor, "is_complete", lambda folder: True)
    assert doctor.check_disk().ok


# --------------------------------------------------------------------------- the command
@pytest.fixture
def three_checks(monkeypatch):
    found = [
        Check("torch", True, "2.13.0"),
        Check("GPU", None, "none"),
        Check("Triton", False, "[3.1] is old", "pip install 'triton[x]'"),
    ]
    monkeypatch.setattr(doctor, "_CHECKS", tuple(lambda check=check: check for check in found))
    return found


def test_the_command_prints_plain_text_and_fails_when_something_is_broken(three_checks, capsys):
    assert doctor.run(arguments()) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].split() == ["ok", "torch", "2.13.0"]
    assert lines[2].split() == ["BROKEN", "Triton", "[3.1]", "is", "old"]
    assert lines[3].strip() == "to mend it: pip install 'triton[x]'"
    assert lines[-1] == "1 broken: Triton"


def test_the_command_succeeds_when_nothing_is_broken(three_checks, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_CHECKS", doctor._CHECKS[:2])
    assert doctor.run(arguments()) == 0
    assert capsys.readouterr().out.endswith("All is well.\n")


def test_the_findings_as_json(three_checks, capsys):
    assert doctor.run(arguments("--json")) == 1
    assert [Check(**found) for found in json.loads(capsys.readouterr().out)] == three_checks


def test_a_check_that_falls_over_is_a_finding(monkeypatch):
    def check_disk():
        raise PermissionError("no entry")

    monkeypatch.setattr(doctor, "_CHECKS", (check_disk,))
    (check,) = doctor.checks()
    assert (check.name, check.ok) == ("disk", False)
    assert "no entry" in check.detail


def test_every_check_is_run_by_the_command():
    made = {name for name in vars(doctor) if name.startswith("check_")}
    assert made == {check.__name__ for check in doctor._CHECKS}
