"""The reproduction holds: figure by figure within the tolerances, or with a reason.

This is the quick study: all of it with ``--exhaustive``, a few figures of it in the ordinary run.
``minipaged paper all`` does the whole one, and prints the same verdict.
"""

import csv
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from minipaged.cli import main
from minipaged.kvcache.accounting import MemoryClasses
from minipaged.sim.paper import fig1, fig19
from minipaged.sim.paper.block_sizes import claims
from minipaged.sim.paper.comparison import CSV_HEAD, shortcomings
from minipaged.sim.paper.figures import FIGURES
from minipaged.sim.paper.jobs import Job, run_job
from minipaged.sim.paper.observers import MEMORY_CLASSES, MemoryObserver, SharingObserver
from minipaged.sim.paper.panels import FIG12, FIG14, FIG16, FIG17
from minipaged.sim.paper.reasons import UNKNOWN, reason
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.sweep import Sweep

#: Figures that take seconds.
FAST = ("table1", "fig1", "fig2", "fig11", "fig19")


@pytest.fixture(scope="module")
def rows(exhaustive):
    """By figure."""
    study = Study(Sweep(workers=-1), quick=True)
    return {
        name: figure.compute(study)
        for name, figure in FIGURES.items()
        if exhaustive or name in FAST
    }


def test_enough_numbers_are_inside_their_tolerance(rows):
    assert shortcomings([row for some in rows.values() for row in some]) == []


def test_every_miss_has_a_reason(rows):
    missed = [r for some in rows.values() for r in some if r.verdict in ("outside", "far outside")]
    assert [row for row in missed if reason(row) == UNKNOWN] == []


def test_what_is_to_be_judged_is_judged(rows):
    judged = {name: sum(row.judged for row in some) for name, some in rows.items()}
    numbers = {"fig2": 16, "fig13": 8, "fig15": 5, "fig19": 12}
    assert {name: judged[name] for name in numbers if name in rows} == {
        name: number for name, number in numbers.items() if name in rows
    }
    for name, panels in (("fig12", FIG12), ("fig14", FIG14), ("fig16", FIG16), ("fig17", FIG17)):
        if name not in rows:
            continue
        shown = [panel for panel in panels if panel.quick]
        fitted = sum(row.fitted for row in rows[name])
        few = sum(
            not panel.is_judged(system, quick=True) for panel in shown for system in panel.systems
        )
        expected = sum(2 * len(panel.systems) - 1 for panel in shown) - 2 * few
        assert judged[name] + fitted == expected
        assert few == {"fig12": 2, "fig14": 3}.get(name, 0)
        assert fitted == (3 if name == "fig12" else 0)


def test_every_figure_can_be_drawn(rows, tmp_path):
    for name, figure in FIGURES.items():
        if name in rows and figure.draw is not None:
            figure.draw(rows[name], tmp_path / f"{name}.png")
            picture = imread(tmp_path / f"{name}.png")
            assert picture.shape[0] > 500
            assert np.unique(picture[..., :3].reshape(-1, 3), axis=0).shape[0] > 20


# --------------------------------------------------------------------------- the command
def test_the_command_writes_tables_files_and_pictures(tmp_path, capsys):
    assert main(["paper", "table1", "fig1", "fig11", "--out", str(tmp_path), "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "slots (thousands)" in out
    assert "Figure 11" in out
    with (tmp_path / "fig1.csv").open(encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    assert tuple(head) == CSV_HEAD
    assert len(lines) == 37
    assert {path.name for path in tmp_path.iterdir()} == {
        "table1.csv", "fig1.csv", "fig1.png", "fig11.csv", "fig11.png",
    }  # fmt: skip


@pytest.mark.parametrize("option", [["--seeds", "0"], ["--jobs", "0"], ["--jobs", "-2"]])
def test_options_that_make_no_sense_are_refused(option, capsys):
    assert main(["paper", "table1", *option]) == 1
    assert f"{option[0]} must be at least 1" in capsys.readouterr().err


# --------------------------------------------------------------------------- what is measured
JOB = Job("sharegpt", "vllm", "opt-13b", rate=4.0, duration=60.0, top_rate=4.0)


def test_the_classes_of_memory_are_the_whole_pool():
    memory = run_job(replace(JOB, observe=("memory",))).memory
    assert tuple(memory) == MEMORY_CLASSES == tuple(MemoryClasses.__dataclass_fields__)
    assert sum(memory.values()) == pytest.approx(100)
    assert memory["token_states"] > 90


def test_memory_counts_only_while_a_request_waits():
    idle = run_job(replace(JOB, rate=0.2, observe=("memory",)))
    assert (idle.memory, idle.memory_batch) == ({}, 0.0)
    assert (MemoryObserver().shares(), SharingObserver().percent) == ({}, 0.0)


def test_siblings_share_and_beams_share_more():
    few = replace(JOB, rate=0.5, observe=("sharing",))
    alone, two, beams = (
        run_job(replace(few, num_sequences=n, beam=beam)).saved
        for n, beam in ((1, False), (2, False), (2, True))
    )
    assert alone == 0
    assert 5 < two < beams < 50  # two can share half at most


def test_looking_changes_nothing():
    seen = run_job(replace(JOB, observe=("memory", "sharing")))
    unseen = run_job(JOB)
    assert (seen.latency, seen.steps, seen.preemptions) == (
        unseen.latency, unseen.steps, unseen.preemptions,
    )  # fmt: skip


def test_requests_that_stay_longer_count_more():
    # Mean prompt 152, mean output 335: a plain mean of p + o / 2 would be 320.
    assert fig1.resident_tokens("sharegpt", 1) == pytest.approx(428, rel=0.02)


def test_the_cost_of_a_preemption_is_that_of_two_ways():
    there, back = (fig19.preemption_seconds(way, 16) for way in ("Swap out", "Swap in"))
    assert fig19.preemption_seconds("Swap in+out", 16) == there + back
    assert fig19.preemption_seconds("Recompute", 1) == fig19.preemption_seconds("Recompute", 256)


@pytest.mark.parametrize(
    ("curve", "true"),
    [
        ({1: 2.0, 8: 0.5, 16: 0.1, 256: 1.0}, [1, 1, 1]),
        ({1: 2.0, 8: 0.5, 64: 0.1, 256: 1.0}, [0, 1, 1]),
        ({1: 0.15, 8: 0.5, 16: 0.1, 256: 0.19}, [1, 0, 0]),
    ],
)
def test_which_sizes_lose_is_read_off_the_curve(curve, true):
    found = claims("fig18", "Alpaca", curve, fitted=False)
    assert [row.ours for row in found] == true
    assert [row.verdict == "inside" for row in found] == [bool(holds) for holds in true]
