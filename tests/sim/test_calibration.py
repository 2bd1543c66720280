"""Terms fitted to steps: what was put in comes out, and a damaged file is told from a whole one."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace

import pytest

from minipaged.config import ConfigError
from minipaged.executor.cost_model import CostModel, StepLoad
from minipaged.sim.calibration import (
    Calibration,
    StepSample,
    fit_cost_model,
    nonnegative_least_squares,
)

TRUE = CostModel(
    weights=9e-3,
    per_token=60e-6,
    per_pair=2e-6,
    per_context_token=4e-6,
    per_copied_block=15e-6,
    step=0.5e-3,
    per_sequence=80e-6,
    reduce=0.0,
    per_reduced_token=0.0,
    per_block_out=66e-6,
    per_block_in=47e-6,
    overlap=False,
)


def samples(cost: CostModel, noise: float = 0.0) -> list[StepSample]:
    dice = random.Random(0)
    made = []
    for sequences in (1, 2, 4, 8, 16, 32):
        for each in (1, 1, 16, 128):
            context = dice.randrange(400) * sequences if each == 1 else 0
            pairs = sequences * each * (each + 1) // 2 if each > 1 else 0
            load = StepLoad(sequences * each, sequences, context, pairs)
            seconds = cost.seconds(load)
            host = cost.step + 0.25 * cost.per_sequence * sequences
            factor = 1 + noise * dice.uniform(-1, 1)
            made.append(StepSample(load, factor * (sum(seconds) - host), host))
    return made


def moves(cost: CostModel) -> list[StepSample]:
    loads = [StepLoad(0, 0, 0, **{kind: n})
             for kind in ("copied", "swapped_out", "swapped_in") for n in (1, 8, 64)]  # fmt: skip
    return [StepSample(x, sum(cost.seconds(x)) - cost.step + 20e-6, 0.0) for x in loads]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_terms_that_made_the_times_are_found(overlap):
    true = replace(TRUE, overlap=overlap)
    found, error = fit_cost_model(samples(true), moves(true))
    assert found.overlap == overlap
    assert asdict(found) == pytest.approx(asdict(true), rel=1e-6, abs=1e-12)
    assert error < 1e-6


def test_noise_moves_the_large_terms_little():
    found, error = fit_cost_model(samples(TRUE, noise=0.05))
    assert found.weights == pytest.approx(TRUE.weights, rel=0.1)
    assert found.per_token == pytest.approx(TRUE.per_token, rel=0.1)
    assert 0 < error < 0.05
    assert found.per_block_out == found.per_copied_block == 0


def test_no_term_is_negative_and_the_best_of_those_is_found():
    # The ordinary solution is (2.2, -0.8): the second column has to go.
    columns, values = [[1.0, 1.0, 1.0], [0.0, 0.5, 1.0]], [2.2, 1.8, 1.4]
    first, second = nonnegative_least_squares(columns, values)
    assert second == 0
    weights = [1 / value for value in values]
    assert first == pytest.approx(sum(weights) / sum(w * w for w in weights))


def test_too_few_steps_and_a_step_without_time_are_refused():
    with pytest.raises(ConfigError, match="4 steps"):
        fit_cost_model(samples(TRUE)[:4])
    with pytest.raises(ConfigError, match="with a time"):
        fit_cost_model([*samples(TRUE), StepSample(StepLoad(1, 1, 0), 0.0, 1e-3)])


@pytest.fixture
def measured() -> Calibration:
    return Calibration("opt-stories", "cpu", "float32", 16, 1024, 64, 512, TRUE, 0.07)


def test_a_file_gives_back_what_was_written(tmp_path, measured):
    measured.save(tmp_path / "cost.json")
    assert Calibration.load(tmp_path / "cost.json") == measured


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: r.pop("version"), "no calibration of version 1"),
        (lambda r: r["cost"].pop("weights"), "weights"),
        (lambda r: r["cost"].update(weights=-1), "weights must be a number of seconds, not -1"),
        (lambda r: r["cost"].update(per_token="fast"), "fast"),
        (lambda r: r.pop("block_size"), "block_size"),
        (lambda r: r.update(color="red"), "color"),
    ],
)
def test_a_damaged_file_is_told_by_what_is_wrong(tmp_path, measured, change, told):
    path = tmp_path / "cost.json"
    measured.save(path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=told) as error:
        Calibration.load(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_or_not_json(tmp_path, measured):
    with pytest.raises(ConfigError, match="cannot read"):
        Calibration.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("weights: 3")
    with pytest.raises(ConfigError, match="no calibration"):
        Calibration.load(tmp_path / "text.json")
    with pytest.raises(ConfigError, match="cannot write"):
        measured.save(tmp_path / "no" / "folder.json")
