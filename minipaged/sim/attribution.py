"""Where the time of a run went, and what limits it.

There are two questions, with two answers. *What did the machine do?* Its seconds are those of the
run: it computed, moved, prepared, or had nothing to do. *What did a request wait for?* Its seconds
are those between its arrival and its end. A step of 30 ms is 30 ms of the machine and 30 ms of each
request in the batch, and a request that is not in the batch is queueing whatever the machine does.
So a run can be busy with reading weights while its requests lose their time in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minipaged.errors import RequestError

if TYPE_CHECKING:
    from minipaged.sim.simulate import Run

#: From the bottom of a stack to its top.
MACHINE_TERMS = ("weights", "kv", "compute", "host", "network", "link", "idle")
REQUEST_TERMS = ("weights", "kv", "compute", "host", "network", "link", "queueing")

#: Terms of a busy machine, by what would make them shorter.
_GROUPS = {
    "memory bandwidth": ("weights", "kv"),
    "compute": ("compute",),
    "host": ("host",),
    "network": ("network",),
    "link": ("link",),
}

RULE = (
    "A run is limited by what its requests wait for if they spend at least half of their time out "
    "of the batch: memory capacity, or the scheduler's limits. Otherwise by the arrivals, if the "
    "machine has nothing to do for at least half of the time. Otherwise by what the machine spends "
    "most time on: memory bandwidth (weights and KV), compute, the host, the network or the link."
)


@dataclass(frozen=True)
class Attribution:
    """The time of a run, in seconds.

    Attributes:
        machine: of the run, by :data:`MACHINE_TERMS`; they add up to its duration.
        request: of a request, on average over all of them, by :data:`REQUEST_TERMS`; they add up
            to the mean time from arrival to end.
        waiting: ``request["queueing"]`` by what was waited for (see
            :attr:`~minipaged.sim.simulate.Run.waiting`), the longest first.
    """

    machine: dict[str, float]
    request: dict[str, float]
    waiting: dict[str, float]


@dataclass(frozen=True)
class Limit:
    """What a run is limited by, according to :data:`RULE`.

    Attributes:
        name: ``memory capacity``, ``scheduler``, ``arrivals``, ``memory bandwidth``, ``compute``,
            ``host``, ``network`` or ``link``.
        reason: a sentence with the share that decides.
    """

    name: str
    reason: str


def attribute(run: Run) -> Attribution:
    """Where the time of a run went.

    Raises:
        RequestError: the run has no request.
    """
    count = len(run.records)
    if not count:
        raise RequestError(f"a run of {run.system} without requests has no time to attribute")
    machine = run.busy._asdict() | {"idle": max(0.0, run.duration - sum(run.busy))}
    request = {term: seconds / count for term, seconds in run.latency._asdict().items()}
    request["queueing"] = run.queueing / count
    longest_first = sorted(run.waiting.items(), key=lambda item: -item[1])
    return Attribution(
        {term: machine[term] for term in MACHINE_TERMS},
        {term: request[term] for term in REQUEST_TERMS},
        {cause: seconds / count for cause, seconds in longest_first},
    )


def limit_of(attribution: Attribution) -> Limit:
    """What limits the run, by :data:`RULE`."""
    machine, request = attribution.machine, attribution.request
    queueing = _share(request["queueing"], request)
    # Who came while a step was going on waits for its end: that is the machine, not a limit.
    causes = {c: seconds for c, seconds in attribution.waiting.items() if c != "step"}
    if queueing >= 0.5 and causes:
        cause = max(causes, key=causes.__getitem__)
        return Limit(
            "memory capacity" if cause == "memory" else "scheduler",
            f"requests spend {queueing:.0%} of their time out of the batch, most of it waiting "
            f"for {_WAITING_FOR[cause]}",
        )
    idle = _share(machine["idle"], machine)
    if idle >= 0.5:
        return Limit("arrivals", f"the machine has nothing to do for {idle:.0%} of the time")
    groups = {name: sum(machine[term] for term in terms) for name, terms in _GROUPS.items()}
    name = max(groups, key=groups.__getitem__)
    share = _share(groups[name], groups)
    return Limit(name, f"the machine spends {share:.0%} of its busy time on {_SPENT_ON[name]}")


_WAITING_FOR = {
    "memory": "room for keys and values",
    "sequence limit": "a place among max_num_seqs",
    "token budget": "a step with tokens left of max_num_batched_tokens",
    "batch": "the end of a batch that nobody joins",
    "turn": "a step for prompts",
}
_SPENT_ON = {
    "memory bandwidth": "reading weights, keys and values",
    "compute": "multiplying",
    "host": "preparing steps, sampling and booking",
    "network": "adding up activations of several cards",
    "link": "blocks on their way between card and host",
}


def _share(part: float, whole: dict[str, float]) -> float:
    total = sum(whole.values())
    return part / total if total else 0.0
