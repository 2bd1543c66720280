"""Useful output tokens a second, against peers, in one process and in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.bench.engines import Serve
    from minipaged.bench.workload import Job


@dataclass
class Throughput:
    """What one engine did.

    Attributes:
        seconds: of each round.
        output_tokens: useful ones a round: those that were asked for.
        same_outputs: jobs whose token ids equal the first engine's.
        error: why it did not run, if it did not.
    """

    output_tokens: int
    num_jobs: int
    seconds: list[float] = field(default_factory=list)
    same_outputs: int = 0
    error: str | None = None

    @property
    def output_throughput(self) -> float:
        """Useful output tokens a second, by the median round."""
        return self.output_tokens / median(self.seconds) if self.seconds else 0.0


def measure_throughput(
    engines: Mapping[str, Serve],
    jobs: list[Job],
    rounds: int = 3,
    say: Callable[[str], object] = lambda line: None,
) -> dict[str, Throughput]:
    """Run every engine on the same jobs, one after the other, ``rounds`` times.

    A first, short round warms each of them up and is not counted. The first engine is ours: the
    others, its peers, may fail.

    Args:
        say: is told about each run.
    """
    useful = sum(job.output_len for job in jobs)
    results = {name: Throughput(useful, len(jobs)) for name in engines}
    ours = next(iter(engines))
    reference: list[list[int]] = []
    for number in range(-1, rounds):
        for name, serve in engines.items():
            result = results[name]
            if result.error is not None:
                continue
            start = time.perf_counter()
            try:
                outputs = serve(jobs[:8] if number < 0 else jobs)
            except Exception as error:
                if name == ours:
                    raise
                # A peer that fails is a row of the table, not an end.
                result.error = f"{type(error).__name__}: {error}"
                continue
            seconds = time.perf_counter() - start
            if number < 0:
                say(f"{name}: warmed up in {seconds:.1f} s")
                continue
            say(f"{name}: round {number + 1} of {rounds} in {seconds:.1f} s")
            result.seconds.append(seconds)
            reference = reference or outputs
            result.same_outputs = sum(a == b for a, b in zip(outputs, reference))
    return results
