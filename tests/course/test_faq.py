"""The page of questions has an answer for every known mistake, and no code in it."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

import pytest

from minipaged import doctor
from minipaged.course.catalog import load_course
from minipaged.course.mutants import load_mutants
from minipaged.course.signatures import load_signatures

ROOT = Path(__file__).resolve().parents[2]
COURSE = load_course(ROOT)
STAGES = pytest.mark.parametrize("stage", COURSE.stages, ids=lambda stage: stage.name)


@cache
def script():
    spec = importlib.util.spec_from_file_location("faq", ROOT / "scripts" / "faq.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def page():
    return script().text_of(COURSE)


def flat(text):
    return " ".join(text.replace("\\", "").split())


@STAGES
def test_every_mutant_is_an_answer_to_what_the_screen_shows(stage):
    text, signatures = flat(page()), load_signatures(COURSE, stage)
    assert load_mutants(COURSE, stage)
    for mutant in load_mutants(COURSE, stage):
        check, value = signatures[mutant.name].first
        assert f"{flat(value)}` " in text, mutant.name
        assert flat(mutant.misconception) in text, mutant.name
        assert check.replace("_", " ") in text


@STAGES
def test_no_answer_gives_code(stage):
    for mutant in load_mutants(COURSE, stage):
        for line in (mutant.find + mutant.replace).splitlines():
            assert len(line.strip()) < 24 or line.strip() not in page(), mutant.name


def test_the_doctor_is_asked_for_everything_that_can_be_broken():
    told = {check.name for check in script().machine_faults(ROOT)}
    names = {"Python", "torch", "Triton", "kernels link", "Triton interpreter", "GPU"}
    assert told == names | {"transformers", "model cache", "disk"}
    # The kernel on the GPU is mended like the one in the interpreter.
    assert len(told) + 1 == len(doctor._CHECKS)


def test_it_is_the_same_on_every_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert script().text_of(COURSE) == page()
    assert str(tmp_path) not in page()
    assert str(ROOT) not in page()


def test_markdown_takes_nothing_for_emphasis():
    assert script()._entry("a `b`", "no __init__ * 2 < 3") == (
        "* `` a `b` ``\\\n  no \\_\\_init\\_\\_ \\* 2 \\< 3"
    )
