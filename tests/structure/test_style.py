"""What ruff and mypy (`make lint`) do not look at."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = {".git", ".venv", "build", "dist", "__pycache__", "out", "shared"}

# Homes and working folders of somebody's machine; paths of services that all machines have
# (/usr, /tmp, /proc) are no matter.
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|root|home|Users|opt/\w+|mnt|data)/[\w.-]{2,}")
# Where packages come from is the user's business, but for PyTorch's own index of CPU builds.
INDEX = re.compile(
    r"(?:--(?:extra-)?index-url|--find-links|PIP_INDEX_URL|registry)[ =]+\S*?://(?P<host>[\w.-]+)"
)
INDEX_ALLOWED = {"download.pytorch.org"}


def committed_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    else:  # an unpacked archive
        files = [f for f in ROOT.rglob("*") if not SKIPPED & set(f.relative_to(ROOT).parts)]
    return [f for f in files if f.is_file() and not f.is_symlink()]


def told_of_machines(text: str) -> list[str]:
    paths = [match[0] for match in MACHINE_PATH.finditer(text)]
    hosts = [match[0] for match in INDEX.finditer(text) if match["host"] not in INDEX_ALLOWED]
    return paths + hosts


def test_no_committed_file_names_a_machine():
    found = {}
    for file in committed_files():
        content = file.read_bytes()
        if b"\0" not in content and file != Path(__file__):
            told = told_of_machines(content.decode("utf-8", errors="replace"))
            if told:
                found[str(file.relative_to(ROOT))] = told
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "cd /work/main && make",
        'open("/home/ada/model.bin")',
        "see /root/.cache",
        "pip install --index-url https://mirror.example.org/simple torch",
        "export PIP_INDEX_URL=http://10.0.0.7:8080/simple",
    ],
)
def test_the_search_finds_a_machine(text):
    assert told_of_machines(text)


@pytest.mark.parametrize(
    "text",
    [
        "--index-url https://download.pytorch.org/whl/cpu",
        "~/.cache/minipaged, ../shared and tests/data/x.json",
        "a URL such as https://example.org/home/page",
    ],
)
def test_the_search_lets_the_rest_be(text):
    assert told_of_machines(text) == []


def test_files_end_with_one_newline():
    bad = [
        str(file.relative_to(ROOT))
        for file in committed_files()
        if file.suffix in {".py", ".md", ".toml", ".yml"} and file.stat().st_size
        if not re.search(rb"[^\n]\n\Z", file.read_bytes())
    ]
    assert bad == []
