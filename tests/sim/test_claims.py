"""The claims audit: verdicts, where its numbers come from, and the page in the book."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from minipaged.cli import main
from minipaged.sim.paper import saturated
from minipaged.sim.paper.claimed import CLAIMS
from minipaged.sim.paper.claims import (
    VERDICTS,
    Claim,
    Finding,
    NotStoredError,
    StoredSweep,
    audit,
    markdown,
    ours_cell,
    own_cell,
    render,
    write,
)
from minipaged.sim.paper.jobs import Job, Outcome
from minipaged.sim.paper.store import ResultStore
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.sweep import Sweep

PAGE = Path(__file__).parents[2] / "lessons" / "claims.md"
SPAN = Claim("Here", "So it is.", "x", (2, 4), "span", None, None)
CLOSED = [claim for claim in CLAIMS if not claim.figure and claim.ours is not None]


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "runs.jsonl")


def claim_of(text):
    (claim,) = [claim for claim in CLAIMS if text in claim.text]
    return claim


# --------------------------------------------------------------------------- verdicts
@pytest.mark.parametrize(
    ("kind", "values", "agrees"),
    [
        ("span", (2.1, 3.0, 3.9), True),
        ("span", (2.1, 3.0), False),
        ("span", (1.5, 4.0), False),
        ("span", (4.5, 2.0), False),
        ("reach", (0.1, 4.2), True),
        ("reach", (2.0, 3.5), False),
        ("reach", (2.0, 4.5), False),
        ("within", (2.0, 4.0), True),
        ("within", (3.0, 3.1), True),
        ("within", (1.9, 3.0), False),
        ("within", (3.0, 4.2), False),
    ],
)
def test_numbers_of_a_text_bind_in_three_ways(kind, values, agrees):
    assert replace(SPAN, kind=kind).agrees(values, 0.10) is agrees


@pytest.mark.parametrize(
    ("own", "level", "ours", "verdict"),
    [
        ((2, 4), None, (2.3, 3.3), "holds"),
        ((), None, (2.3, 3.3), "holds"),
        ((2, 4), None, (2.5, 4), "not ours"),
        ((), None, (2.5, 4), "not ours"),
        ((2, 4), None, (), "not measured here"),
        ((2.3, 4), None, (2, 4), "not by its own curve"),
        ((2.3, 4), None, (), "not by its own curve"),
        ((2.3, 4), 0.4, (2, 4), "holds at another level"),
    ],
)
def test_a_verdict_looks_at_the_paper_first(own, level, ours, verdict):
    assert Finding(SPAN, own, ours, level=level).verdict == verdict
    assert verdict in VERDICTS


# --------------------------------------------------------------------------- the paper's own data
def test_what_the_papers_own_data_say(store):
    own = {finding.claim.text: finding.own for finding in audit(CLAIMS, store)}

    def ends(text):
        values = own[claim_of(text).text]
        return pytest.approx((min(values), max(values)), rel=0.01)

    assert ends("rate of Orca (Max)") == (2.72, 5.36)
    assert ends("1.7 to 2.7") == (1.66, 2.72)
    assert ends("twice the rate") == (1.52, 1.66)
    assert ends("kernel takes") == (19.0, 43.8)
    assert ends("2.2 times as many") == (2.23, 2.23)
    assert ends("never more than 20 % longer") == (0.264, 1.17)
    assert sorted(own[claim_of("blocks of 16 to 128").text]) == [16, 32, 64, 128]


def test_claims_that_the_curves_do_not_bear_out(store):
    verdicts = {finding.claim.text: finding.verdict for finding in audit(CLAIMS, store)}
    for text in ("twice the rate", "kernel takes", "rate of Orca (Max)", "as it is written"):
        assert verdicts[claim_of(text).text] == "not by its own curve"
    assert verdicts[claim_of("up to 22 times").text] == "holds at another level"


def test_another_level_is_named_with_what_the_curves_say_there(store):
    (finding,) = audit([claim_of("up to 22 times")], store)
    assert finding.level is not None
    assert max(finding.at_level) == pytest.approx(22, rel=0.1)
    assert f"at {finding.level:g} s/token" in own_cell(finding)


# --------------------------------------------------------------------------- ours
def test_nothing_is_simulated(store, monkeypatch):
    def run_job(job, parts=None):
        raise AssertionError(f"{job} was simulated")

    monkeypatch.setattr("minipaged.sim.paper.sweep.run_job", run_job)
    findings = audit(CLAIMS, store)
    with pytest.raises(NotStoredError, match="1 results are not kept"):
        StoredSweep(store).run([Job("alpaca", "vllm", "opt-13b", 1.0, 5.0, 1.0)], "a label")
    measured = [finding.claim for finding in findings if finding.ours]
    assert measured == CLOSED
    assert all(not finding.quick for finding in findings)


def keep_batches(store, quick, vllm):
    """Made-up outcomes of figure 13a, as a study would keep them."""
    study = Study(Sweep(workers=1), quick)
    asked = []

    class Noting(Sweep):
        def run(self, jobs, label=""):
            asked.extend(jobs)
            return [Outcome(0.1, 1, 0, 1, 1.0, 1.0) for _ in asked]

    saturated.sharegpt(replace(study, sweep=Noting()))
    for job in asked:
        batch = vllm if job.system == "vllm" else 10.0
        memory = dict.fromkeys(("token_states", "reserved", "internal", "external"), 25.0)
        store.put(job, Outcome(0.1, 1, 0, 1, 1.0, batch, memory))


def test_ours_are_what_a_study_has_kept(store):
    claim = claim_of("2.2 times as many")
    keep_batches(store, quick=False, vllm=21.0)
    (finding,) = audit([claim], store)
    assert finding.ours == (2.1,)
    assert finding.verdict == "holds"
    assert ours_cell(finding) == "2.1x"
    keep_batches(store, quick=False, vllm=12.0)
    (finding,) = audit([claim], store)
    assert finding.verdict == "not ours"


def test_a_quick_study_stands_in_and_is_marked(store):
    claim = claim_of("2.2 times as many")
    keep_batches(store, quick=True, vllm=20.0)
    (finding,) = audit([claim], store)
    assert ours_cell(finding) == "2x (quick)"
    keep_batches(store, quick=False, vllm=30.0)
    assert audit([claim], store)[0].ours == (3.0,)
    assert audit([claim], store, quick=True)[0].ours == (2.0,)


def test_closed_forms(store):
    for finding in audit(CLOSED, store):
        assert finding.ours
        literal = "as it is written" in finding.claim.text
        assert finding.verdict == ("not by its own curve" if literal else "holds")


def test_text_and_page_have_every_claim(store):
    findings = audit(CLAIMS, store)
    assert len(CLAIMS) == len({claim.text for claim in CLAIMS}) >= 25
    for text in (render(findings), markdown(findings)):
        assert all(claim.text in text for claim in CLAIMS)
        counted = re.search(r"Of (\d+) claims: (.*)\.", text)
        assert int(counted[1]) == len(CLAIMS)
        assert sum(map(int, re.findall(r"\d+", counted[2]))) == len(CLAIMS)


# --------------------------------------------------------------------------- the page
def as_on_the_page(findings, page):
    """The findings, with the numbers of ours that the page has."""
    cells = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    ours = {row[1].strip(): row[4].strip() for row in cells}
    found = []
    for finding in findings:
        cell = ours.get(finding.claim.text, "")
        if finding.claim.figure and not cell.startswith("not there"):
            numbers = tuple(map(float, re.findall(r"[\d.]+", cell)))
            finding = replace(finding, ours=numbers, quick=cell.endswith("(quick)"))
        found.append(finding)
    return found


def test_the_page_is_what_the_command_writes(store):
    """All of it, whatever was measured: texts, the paper's data, closed forms, and the verdicts
    that follow from the numbers."""
    page = PAGE.read_text(encoding="utf-8")
    assert markdown(as_on_the_page(audit(CLAIMS, store), page)) == page


def test_a_page_with_another_verdict_is_noticed(store):
    page = PAGE.read_text(encoding="utf-8")
    forged = page.replace("**not by its own curve** |", "**holds** |")
    assert forged != page
    assert markdown(as_on_the_page(audit(CLAIMS, store), forged)) != forged


def test_the_page_has_what_is_measured_now(store, exhaustive):
    """Memory, batches and sharing of a quick study are near the numbers of the page."""
    if not exhaustive:
        pytest.skip("a quick study of three figures, with --exhaustive")
    study = Study(Sweep(workers=-1), quick=True)
    page = as_on_the_page(audit(CLAIMS, store), PAGE.read_text(encoding="utf-8"))
    compared = [f for f in page if f.claim.figure in ("fig2", "fig13", "fig15") and f.ours]
    assert compared
    for finding in compared:
        ours = finding.claim.ours(study)
        assert (min(ours), max(ours)) == pytest.approx(
            (min(finding.ours), max(finding.ours)), rel=0.25
        )


# --------------------------------------------------------------------------- command
def test_the_command_writes_the_page(tmp_path, capsys):
    page = tmp_path / "new" / "page.md"
    assert main(["paper", "claims", "--out", str(tmp_path), "--write", str(page)]) == 0
    assert f"Of {len(CLAIMS)} claims" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").startswith("# What the paper claims")
    write(audit(CLAIMS, ResultStore(tmp_path / "runs.jsonl")), tmp_path / "again.md")
    assert (tmp_path / "again.md").read_bytes() == page.read_bytes()


def test_claims_are_not_audited_with_other_parts(tmp_path, capsys):
    assert main(["paper", "claims", "--parts", "solutions", "--out", str(tmp_path)]) == 1
    assert "reference's parts" in capsys.readouterr().err
