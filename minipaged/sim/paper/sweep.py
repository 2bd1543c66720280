"""Many simulations at once: over the cores of this machine, or over Ray or Dask."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from minipaged.errors import ConfigError, MinipagedError
from minipaged.sim.paper.jobs import Job, Outcome, run_job

if TYPE_CHECKING:
    from minipaged.parts import Parts
    from minipaged.sim.paper.store import ResultStore


class SweepError(MinipagedError):
    """Simulations could not be run to their end."""


class Sweep:
    """Runs jobs, each once.

    Args:
        workers: processes at a time; -1: one for each core.
        backend: of joblib: ``loky``, the processes of this machine; ``ray`` and ``dask``, whose
            cluster is the one that their own settings name; or one that the caller has registered.
        parts: whose parts the engines are built from; None: the reference's.
        store: what keeps results; None: nothing does beyond this sweep.
        progress: show a bar.
    """

    def __init__(
        self,
        workers: int = -1,
        backend: str = "loky",
        parts: Parts | None = None,
        store: ResultStore | None = None,
        progress: bool = False,
    ) -> None:
        self.workers = workers
        self.backend = backend
        self.parts = parts
        self.store = store
        self.progress = progress
        self._done: dict[Job, Outcome] = {}

    def run(self, jobs: Iterable[Job], label: str = "") -> list[Outcome]:
        """What comes of the jobs, in their order. The largest ones start first; a result is kept
        as soon as it is there.

        Args:
            label: of the bar.

        Raises:
            ConfigError: no such backend; or as :func:`~minipaged.sim.paper.jobs.run_job`.
            SweepError: a worker died.
        """
        jobs = list(jobs)
        for job in jobs:
            if job not in self._done and self.store is not None:
                kept = self.store.get(job)
                if kept is not None:
                    self._done[job] = kept
        missing = sorted({job for job in jobs if job not in self._done}, key=_largest_first)
        if missing:
            self._run(missing, label)
        return [self._done[job] for job in jobs]

    def _run(self, jobs: Sequence[Job], label: str) -> None:
        from tqdm import tqdm

        with tqdm(
            total=len(jobs), desc=label, unit="run", leave=False, disable=not self.progress
        ) as bar:
            for at, outcome in self._fan_out(jobs):
                self._done[jobs[at]] = outcome
                if self.store is not None:
                    self.store.put(jobs[at], outcome)
                bar.update()

    def _fan_out(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Outcome]]:
        """Results as they come, with the numbers of their jobs."""
        if self.workers == 1 and self.backend == "loky":
            yield from (_numbered(at, job, self.parts) for at, job in enumerate(jobs))
            return
        import joblib
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        calls = (joblib.delayed(_numbered)(at, job, self.parts) for at, job in enumerate(jobs))
        try:
            with _config(self.backend, self.workers):
                yield from joblib.Parallel(batch_size=1, **self._options(joblib))(calls)
        except TerminatedWorkerError:
            raise SweepError(
                "a worker process was ended by someone else, or for want of memory; what had "
                "finished is kept, and the same command goes on from there"
            ) from None

    def _options(self, joblib: Any) -> dict[str, Any]:
        """Results one by one, if the backend in use has that."""
        backend, _ = joblib.parallel.get_active_backend()
        options: dict[str, Any] = {}
        if backend.supports_return_generator:
            options["return_as"] = "generator_unordered"
        if self.backend == "loky":
            options["initializer"] = _leave_interrupts_to_the_parent
        return options


def _largest_first(job: Job) -> tuple[float, str]:
    """Then as they are written, so that the order is the same in every run."""
    return -job.size, repr(job)


def _numbered(at: int, job: Job, parts: Parts | None) -> tuple[int, Outcome]:
    return at, run_job(job, parts)


def _config(backend: str, workers: int) -> Any:
    """joblib's settings for a backend; Ray and Dask are told to joblib first."""
    import joblib

    try:
        if backend == "ray":
            from ray.util.joblib import register_ray

            register_ray()
        elif backend == "dask":
            from distributed import Client, default_client

            try:
                default_client()
            except ValueError:
                Client()  # of the scheduler that Dask's settings name, or one for this machine
        return joblib.parallel_config(backend=backend, n_jobs=workers)
    except ImportError as error:
        raise ConfigError(f"--backend {backend}: {error}; install it first") from None
    except ValueError as error:
        raise ConfigError(f"--backend {backend}: {error}") from None


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches all processes of a terminal. The parent ends its workers; they need not say
    anything."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
