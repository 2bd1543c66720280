"""What a step's logits decide: one :class:`~minipaged.contracts.GroupDecision` a group."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from minipaged.contracts import Decision, GroupDecision, StepLogits, StepPlan
from minipaged.device import take_rows
from minipaged.sampling.beam_search import BeamSearch
from minipaged.sampling.logprobs import extend_prompt_logprobs, token_logprobs
from minipaged.sampling.sampler import NO_TOKEN, Sampler, SampleRow
from minipaged.sampling.selection import select_outputs
from minipaged.sampling.uniforms import request_seed
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup

_Live = tuple[SequenceGroup, list[Sequence]]
"""A group and its sequences that have a row of logits in the step."""


class TorchSampling:
    """Implements :class:`minipaged.contracts.Sampling` on torch tensors.

    Args:
        max_model_len: prompt plus output of one sequence.
        vocab_size: the tokenizer's; ids at or past it are never chosen. None: every column
            of the logits is a token.
        eos_token_ids: ids that end a sequence, unless its request ignores them.
        seed: what the seeds of requests without one are derived from.
        sampler: what draws tokens; called ``Sampler(vocab_size, eos_token_ids)``.
    """

    def __init__(
        self,
        max_model_len: int,
        *,
        vocab_size: int | None = None,
        eos_token_ids: Seq[int] = (),
        seed: int = 0,
        sampler: type[Sampler] = Sampler,
    ) -> None:
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.seed = seed
        self._sampler = sampler(vocab_size, tuple(eos_token_ids))
        self._beam_search = BeamSearch(max_model_len)

    def decide(
        self, plan: StepPlan, logits: StepLogits, groups: Seq[SequenceGroup]
    ) -> list[GroupDecision]:
        """Choose the next tokens, and record the prompt log-probabilities that the step gave.

        Args:
            groups: at least those with a span in the plan that samples or asks for prompt
                log-probabilities; others are passed over.

        Returns:
            a decision for each group that sampled, in the order of ``groups``. Each live
            sequence has one child, with these exceptions: a prompt has ``params.width``; a beam
            search has what it decides; and a group from whose logits nothing can be chosen
            has, for each live sequence, a child with ``finish="error"``, a ``stop_reason`` that
            says why, and ``token_id`` NO_TOKEN (-1), which is no token and must not be appended.

        ``logprob`` and ``top`` are set where the request asked for log-probabilities; without
        them, ``logprob`` is that of the token where ``best_of`` or a beam search needs it, and
        0.0 elsewhere (it would cost as much again as a greedy step).
        """
        if logits.prompt_rows:
            self._record_prompts(plan, logits, groups)
        row_of = {span.seq_id: row for row, span in enumerate(s for s in plan.spans if s.sample)}
        sampled: list[_Live] = []
        searched: list[_Live] = []
        for group in groups:
            seqs = [seq for seq in group.seqs.values() if seq.seq_id in row_of]
            if seqs:
                (searched if group.params.use_beam_search else sampled).append((group, seqs))
        decisions = self._sample(sampled, logits.rows, row_of)
        if searched:
            decisions += [self._search(live, logits.rows, row_of) for live in searched]
            place = {id(group): i for i, group in enumerate(groups)}
            decisions.sort(key=lambda decision: place[id(decision.group)])
        self._add_logprobs(decisions, logits.rows, row_of)
        return decisions

    def select_outputs(self, group: SequenceGroup) -> list[Sequence]:
        """See :func:`minipaged.sampling.selection.select_outputs`."""
        return select_outputs(group)

    # -- sampling ----------------------------------------------------------------------------
    def _sample(
        self, sampled: list[_Live], rows: Tensor, row_of: dict[int, int]
    ) -> list[GroupDecision]:
        if not sampled:
            return []
        requests = [request for group, seqs in sampled for request in self._requests(group, seqs)]
        index = [row_of[seq.seq_id] for _, seqs in sampled for seq in seqs]
        in_order = index == list(range(len(rows)))
        tokens = self._sampler.sample(rows if in_order else take_rows(rows, index), requests)

        decisions: list[GroupDecision] = []
        drawn = zip(requests, tokens)
        for group, seqs in sampled:
            children: list[Decision] = []
            for seq in seqs:
                request, some = next(drawn)
                for sibling, token in zip(request.siblings, some):
                    child = Decision(seq, token, 0.0, sibling)
                    self._end(child, group.params)
                    children.append(child)
            decisions.append(GroupDecision(group, children))
        for i, (live, decision) in enumerate(zip(sampled, decisions)):
            for child in decision.children:
                if child.token_id == NO_TOKEN:
                    decisions[i] = _failed(live, rows[row_of[child.parent.seq_id]])
                    break
        return decisions

    def _requests(self, group: SequenceGroup, seqs: list[Sequence]) -> Iterator[SampleRow]:
        params = group.params
        seed = params.seed
        if seed is None:
            seed = request_seed(self.seed, group.arrival_index)
        for seq in seqs:
            siblings: Seq[int] = (seq.index,)
            if params.width > 1 and len(seq.token_ids) == seq.num_prompt_tokens:
                siblings = range(params.width)  # all of them start from the prompt's row
            yield SampleRow(params, seq.token_ids, seq.num_prompt_tokens, seed, siblings)

    def _end(self, child: Decision, params: SamplingParams) -> None:
        """Does this token end its sequence? ``stop`` goes before ``length``."""
        token, seq = child.token_id, child.parent
        length = len(seq.token_ids) + 1
        if token in self.eos_token_ids and not params.ignore_eos:
            child.finish = "stop"
        elif token in params.stop_token_ids:
            child.finish, child.stop_reason = "stop", token
        elif length >= self.max_model_len or (
            params.max_tokens is not None and length - seq.num_prompt_tokens >= params.max_tokens
        ):
            child.finish = "length"

    def _search(self, live: _Live, rows: Tensor, row_of: dict[int, int]) -> GroupDecision:
        """One step of a beam search."""
        group, seqs = live
        params = group.params
        logits = take_rows(rows, [row_of[seq.seq_id] for seq in seqs])  # [beams, V]
        scores = logits.log_softmax(dim=-1)[:, : self.vocab_size].contiguous()
        requests = [SampleRow(params, seq.token_ids, seq.num_prompt_tokens) for seq in seqs]
        self._sampler.adjust(scores, requests)
        # The host waits here, as it must for the search itself, which goes on from scores.
        failed = (~torch.isfinite(scores.max(dim=-1).values)).nonzero()
        if len(failed):
            return _failed(live, logits[int(failed[0])], done=True)
        stops: dict[int, int | None] = {token: token for token in params.stop_token_ids}
        if not params.ignore_eos:
            stops.update(dict.fromkeys(self.eos_token_ids))
        return self._beam_search.advance(group, scores, seqs, stops)

    # -- log-probabilities -------------------------------------------------------------------
    def _add_logprobs(
        self, decisions: list[GroupDecision], rows: Tensor, row_of: dict[int, int]
    ) -> None:
        wanted: list[tuple[Decision, SamplingParams]] = []
        for decision in decisions:
            params = decision.group.params
            ranked = params.width > params.n and not params.use_beam_search
            if params.logprobs is not None or ranked:
                wanted += [(c, params) for c in decision.children if c.token_id != NO_TOKEN]
        if not wanted:
            return
        entries = token_logprobs(
            take_rows(rows, [row_of[child.parent.seq_id] for child, _ in wanted]),
            [child.token_id for child, _ in wanted],
            [params.logprobs or 0 for _, params in wanted],
            self.vocab_size,
        )
        for (child, params), entry in zip(wanted, entries):
            if not params.use_beam_search:
                child.logprob = entry.logprob
            if params.logprobs is not None:
                child.top = entry

    def _record_prompts(
        self, plan: StepPlan, logits: StepLogits, groups: Seq[SequenceGroup]
    ) -> None:
        owner = {
            seq_id: group
            for group in groups
            if group.params.prompt_logprobs is not None
            for seq_id in group.seqs
        }
        for span in plan.spans:
            if span.prompt_logprobs and span.seq_id in owner:
                rows = logits.prompt_rows[span.seq_id]
                extend_prompt_logprobs(owner[span.seq_id], span, rows, self.vocab_size)


def _failed(live: _Live, row: Tensor, done: bool = False) -> GroupDecision:
    """End a whole group, and say why no token could be chosen from ``row``."""
    group, seqs = live
    if bool(torch.isfinite(row.max())):
        reason = (
            "no token is allowed: logit_bias, min_tokens and the end-of-sequence token rule "
            "out the whole vocabulary"
        )
    else:
        reason = (
            "the model's logits are not finite (NaN or infinite): its numbers overflowed; try "
            "dtype float32, or check the checkpoint"
        )
    children = [
        Decision(seq, NO_TOKEN, 0.0, seq.index, finish="error", stop_reason=reason) for seq in seqs
    ]
    return GroupDecision(group, children, done=done)
