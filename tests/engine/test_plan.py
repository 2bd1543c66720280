"""``minipaged plan``: memory divided, table 1 derived, errors that help."""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from minipaged import plan as plan_module
from minipaged.capacity import (
    ACTIVATION_BYTES,
    PlanError,
    find_gpu,
    find_model,
    least_tensor_parallel,
    make_plan,
)
from minipaged.config import CacheConfig, ConfigError
from minipaged.errors import CourseError, MinipagedError
from minipaged.hardware import GPUS, GiB
from minipaged.models.catalog import CATALOG, parameter_count
from minipaged.plan import add_arguments, run, table1

A100 = GPUS["a100-40gb"]


def call(*argv):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(argv))


# -- the numbers
def test_opt_13b_on_an_a100():
    plan = make_plan(CATALOG["opt-13b"], A100)
    assert plan.parameters == 12_853_473_280
    assert plan.weight_bytes == 2 * plan.parameters
    assert plan.kv_bytes_per_token == 819_200
    assert plan.kv_bytes_per_block == 16 * 819_200
    used = plan.weight_bytes + plan.activation_bytes + plan.kv_bytes
    assert used == int(0.9 * A100.memory_bytes)
    assert plan.num_blocks == plan.kv_bytes // (16 * 819_200)
    assert plan.num_slots == 16 * plan.num_blocks
    assert plan.watermark_blocks == plan.num_blocks // 100
    assert plan.swap_blocks == 4 * GiB // (16 * 819_200) == 327
    assert plan.max_sequences == plan.num_blocks // 128


def test_every_setting_counts():
    base = make_plan(CATALOG["opt-13b"], A100)
    assert make_plan(
        CATALOG["opt-13b"], A100, cache=CacheConfig(block_size=32)
    ).num_blocks == pytest.approx(base.num_blocks / 2, abs=1)
    bigger = CacheConfig(gpu_memory_utilization=0.95, swap_space_bytes=8 * GiB, watermark=0.1)
    other = make_plan(CATALOG["opt-13b"], A100, cache=bigger, max_model_len=100)
    assert other.kv_bytes - base.kv_bytes == pytest.approx(0.05 * A100.memory_bytes, abs=2)
    assert other.swap_blocks == 655
    assert other.watermark_blocks == int(0.1 * other.num_blocks)
    assert other.max_sequences == other.num_blocks // 7
    wide = make_plan(CATALOG["opt-6.7b"], A100, dtype="float32")
    assert wide.weight_bytes == 4 * parameter_count(CATALOG["opt-6.7b"])
    assert wide.kv_bytes_per_token == 2 * 524_288
    none = make_plan(CATALOG["opt-13b"], A100, activation_bytes=0)
    assert none.kv_bytes - base.kv_bytes == ACTIVATION_BYTES


