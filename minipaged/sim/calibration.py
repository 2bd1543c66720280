"""Cost models that were measured: terms fitted to the times of real steps, and their file.

``minipaged bench --calibrate`` measures and writes one, ``minipaged sim --cost FILE`` reads it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minipaged.config import ConfigError
from minipaged.executor.cost_model import CostModel, StepLoad

_VERSION = 1
_NAMES = [field.name for field in fields(CostModel)]


@dataclass(frozen=True)
class StepSample:
    """A step that was measured.

    Attributes:
        load: what it had to do.
        model_seconds: in the executor.
        host_seconds: in the rest of the step: planning, sampling, booking.
    """

    load: StepLoad
    model_seconds: float
    host_seconds: float


@dataclass(frozen=True)
class Calibration:
    """A cost model, and the engine that it was measured on.

    Attributes:
        model, device, dtype: in words.
        block_size, num_gpu_blocks, num_cpu_blocks, max_model_len: of that engine; a simulation
            takes them where it is told nothing else.
        cost: the terms.
        mean_error: of the measured steps, the mean of ``|fitted - measured| / measured``.
    """

    model: str
    device: str
    dtype: str
    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    max_model_len: int
    cost: CostModel
    mean_error: float

    def save(self, path: str | Path) -> None:
        """
        Raises:
            ConfigError: the file cannot be written; the message names it.
        """
        text = json.dumps({"version": _VERSION, **asdict(self)}, indent=2)
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """
        Raises:
            ConfigError: the file cannot be read, or is no calibration; the message names it and
                what is wrong.
        """
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is no calibration: {error}") from error
        if not isinstance(record, dict) or record.pop("version", None) != _VERSION:
            raise ConfigError(f"{path} is no calibration of version {_VERSION}")
        try:
            terms = record.pop("cost")
            return cls(**record, cost=CostModel(**_checked_terms(terms)))
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(f"{path} is no calibration: {error}") from error


def _checked_terms(terms: dict[str, Any]) -> dict[str, Any]:
    """
    Raises:
        ValueError: a term is not a number of seconds.
    """
    for name in _NAMES:
        value = terms[name]
        if name != "overlap" and not 0 <= float(value) < math.inf:
            raise ValueError(f"{name} must be a number of seconds, not {value}")
    return terms


def fit_cost_model(
    steps: Sequence[StepSample], moves: Sequence[StepSample] = ()
) -> tuple[CostModel, float]:
    """The terms with which a cost model comes closest to what was measured.

    The sum of the squares of the relative errors is least, among all terms that are not negative:
    a step of 2 ms counts as much as one of 200. What is the same in every step cannot be told
    apart: in the executor all of it is booked as ``weights``, outside as ``step``. Whether tokens
    are multiplied while the weights are read (``overlap``) is what fits better.

    Args:
        steps: steps that computed tokens. To tell the terms apart, some must have more tokens than
            sequences, and both must be small in some and large in others.
        moves: steps that only copied blocks, or moved them between device and host; none: blocks
            move for nothing.

    Returns:
        The model, and the mean relative error of its steps.

    Raises:
        ConfigError: there are fewer steps than terms, or one took no time.
    """
    loads = [step.load for step in steps]
    times = [s.model_seconds for s in (*steps, *moves)] + [s.host_seconds for s in steps]
    if len(steps) < 5 or any(not 0 < seconds < math.inf for seconds in times):
        raise ConfigError(
            f"{len(steps)} steps to fit a cost model to: at least 5 are needed, each with a time"
        )
    in_model = min(_model_terms(steps), key=lambda cost: _squared_error(cost, steps))
    host, per_sequence = nonnegative_least_squares(
        [[1.0] * len(loads), [load.sequences for load in loads]],
        [step.host_seconds for step in steps],
    )
    copied, out, back = _fit_moves(moves)
    cost = replace(
        in_model,
        step=host,
        per_sequence=in_model.per_sequence + per_sequence,
        per_copied_block=copied,
        per_block_out=out,
        per_block_in=back,
    )
    errors = [
        abs(sum(cost.seconds(s.load)) / (s.model_seconds + s.host_seconds) - 1) for s in steps
    ]
    return cost, float(np.mean(errors))


def _model_terms(steps: Sequence[StepSample]) -> Iterator[CostModel]:
    """Fits to the time in the executor: one in which reading and multiplying take turns, and for
    each number of tokens one in which multiplying takes longer from there on."""
    loads, seconds = [step.load for step in steps], [step.model_seconds for step in steps]
    for longer in (0, *sorted({load.tokens for load in loads})):
        overlap = longer > 0
        read = [float(not overlap or load.tokens < longer) for load in loads]
        multiplied = [float(not overlap or load.tokens >= longer) for load in loads]
        weights, per_token, per_pair, per_context, per_output = nonnegative_least_squares(
            [
                read,
                [load.tokens * share for load, share in zip(loads, multiplied)],
                [load.pairs * share for load, share in zip(loads, multiplied)],
                [load.context for load in loads],
                [load.sequences for load in loads],
            ],
            seconds,
        )
        yield CostModel(
            weights=weights,
            per_token=per_token,
            per_pair=per_pair,
            per_context_token=per_context,
            per_copied_block=0.0,
            step=0.0,
            per_sequence=per_output,
            reduce=0.0,
            per_reduced_token=0.0,
            per_block_out=0.0,
            per_block_in=0.0,
            overlap=overlap,
        )


def _squared_error(cost: CostModel, steps: Sequence[StepSample]) -> float:
    return sum((sum(cost.seconds(s.load)) / s.model_seconds - 1) ** 2 for s in steps)


def _fit_moves(moves: Sequence[StepSample]) -> tuple[float, ...]:
    if not moves:
        return 0.0, 0.0, 0.0
    _, *terms = nonnegative_least_squares(
        [
            [1.0] * len(moves),
            [move.load.copied for move in moves],
            [move.load.swapped_out for move in moves],
            [move.load.swapped_in for move in moves],
        ],
        [move.model_seconds for move in moves],
    )
    return tuple(terms)


def nonnegative_least_squares(
    columns: Sequence[Sequence[float]], values: Sequence[float]
) -> list[float]:
    """The coefficients, none of them negative, with which the columns come closest to the values,
    relative to them.

    Where the best ones are positive they solve the ordinary problem of their columns alone. So the
    best of all subsets of the columns is the answer, and a cost model has few columns.

    Args:
        columns: each as long as ``values``.
        values: above 0.
    """
    target = np.asarray(values, dtype=np.float64)
    matrix = np.array(columns, dtype=np.float64).T / target[:, None]  # [rows, columns]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    matrix = matrix / scale
    ones = np.ones(len(target))
    best: npt.NDArray[np.float64] = np.zeros(matrix.shape[1])
    least = float(len(target))  # what no column at all leaves
    for size in range(1, matrix.shape[1] + 1):
        for chosen in itertools.combinations(range(matrix.shape[1]), size):
            part = matrix[:, chosen]
            found = np.linalg.lstsq(part, ones, rcond=None)[0]
            left = float(np.sum((part @ found - ones) ** 2))
            if (found >= 0).all() and left < least:
                least = left
                best = np.zeros(matrix.shape[1])
                best[list(chosen)] = found
    return [float(value) for value in best / scale]
