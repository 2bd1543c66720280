"""Is there a CUDA device? Asked before torch or Triton are imported, and without them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: What the driver puts there: a file for each GPU, or on WSL one for all.
_FILES = ("nvidia[0-9]*", "dxg")


def has_cuda_device(devices: Path = Path("/dev")) -> bool:
    """Does the driver show a GPU to this process?

    Args:
        devices: the folder of device files.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(any(devices.glob(name)) for name in _FILES)


def compiles_for_device() -> bool:
    """Does Triton compile kernels for a GPU in this process, and not interpret them?"""
    return has_cuda_device() and os.environ.get("TRITON_INTERPRET", "0") in ("", "0")


def triton_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What Triton must find in the environment when it is imported, and does not find there: where
    there is no GPU, ``TRITON_INTERPRET=1``.

    Triton decorates its own functions when it is imported, so a process interprets kernels for
    good or compiles them for good.
    """
    interpreted = "TRITON_INTERPRET" in environment or has_cuda_device()
    return {} if interpreted else {"TRITON_INTERPRET": "1"}