def test_tensor_parallel_ranks_share_weights_and_heads():
    plan = make_plan(CATALOG["opt-66b"], A100, tensor_parallel=4)
    assert plan.weight_bytes == -(-2 * plan.parameters // 4)
    assert plan.kv_bytes_per_token == 2_359_296 // 4
    assert plan.kv_heads == 18


def test_few_kv_heads_are_repeated():
    grouped = replace(CATALOG["llama-7b"], num_kv_heads=4)
    assert make_plan(grouped, A100, tensor_parallel=8).kv_bytes_per_token == 2 * 32 * 128 * 2


@pytest.mark.parametrize("name", CATALOG)
def test_every_model_fits_on_enough_cards(name):
    ranks = least_tensor_parallel(CATALOG[name], A100)
    assert ranks is not None
    assert make_plan(CATALOG[name], A100, ranks).max_sequences >= 1
    fewer = [n for n in range(1, ranks) if CATALOG[name].num_heads % n == 0]
    for n in fewer:
        try:
            assert make_plan(CATALOG[name], A100, n).max_sequences == 0
        except PlanError:
            continue


# -- table 1
def test_table_1_is_reproduced():
    rows = table1()
    assert [(row.model, row.cards) for row in rows] == [
        ("opt-13b", 1), ("opt-66b", 4), ("opt-175b", 8),
    ]  # fmt: skip
    for row in rows:
        assert row.params_gb == pytest.approx(row.paper_params_gb, rel=0.012)
        assert row.kv_gib == pytest.approx(row.paper_kv_gb, rel=0.02)
        assert row.kslots == pytest.approx(row.paper_kslots, rel=0.005)
        assert row.kslots_of_paper_kv == pytest.approx(row.paper_kslots, rel=0.016)
    assert [row.kslots_of_paper_kv for row in rows] == [15.728, 9.557, 60.074]


def test_table_1_follows_the_models_and_the_cards(monkeypatch):
    before = table1()
    half = {**GPUS, "a100-80gb": replace(GPUS["a100-80gb"], memory_bytes=60 * GiB)}
    monkeypatch.setattr(plan_module, "GPUS", half)
    after = table1()
    assert after[:2] == before[:2]
    assert after[2].kv_gib < before[2].kv_gib - 100


def test_one_activation_reserve_explains_all_three_rows():
    for row in table1():
        card = 0.95 * GPUS[row.gpu].memory_bytes - row.params_gb * 1e9 / row.cards
        # Where the paper rounds the KV memory, its slots say more.
        token = 2 * CATALOG[row.model].num_layers * CATALOG[row.model].hidden_size * 2
        implied = card - row.paper_kslots * 1e3 * token / row.cards
        assert implied == pytest.approx(ACTIVATION_BYTES, rel=0.06)


# -- errors
def test_a_model_that_does_not_fit_names_the_numbers_and_the_remedy():
    with pytest.raises(PlanError) as error:
        make_plan(CATALOG["opt-66b"], A100)
    message = str(error.value)
    for part in ("opt-66b", "1 x a100-40gb", "122.41 GiB", "39.59 GiB", "35.63 GiB", "90%",
                 "1.67 GiB", "least number of such cards that holds it is 4"):  # fmt: skip
        assert part in message
    assert isinstance(error.value, MinipagedError)


def test_a_model_that_fits_nowhere_says_so():
    tiny = replace(A100, name="tiny", memory_bytes=2 * GiB)
    with pytest.raises(PlanError, match="no number of such cards"):
        make_plan(CATALOG["opt-175b"], tiny)


def test_heads_that_do_not_divide():
    with pytest.raises(ConfigError, match="72 query heads"):
        make_plan(CATALOG["opt-66b"], A100, tensor_parallel=5)
    with pytest.raises(PlanError, match=r"tensor_parallel \(5\).*72 query heads"):
        call("--model", "opt-66b", "--tensor-parallel", "5")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--model", "opt-13"], "'opt-13': did you mean opt-13b"),
        (["--model", "gpt-5"], "llama-65b"),
        (["--model", ""], "known are opt-125m"),
        (["--gpu", "a100", "--model", "opt-13b"], "a100-40gb or a100-80gb"),
        (["--gpu", "h300"], "did you mean h200"),
        (["--model", "opt-13b", "--tensor-parallel", "0"], "not 0"),
        (["--model", "opt-13b", "--block-size", "0"], "not 0"),
        (["--model", "opt-13b", "--swap-space", "-1"], "swap space"),
        (["--model", "opt-13b", "--gpu-memory-utilization", "1.5"], "1.5"),
        (["--model", "opt-13b", "--watermark", "1"], "watermark"),
        (["--model", "opt-13b", "--max-model-len", "0"], "max_model_len"),
        (["--model", "opt-13b", "--activations", "-2"], "-2"),
    ],
)
def test_user_errors_are_sentences(argv, named):
    with pytest.raises(PlanError) as error:
        call(*argv)
    assert named in str(error.value)


def test_names_are_taken_as_people_write_them():
    assert find_model("facebook/opt-13b") is CATALOG["opt-13b"]
    assert find_model("OPT_13B") is CATALOG["opt-13b"]
    assert find_gpu("RTX 4090") is GPUS["rtx-4090"]


