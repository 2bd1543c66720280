"""The discussion guide names commands and tests that there are, and uses every experiment."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from minipaged.sim.beyond.experiments import EXPERIMENTS
from minipaged.sim.paper.figures import FIGURES

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "lessons" / "discussion.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line) for line in re.findall(r"^\$ (.*)$", GUIDE, re.M)]
TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", GUIDE)
PROMPTS = re.findall(r"^## \d\. .*?(?=^## )", GUIDE, re.M | re.S)


def evidence(commands):
    """What `minipaged paper` is asked for."""
    for program, command, *words in commands:
        assert program == "minipaged"
        if command == "paper":
            values = {words[i + 1] for i, word in enumerate(words) if word in VALUED}
            yield from (word for word in words if not word.startswith("-") and word not in values)


VALUED = ("--out", "--seeds", "--trace")


def test_what_is_asked_for_can_be_made():
    asked = set(evidence(COMMANDS))
    assert asked <= {*FIGURES, *EXPERIMENTS, "beyond", "claims"}
    assert set(EXPERIMENTS) <= asked, "every experiment has a prompt that it is evidence for"


def test_every_prompt_has_its_evidence_and_what_to_look_for():
    assert len(PROMPTS) == 5
    for prompt in PROMPTS:
        assert "```console\n$ minipaged " in prompt
        assert "**Look for.**" in prompt
        assert "**Attack.**" in prompt


@pytest.mark.parametrize(("file", "name"), TESTS, ids=[name for _, name in TESTS])
def test_a_guarantee_is_shown_by_a_test_that_there_is(file, name):
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.M)


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)\s]+)\)", GUIDE)
    assert links
    for link in links:
        assert (ROOT / "lessons" / link.partition("#")[0]).is_file(), link
