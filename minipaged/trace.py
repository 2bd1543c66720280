"""One JSON line a step: what was planned, what moved, how long it took."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from minipaged.errors import MinipagedError

if TYPE_CHECKING:
    from minipaged.contracts import StepPlan
    from minipaged.engine import Engine
    from minipaged.outputs import RequestOutput


class TraceError(MinipagedError):
    """The trace file cannot be written."""


class TraceWriter:
    """Writes a trace file. A context manager; the file is replaced if it exists.

    A line holds: ``step``; ``time`` and ``seconds`` (start and length of the step on the
    engine's clock); ``spans``, a list of ``[seq_id, start, tokens, block table]``; ``swap_in``,
    ``swap_out``, ``copies`` as block pairs; ``preempted`` as ``[request, mode]``; ``resumed``,
    ``admitted`` and ``finished`` requests; ``waiting``, ``running``, ``swapped``: groups in each
    queue after the step; ``free_gpu_blocks``, ``free_cpu_blocks``.
    """

    def __init__(self, path: str | Path) -> None:
        """
        Raises:
            TraceError: the file cannot be written.
        """
        try:
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise TraceError(f"cannot write the trace {path}: {error.strerror}") from error

    def write(
        self, plan: StepPlan, engine: Engine, start: float, outputs: Seq[RequestOutput]
    ) -> None:
        record: dict[str, Any] = {
            "step": plan.step,
            "time": start,
            "seconds": engine.clock() - start,
            "spans": [[s.seq_id, s.start, len(s.token_ids), s.block_table] for s in plan.spans],
            "swap_in": plan.swap_in,
            "swap_out": plan.swap_out,
            "copies": plan.copies,
            "preempted": [[p.request_id, p.mode] for p in plan.preempted],
            "resumed": plan.resumed,
            "admitted": plan.admitted,
            "finished": [output.request_id for output in outputs if output.finished],
            "waiting": len(engine.scheduler.waiting),
            "running": len(engine.scheduler.running),
            "swapped": len(engine.scheduler.swapped),
            "free_gpu_blocks": engine.kv.num_free_gpu_blocks,
            "free_cpu_blocks": engine.kv.num_free_cpu_blocks,
        }
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
