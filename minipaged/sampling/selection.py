"""Which sequences of a group are its outputs, and in which order."""

from __future__ import annotations

from minipaged.sampling.beam_search import hypothesis_score
from minipaged.sequence import Sequence, SequenceGroup


def select_outputs(group: SequenceGroup) -> list[Sequence]:
    """The ``n`` outputs of a group, in order; also of one that is still running.

    * plain sampling: the siblings in order;
    * ``best_of > n``: the ``n`` with the highest mean log-probability, best first;
    * beam search: the ``n`` hypotheses with the highest score, best first; of a search that is
      not over, hypotheses and live beams alike.

    Sequences that ended in error come first of all, so that they are never hidden by others.
    """
    params = group.params
    seqs = sorted(group.all_seqs(), key=lambda seq: seq.index)
    if params.use_beam_search:
        seqs.sort(key=lambda seq: -_score(seq, params.length_penalty))
    elif params.width > params.n:
        seqs.sort(key=lambda seq: -_score(seq, 1.0))
    seqs.sort(key=lambda seq: seq.finish_reason != "error")
    return seqs[: params.n]


def _score(seq: Sequence, length_penalty: float) -> float:
    return hypothesis_score(seq.cumulative_logprob, seq.num_output_tokens, length_penalty)
