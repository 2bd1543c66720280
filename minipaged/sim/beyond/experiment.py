"""What an experiment beyond the paper is: numbers, what they say, and a picture of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Protocol, TypeVar

from minipaged.config import PAPER_2023_CACHE, CacheConfig, SchedulerConfig
from minipaged.errors import ConfigError
from minipaged.parts import Parts
from minipaged.sim.paper.comparison import Row
from minipaged.sim.report import measurements
from minipaged.sim.simulate import Deployment, simulate

if TYPE_CHECKING:
    from minipaged.contracts import StepPlan
    from minipaged.engine import Engine
    from minipaged.executor.cost_model import CostModel
    from minipaged.sim.systems import System
    from minipaged.sim.workloads import Workload

T = TypeVar("T")

#: Percentiles of every latency.
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
#: A simulation in numbers: the keys of :func:`minipaged.sim.report.measurements`,
#: ``computed_tokens``, and ``busy_compute_share``: of the time of all steps, what multiplying took.
Numbers = dict[str, float]


class NumbersObserver(Protocol):
    """An observer (:class:`minipaged.sim.simulate.Observer`) that ends up with numbers."""

    def observe(self, engine: Engine, plan: StepPlan, seconds: float) -> None: ...

    def numbers(self) -> Numbers:
        """What was seen."""


class Measurable(Protocol):
    """Something that ends up with numbers, in a process of its own."""

    def run(self, parts: Parts | None = None) -> Numbers:
        """
        Args:
            parts: whose parts the engine is built from; None: the reference's.
        """


@dataclass(frozen=True)
class Trial:
    """One simulation.

    Attributes:
        workload: makes the requests, where the simulation runs.
        system, deployment, cache, scheduler, cost: see :func:`minipaged.sim.simulate.simulate`.
        exchange: makes other parts out of those that the engine would be built from.
        observer: makes one that looks at every step, and has ``numbers()`` in the end.
    """

    workload: Callable[[], Workload]
    system: str | System = "vllm"
    deployment: Deployment = field(default_factory=Deployment)
    cache: CacheConfig = PAPER_2023_CACHE
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig.paper_2023)
    cost: CostModel | None = None
    exchange: Callable[[Parts], Parts] | None = None
    observer: Callable[[], NumbersObserver] | None = None

    def run(self, parts: Parts | None = None) -> Numbers:
        """Simulate, to the end of the last request."""
        if self.exchange is not None:
            parts = self.exchange(parts or Parts())
        observers = [self.observer()] if self.observer is not None else []
        run = simulate(
            self.workload(),
            self.system,
            self.deployment,
            cache=self.cache,
            scheduler=self.scheduler,
            cost=self.cost,
            parts=parts,
            observers=observers,
        )
        numbers = measurements(run, percentiles=PERCENTILES)
        numbers["computed_tokens"] = run.computed_tokens
        numbers["busy_compute_share"] = run.busy.compute / sum(run.busy)
        for observer in observers:
            numbers |= observer.numbers()
        return numbers


@dataclass
class Lab:
    """Where experiments are made.

    Attributes:
        quick: few and short simulations: to see that it works, and about what comes out.
        workers: processes at a time; -1: one for each core.
        parts: whose parts the engines are built from; None: the reference's.
        trace: a file with real arrival times, for those experiments that can use one.
        seed: of the workloads; where there are several, the first one.
        progress: show a bar.
    """

    quick: bool = False
    workers: int = -1
    parts: Parts | None = None
    trace: Path | None = None
    seed: int = 0
    progress: bool = False

    def choose(self, full: T, quick: T) -> T:
        """One of two settings."""
        return quick if self.quick else full

    def seeds(self, full: int) -> range:
        """So many seeds, or one if it has to be quick."""
        return range(self.seed, self.seed + self.choose(full, 1))

    def run(self, trials: Sequence[Measurable], label: str = "") -> list[Numbers]:
        """The trials' numbers, in their order.

        Raises:
            ConfigError, PlanError, RequestError: a trial makes no sense.
        """
        from tqdm import tqdm

        bar = tqdm(total=len(trials), desc=label, unit="run", leave=False,
                   disable=not self.progress)  # fmt: skip
        results = []
        with bar:
            for numbers in self._fan_out(trials):
                results.append(numbers)
                bar.update()
        return results

    def _fan_out(self, trials: Sequence[Measurable]) -> Iterable[Numbers]:
        if self.workers == 1 or len(trials) == 1:
            return (trial.run(self.parts) for trial in trials)
        import joblib

        parallel = joblib.Parallel(n_jobs=self.workers, batch_size=1, return_as="generator")
        found: Iterable[Numbers] = parallel(
            joblib.delayed(trial.run)(self.parts) for trial in trials
        )
        return found


class Findings:
    """Numbers of an experiment, by quantity (with its unit), series, and place on an axis."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, float | None], float] = {}

    def add(self, quantity: str, series: str, value: float, x: float | None = None) -> None:
        self._numbers[quantity, series, x] = value

    def get(self, quantity: str, series: str, x: float | None = None) -> float:
        """
        Raises:
            ConfigError: it was not found.
        """
        if (quantity, series, x) not in self._numbers:
            raise ConfigError(f"there is no {quantity!r} of {series!r} at {x}")
        return self._numbers[quantity, series, x]

    def curve(self, quantity: str, series: str) -> list[tuple[float, float]]:
        """(place, number) of a series, in the order of its places."""
        return sorted(
            (x, value)
            for (of, name, x), value in self._numbers.items()
            if of == quantity and name == series and x is not None
        )

    def series(self, quantity: str) -> list[str]:
        """Names of the series of a quantity, in the order in which they were found."""
        return list(dict.fromkeys(name for of, name, _ in self._numbers if of == quantity))

    def rows(self, figure: str) -> list[Row]:
        """For a CSV file; the paper has none of these numbers."""
        return [
            Row(figure, quantity, series, x=x, ours=value)
            for (quantity, series, x), value in self._numbers.items()
        ]


@dataclass(frozen=True)
class Experiment:
    """A question that the paper's figures leave open.

    Attributes:
        title: of the figure.
        question: in a sentence.
        measure: finds the numbers.
        conclude: what they say: a few sentences, with numbers.
        draw: a PNG.
    """

    title: str
    question: str
    measure: Callable[[Lab], Findings]
    conclude: Callable[[Findings], list[str]]
    draw: Callable[[Findings, Path], None]


def mean_of(several: Sequence[Numbers], key: str) -> float:
    """Over seeds."""
    return fmean(numbers[key] for numbers in several)
