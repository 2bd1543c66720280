"""Counter-based random numbers: no generator, so no generator state to lose or to share.

A request keeps its random numbers through preemption, in any batch and in any order, because
each of them is a pure function of where it is used. The function is SplitMix64 (Steele, Lea and
Flood, OOPSLA 2014), which can be entered at any position.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_SIBLING = 0xD1B54A32D192ED03
_MASK = (1 << 64) - 1


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer: a bijection of 64-bit numbers in which every bit of the input
    changes every bit of the output with probability one half."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def request_seed(engine_seed: int, arrival_index: int) -> int:
    """The seed of a request that brought none: different for each request of an engine, and the
    same when the engine runs again with the same ``engine_seed``."""
    # Plain arithmetic is enough: `uniforms` mixes the bits.
    return (engine_seed * _SIBLING + (arrival_index + 1) * _GOLDEN) & _MASK


def uniforms(seeds: Seq[int], siblings: Seq[int], steps: Seq[int]) -> NDArray[np.float64]:
    """``[N]`` float64 in [0, 1): for each ``j`` a pure function of
    ``(seeds[j], siblings[j], steps[j])``.

    Args:
        seeds: any integers; taken modulo 2**64.
        siblings: which sequence of its group (0-based).
        steps: which output token of that sequence (0-based).
    """
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    sibling = np.array(siblings, dtype=np.uint64) + np.uint64(1)
    step = np.array(steps, dtype=np.uint64) + np.uint64(1)
    stream = _mix(_mix(seed) + sibling * np.uint64(_SIBLING))
    bits = _mix(stream + step * np.uint64(_GOLDEN))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
