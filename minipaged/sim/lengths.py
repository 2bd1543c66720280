"""How long the paper's requests are (section 6.1, figure 11), and random ones of that kind.

The datasets themselves are not needed for it: the paper's experiments use nothing of them but the
lengths of prompts and outputs, and figure 11 shows those.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minipaged.errors import RequestError

Array = npt.NDArray[np.int64]

DATASETS = ("sharegpt", "alpaca")
#: OPT's positions: a request of the paper is shorter than that, prompt and output together.
MAX_MODEL_LEN = 2048

_FILE = Path(__file__).with_name("data") / "length_histograms.csv"


@dataclass(frozen=True)
class Bin:
    """The lengths ``first .. last``, and how likely it is that a length is one of them."""

    first: int
    last: int
    probability: float


@dataclass(frozen=True)
class LengthHistogram:
    """A distribution of lengths in tokens. Within a bin, all lengths are equally likely."""

    bins: tuple[Bin, ...]

    @property
    def shortest(self) -> int:
        return self.bins[0].first

    @property
    def longest(self) -> int:
        return self.bins[-1].last

    def mean(self) -> float:
        return sum(b.probability * (b.first + b.last) / 2 for b in self.bins)

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """``count`` independent lengths."""
        first = np.array([b.first for b in self.bins])
        last = np.array([b.last for b in self.bins])
        chosen = rng.choice(len(self.bins), size=count, p=[b.probability for b in self.bins])
        return rng.integers(first[chosen], last[chosen], endpoint=True)


@dataclass(frozen=True)
class RequestLengths:
    """The lengths of a dataset's requests.

    Attributes:
        name: of the dataset.
        prompt, output: their distributions. How a request's two lengths depend on each other is
            not published; they are taken to be independent.
    """

    name: str
    prompt: LengthHistogram
    output: LengthHistogram

    def sample(
        self, count: int, rng: np.random.Generator, max_model_len: int = MAX_MODEL_LEN
    ) -> list[tuple[int, int]]:
        """Random requests, by the rule of the authors' experiments: those whose prompt and
        output are not shorter than ``max_model_len`` together are left out, and others drawn in
        their place.

        Returns:
            ``count`` pairs (tokens of the prompt, tokens of the output). The same generator in the
            same state gives the same pairs.

        Raises:
            RequestError: no request is that short.
        """
        if self.prompt.shortest + self.output.shortest >= max_model_len:
            raise RequestError(
                f"max_model_len {max_model_len}: the shortest request of {self.name} has "
                f"{self.prompt.shortest} + {self.output.shortest} tokens"
            )
        pairs: list[tuple[int, int]] = []
        while len(pairs) < count:
            prompts = self.prompt.sample(count, rng).tolist()
            outputs = self.output.sample(count, rng).tolist()
            pairs += [(p, o) for p, o in zip(prompts, outputs) if p + o < max_model_len]
        return pairs[:count]


def load_lengths(name: str) -> RequestLengths:
    """The lengths of ``sharegpt`` or ``alpaca``, as in figure 11 of the paper.

    Raises:
        RequestError: the paper has no such dataset.
    """
    if name not in DATASETS:
        raise RequestError(f"there are no lengths of {name!r}: choose from {', '.join(DATASETS)}")
    bins: defaultdict[str, list[Bin]] = defaultdict(list)
    with _FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["dataset"] == name:
                low, high = float(row["bin_lo_tokens"]), float(row["bin_hi_tokens"])
                inside = Bin(math.ceil(low), math.ceil(high) - 1, float(row["probability"]))
                bins[row["field"]].append(inside)
    return RequestLengths(name, _histogram(bins["input"]), _histogram(bins["output"]))


def _histogram(bins: list[Bin]) -> LengthHistogram:
    """Of bins as they stand in the file: none holds its upper end yet, and the probabilities
    add up to 1 only as far as they are rounded."""
    end = bins[-1]
    bins = [*bins[:-1], Bin(end.first, end.last + 1, end.probability)]
    total = sum(b.probability for b in bins)
    return LengthHistogram(tuple(Bin(b.first, b.last, b.probability / total) for b in bins))
