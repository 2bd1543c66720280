"""Results of finished simulations, kept so that an interrupted reproduction goes on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import minipaged
from minipaged.sim.fork_model import ForkModel
from minipaged.sim.paper.jobs import Job, Outcome
from minipaged.sim.simulate import PAPER_DEPLOYMENTS

#: What a result depends on beside the job: the code of the engine and of the simulator.
_SOURCES = ("*.py", "executor/*.py", "kvcache/*.py", "scheduling/*.py", "sim/*.py",
            "sim/workloads/*.py", "sim/paper/jobs.py", "sim/paper/observers.py")  # fmt: skip


class ResultStore:
    """A file of JSON lines: a digest and what came of the job with that digest.

    The digest is one of the job, of the package's version and code, and of the numbers that the
    cost model and the fork model have for it. What was found with other code or other numbers is
    not found again.

    Args:
        path: made with the first result.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._code = _code_digest()
        self._kept: dict[str, Outcome] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            self._kept[entry["digest"]] = Outcome(**entry["outcome"])
        except (ValueError, KeyError, TypeError):
            return  # the end of a line that was being written when the process was killed

    def get(self, job: Job) -> Outcome | None:
        """What came of a job, if it ran already."""
        return self._kept.get(self._digest(job))

    def put(self, job: Job, outcome: Outcome) -> None:
        """Keep what came of a job."""
        digest = self._digest(job)
        self._kept[digest] = outcome
        self.path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"digest": digest, "job": asdict(job), "outcome": outcome.to_json()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _digest(self, job: Job) -> str:
        cost = PAPER_DEPLOYMENTS[job.model].cost_model(job.block_size)
        facts: list[Any] = [asdict(job), self._code, asdict(cost), vars(ForkModel())]
        text = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def _code_digest() -> str:
    folder = Path(minipaged.__file__).parent
    digest = hashlib.sha256(minipaged.__version__.encode())
    for pattern in _SOURCES:
        for file in sorted(folder.glob(pattern)):
            digest.update(file.name.encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
