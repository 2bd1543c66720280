"""Beam search (paper, section 4.4): w candidates stay alive, and share most of their blocks.

Outputs, order and scores are those of ``transformers``' ``generate(num_beams=w)``. A step looks
at the best ``2 w`` continuations of all beams together. One that ends becomes a *hypothesis*, if
it is among the best ``w``; the others, as far as they do not end, are the next beams. So ``w``
beams go on even where all the best ones end. The pool keeps the ``w`` best hypotheses by
``sum of log-probabilities / length ** length_penalty``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from minipaged.contracts import Decision, GroupDecision
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup


@dataclass(slots=True)
class BeamState:
    """What a search knows beyond its sequences: ``SequenceGroup.beam``.

    Attributes:
        pool: scores of the hypotheses in the pool, best first; at most the width.
        num_hypotheses: how many were ever handed out.
    """

    pool: list[float] = field(default_factory=list)
    num_hypotheses: int = 0


@dataclass(slots=True)
class _Candidate:
    parent: Sequence
    token_id: int
    total: float
    """Sum of the log-probabilities, this token's included: a float32 number."""


def hypothesis_score(total: float, length: int, length_penalty: float) -> float:
    """``total / length ** length_penalty`` in float32, as transformers computes it.

    Args:
        total: sum of the log-probabilities of the output (nats).
        length: output tokens; below 1 it counts as 1.
    """
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        divisor = np.float32(np.float64(max(length, 1)) ** length_penalty)
        return float(np.float32(total) / divisor)


class BeamSearch:
    """Advances the beam searches of an engine; their state lives in their groups.

    Args:
        max_model_len: prompt plus output of one sequence.
    """

    def __init__(self, max_model_len: int) -> None:
        self.max_model_len = max_model_len

    def advance(
        self,
        group: SequenceGroup,
        scores: Tensor,
        beams: Seq[Sequence],
        stops: Mapping[int, int | None],
    ) -> GroupDecision:
        """One step of a search.

        Args:
            scores: ``[len(beams), V]`` float32: log-probabilities of the next token, with
                ``-inf`` for what is forbidden.
            beams: the live sequences, in the order of ``scores``.
            stops: the ids that end a hypothesis, each with the ``stop_reason`` that it gives.

        Returns:
            the children. Those with ``finish`` are new hypotheses in the pool; the others are
            the next beams, best first, and ``index`` is their rank. Their ``logprob`` is what
            they add to the parent's ``cumulative_logprob``. ``done``: the search is over.
        """
        params, state = group.params, self._state(group)
        width = params.width
        candidates = self._best(scores, beams, width * max(2, 1 + len(stops)))
        length = beams[0].num_output_tokens + 1
        at_limit = length >= self._limit(beams[0], params)

        ended: list[tuple[float, Decision]] = []
        running: list[_Candidate] = []
        for rank, candidate in enumerate(candidates):
            if candidate.token_id in stops or at_limit:
                if rank < width:
                    score = hypothesis_score(candidate.total, length, params.length_penalty)
                    ended.append((score, _hypothesis(candidate, stops)))
            elif len(running) < width:
                running.append(candidate)

        children = self._admit(state, ended, width)
        full = len(state.pool) == width
        done = not running or (full and params.early_stopping is True)
        if full and not done:
            done = not self._can_improve(state, running[0], length, beams[0], params)
        if not done:
            children += [_child(beam, rank) for rank, beam in enumerate(running)]
        return GroupDecision(group, children, done=done)

    def _state(self, group: SequenceGroup) -> BeamState:
        if group.beam is None:
            group.beam = BeamState()
        state: BeamState = group.beam
        return state

    def _limit(self, seq: Sequence, params: SamplingParams) -> int:
        """The most output tokens that a sequence of this request can have."""
        room = self.max_model_len - seq.num_prompt_tokens
        return room if params.max_tokens is None else min(room, params.max_tokens)

    @staticmethod
    def _best(scores: Tensor, beams: Seq[Sequence], count: int) -> list[_Candidate]:
        """The ``count`` best continuations of all beams, best first. Ties go to the better
        beam, then to the lower id: they must not depend on the order in the batch."""
        top = scores.topk(min(count, scores.shape[1]), dim=-1)
        before = np.array([seq.cumulative_logprob for seq in beams], dtype=np.float32)
        totals = (top.values.cpu().numpy() + before[:, None]).ravel()
        tokens = top.indices.cpu().numpy().ravel()
        owner = np.repeat(np.arange(len(beams)), top.values.shape[1])
        rank = np.array([seq.index for seq in beams])[owner]
        order = np.lexsort((tokens, rank, -totals))[:count]
        return [
            _Candidate(beams[owner[i]], int(tokens[i]), float(totals[i]))
            for i in order
            if np.isfinite(totals[i])
        ]

    @staticmethod
    def _admit(state: BeamState, ended: list[tuple[float, Decision]], width: int) -> list[Decision]:
        """Merge new hypotheses into the pool; returns those that get in."""
        old: list[tuple[float, Decision | None]] = [(score, None) for score in state.pool]
        kept = heapq.nlargest(width, [*old, *ended], key=lambda entry: entry[0])
        state.pool = [score for score, _ in kept]
        admitted = [hypothesis for _, hypothesis in kept if hypothesis is not None]
        for hypothesis in admitted:
            hypothesis.index = width + state.num_hypotheses
            state.num_hypotheses += 1
        return admitted

    def _can_improve(
        self, state: BeamState, best: _Candidate, length: int, seq: Sequence, params: SamplingParams
    ) -> bool:
        """Could the best beam still beat the worst hypothesis of a full pool?

        Its score can only fall as tokens are added, but its length counts too: ``"never"``
        grants it the longest there can be, where that helps.
        """
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self._limit(seq, params)
        return hypothesis_score(best.total, length, params.length_penalty) > state.pool[-1]


def _child(candidate: _Candidate, rank: int) -> Decision:
    gain = candidate.total - candidate.parent.cumulative_logprob
    return Decision(candidate.parent, candidate.token_id, gain, index=rank)


def _hypothesis(candidate: _Candidate, stops: Mapping[int, int | None]) -> Decision:
    decision = _child(candidate, 0)
    decision.finish = "stop" if candidate.token_id in stops else "length"
    decision.stop_reason = stops.get(candidate.token_id)
    return decision
