"""When requests arrive: random arrivals of one mean rate, steady or in bursts (paper, section 6.1).

The datasets come without timestamps, so the paper draws them: arrivals that do not know of each
other, a Poisson process. Real traffic is burstier. ``burstiness`` goes by the name, and has the
meaning, that it has in ``vllm bench serve``.

Times are seconds from the beginning of the run, in order. What is random comes from the generator
that is handed in, and from nowhere else: the same generator in the same state gives the same times.
The clock on the wall is never asked.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from minipaged.errors import ConfigError

Times = npt.NDArray[np.float64]


def arrival_times(
    rate: float, duration: float, rng: np.random.Generator, burstiness: float = 1.0
) -> Times:
    """Arrivals whose gaps are independent of each other and gamma distributed.

    A gap is ``1 / rate`` seconds in the mean, whatever the burstiness. ``burstiness`` is the shape
    of the distribution; what goes by the name of scale follows from it and from the mean. The
    standard deviation of the gaps over their mean, their coefficient of variation, is then
    ``1 / sqrt(burstiness)``:

    * 1: gaps are exponential, and the arrivals are the paper's Poisson process;
    * below 1: burstier. With 0.25 it is 2;
    * above 1: steadier. With 100 it is 0.1: almost a beat.

    Args:
        rate: requests a second, in the mean.
        duration: seconds. How many requests that is, is random too.
        rng: makes the random numbers.
        burstiness: shape of the gaps.

    Returns:
        All arrivals in ``[0, duration)``, float64, in order; there may be none. The first comes a
        gap after 0.

    Raises:
        ConfigError: rate or burstiness is not a positive finite number, or duration is negative
            or not finite; the message names which, and its value.

    Example: at 2 requests a second, an hour has 7,200 arrivals, give or take 85, the root of that.
    """
    _check(rate=rate, burstiness=burstiness)
    _check_duration(duration)
    scale = 1 / (rate * burstiness)
    pieces, last = [np.empty(0)], 0.0
    while last < duration:
        # About as many as are missing; gaps that are left over are thrown away.
        count = 16 + math.ceil(1.05 * rate * (duration - last))
        pieces.append(last + np.cumsum(rng.gamma(burstiness, scale, count)))
        last = float(pieces[-1][-1])
    times = np.concatenate(pieces)
    return times[times < duration]


def arrivals_by_quantum(
    rate: float, duration: float, rng: np.random.Generator, quantum: float = 0.01
) -> Times:
    """Poisson arrivals as the authors' experiments draw them: time is cut into quanta, each has a
    random number of arrivals, and all of these come at the quantum's very beginning.

    The quanta begin at 0, ``quantum``, ``2 * quantum``, …, before ``duration``. The numbers are
    independent of each other and Poisson distributed, with what ``rate`` makes of a quantum as
    their mean.

    Args:
        rate: requests a second, in the mean.
        duration: seconds.
        rng: makes the random numbers.
        quantum: seconds.

    Returns:
        All arrivals in ``[0, duration)``, float64, in order; there may be none. A quantum with
        three arrivals gives its beginning three times.

    Raises:
        ConfigError: rate or quantum is not a positive finite number, or duration is negative or
            not finite; the message names which, and its value.
    """
    _check(rate=rate, quantum=quantum)
    _check_duration(duration)
    starts = np.arange(math.ceil(duration / quantum)) * quantum
    starts = starts[starts < duration]  # a quotient may be rounded up across a whole number
    return np.repeat(starts, rng.poisson(rate * quantum, len(starts)))


def rescale(times: Times, rate: float) -> Times:
    """Stretch arrivals so that the last of N comes at ``N / rate``, as ``vllm bench serve`` does.

    All times are multiplied with one number, so gaps keep their proportions. It takes the noise
    out of the mean rate: two runs offer the same number of requests in the same time, and still
    differ in when.

    Args:
        times: seconds, in order. They stay as they are.
        rate: requests a second that the result has.

    Returns:
        A new array of the same length; an empty one for an empty one.

    Raises:
        ConfigError: rate is not a positive finite number, or all arrivals are at 0, which no
            number stretches; the message names the value.

    Example: arrivals at 1, 2 and 4 s, at 1.5 a second, come at 0.5, 1 and 2 s.
    """
    _check(rate=rate)
    times = np.asarray(times, dtype=np.float64)
    if not len(times):
        return times.copy()
    if times[-1] <= 0:
        raise ConfigError(f"the last arrival is at {times[-1]:g} s: there is nothing to stretch")
    stretched: Times = times / times[-1] * (len(times) / rate)
    return stretched


def _check(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name} must be a positive number, not {value}")


def _check_duration(duration: float) -> None:
    if not (duration >= 0 and math.isfinite(duration)):
        raise ConfigError(f"duration must be a number of seconds, not {duration}")
