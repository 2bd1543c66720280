"""Verdicts that can fail, tables and files."""

import csv
from dataclasses import replace

import pytest

from minipaged.sim.paper.comparison import Row, render, shortcomings, tally, write_csv
from minipaged.sim.paper.reasons import REASONS, UNKNOWN, Reason, reason

ROW = Row("fig12", "rate", "12a vLLM", paper=2.0, ours=2.2, tolerance=25.0)


def test_an_error_is_relative_or_in_points():
    assert ROW.error == pytest.approx(10)
    assert replace(ROW, in_points=True).error == pytest.approx(0.2)
    assert replace(ROW, paper=None).error is None
    assert replace(ROW, paper=0.0).error is None
    assert replace(ROW, paper=0.0, in_points=True).error == pytest.approx(2.2)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(2.5, "inside"), (1.5, "inside"), (2.51, "outside"), (3.0, "outside"), (3.01, "far outside"),
     (0.99, "far outside"), (None, "far outside")],
)  # fmt: skip
def test_the_verdict_hangs_on_the_tolerance(ours, verdict):
    assert replace(ROW, ours=ours).verdict == verdict


def test_fitted_and_unjudged_rows_have_no_part_in_the_tally():
    fitted, shown = replace(ROW, fitted=True), replace(ROW, tolerance=None)
    assert (fitted.verdict, shown.verdict) == ("fitted", "")
    assert str(tally([ROW, fitted, shown, replace(ROW, ours=9.0)])) == "1 of 2"


def rows(figure, inside, outside):
    near = Row(figure, "rate", "vLLM", paper=100.0, ours=101.0, tolerance=5.0)
    return [near] * inside + [replace(near, ours=108.0)] * outside


def test_four_fifths_suffice_but_not_for_figures_2_and_13():
    assert shortcomings(rows("fig2", 16, 0) + rows("fig13", 7, 1) + rows("fig12", 8, 2)) == []
    assert len(shortcomings(rows("fig2", 15, 1))) == 1
    assert len(shortcomings(rows("fig13", 6, 2))) == 1
    assert len(shortcomings(rows("fig12", 7, 3))) == 1
    # Good figures do not make up for figure 2.
    assert len(shortcomings(rows("fig2", 15, 1) + rows("fig12", 90, 0))) == 1


def test_one_number_far_outside_is_one_too_many():
    (sentence,) = shortcomings([*rows("fig12", 99, 0), replace(ROW, ours=4.0, x=3.0)])
    assert "12a vLLM at 3" in sentence
    assert "4 against 2" in sentence


def test_the_file_has_the_columns_and_all_rows(tmp_path):
    write_csv([ROW, Row("fig12", "latency", "vLLM", 0.5, ours=0.04)], tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["quantity", "series", "x", "paper", "ours", "error"]
    assert lines == [["rate", "12a vLLM", "", "2", "2.2", "10"],
                     ["latency", "vLLM", "0.5", "", "0.04", ""]]  # fmt: skip


def test_the_table_says_what_is_inside_and_why_what_is_not_is_not():
    text = render("Figure 12", [
        ROW,
        replace(ROW, series="12a Orca (Max)", ours=9.0, spread=(8.0, 9.5), note="two seeds"),
        replace(ROW, series="12d", fitted=True),
        replace(ROW, series="hidden", detail=True),
    ])  # fmt: skip
    assert "inside (25 %)" in text
    assert "8 to 9.5" in text
    assert "* two seeds" in text
    assert "fitted" in text
    assert "! rate, 12a Orca (Max): " in text
    assert "1 of 2 judged" in text
    assert "hidden" not in text


def test_a_reason_fits_its_rows(monkeypatch):
    entry = Reason("fig12", "vLLM", "rate", True, "too fast.")
    monkeypatch.setattr("minipaged.sim.paper.reasons.REASONS", (entry,))
    assert reason(replace(ROW, ours=9.0)) == "too fast."
    for other in (
        replace(ROW, ours=0.1),
        replace(ROW, figure="fig14"),
        replace(ROW, series="Orca"),
        replace(ROW, quantity="ratio"),
    ):
        assert reason(other) == UNKNOWN


def test_reasons_are_sentences():
    assert all(r.sentence[0].isupper() and r.sentence.endswith(".") for r in REASONS)
