"""Sampling without a model: every output is as long as the workload says."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from operator import attrgetter
from typing import TYPE_CHECKING

from minipaged.contracts import Decision, GroupDecision

if TYPE_CHECKING:
    from minipaged.contracts import StepLogits, StepPlan
    from minipaged.executor.simulated import VirtualClock
    from minipaged.sequence import Sequence, SequenceGroup
    from minipaged.sim.fork_model import ForkModel


class _Live:
    """An unfinished request, and the decision that is told of it step after step."""

    __slots__ = ("decision", "lengths", "rng", "scores", "times", "token")

    def __init__(self, group: SequenceGroup, lengths: Seq[int], token: int, seed: str) -> None:
        self.lengths = lengths
        self.token = token
        self.times: list[float] = []
        self.decision = GroupDecision(group)
        self.rng = random.Random(seed) if group.params.use_beam_search else None
        self.scores = [0.0] * len(lengths)  # of beams


class SimulatedSampling:
    """Implements :class:`minipaged.contracts.Sampling` for requests whose lengths are known.

    A parallel sample goes its own way after the prompt. Beams fork as a :class:`ForkModel` says.

    Args:
        seed: of the beams' family trees; each request has its own.

    Attributes:
        num_groups: requests in the batch of the last step.
    """

    def __init__(self, clock: VirtualClock, forks: ForkModel, seed: int = 0) -> None:
        self.clock = clock
        self.forks = forks
        self.seed = seed
        self.num_groups = 0
        self._live: dict[str, _Live] = {}

    def expect(self, group: SequenceGroup, output_len: int | Seq[int], token: int) -> None:
        """Tell how long the outputs of a new request will be.

        Args:
            output_len: of all siblings, as in the authors' experiments; or of each of them, by
                its index (not for beams, which change places).
            token: the id of all their tokens.
        """
        width = group.params.width
        lengths = (output_len,) * width if isinstance(output_len, int) else output_len
        seed = f"{self.seed}/{group.request_id}"
        self._live[group.request_id] = _Live(group, lengths, token, seed)

    def end(self, request_id: str) -> list[float]:
        """Forget a request.

        Returns:
            when each of its tokens came.
        """
        return self._live.pop(request_id).times

    def decide(
        self, plan: StepPlan, logits: StepLogits, groups: Seq[SequenceGroup]
    ) -> list[GroupDecision]:
        """One token for every sequence that the step samples; the last one ends its request."""
        now, lives = self.clock.now, self._live
        self.num_groups = len(groups)
        decisions = []
        for group in _sampled(plan, groups):
            live = lives[group.request_id]
            times, decision = live.times, live.decision
            times.append(now)
            # Most steps decide what the one before did, and say it with the same object.
            if (
                len(times) in live.lengths
                or len(decision.children) != len(group.seqs)
                or live.rng is not None
                or len(times) == 2
            ):
                decision.children = self._children(live, group)
            decisions.append(decision)
        return decisions

    def _children(self, live: _Live, group: SequenceGroup) -> list[Decision]:
        parents, count = group.live, len(live.times)
        siblings = [parent.index for parent in parents]
        if count == 1:  # all start from the prompt
            siblings = [*range(group.params.width)]
            parents *= len(siblings)
        elif live.rng is not None:
            parents = [parents[at] for at in self.forks.parents(live.scores, live.rng)]
        return [
            Decision(
                parent, live.token, 0.0, sibling,
                finish="length" if count == live.lengths[sibling] else None,
            )
            for parent, sibling in zip(parents, siblings)
        ]  # fmt: skip

    def select_outputs(self, group: SequenceGroup) -> list[Sequence]:
        """All sequences of the group, by their index."""
        return sorted(group.all_seqs(), key=attrgetter("index"))


def _sampled(plan: StepPlan, groups: Seq[SequenceGroup]) -> Seq[SequenceGroup]:
    """Those of the groups that the step samples: nearly always all."""
    sampled = [span.seq_id for span in plan.spans if span.sample]
    if len(sampled) == sum([len(group.seqs) for group in groups]):
        return groups
    seq_ids = set(sampled)
    return [group for group in groups if not seq_ids.isdisjoint(group.seqs)]
