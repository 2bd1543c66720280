"""Requests that know nothing of each other: the paper's datasets, translation, long prompts."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from minipaged.errors import ConfigError
from minipaged.sim.lengths import load_lengths
from minipaged.sim.workloads.checks import require_at_least
from minipaged.sim.workloads.draw import draw_arrivals
from minipaged.sim.workloads.request import Request, Workload

#: Tokens of the instruction with one or five examples (paper, section 6.4).
PREFIX_LEN = {1: 80, 5: 341}
#: A sentence to translate: mean tokens, and shape of the gamma distribution that they have.
SOURCE_LEN, SOURCE_SHAPE = 26.0, 3.0
#: Tokens of a translation for each of its source: mean, and standard deviation of the logarithm.
TARGET_RATIO, RATIO_SPREAD = 1.5, 0.15

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
    shots: Literal[1, 5], rate: float, duration: float, seed: int = 0, burstiness: float = 1.0
) -> Workload:
    """The workload of figure 16: sentences to translate from English to German (WMT16), each after
    the same instruction with one example or five.

    Published is the prefix: 80 and 341 tokens. The lengths of the sentences are not, and are
    assumed:

    * four more examples make the prefix 261 tokens longer, so a pair of sentences with its labels
      has about 65. As LLaMA's tokenizer spends more tokens on a German word than on an English
      one, they are taken to be 26 of the source and 39 of the target;
    * lengths of sentences spread like a gamma distribution of shape 3 (standard deviation 15
      tokens), as those of news text do;
    * a translation is as long as its source asks: 1.5 times, give or take 15 %.

    The prefix is registered before the first request, as :attr:`Workload.prefix`, and begins each
    prompt, whose length includes it.

    Raises:
        ConfigError: ``shots`` is not 1 or 5, or another argument is out of its range.
        RequestError: no request arrives in that time.
    """
    if shots not in PREFIX_LEN:
        raise ConfigError(f"shots must be 1 or 5, as in the paper, not {shots}")
    times, rng = draw_arrivals(rate, duration, seed, burstiness)
    prefix = ((0, PREFIX_LEN[shots]),)
    requests = (
        Request(time, PREFIX_LEN[shots] + source, target, content=prefix)
        for time, source, target in zip(times, *_sentence_pairs(len(times), rng))
    )
    name = f"translation, {shots} shot{'s' * (shots > 1)}, at {rate:g} req/s"
    return Workload(name, tuple(requests), prefix=prefix)


def _sentence_pairs(count: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Tokens of sources and of their translations. A sentence ends well before the model's
    positions do."""
    drawn = rng.gamma(SOURCE_SHAPE, SOURCE_LEN / SOURCE_SHAPE, count)
    ratios = TARGET_RATIO * np.exp(rng.normal(-(RATIO_SPREAD**2) / 2, RATIO_SPREAD, count))
    sources = np.clip(np.rint(drawn), 1, 512).astype(np.int64)
    targets = np.clip(np.rint(sources * ratios), 1, 1024).astype(np.int64)
    return sources.tolist(), targets.tolist()


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
