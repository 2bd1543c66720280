"""One gap after the other, and one quantum after the other."""

from __future__ import annotations

import numpy as np

from minipaged.errors import ConfigError


def arrival_times(rate, duration, rng, burstiness=1.0):
    positive("rate", rate)
    positive("burstiness", burstiness)
    not_negative(duration)
    times, now = [], 0.0
    while True:
        # The sum of gamma variables of one scale is a gamma variable: draw one of scale 1.
        now += float(rng.standard_gamma(burstiness)) / burstiness / rate
        if now >= duration:
            return np.array(times, dtype=np.float64)
        times.append(now)


def arrivals_by_quantum(rate, duration, rng, quantum=0.01):
    positive("rate", rate)
    positive("quantum", quantum)
    not_negative(duration)
    times, number = [], 0
    while number * quantum < duration:
        times += [number * quantum] * int(rng.poisson(rate * quantum))
        number += 1
    return np.array(times, dtype=np.float64)


def rescale(times, rate):
    positive("rate", rate)
    if len(times) == 0:
        return np.zeros(0)
    if not max(times):
        raise ConfigError("all arrivals are at 0 s")
    factor = len(times) / (rate * max(times))
    return np.array([time * factor for time in times])


def positive(name, value):
    if value != value or value <= 0 or value == float("inf"):
        raise ConfigError(f"{name} = {value}")


def not_negative(duration):
    if not 0 <= duration < float("inf"):
        raise ConfigError(f"duration = {duration}")
