"""A folder named `kernels` beside transformers, which looks for a package of that name.

transformers must load and run models, and our kernels must be importable as `minipaged.kernels`:
from the repository root and from an install, with and without a package `kernels` of the kind
that transformers wants.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import transformers
from transformers.utils import import_utils

ROOT = Path(__file__).parents[2]

PROBE = """
import json, sys, tempfile
import torch
from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM
from transformers.utils import is_kernels_available

torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
ids = torch.arange(8)[None]
for make, config in (
    (OPTForCausalLM, OPTConfig(ffn_dim=32, word_embed_proj_dim=16, **sizes)),
    (LlamaForCausalLM, LlamaConfig(intermediate_size=32, **sizes)),
):
    model = make(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = make.from_pretrained(folder).eval()
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, again(ids).logits)
        tokens = again.generate(ids, min_new_tokens=3, max_new_tokens=3, do_sample=False)
        assert tokens.shape == (1, 11)

import minipaged.kernels.self_test as ours
try:
    import kernels
    theirs = getattr(kernels, "__file__", None)
except ModuleNotFoundError:
    theirs = None
print(json.dumps({"ours": ours.__file__, "theirs": theirs, "used": is_kernels_available()}))
"""


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory):
    """What a build needs, away from the repository: setuptools leaves folders where it works."""
    tree = tmp_path_factory.mktemp("source")
    for name in ("minipaged", "kernels"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    return tree


def build(kind: str, tree: Path, target: Path) -> Path:
    code = (
        "import sys; from setuptools import build_meta; "
        f"print(build_meta.build_{kind}(sys.argv[1]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, target], cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return target / done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(source_tree, tmp_path_factory):
    return build("sdist", source_tree, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the sdist, as for a user who gets one."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return build("wheel", tree, folder)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--no-index", "--target", target, wheel],
        check=True,
    )  # fmt: skip
    return target


@pytest.fixture(scope="module")
def huggingface_kernels(tmp_path_factory):
    """A stand-in for the distribution `kernels`: a version that transformers accepts, and every
    name that it imports."""
    site = tmp_path_factory.mktemp("huggingface")
    source = Path(transformers.__file__).parent / "integrations" / "hub_kernels.py"
    names = {
        alias.name
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "kernels"
        for alias in node.names
    }
    assert "LayerRepository" in names
    lines = ["def _decorator(*args, **kwargs): return lambda cls: cls"]
    for name in sorted(names):
        decorates = name.startswith(("use_", "replace_"))
        lines.append(f"{name} = _decorator" if decorates else f"class {name}: ...")
    version = import_utils.KERNELS_MIN_VERSION
    (site / "kernels").mkdir()
    (site / "kernels" / "__init__.py").write_text("\n".join(lines) + "\n")
    info = site / f"kernels-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n")
    return site


def probe(cwd: Path, *path: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_transformers_and_our_kernels_from_the_root():
    found = probe(ROOT)
    assert Path(found["ours"]) == ROOT / "minipaged" / "kernels" / "self_test.py"
    assert found["theirs"] is None
    assert not found["used"]


def test_transformers_and_our_kernels_from_the_root_with_a_package_kernels(huggingface_kernels):
    found = probe(ROOT, huggingface_kernels)
    assert Path(found["ours"]) == ROOT / "minipaged" / "kernels" / "self_test.py"
    assert Path(found["theirs"]).is_relative_to(huggingface_kernels)
    assert found["used"], "the stand-in was not taken for the real package"


def test_transformers_and_our_kernels_from_an_install(installed, tmp_path):
    found = probe(tmp_path, installed)
    assert Path(found["ours"]) == installed / "minipaged" / "kernels" / "self_test.py"
    assert found["theirs"] is None


def test_transformers_and_our_kernels_from_an_install_with_a_package_kernels(
    installed, huggingface_kernels, tmp_path
):
    # Ours stands first on the path: even so it must not hide the other.
    found = probe(tmp_path, installed, huggingface_kernels)
    assert Path(found["ours"]) == installed / "minipaged" / "kernels" / "self_test.py"
    assert Path(found["theirs"]).is_relative_to(huggingface_kernels)
    assert found["used"]


def test_what_is_built_has_the_kernels_under_minipaged_only(sdist, wheel):
    with tarfile.open(sdist) as archive:
        in_sdist = {"/".join(m.name.split("/")[1:]) for m in archive.getmembers() if m.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    expected = {f"minipaged/kernels/{file.name}" for file in (ROOT / "kernels").glob("*.py")}
    assert expected
    assert expected <= in_sdist
    assert expected <= in_wheel
    assert not [name for name in in_wheel if name.startswith(("kernels/", "tests/"))]
    assert "minipaged/py.typed" in in_wheel
    assert [name for name in in_wheel if name.endswith("licenses/LICENSE")]


def test_our_version_is_never_taken_for_that_of_the_package_kernels():
    import minipaged

    assert minipaged.__version__.startswith(("0.1.", "1."))
