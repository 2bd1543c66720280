"""From logits to token ids, for a whole batch at once (paper, section 4.4: the decoding methods
differ in what they share; what they draw from is decided here).

The order of operations is that of the field: logit bias; repetition, presence and frequency
penalties; ``min_tokens``; temperature; top-k; top-p; min-p; then one draw. The tokenizer's size
bounds them all: ids at or past it do not exist here.

A step waits for the device once, for the token ids; with top-p it also asks whether it has seen
enough of the likeliest tokens, when the device has nothing else left to do.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minipaged.device import take_rows, to_device
from minipaged.sampling.uniforms import uniforms

if TYPE_CHECKING:
    from minipaged.sampling_params import SamplingParams

NO_TOKEN = -1
"""In place of a token id, where a row has nothing that could be drawn."""

_BLOCK = 256
_NUCLEUS_GUESSES = (64, 1024, 8192)
_MIN_TEMPERATURE = 1e-6
_BELOW_ONE = 1.0 - 2.0**-53


@dataclass(slots=True)
class SampleRow:
    """What one row of logits is sampled for.

    Attributes:
        params: the options of its request.
        token_ids: the sequence so far, prompt and output (read, never kept or changed).
        num_prompt_tokens: how many of them are the prompt.
        seed: the request's seed; only read where ``params.temperature`` is above 0.
        siblings: the sequences that draw a token from this row: one, or after a prompt all
            siblings of the group.
    """

    params: SamplingParams
    token_ids: Seq[int]
    num_prompt_tokens: int
    seed: int = 0
    siblings: Seq[int] = (0,)


class Sampler:
    """Draws the next tokens of a batch.

    Args:
        vocab_size: ids at or past it are never drawn; None: every column is a token.
        eos_token_ids: ids that end a sequence, unless its request ignores them.
    """

    def __init__(self, vocab_size: int | None = None, eos_token_ids: Seq[int] = ()) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)

    def sample(self, logits: Tensor, rows: Seq[SampleRow]) -> list[list[int]]:
        """Draw one token for each sibling of each row.

        Args:
            logits: ``[R, V]`` float32; not changed.
            rows: R of them, in the order of ``logits``.

        Returns:
            for each row one token id a sibling, in the order of ``row.siblings``. A row from
            which nothing can be drawn (it holds NaN or +inf, or every token is masked) gives
            :data:`NO_TOKEN`, and the other rows are not disturbed.

        A token of a row is a pure function of that row's logits, of its ``SampleRow`` and of the
        sibling: never of the other rows. With temperature 0 it is the likeliest token.
        Otherwise it is the first id at which the cumulative probability, over ascending ids,
        exceeds ``uniforms(seed, sibling, number of output tokens so far)``. A token of
        probability zero is never drawn.

        Example: ``Sampler().sample(torch.tensor([[0., 2., 1.]]), [SampleRow(
        SamplingParams(temperature=0), [5], 1)])`` is ``[[1]]``.
        """
        logits = logits[:, : self.vocab_size]
        plain = [row.params.temperature == 0 and not self._adjusts(row) for row in rows]
        tokens: list[list[int]] = [[]] * len(rows)
        if any(plain):
            for i, token in enumerate(_greedy(logits)):
                if plain[i]:
                    tokens[i] = [token] * len(rows[i].siblings)
        rest = [i for i, is_plain in enumerate(plain) if not is_plain]
        if rest:
            for i, drawn in zip(rest, self._sample_copy(logits, rest, [rows[i] for i in rest])):
                tokens[i] = drawn
        return tokens

    def adjust(self, scores: Tensor, rows: Seq[SampleRow]) -> None:
        """Apply logit bias, penalties and ``min_tokens`` in place, in this order.

        Args:
            scores: ``[R, V]`` float32: logits, or log-probabilities in a beam search.
            rows: R of them; those with default options are left as they are.

        For each row: ``logit_bias`` is added. Each id that stands in prompt or output has its
        score divided by ``repetition_penalty`` where it is positive and multiplied where it is
        not. Each id that stands ``c > 0`` times in the *output* loses
        ``presence_penalty + c * frequency_penalty``. While the output is shorter than
        ``min_tokens``, ids that would end the sequence (``stop_token_ids``, and the
        end-of-sequence ids unless ``ignore_eos``) get ``-inf``. Ids at or past V are ignored.
        """
        if not any(map(self._adjusts, rows)):
            return
        _add_bias(scores, rows)
        _penalize(scores, rows)
        stops = [
            (i, token)
            for i, row in enumerate(rows)
            if _num_output(row) < row.params.min_tokens
            for token in self.stop_ids(row.params)
            if token < scores.shape[1]
        ]
        if stops:
            at = _indices(*zip(*stops), device=scores.device)
            scores.index_put_(at, scores.new_full((), -torch.inf))

    def stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        """The ids that end a sequence of this request."""
        return params.stop_token_ids + (() if params.ignore_eos else self.eos_token_ids)

    def _adjusts(self, row: SampleRow) -> bool:
        p = row.params
        return bool(
            p.repetition_penalty != 1
            or p.presence_penalty
            or p.frequency_penalty
            or p.logit_bias
            or (p.min_tokens and _num_output(row) < p.min_tokens)
        )

    def _sample_copy(
        self, logits: Tensor, index: list[int], rows: list[SampleRow]
    ) -> list[list[int]]:
        """Sample the rows at ``index`` of ``logits`` from a working copy, whose width is padded
        so that it divides into blocks."""
        vocab = logits.shape[1]
        work = logits.new_empty((len(rows), -(-vocab // _BLOCK) * _BLOCK))
        work[:, vocab:] = -torch.inf
        scores = work[:, :vocab]
        scores.copy_(_select(logits, index))
        self.adjust(scores, rows)

        peak, likeliest = scores.max(dim=-1)
        possible = torch.isfinite(peak)
        tokens = torch.where(possible, likeliest, NO_TOKEN)  # [R]
        random = [i for i, row in enumerate(rows) if row.params.temperature > 0]
        if random:
            # Rows that nothing can be drawn from are drawn from too, and it does not count: to
            # leave them out, the host would have to wait for them.
            owner, drawn = _draw(
                _select(work, random), _select(peak, random), [rows[i] for i in random]
            )
            drawn = torch.where(_select(possible, random)[owner], drawn, NO_TOKEN)
            tokens = torch.cat((tokens, drawn))
        found: list[int] = tokens.tolist()
        position = len(rows)
        result = [[token] * len(row.siblings) for token, row in zip(found, rows)]
        for i in random:
            end = position + len(rows[i].siblings)
            result[i], position = found[position:end], end
        return result


def _num_output(row: SampleRow) -> int:
    return len(row.token_ids) - row.num_prompt_tokens


def _indices(*numbers: Seq[int], device: torch.device) -> tuple[Tensor, ...]:
    """int64 tensors for an index, in one transfer that the host does not wait for."""
    return tuple(to_device([np.array(some, np.int64) for some in numbers], device))


def _select(rows: Tensor, index: list[int]) -> Tensor:
    """``rows[index]``, for distinct ascending indices."""
    if len(index) == len(rows):
        return rows
    return take_rows(rows, index)


def _greedy(logits: Tensor) -> list[int]:
    """The likeliest id of each row, or NO_TOKEN."""
    peak, token = logits.max(dim=-1)  # [R], [R]; a NaN in a row is its maximum
    tokens: list[int] = torch.where(torch.isfinite(peak), token, NO_TOKEN).tolist()
    return tokens


# --------------------------------------------------------------------------- bias and penalties
def _add_bias(scores: Tensor, rows: Seq[SampleRow]) -> None:
    entries = [
        (i, token, bias)
        for i, row in enumerate(rows)
        if row.params.logit_bias
        for token, bias in row.params.logit_bias.items()
        if token < scores.shape[1]
    ]
    if entries:
        row, token, bias = (np.array(column) for column in zip(*entries))
        rows_at, tokens_at, biases = to_device((row, token, bias.astype(np.float32)), scores.device)
        scores[rows_at, tokens_at] += biases


def _penalize(scores: Tensor, rows: Seq[SampleRow]) -> None:
    """Touches only the ids that stand in the sequences, which are few beside the vocabulary."""
    index = [
        i
        for i, row in enumerate(rows)
        if row.params.repetition_penalty != 1
        or row.params.presence_penalty
        or row.params.frequency_penalty
    ]
    if not index:
        return
    vocab = scores.shape[1]
    chosen = [rows[i] for i in index]
    lengths = [len(row.token_ids) for row in chosen]
    tokens = np.fromiter(
        chain.from_iterable(row.token_ids for row in chosen), np.int64, sum(lengths)
    )
    owner = np.repeat(np.arange(len(chosen)), lengths)
    starts = np.cumsum([0, *lengths[:-1]])
    place = np.arange(len(tokens)) - starts[owner]
    is_output = place >= np.array([row.num_prompt_tokens for row in chosen])[owner]
    known = tokens < vocab
    keys, where = np.unique((owner * vocab + tokens)[known], return_inverse=True)
    count = np.bincount(where, weights=is_output[known], minlength=len(keys))  # in the output
    owner = keys // vocab

    def option(name: str) -> NDArray[np.float64]:
        return np.array([float(getattr(row.params, name)) for row in chosen], np.float64)

    loss = option("frequency_penalty")[owner] * count
    loss += option("presence_penalty")[owner] * (count > 0)
    row, token, penalty, lost = to_device(
        (
            np.array(index, np.int64)[owner],
            keys % vocab,
            option("repetition_penalty")[owner].astype(np.float32),
            loss.astype(np.float32),
        ),
        scores.device,
    )
    score = scores[row, token]
    score = torch.where(score > 0, score / penalty, score * penalty)
    scores[row, token] = score - lost


# --------------------------------------------------------------------------- the draw
def _draw(work: Tensor, peak: Tensor, rows: list[SampleRow]) -> tuple[Tensor, Tensor]:
    """Draw for every sibling of every row.

    Args:
        work: ``[S, W]`` scores with maximum ``peak[s]``; overwritten. A row whose maximum is not
            finite gives some id.

    Returns:
        ``[D]``, ``[D]`` int64: for each draw its row, ascending, and its token.
    """
    owner = [s for s, row in enumerate(rows) for _ in row.siblings]
    u = uniforms(
        [rows[s].seed for s in owner],
        [sibling for row in rows for sibling in row.siblings],
        [_num_output(rows[s]) for s in owner],
    )
    wishes = [
        [max(row.params.temperature, _MIN_TEMPERATURE) for row in rows],
        [row.params.top_p for row in rows],
        [row.params.min_p for row in rows],
    ]
    options, owners, shares = to_device(
        (np.array(wishes, np.float32)[..., None], np.array(owner), u), work.device
    )
    # Relative to the maximum, neither a tiny temperature nor a large logit can overflow; and
    # every rule below is free of scale, so probabilities need not be normalized.
    likelihood = work.sub_(peak[:, None]).div_(options[0]).exp_()  # [S, W], maximum 1
    _keep_top_k(likelihood, [row.params.top_k for row in rows])
    _keep_top_p(likelihood, [row.params.top_p for row in rows], options[1, :, 0])
    if any(row.params.min_p for row in rows):
        likelihood.masked_fill_(likelihood < options[2], 0.0)
    return owners, invert_cdf(likelihood, owners, shares)


def _keep_top_k(likelihood: Tensor, top_k: list[int]) -> None:
    """Zero what is less likely than the k-th likeliest token; tokens that tie with it stay."""
    index = [s for s, k in enumerate(top_k) if 0 < k < likelihood.shape[1]]
    if not index:
        return
    at, k = _indices(index, [top_k[s] for s in index], device=likelihood.device)
    most = max(top_k[s] for s in index)
    largest = _select(likelihood, index).topk(most, dim=-1).values  # [I, max k]
    least = likelihood.new_zeros(len(likelihood))
    least[at] = largest.gather(1, k[:, None] - 1)[:, 0]
    likelihood.masked_fill_(likelihood < least[:, None], 0.0)


def _keep_top_p(likelihood: Tensor, top_p: list[float], limit: Tensor) -> None:
    """Keep the tokens of which all strictly likelier ones together have less than ``top_p``."""
    index = [s for s, p in enumerate(top_p) if p < 1]
    if not index:
        return
    least = likelihood.new_zeros(len(likelihood))
    mass = _block_mass(likelihood).sum(-1) * limit.double()  # [S]
    width = likelihood.shape[1]
    # The nucleus is small as a rule, and a full sort is dear.
    for guess in (*(g for g in _NUCLEUS_GUESSES if g < width), width):
        (at,) = _indices(index, device=likelihood.device)
        rows = _select(likelihood, index)
        largest = rows.topk(guess, dim=-1).values if guess < width else rows.sort(
            dim=-1, descending=True).values  # fmt: skip
        before = largest.double().cumsum(-1)  # [I, guess]
        enough = (before[:, -1] >= mass[at]) | (largest[:, -1] == 0)
        before -= largest.double()
        last = (before < mass[at][:, None]).sum(-1).clamp_(min=1) - 1
        least[at] = largest.gather(1, last[:, None])[:, 0]
        if guess >= width:
            break
        index = [s for s, done in zip(index, enough.tolist()) if not done]
        if not index:
            break
    likelihood.masked_fill_(likelihood < least[:, None], 0.0)


def invert_cdf(likelihood: Tensor, rows: Tensor, u: Tensor) -> Tensor:
    """Inverse-transform sampling over ascending ids.

    Args:
        likelihood: ``[S, W]`` at least 0 with a positive sum a row, of any scale; W is a
            multiple of 256.
        rows: ``[D]`` int64, the row that each draw is from.
        u: ``[D]`` float64 in [0, 1).

    Returns:
        ``[D]`` int64: the first id whose cumulative probability exceeds ``u``. Its likelihood is
        never zero, not even for the largest ``u`` below 1.
    """
    block, share = _first_above(_block_mass(likelihood)[rows], u)
    inside = likelihood.view(len(likelihood), -1, _BLOCK)[rows, block].double()  # [D, 256]
    return block * _BLOCK + _first_above(inside, share)[0]


def _block_mass(likelihood: Tensor) -> Tensor:
    """``[S, W]`` -> ``[S, W / 256]`` float64.

    One pass in float32 costs a tenth of a cumulative sum in float64, which only the block that
    is hit needs. And sums of so few numbers are never split among threads, which would make
    their last bits depend on the other rows.
    """
    return likelihood.view(len(likelihood), -1, _BLOCK).sum(-1).double()


def _first_above(mass: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Where in ``mass: [D, N]`` the share ``u`` of its sum falls, and as what share of that
    entry (so that a draw can go on inside it)."""
    cdf = mass.cumsum(-1)
    target = u * cdf[:, -1]  # below the sum even when rounded, for every u below 1
    place = (cdf <= target[:, None]).sum(-1)  # [D], the first entry with cdf > target
    entry = mass.gather(1, place[:, None])[:, 0]
    start = cdf.gather(1, place[:, None])[:, 0] - entry
    return place, ((target - start) / entry).clamp_(0.0, _BELOW_ONE)
