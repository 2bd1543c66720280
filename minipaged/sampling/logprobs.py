"""Log-probabilities of sampled and of prompt tokens.

They are those of the model: of the distribution before bias, penalties, temperature and
truncation, so that they can be compared between requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np
from torch import Tensor

from minipaged.contracts import Span
from minipaged.device import to_device
from minipaged.errors import InvariantError
from minipaged.sequence import SequenceGroup, TokenLogprob

MIN_LOGPROB = -9999.0
"""What is reported for a token that the model rules out: minus infinity is not valid JSON."""

_CHUNK = 64
"""Rows of a prompt at a time: one row is as wide as the vocabulary."""


def token_logprobs(
    logits: Tensor, token_ids: Seq[int], counts: Seq[int], vocab_size: int | None = None
) -> list[TokenLogprob]:
    """Log-probabilities of one token a row, and of the likeliest in its place.

    Args:
        logits: ``[N, V]`` float32, as the model gave them.
        token_ids: N ids below V.
        counts: for each row how many of the likeliest ids to list; 0: only its own token.
        vocab_size: ids at or past it are not listed.

    Returns:
        for each row its token's entry; ``top`` lists the ``count`` likeliest ids, likeliest
        first, and then the token itself if it is not among them. Every number is at least
        :data:`MIN_LOGPROB`.
    """
    result: list[TokenLogprob] = []
    for start in range(0, len(token_ids), _CHUNK):
        part = slice(start, start + _CHUNK)
        result += _some_logprobs(logits[part], token_ids[part], counts[part], vocab_size)
    return result


def _some_logprobs(
    logits: Tensor, token_ids: Seq[int], counts: Seq[int], vocab_size: int | None
) -> Iterator[TokenLogprob]:
    logprobs = logits.log_softmax(dim=-1).nan_to_num_(MIN_LOGPROB, neginf=MIN_LOGPROB)
    logprobs.clamp_(min=MIN_LOGPROB)
    (index,) = to_device([np.array(token_ids, np.int64)[:, None]], logits.device)
    own = logprobs.gather(1, index)[:, 0].tolist()  # the token is known: it is no more waiting
    listed = logprobs[:, :vocab_size]
    top = listed.topk(min(max(counts), listed.shape[1]), dim=-1)
    values, ids = top.values.tolist(), top.indices.tolist()
    for j, (token, logprob) in enumerate(zip(token_ids, own)):
        likeliest = dict(zip(ids[j][: counts[j]], values[j]))
        likeliest.setdefault(token, logprob)
        yield TokenLogprob(token, logprob, likeliest)


def extend_prompt_logprobs(
    group: SequenceGroup, span: Span, logits: Tensor, vocab_size: int | None = None
) -> None:
    """Append to ``group.prompt_logprobs`` what a chunk of the prompt tells.

    Args:
        span: the chunk; it may reach past the prompt, and it may have been computed before
            (the group was preempted since): positions that are known are left as they are.
        logits: ``[len(span.token_ids), V]``: row j is what the model expects after token
            ``span.start + j``.

    ``group.prompt_logprobs[p]`` is the entry of prompt token p; None for the first, which
    nothing predicts.
    """
    count = group.params.prompt_logprobs
    if count is None:
        return
    if group.prompt_logprobs is None:
        group.prompt_logprobs = [None]
    prompt = group.prompt_token_ids
    known = len(group.prompt_logprobs)
    if span.start + 1 > known and known < len(prompt):
        raise InvariantError(
            "I7", f"request {group.request_id}: the chunk at {span.start} skips prompt tokens "
            f"{known - 1} to {span.start - 1}, whose logits prompt_logprobs needs"
        )  # fmt: skip
    end = min(span.context_len + 1, len(prompt))
    if end > known:
        rows = logits[known - 1 - span.start : end - 1 - span.start]
        tokens = prompt[known:end]
        group.prompt_logprobs += token_logprobs(rows, tokens, [count] * len(tokens), vocab_size)
