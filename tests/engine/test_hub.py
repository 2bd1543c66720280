"""Hub ids, with the real client against a hub on loopback."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading

import pytest

from minipaged.errors import ModelError
from minipaged.models.hub import patterns_to_get

COMMIT = hashlib.sha1(b"main").hexdigest()
WORKER = """
import json, os, sys
from minipaged.errors import ModelError
from minipaged.models.hub import download_model
for line in sys.stdin:
    ask = json.loads(line)
    os.environ.update(ask.pop("env"))
    try:
        answer = {"folder": str(download_model(**ask))}
    except ModelError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""
WEIGHTS = b"\x00\x01\x02" * 5000
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"never wanted",
    "tf_model.h5": b"never wanted",
    "original/consolidated.00.pth": b"never wanted",
    "optimizer.bin": b"never wanted",
    "README.md": b"# text",
}


class Hub(http.server.ThreadingHTTPServer):
    """Serves ``repositories``: id -> (revision -> files). What it was asked is in ``asked``."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = {}
        self.gated = set()
        self.break_after = {}
        self.down = ""
        self.asked = []

    def files(self, repository, revision):
        revisions = self.repositories[repository]
        return revisions["main" if revision == COMMIT else revision]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server
        path = self.path.split("?")[0]
        hub.asked.append((self.command, path, self.headers.get("Authorization")))
        if hub.down == "no answer":
            self.close_connection = True
            return
        if hub.down:
            self.answer(503, b"")
            return
        api = re.fullmatch(r"/api/models/(\w+/[\w-]+)(?:/(tree|revision)/(\w+))?", path)
        file = re.fullmatch(r"/(\w+/[\w-]+)/resolve/(\w+)/(.+)", path)
        repository, revision = (
            (api[1], api[3] or "main") if api else (file[1], file[2]) if file else ("", "")
        )
        if repository not in hub.repositories:
            self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif repository in hub.gated and self.headers.get("Authorization") != "Bearer hf_good":
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif revision != COMMIT and revision not in hub.repositories[repository]:
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif api:
            self.answer_api(api[2], hub.files(repository, revision))
        else:
            self.answer_file(hub.files(repository, revision), file[3])

    def answer_api(self, what, files):
        listed = [
            {"type": "file", "path": name, "oid": hashlib.sha1(data).hexdigest(), "size": len(data)}
            for name, data in files.items()
        ]
        siblings = [{"rfilename": name} for name in files]
        info = {"id": "x/y", "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}
        body = json.dumps(listed if what == "tree" else info).encode()
        self.answer(200, body, {"Content-Type": "application/json"})

    def answer_file(self, files, name):
        if name not in files:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = files[name]
        start = 0
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").split("-")[0])
        headers = {
            "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        limit = self.server.break_after.get(name) if self.command == "GET" else None
        self.answer(206 if start else 200, data[start:], headers, limit)

    def answer(self, status, body, headers=(), limit=None):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:limit])
        if limit is not None:
            self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def worker_and_hub(tmp_path_factory):
    """One process with the real client, told where its hub is before it starts."""
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hf = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = hf | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path_factory.mktemp("hf_home")),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "NO_PROXY": "127.0.0.1",
    }
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield worker, server
    worker.stdin.close()
    worker.wait(30)
    server.shutdown()
    server.server_close()


@pytest.fixture
def hub(worker_and_hub):
    server = worker_and_hub[1]
    server.repositories = {"tiny/model": {"main": FILES}}
    server.gated, server.break_after, server.down, server.asked = set(), {}, "", []
    return server


@pytest.fixture
def get(worker_and_hub, tmp_path):
    """``get(id, revision=, token=)``: the answer of ``download_model`` in the worker."""

    def ask(model_id, revision=None, token=""):
        worker = worker_and_hub[0]
        cache = str(tmp_path / "cache")
        request = {"model_id": model_id, "revision": revision, "cache_dir": cache}
        worker.stdin.write(json.dumps(request | {"env": {"HF_TOKEN": token}}) + "\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())

    return ask


def fetched(hub):
    return {path.split("/", 5)[-1] for verb, path, _ in hub.asked if "/resolve/" in path}


def test_safetensors_configuration_and_tokenizer_are_downloaded_and_nothing_else(hub, get):
    folder = get("tiny/model")["folder"]
    wanted = {"config.json", "tokenizer.json", "model.safetensors"}
    assert fetched(hub) == set(os.listdir(folder)) == wanted
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        assert file.read() == WEIGHTS


def test_bin_where_there_is_no_safetensors(hub, get):
    files = {n: data for n, data in FILES.items() if n != "model.safetensors"}
    hub.repositories["tiny/model"] = {"main": files}
    folder = get("tiny/model")["folder"]
    assert "pytorch_model.bin" in os.listdir(folder)
    assert "optimizer.bin" not in os.listdir(folder)


def test_a_second_call_downloads_nothing(hub, get):
    first = get("tiny/model")
    hub.asked.clear()
    assert get("tiny/model") == first
    assert not [path for verb, path, _ in hub.asked if verb == "GET" and "/resolve/" in path]


def test_a_revision_is_asked_for_and_an_unknown_one_is_named(hub, get):
    hub.repositories["tiny/model"]["v2"] = {**FILES, "config.json": b'{"v": 2}'}
    assert "folder" in get("tiny/model", "v2")
    assert any("/v2" in path for _, path, _ in hub.asked)
    error = get("tiny/model", "v3")["error"]
    assert "no revision 'v3'" in error


def test_an_unknown_model(hub, get):
    error = get("tiny/nothing")["error"]
    assert "no model tiny/nothing on the hub" in error
    assert "HF_TOKEN" in error


def test_a_gated_model_without_and_with_a_token(hub, get):
    hub.gated.add("tiny/model")
    assert "gated" in get("tiny/model")["error"]
    assert "gated" in get("tiny/model", token="hf_bad")["error"]
    assert "folder" in get("tiny/model", token="hf_good")


@pytest.mark.parametrize("how", ["no answer", "503"])
def test_offline_with_and_without_a_cached_copy(hub, get, how):
    hub.down = how
    error = get("tiny/model")["error"]
    assert "cannot reach the hub" in error
    assert "HF_HUB_OFFLINE" in error
    hub.down = ""
    online = get("tiny/model")
    hub.down = how
    assert get("tiny/model") == online


def test_an_interrupted_download_is_a_sentence_and_the_next_try_goes_on(hub, get, tmp_path):
    hub.break_after["model.safetensors"] = 7000
    error = get("tiny/model")["error"]
    assert "broke off" in error
    assert "try again" in error
    hub.break_after.clear()
    folder = get("tiny/model")["folder"]
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        assert file.read() == WEIGHTS


def test_a_half_downloaded_model_is_not_taken_for_a_cached_one(hub, get):
    hub.break_after["model.safetensors"] = 7000
    assert "error" in get("tiny/model")
    hub.down = "no answer"
    assert "does not hold it" in get("tiny/model")["error"]


def test_a_repository_without_weights_that_we_read(hub, get):
    hub.repositories["tiny/model"] = {"main": {"config.json": b"{}", "tf_model.h5": b""}}
    error = get("tiny/model")["error"]
    assert "tf_model.h5" in error


def test_shards_come_with_their_index(hub, get):
    shards = {f"model-0000{i}-of-00002.safetensors": WEIGHTS for i in (1, 2)}
    index = {"model.safetensors.index.json": b"{}"}
    hub.repositories["tiny/model"] = {"main": {**shards, **index, "config.json": b"{}"}}
    get("tiny/model")
    assert fetched(hub) == {*shards, *index, "config.json"}


def test_an_index_alone_is_no_checkpoint():
    names = ["model.safetensors.index.json", "pytorch_model.bin"]
    assert "pytorch_model.bin" in patterns_to_get("a/b", names)
    with pytest.raises(ModelError, match="a/b has no weights"):
        patterns_to_get("a/b", ["model.safetensors.index.json"])