# -- output
def test_plan_prints_every_number(capsys):
    assert call("--model", "opt-13b", "--gpu", "a100-40gb") == 0
    out = capsys.readouterr().out
    plan = make_plan(CATALOG["opt-13b"], A100)
    for number in ("819,200 B", "13,107,200 B", f"{plan.num_blocks:,}", f"{plan.num_slots:,}",
                   f"{plan.watermark_blocks} blocks", "327 blocks", "23.94 GiB",
                   "2 x 40 layers x 40 KV heads x 128 x 2 B"):  # fmt: skip
        assert number in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_sequence_that_is_longer_than_the_pool_is_pointed_out(capsys):
    assert call("--model", "opt-13b", "--max-model-len", "100000") == 0
    assert "No sequence of 100,000 tokens fits: the longest has 13,120" in capsys.readouterr().out


def test_table_1_prints_paper_ours_and_the_difference(capsys):
    assert call("--table1") == 0
    out = capsys.readouterr().out
    assert "paper    ours  difference" in out
    assert "1.67 GiB" in out
    assert "-0.0" not in out
    assert max(map(len, out.splitlines())) <= 100


def test_without_a_model_all_of_them_are_listed(capsys):
    assert call("--gpu", "a100-80gb") == 0
    out = capsys.readouterr().out
    lines = {line.split()[0] for line in out.splitlines() if line}
    assert set(CATALOG) <= lines
    assert call("--gpu", "a100-80gb", "--tensor-parallel", "1") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Not on a100-80gb: ")
    assert "opt-175b" in last


def test_json_holds_the_same_numbers(capsys):
    assert call("--model", "opt-13b", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["num_blocks"] == make_plan(CATALOG["opt-13b"], A100).num_blocks
    assert call("--table1", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert call("--json") == 0
    assert [row["model"] for row in json.loads(capsys.readouterr().out)] == [
        config.name for config in CATALOG.values()
    ]


# -- a student's own arithmetic
@pytest.fixture
def desk(tmp_path):
    """Writes a sizing.py: the reference's, with one line changed."""

    def write(old="", new=""):
        file = tmp_path / "stage00_sizing" / "sizing.py"
        file.parent.mkdir(exist_ok=True)
        text = Path(plan_module.sizing.__file__).read_text(encoding="utf-8")
        assert not old or text.count(old) == 1
        file.write_text(text.replace(old, new) if old else text, encoding="utf-8")
        return str(tmp_path)

    return write


def test_a_plan_runs_on_a_students_arithmetic(desk, capsys):
    keys = desk("return 2 * model.num_layers", "return model.num_layers")
    assert call("--model", "opt-13b", "--parts", keys, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["kv_bytes_per_token"] == 409_600
    assert "parts: sizing is from" in err
    assert call("--table1", "--parts", keys, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["kslots"] > 31
    assert call("--table1", "--parts", desk(), "--json") == 0
    assert json.loads(capsys.readouterr().out) == [asdict(row) for row in table1()]


def test_what_a_student_refuses_is_a_sentence_and_what_breaks_names_the_line(desk):
    with pytest.raises(PlanError, match=r"tensor_parallel \(5\).*72 query heads"):
        call("--model", "opt-66b", "--tensor-parallel", "5", "--parts", desk())
    broken = desk("return int(num_blocks * watermark)", "return num_blocks // 0")
    with pytest.raises(CourseError, match=r"sizing.py, line \d+, in watermark_blocks"):
        call("--model", "opt-13b", "--parts", broken)


# -- the cards
def test_cards_have_less_memory_than_their_label_in_gib():
    for name, gpu in GPUS.items():
        assert name == gpu.name
        assert 0.9 * gpu.marketed_gb * GiB < gpu.memory_bytes < gpu.marketed_gb * GiB
        assert gpu.host_link_bytes_per_s <= gpu.peer_link_bytes_per_s < gpu.hbm_bytes_per_s


def test_planning_needs_no_torch():
    code = "import sys, minipaged.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
