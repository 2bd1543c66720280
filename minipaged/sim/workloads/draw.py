"""Arrival times and the generator of everything else, both from one seed."""

from __future__ import annotations

import numpy as np

from minipaged.errors import ConfigError
from minipaged.sim.arrivals import arrival_times, arrivals_by_quantum
from minipaged.sim.workloads.checks import require_positive


def draw_arrivals(
    rate: float,
    duration: float,
    seed: int,
    burstiness: float = 1.0,
    quantum: float | None = None,
) -> tuple[list[float], np.random.Generator]:
    """When requests arrive (paper, section 6.1), and a generator for what they are.

    The two are independent: other gaps between the same number of arrivals leave the requests
    as they are.

    Args:
        rate: requests a second, on average.
        duration: seconds in which they arrive.
        burstiness: shape of the gamma distribution of the gaps; 1: a Poisson process.
        quantum: draw a Poisson number of arrivals for each so many seconds and let them arrive at
            its start, as the authors' experiments do (0.01 s); None: any time can be one.

    Raises:
        ConfigError: an argument is not above 0, or a quantum is given with gaps that are not a
            Poisson process's.
    """
    require_positive(rate=rate, duration=duration, burstiness=burstiness)
    arrivals, others = np.random.default_rng(seed).spawn(2)
    if quantum is None:
        return arrival_times(rate, duration, arrivals, burstiness).tolist(), others
    require_positive(quantum=quantum)
    if burstiness != 1:
        raise ConfigError(
            f"burstiness {burstiness} with a quantum of {quantum} s: arrivals by quantum are a "
            "Poisson process (burstiness 1)"
        )
    return arrivals_by_quantum(rate, duration, arrivals, quantum).tolist(), others
