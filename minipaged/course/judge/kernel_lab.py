"""Kernels of a submission in Triton's interpreter, watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def launch(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, dict[str, int]]]:
    """Call what launches kernels."""
    return function(*args, **kwargs), {}
