"""Requests that know nothing of each other: the paper's datasets, translation, long prompts."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from minipaged.errors import ConfigError
from minipaged.sim.lengths import load_lengths
from minipaged.sim.workloads.checks import require_at_least, require_positive
from minipaged.sim.workloads.draw import draw_arrivals
from minipaged.sim.workloads.request import Request, Workload

#: Tokens of the instruction with one or five examples (paper, section 6.4).
PREFIX_LEN = {1: 80, 5: 341}
#: Shape of the gamma distribution of the lengths of sentences, and the standard deviation of the
#: logarithm of a translation's length over its source's.
_SOURCE_SHAPE, _RATIO_SPREAD = 3.0, 0.15

#: Quantiles of the 28,257 requests of the arXiv summarization lengths that the Sarathi-Serve and
#: Vidur papers use; none is longer than 4,096 tokens, prompt and output together.
_ARXIV_LEN = 4096
_ARXIV_AT = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_ARXIV_PROMPT = (1, 73, 747, 1242, 1986, 2730, 3370, 3702, 3813, 3934, 4054)
_ARXIV_OUTPUT = (5, 36, 60, 78, 115, 167, 242, 372, 737, 3273, 4056)


def paper(
    dataset: Literal["sharegpt", "alpaca"],
    rate: float,
    duration: float,
    seed: int = 0,
    num_sequences: int = 1,
    beam: bool = False,
    burstiness: float = 1.0,
    quantum: float | None = None,
) -> Workload:
    """The workload of figures 2, 12 to 15, 18 and 19: lengths of ShareGPT or Alpaca (figure 11),
    Poisson arrivals.

    Args:
        dataset: whose lengths; see :class:`~minipaged.sim.lengths.RequestLengths`.
        rate: requests a second, on average.
        duration: seconds of arrivals; the paper's traces have an hour, and 15 minutes for
            OPT-175B.
        num_sequences: parallel samples of each request, or with ``beam`` its beam width.
        burstiness, quantum: see :func:`~minipaged.sim.workloads.draw.draw_arrivals`.

    Raises:
        RequestError: the paper has no such dataset, or no request arrives in that time.
        ConfigError: a number is out of its range.
    """
    lengths = load_lengths(dataset)
    require_at_least(1, num_sequences=num_sequences)
    times, rng = draw_arrivals(rate, duration, seed, burstiness, quantum)
    pairs = lengths.sample(len(times), rng)
    requests = (
        Request(time, prompt, output, num_sequences, beam)
        for time, (prompt, output) in zip(times, pairs)
    )
    return Workload(f"{dataset} at {rate:g} req/s", tuple(requests))


def shared_prefix(
    shots: Literal[1, 5],
    rate: float,
    duration: float,
    seed: int = 0,
    *,
    source_len: float = 25.0,
    target_len: float = 33.0,
    burstiness: float = 1.0,
) -> Workload:
    """The workload of figure 16: sentences to translate from English to German (WMT16), each after
    the same instruction with one example or five.

    Published is the prefix: 80 and 341 tokens. The lengths of the sentences are not, and are
    assumed:

    * four more examples make the prefix 261 tokens longer, so an example has about 65: some 7 to
      tell which language comes, and 58 of a sentence and its translation. LLaMA's tokenizer
      spends more tokens on a German word than on an English one, by a third as is assumed here:
      25 and 33 tokens on average;
    * lengths of sentences have a gamma distribution of shape 3 (standard deviation 0.58 times
      their mean);
    * a translation is as long as its source asks, give or take 15 %.

    The prefix is registered before the first request, as :attr:`Workload.prefix`, and begins each
    prompt, whose length includes it.

    Args:
        source_len: mean tokens of a sentence to translate, without the prefix.
        target_len: mean tokens of a translation.

    Raises:
        ConfigError: ``shots`` is not 1 or 5, or another argument is out of its range.
        RequestError: no request arrives in that time.
    """
    if shots not in PREFIX_LEN:
        raise ConfigError(f"shots must be 1 or 5, as in the paper, not {shots}")
    require_positive(source_len=source_len, target_len=target_len)
    times, rng = draw_arrivals(rate, duration, seed, burstiness)
    prefix = ((0, PREFIX_LEN[shots]),)
    sources, targets = _sentence_pairs(len(times), source_len, target_len, rng)
    requests = (
        Request(time, PREFIX_LEN[shots] + source, target, content=prefix)
        for time, source, target in zip(times, sources, targets)
    )
    name = f"translation, {shots} shot{'s' * (shots > 1)}, at {rate:g} req/s"
    return Workload(name, tuple(requests), prefix=prefix)


def _sentence_pairs(
    count: int, source_len: float, target_len: float, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Tokens of sources and of their translations: at least 1, and never so many that the model's
    positions do not last."""
    drawn = rng.gamma(_SOURCE_SHAPE, source_len / _SOURCE_SHAPE, count)
    spread = np.exp(rng.normal(-(_RATIO_SPREAD**2) / 2, _RATIO_SPREAD, count))
    sources = np.clip(np.rint(drawn), 1, 512)
    targets = np.clip(np.rint(drawn * (target_len / source_len) * spread), 1, 1024)
    return sources.astype(np.int64).tolist(), targets.astype(np.int64).tolist()


def long_context(
    rate: float,
    duration: float,
    seed: int = 0,
    max_model_len: int = 16384,
    burstiness: float = 1.0,
) -> Workload:
    """Beyond the paper: long documents, short summaries.

    Lengths are those of the arXiv summarization requests that other papers measure with: prompts
    of 2,588 tokens on average (median 2,730), outputs of 291 (median 167, and one in a hundred
    past 3,273), drawn from their quantiles. Those requests were cut to 4,096 tokens; here prompts
    grow in proportion to ``max_model_len``, and outputs stay as long as they are. Prompt and
    output are drawn independently, and a pair that is too long is drawn again.

    Raises:
        ConfigError: an argument is out of its range; ``max_model_len`` is at least 512.
        RequestError: no request arrives in that time.
    """
    require_at_least(512, max_model_len=max_model_len)
    times, rng = draw_arrivals(rate, duration, seed, burstiness)
    scale = max_model_len / _ARXIV_LEN
    pairs: list[tuple[int, int]] = []
    while len(pairs) < len(times):
        prompts = _from_quantiles(_ARXIV_PROMPT, len(times), rng, scale)
        outputs = _from_quantiles(_ARXIV_OUTPUT, len(times), rng)
        fits = prompts + outputs <= max_model_len
        pairs += zip(prompts[fits].tolist(), outputs[fits].tolist())
    requests = (Request(time, prompt, output) for time, (prompt, output) in zip(times, pairs))
    return Workload(f"long context at {rate:g} req/s", tuple(requests), max_model_len)


def _from_quantiles(
    values: tuple[int, ...], count: int, rng: np.random.Generator, scale: float = 1.0
) -> npt.NDArray[np.int64]:
    """``count`` lengths, spread evenly between one quantile of :data:`_ARXIV_AT` and the next."""
    drawn = np.interp(rng.random(count), _ARXIV_AT, values) * scale
    return np.maximum(1, np.rint(drawn)).astype(np.int64)
