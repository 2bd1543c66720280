"""The latency curves of figures 12, 14, 16 and 17, as data: what is served by whom, for how long.

Durations of traces are the authors' where they are known: an hour, and 15 minutes for OPT-175B.
Alpaca's requests are short and come ten times as often, so that 15 minutes are as many of them, and
ten are where each has several sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from minipaged.sim.paper.jobs import Job
from minipaged.sim.paper.published import rate_at
from minipaged.sim.systems import SYSTEMS

ORCA = ("orca-max", "orca-pow2", "orca-oracle")
#: The highest rate that is tried, as a multiple of the highest that the paper has in a panel.
_TOP = 1.6
#: Of a quick study's trace.
_LEAST_REQUESTS = 150
_HOUR, _QUARTER, _TEN_MINUTES = 3600.0, 900.0, 600.0


@dataclass(frozen=True)
class Panel:
    """One diagram of latency over request rate.

    Attributes:
        name: as ``12a``.
        title: over the diagram.
        workload: a name of :data:`minipaged.sim.paper.jobs.WORKLOADS`.
        systems: that the paper has a curve of.
        duration: seconds of arrivals.
        quick: the same for a quick study; 0: it leaves the panel out.
    """

    name: str
    title: str
    workload: str
    duration: float
    quick: float
    model: str = "opt-13b"
    num_sequences: int = 1
    beam: bool = False
    systems: tuple[str, ...] = (*ORCA, "vllm")

    @property
    def curves(self) -> dict[str, float]:
        """System -> the rate that the paper's curve has at the level."""
        return {name: rate_at(self.name, SYSTEMS[name].title) for name in self.systems}

    def is_judged(self, system: str, quick: bool) -> bool:
        """Has the trace enough requests, at the paper's rate, to say anything? In some of a quick
        study there are a few dozen; in a whole one more seeds make up for that."""
        return not quick or self.curves[system] * self.quick >= _LEAST_REQUESTS

    def jobs(self, quick: bool) -> dict[tuple[str, str], Job]:
        """(panel, system) -> the first run of a search: at the paper's rate."""
        rates = self.curves
        return {
            (self.name, system): Job(
                workload=self.workload,
                system=system,
                model=self.model,
                rate=rate,
                duration=self.quick if quick else self.duration,
                top_rate=_TOP * max(rates.values()),
                num_sequences=self.num_sequences,
                beam=self.beam,
            )
            for system, rate in rates.items()
        }


_ALL = ("fastertransformer", *ORCA, "vllm")

FIG12 = (
    Panel("12a", "a. OPT-13B, ShareGPT", "sharegpt", _HOUR, 600.0, systems=_ALL),
    Panel("12b", "b. OPT-66B, ShareGPT", "sharegpt", _HOUR, 0.0, "opt-66b", systems=_ALL),
    Panel("12c", "c. OPT-175B, ShareGPT", "sharegpt", _QUARTER, 0.0, "opt-175b", systems=_ALL),
    Panel("12d", "d. OPT-13B, Alpaca", "alpaca", _QUARTER, 120.0, systems=_ALL),
    Panel("12e", "e. OPT-66B, Alpaca", "alpaca", _QUARTER, 0.0, "opt-66b", systems=_ALL),
    Panel("12f", "f. OPT-175B, Alpaca", "alpaca", _QUARTER, 0.0, "opt-175b", systems=_ALL),
)
FIG14 = (
    Panel("14a", "a. Parallel, 2 sequences", "alpaca", _TEN_MINUTES, 0.0, num_sequences=2),
    Panel("14b", "b. Parallel, 4 sequences", "alpaca", _TEN_MINUTES, 0.0, num_sequences=4),
    Panel("14c", "c. Parallel, 6 sequences", "alpaca", _TEN_MINUTES, 90.0, num_sequences=6),
    Panel("14d", "d. Beam width 2", "alpaca", _TEN_MINUTES, 0.0, num_sequences=2, beam=True),
    Panel("14e", "e. Beam width 4", "alpaca", _TEN_MINUTES, 0.0, num_sequences=4, beam=True),
    Panel("14f", "f. Beam width 6", "alpaca", _TEN_MINUTES, 90.0, num_sequences=6, beam=True),
)
FIG16 = tuple(
    Panel(name, title, workload, 300.0, quick, "llama-13b", systems=("orca-oracle", "vllm"))
    for name, title, workload, quick in (
        ("16a", "a. 1-shot prefix, 80 tokens", "translation-1", 30.0),
        ("16b", "b. 5-shot prefix, 341 tokens", "translation-5", 30.0),
    )
)
FIG17 = (Panel("17", "Chatbot, OPT-13B", "chatbot", _HOUR, 600.0),)
