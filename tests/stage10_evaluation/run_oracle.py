"""Requests of a run, drawn at random, and what is to be said of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Served:
    """A request by its times; what stage 10 says of it is worked out from them, the long way."""

    arrival: float
    tokens: list[float]
    prompt: int = 7
    sequences: int = 1
    preempted: int = 0
    error: str = ""
    ended: bool = True

    @classmethod
    def draw(cls, rng, tokens=None, **others):
        """
        Args:
            tokens: of the output; by default from 2 to 9.
        """
        count = int(rng.integers(2, 10)) if tokens is None else tokens
        arrival, *times = np.cumsum(rng.uniform(0.05, 2.0, count + 1)).round(3).tolist()
        others.setdefault("prompt", int(rng.integers(20, 90)))
        return cls(arrival, times, **others)

    def record(self, lab):
        finish = self.tokens[-1] if self.ended and self.tokens else None
        return lab.request_record(
            arrival_time=self.arrival,
            token_times=self.tokens,
            finish_time=finish,
            prompt_len=self.prompt,
            output_len=len(self.tokens),
            num_sequences=self.sequences,
            num_preemptions=self.preempted,
            error=self.error,
        )

    @property
    def latency(self):
        return self.tokens[-1] - self.arrival

    @property
    def first(self):
        return self.tokens[0] - self.arrival

    @property
    def gaps(self):
        return [self.tokens[i] - self.tokens[i - 1] for i in range(1, len(self.tokens))]

    @property
    def per_token(self):
        """Without the first."""
        return sum(self.gaps) / len(self.gaps)

    def told(self):
        return f"arrival at {self.arrival:g} s, tokens at {listed(self.tokens)} s"


def records_of(lab, requests):
    return [request.record(lab) for request in requests]


def listed(values):
    """Numbers in words, the first of many."""
    shown = ", ".join(f"{value:g}" for value in values[:12])
    return f"{shown}, …" if len(values) > 12 else shown or "never"


def is_number(value):
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def expect_number(got, want, why, within=1e-9):
    """A number, up to rounding, or up to a share of it."""
    if not (is_number(got) and math.isclose(got, want, rel_tol=within, abs_tol=1e-12)):
        room = f" within {within:.0%}" if within > 1e-3 else ""
        got = f"{got:.6g}" if is_number(got) else repr(got)
        raise AssertionError(f"{why}: expected {want:.6g}{room}, got {got}")


def expect_numbers(got, want, why):
    """A sequence of numbers, up to rounding."""
    if not isinstance(got, list | tuple | np.ndarray):
        raise AssertionError(f"{why}: expected {len(want)} numbers, got {got!r}")
    if len(got) != len(want):
        raise AssertionError(f"{why}: expected {len(want)} numbers, got {len(got)}")
    for index, (mine, right) in enumerate(zip(got, want)):
        expect_number(mine, right, f"{why}: value {index}")


def line_through(values, q):
    """A percentile: the values at even places on a line from 0 to 100, read at q."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return ordered[0]
    step = 100 / (len(ordered) - 1)
    for index in range(1, len(ordered)):
        if q <= index * step or index == len(ordered) - 1:
            share = (q - (index - 1) * step) / step
            return ordered[index - 1] * (1 - share) + ordered[index] * share
    raise AssertionError(q)
