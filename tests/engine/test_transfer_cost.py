"""What preemption costs, and ``minipaged plan --preemption``."""

import argparse
import json

import pytest

from minipaged.capacity import PlanError
from minipaged.hardware import GPUS
from minipaged.models.catalog import CATALOG
from minipaged.plan import (
    add_arguments,
    figure_19a,
    machine_of,
    preemption_costs,
    run,
)
from minipaged.scheduling.transfer_cost import (
    A100_2023,
    cheaper,
    crossover_block_size,
    crossover_tokens,
    matrix_weights,
    recompute_flops,
    recompute_seconds,
    swap_bytes,
    swap_seconds,
    swap_transfers,
)

OPT = CATALOG["opt-13b"]


def call(*argv):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(["--preemption", *argv]))


def test_the_examples_of_the_docstrings():
    assert matrix_weights(OPT) == 12_582_912_000
    assert swap_bytes(OPT, 2, 16, 16) == 209_715_200
    assert swap_transfers(OPT, 16) == 1280
    moving = swap_bytes(OPT, 2, 16, 16) / A100_2023.swap_in.bytes_per_s
    launching = 1280 * A100_2023.swap_in.transfer_seconds
    both = swap_seconds(OPT, 2, 16, 16, A100_2023.swap_in)
    assert [round(1e3 * t, 1) for t in (moving, launching, both)] == [17.0, 4.6, 21.6]
    in_matrices = 2 * matrix_weights(OPT) * 256
    assert round(in_matrices / 1e12, 3) == 6.442
    assert round((recompute_flops(OPT, 256) - in_matrices) / 1e12, 3) == 0.027
    seconds = [recompute_seconds(OPT, 2, n, A100_2023) for n in (16, 256)]
    assert [round(1e3 * t, 1) for t in seconds] == [16.2, 38.6]
    assert [cheaper(OPT, 2, 256, B, A100_2023) for B in (16, 32)] == ["recompute", "swap"]
    assert crossover_block_size(OPT, 2, 256, A100_2023) == 32
    assert crossover_tokens(OPT, 2, 16, A100_2023, 2048) == 97


def test_the_fit_is_as_good_as_the_module_says():
    costs = preemption_costs(OPT, A100_2023, "")
    off, paper = {}, figure_19a()
    for row in costs.rows:
        got = row.swap_out_ms, row.swap_in_ms, row.recompute_ms
        off[row.block_size] = [g / p - 1 for g, p in zip(got, paper[row.block_size])]
    for out, back, recompute in (off[size] for size in (2, 4, 8, 32, 64, 128)):
        assert abs(out) < 0.04
        assert abs(back) < 0.01
        assert abs(recompute) < 0.05
    assert all(abs(x) < 0.002 for x in (*off[16], *off[256][:2]))  # what was fitted
    assert round(off[1][1], 2) == 0.10


def test_the_twenty_percent_of_the_paper_are_on_top():
    """Section 7.3: "never higher than 20% of swapping's latency"."""
    ratios = {size: prefill / (out + back) for size, (out, back, prefill) in figure_19a().items()}
    assert round(ratios[1], 2) == 0.26
    assert max(ratios.values()) == ratios[256]
    assert round(ratios[256], 2) == 1.17


def test_figure_19a_stands_beside_ours(capsys):
    assert call() == 0
    out = capsys.readouterr().out
    assert out.count("paper") == 4  # three columns, and whose machine it is
    assert "with which swapping is the cheaper: 32." in out
    assert "97 tokens" in out


def test_any_model_card_and_link(capsys):
    assert call("--model", "llama-7b", "--gpu", "h100-80gb", "--tokens", "1000", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    row = next(row for row in found["rows"] if row["block_size"] == 16)
    assert row["num_blocks"] == 63
    assert row["transfers"] == 2 * 32 * 63
    assert row["swap_out_ms"] == row["swap_in_ms"]
    assert call("--model", "opt-13b", "--link", "1") == 0
    out = capsys.readouterr().out
    assert "1 GB/s to host memory" in out
    assert "swapping is the cheaper: none up to 256." in out
    assert call("--model", "opt-13b", "--link", "1000", "--block-size", "256") == 0
    assert "recomputing is the cheaper: none up to 2,048 tokens." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--tokens", "0"), "tokens must be at least 1, not 0"),
        (("--model", "opt-13b", "--link", "0"), "link must be above 0"),
        (("--block-size", "0"), "block_size must be at least 1"),
        (("--model", "opt-14b"), "unknown model"),
    ],
)
def test_what_cannot_be_is_a_sentence(argv, words):
    with pytest.raises(PlanError, match=words):
        call(*argv)


def test_a_students_costs_are_printed(tmp_path, capsys):
    from minipaged.scheduling import transfer_cost

    file = tmp_path / "stage06_preemption" / "transfer_cost.py"
    file.parent.mkdir()
    with open(transfer_cost.__file__, encoding="utf-8") as source:
        text = source.read()
    wrong = "return 2 * model.num_layers * num_blocks"
    assert text.count(wrong) == 1
    file.write_text(text.replace(wrong, "return model.num_layers * num_blocks"), encoding="utf-8")
    assert call("--parts", str(tmp_path), "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"][0]["transfers"] == 40 * 256
    assert "parts: transfer_cost is from" in err


def test_a_card_reaches_a_part_of_what_it_promises():
    gpu = GPUS["a100-40gb"]
    machine = machine_of(gpu)
    assert machine.flops_per_s < gpu.fp16_flops
    assert machine.swap_out == machine.swap_in
    assert machine.swap_out.bytes_per_s < gpu.host_link_bytes_per_s
    assert machine_of(gpu, 1e9).swap_in.bytes_per_s == 1e9
