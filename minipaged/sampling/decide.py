"""What a step's logits decide: one :class:`~minipaged.contracts.GroupDecision` a group."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minipaged.contracts import Decision, GroupDecision, StepLogits, StepPlan
from minipaged.sampling.beam_search import BeamSearch
from minipaged.sampling.logprobs import extend_prompt_logprobs, token_logprobs
from minipaged.sampling.sampler import NO_TOKEN, Sampler, SampleRow
from minipaged.sampling.selection import select_outputs
from minipaged.sampling.uniforms import request_seed
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup

if TYPE_CHECKING:
    from minipaged.sequence import TokenLogprob


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
        self, plan: StepPlan, logits: StepLogits, groups: Iterable[SequenceGroup]
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
        sampled: list[tuple[SequenceGroup, list[Sequence]]] = []
        searched: list[tuple[SequenceGroup, list[Sequence]]] = []
        for group in groups:
            seqs = [seq for seq in group.seqs.values() if seq.seq_id in row_of]
            if seqs:
                (searched if group.params.use_beam_search else sampled).append((group, seqs))
        decisions = self._sample(sampled, logits.rows, row_of)
        if searched:
            decisions += [
                self._search(group, seqs, logits.rows, row_of) for group, seqs in searched
            ]
            place = {id(group): i for i, group in enumerate(groups)}
            decisions.sort(key=lambda decision: place[id(decision.group)])
        return decisions

    def select_outputs(self, group: SequenceGroup) -> list[Sequence]:
        """See :func:`minipaged.sampling.selection.select_outputs`."""
        return select_outputs(group)

    # -- sampling ----------------------------------------------------------------------------
    def _sample(
        self,
        sampled: list[tuple[SequenceGroup, list[Sequence]]],
        rows: Tensor,
        row_of: dict[int, int],
    ) -> list[GroupDecision]:
        if not sampled:
            return []
        index: list[int] = []
        requests: list[SampleRow] = []
        for group, seqs in sampled:
            params = group.params
            seed = 0
            if params.temperature > 0:
                seed = self._seed(group)
            for seq in seqs:
                index.append(row_of[seq.seq_id])
                siblings: Seq[int] = (seq.index,)
                if params.width > 1 and len(seq.token_ids) == seq.num_prompt_tokens:
                    siblings = range(params.width)
                requests.append(
                    SampleRow(params, seq.token_ids, seq.num_prompt_tokens, seed, siblings)
                )
        if index != list(range(len(rows))):
            rows = rows[index]
        tokens = self._sampler.sample(rows, requests)

        decisions: list[GroupDecision] = []
        wanted: list[tuple[int, Decision]] = []  # (row, child) whose log-probability is wanted
        position = 0
        for group, seqs in sampled:
            drawn = tokens[position : position + len(seqs)]
            if any(NO_TOKEN in some for some in drawn):
                bad = next(i for i, some in enumerate(drawn) if NO_TOKEN in some)
                decisions.append(_failed(group, seqs, rows[position + bad]))
                position += len(seqs)
                continue
            children: list[Decision] = []
            for seq, some in zip(seqs, drawn):
                for sibling, token in zip(requests[position].siblings, some):
                    child = Decision(seq, token, 0.0, sibling)
                    self._end(child, group.params)
                    children.append(child)
                    if group.params.logprobs is not None or group.params.width > group.params.n:
                        wanted.append((position, child))
                position += 1
            decisions.append(GroupDecision(group, children))
        if wanted:
            params_of = {id(d): g.group.params for g in decisions for d in g.children}
            children = [child for _, child in wanted]
            entries = token_logprobs(
                rows[[row for row, _ in wanted]],
                [child.token_id for child in children],
                [params_of[id(child)].logprobs or 0 for child in children],
                self.vocab_size,
            )
            for child, entry in zip(children, entries):
                child.logprob = entry.logprob
                if params_of[id(child)].logprobs is not None:
                    child.top = entry
        return decisions

    def _seed(self, group: SequenceGroup) -> int:
        seed = group.params.seed
        return request_seed(self.seed, group.arrival_index) if seed is None else seed

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

    # -- beam search -------------------------------------------------------------------------
    def _search(
        self,
        group: SequenceGroup,
        seqs: list[Sequence],
        rows: Tensor,
        row_of: dict[int, int],
    ) -> GroupDecision:
        params = group.params
        logits = rows[[row_of[seq.seq_id] for seq in seqs]]  # [beams, V]
        scores = logits.log_softmax(dim=-1)[:, : self.vocab_size].contiguous()
        requests = [SampleRow(params, seq.token_ids, seq.num_prompt_tokens) for seq in seqs]
        self._sampler.adjust(scores, requests)
        finite = torch.isfinite(scores.max(dim=-1).values)
        if not bool(finite.all()):
            return _failed(group, seqs, logits[int((~finite).nonzero()[0])], done=True)
        eos = () if params.ignore_eos else self.eos_token_ids
        stops: dict[int, int | None] = {token: token for token in params.stop_token_ids}
        stops.update(dict.fromkeys(eos))
        decision = self._beam_search.advance(group, scores, seqs, stops)
        if params.logprobs is not None:
            self._add_top(decision.children, seqs, logits, params.logprobs)
        return decision

    def _add_top(
        self, children: list[Decision], seqs: list[Sequence], logits: Tensor, count: int
    ) -> None:
        row_of = {seq.seq_id: row for row, seq in enumerate(seqs)}
        entries: list[TokenLogprob] = token_logprobs(
            logits[[row_of[child.parent.seq_id] for child in children]],
            [child.token_id for child in children],
            [count] * len(children),
            self.vocab_size,
        )
        for child, entry in zip(children, entries):
            child.top = entry

    # -- prompts -----------------------------------------------------------------------------
    def _record_prompts(
        self, plan: StepPlan, logits: StepLogits, groups: Iterable[SequenceGroup]
    ) -> None:
        owner: dict[int, Any] = {
            seq_id: group
            for group in groups
            if group.params.prompt_logprobs is not None
            for seq_id in group.seqs
        }
        for span in plan.spans:
            if span.prompt_logprobs and span.seq_id in owner:
                rows = logits.prompt_rows[span.seq_id]
                extend_prompt_logprobs(owner[span.seq_id], span, rows, self.vocab_size)


def _failed(
    group: SequenceGroup, seqs: list[Sequence], row: Tensor, done: bool = False
) -> GroupDecision:
    """End the whole group, and say why no token could be chosen from ``row``."""
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
