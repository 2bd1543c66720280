"""What is written on a command line about rates, objectives and percentiles, as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minipaged.errors import ConfigError
from minipaged.sim.metrics import SLO_METRICS


def parse_rates(text: str) -> list[float]:
    """``0.5,1,inf``: requests a second; ``inf``: all at once.

    Raises:
        ConfigError: one is not a number above 0; the message names it.
    """
    return [
        _number(part, "--rate", "a number of requests a second above 0") for part in _parts(text)
    ]


def parse_percentiles(text: str) -> list[float]:
    """``50,90,99.9``.

    Raises:
        ConfigError: one is not a number from 0 to 100; the message names it.
    """
    wanted = "a number from 0 to 100"
    values = [_number(part, "--percentiles", wanted, least=-math.inf) for part in _parts(text)]
    for value in values:
        if not 0 <= value <= 100:
            raise ConfigError(f"--percentiles {value:g}: it must be {wanted}")
    return values


def parse_slo(bounds: Sequence[str]) -> dict[str, float]:
    """``["ttft:200 tpot:50"]`` or ``["ttft:200", "tpot:50"]``, as ``vllm bench serve --goodput``
    takes it: bounds in milliseconds.

    Raises:
        ConfigError: one is not ``NAME:MILLISECONDS``, or its name is not known or given twice.
    """
    slo: dict[str, float] = {}
    for bound in " ".join(bounds).replace(",", " ").split():
        name, colon, value = bound.partition(":")
        if not colon:
            raise ConfigError(f"--slo {bound}: it must be NAME:MILLISECONDS, such as ttft:200")
        if name not in SLO_METRICS:
            raise ConfigError(f"--slo {bound}: there is no {name}, but {', '.join(SLO_METRICS)}")
        if name in slo:
            raise ConfigError(f"--slo {bound}: {name} is given twice")
        slo[name] = _number(value, f"--slo {name}:", "a number of milliseconds above 0")
    return slo


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _number(text: str, option: str, wanted: str, least: float = 0.0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > least:
        raise ConfigError(f"{option} {text or '(nothing)'}: it must be {wanted}")
    return value
