"""The benchmarks run, and write the keys that others read."""

from __future__ import annotations

import json

import pytest

from minipaged.cli import main

OPT = ["--model", "opt-stories", "--threads", "1"]


def bench(tmp_path, *arguments):
    path = tmp_path / "bench.json"
    assert main(["bench", *arguments, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_throughput_against_transformers_with_the_same_tokens(tmp_path, capsys):
    report = bench(tmp_path, "throughput", *OPT, "--requests", "6", "--rounds", "1")
    engines = report["engines"]
    assert set(engines) == {
        "minipaged", "transformers_static_8", "transformers_static_16",
        "transformers_static_32", "transformers_continuous",
    }  # fmt: skip
    for name in ("minipaged", "transformers_static_8"):
        assert engines[name]["output_throughput"] > 0
        assert engines[name]["same_outputs"] == 6
    assert "minipaged is" in capsys.readouterr().out


def test_paging_holds_no_block_beyond_need_and_batches_more(tmp_path):
    report = bench(tmp_path, "memory", *OPT, "--requests", "48")
    assert report["kv_held_over_need"] >= 0.99
    batch = {name: row["mean_batch"] for name, row in report["waste"].items()}
    assert batch["paged"] > batch["oracle"] >= batch["pow2"] >= batch["max"] > 0
    for row in report["waste"].values():
        shares = [row[k] for k in ("token_states", "reserved", "internal", "external")]
        assert sum(shares) == pytest.approx(100)


def test_planning_is_measured_beside_a_loop(tmp_path):
    report = bench(tmp_path, "scheduler", "--threads", "1")
    assert report["scheduler_over_loop"] > 1
    assert report["scheduler_long_over_short"] > 0


def test_an_unknown_part_is_named(capsys):
    assert main(["bench", "speed"]) == 1
    assert "there is no benchmark 'speed'" in capsys.readouterr().err
