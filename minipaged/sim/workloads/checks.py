"""The arguments of workloads, checked before anything is drawn."""

from __future__ import annotations

import math

from minipaged.errors import ConfigError


def require_positive(**values: float) -> None:
    """
    Raises:
        ConfigError: a value is not a finite number above 0.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} must be a finite number above 0, not {value}")


def require_at_least(least: int, /, **values: float | None) -> None:
    """What is None was not given, and is not checked.

    Raises:
        ConfigError: a value is below ``least``.
    """
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")


def require_share(**values: float) -> None:
    """
    Raises:
        ConfigError: a value is not a share: above 0, and 1 at most.
    """
    for name, value in values.items():
        if not 0 < value <= 1:
            raise ConfigError(f"{name} must be above 0 and at most 1, not {value}")
