"""What the paper's figures show, as the comparison reads it."""

import csv
from pathlib import Path

import pytest

from minipaged.errors import ConfigError
from minipaged.sim.paper.published import curve, points, rate_at, value

DATA = Path(__file__).parents[2] / "minipaged/sim/data"
SHARED = Path(__file__).parents[2] / "../shared/paper"

#: Requests a second at 0.2 s/token, read off the figures by hand, for FasterTransformer, the three
#: Orcas and vLLM.
RATES = {
    "12a": (0.129, 0.507, 0.755, 1.00, 1.86),
    "12b": (0.063, 0.166, 0.236, 0.327, 0.890),
    "12c": (0.056, 0.787, 1.08, 1.29, 2.14),
    "12d": (1.19, 3.29, 16.0, 21.0, 28.0),
    "12e": (0.482, 1.05, 6.08, 10.1, 18.5),
    "12f": (0.290, 4.77, 16.0, 17.9, 18.1),
    "14a": (None, 1.50, 8.53, 12.3, 18.0),
    "14b": (None, 0.413, 4.23, 6.50, 10.1),
    "14c": (None, 0.385, 2.73, 4.34, 7.03),
    "14d": (None, 1.17, 6.61, 9.06, 16.3),
    "14e": (None, 0.271, 3.03, 4.58, 9.30),
    "14f": (None, 0.256, 1.63, 3.03, 6.77),
    "16a": (None, None, None, 29.4, 49.6),
    "16b": (None, None, None, 11.4, 41.5),
    "17": (None, 0.481, 0.513, 0.526, 0.800),
}
SYSTEMS = ("FasterTransformer", "Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM")


@pytest.mark.parametrize("panel", RATES)
def test_rates_are_those_of_the_figures(panel):
    for system, rate in zip(SYSTEMS, RATES[panel]):
        if rate is not None:
            assert rate_at(panel, system) == pytest.approx(rate, rel=0.012)


def test_a_curve_is_in_order_and_may_leave_out_where_it_leaves_the_plot():
    whole, plotted = curve("12a", "vLLM"), curve("12a", "vLLM", clipped=False)
    assert list(whole) == sorted(whole)
    assert set(whole) - set(plotted) == {(2.0457, 1.6188)}


def test_bars_and_points():
    assert value("fig2", "pct_of_kv_memory:token_states", "vLLM") == 96.3
    assert [point.x for point in points("fig19a", "ms", "Swap in")] == [2**i for i in range(9)]


def test_the_shares_of_figure_2_are_the_whole_cache():
    for system in SYSTEMS[1:]:
        classes = ("token_states", "reservation", "internal_frag", "external_frag_other")
        shares = [value("fig2", f"pct_of_kv_memory:{name}", system) for name in classes]
        assert sum(shares) == pytest.approx(100, abs=0.15)


def test_what_the_paper_does_not_have_is_named():
    with pytest.raises(ConfigError, match=r"'Orca \(Huge\)' in panel '12a'"):
        curve("12a", "Orca (Huge)")
    with pytest.raises(ConfigError, match="fig13c"):
        points("fig13c", "avg", "vLLM")


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        ("latency_curves.csv", "paper_curves_fig12_14_16_17.csv"),
        ("other_figures.csv", "paper_other_figures.csv"),
        ("length_histograms.csv", "paper_fig11_length_histograms.csv"),
    ],
)
def test_the_files_are_the_facts_that_were_read_off(copy, original):
    if not (SHARED / original).exists():
        pytest.skip("the originals are not here")

    def rows(path):
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    assert rows(DATA / copy) == rows(SHARED / original)
