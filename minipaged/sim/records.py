"""What is known of a request when its run is over: the raw material of every metric."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RequestRecord:
    """One request, from its arrival to its end.

    Times are seconds on the run's clock: a virtual one in a simulation, a real one in a benchmark.

    Attributes:
        arrival_time: when the request was sent.
        token_times: when each token of the output came, in order; the first is the end of the
            step that computed the prompt. Siblings (parallel samples, beams) get their tokens in
            the same steps, and a step counts once.
        finish_time: when the last output token was there; None: it has not ended.
        prompt_len: tokens of the prompt.
        output_len: tokens of the longest output.
        num_sequences: outputs that it asked for, or the beam width.
        num_preemptions: how often its memory was taken away.
        error: why it was refused, or could not go on; empty if it was served.
    """

    arrival_time: float
    token_times: list[float]
    finish_time: float | None
    prompt_len: int
    output_len: int
    num_sequences: int = 1
    num_preemptions: int = 0
    error: str = ""

    @property
    def completed(self) -> bool:
        """Was it served to its end?"""
        return self.finish_time is not None and not self.error
