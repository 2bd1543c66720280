"""The lengths of requests are the paper's: figure 11, and what the authors' experiments take."""

import itertools

import numpy as np
import pytest

from minipaged.errors import RequestError
from minipaged.sim.lengths import DATASETS, Bin, LengthHistogram, load_lengths

#: Section 6.1 and figure 11: mean tokens of prompt and output.
PUBLISHED_MEANS = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}
#: The axes of figure 11 end where the histograms do.
PUBLISHED_RANGES = {"sharegpt": ((1, 2028), (1, 2009)), "alpaca": ((6, 508), (1, 1470))}


@pytest.fixture(params=DATASETS)
def lengths(request):
    return load_lengths(request.param)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_means_are_the_published_ones(lengths):
    means = (lengths.prompt.mean(), lengths.output.mean())
    assert means == pytest.approx(PUBLISHED_MEANS[lengths.name], abs=0.1)


def test_ranges_are_the_published_ones(lengths):
    sides = (lengths.prompt, lengths.output)
    ranges = tuple((side.shortest, side.longest) for side in sides)
    assert ranges == PUBLISHED_RANGES[lengths.name]


def test_each_whole_number_is_in_one_bin(lengths):
    for side in (lengths.prompt, lengths.output):
        assert len(side.bins) == 128
        assert sum(b.probability for b in side.bins) == pytest.approx(1)
        assert all(b.first <= b.last for b in side.bins)
        assert all(b.first == a.last + 1 for a, b in itertools.pairwise(side.bins))


def test_draws_have_the_distribution_of_the_histogram(lengths):
    drawn = lengths.output.sample(50_000, rng())
    assert drawn.mean() == pytest.approx(lengths.output.mean(), rel=0.02)
    for b in lengths.output.bins[:20]:
        share = ((drawn >= b.first) & (drawn <= b.last)).mean()
        assert share == pytest.approx(b.probability, abs=0.005)


def test_all_lengths_of_a_bin_are_drawn():
    two = LengthHistogram((Bin(3, 5, 0.5), Bin(6, 6, 0.5)))
    counts = np.bincount(two.sample(6000, rng()), minlength=8)
    assert counts[[3, 4, 5, 6]] == pytest.approx([1000, 1000, 1000, 3000], rel=0.1)
    assert counts.sum() == counts[3:7].sum()


def test_requests_are_shorter_than_the_model_allows(lengths):
    pairs = lengths.sample(20_000, rng())
    assert len(pairs) == 20_000
    assert min(min(pair) for pair in pairs) >= 1
    assert max(p + o for p, o in pairs) < 2048
    assert max(p + o for p, o in lengths.sample(2000, rng(), max_model_len=64)) == 63


def test_prompt_and_output_do_not_depend_on_each_other():
    pairs = np.array(load_lengths("alpaca").sample(20_000, rng()))
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.03


def test_a_seed_gives_the_same_requests_again(lengths):
    assert lengths.sample(100, rng(7)) == lengths.sample(100, rng(7))
    assert lengths.sample(100, rng(7)) != lengths.sample(100, rng(8))


def test_an_unknown_dataset_is_named():
    with pytest.raises(RequestError, match=r"'shareGPT'.*sharegpt, alpaca"):
        load_lengths("shareGPT")


def test_a_model_too_short_for_any_request_is_named(lengths):
    shortest = lengths.prompt.shortest + lengths.output.shortest
    with pytest.raises(RequestError, match=f"max_model_len {shortest}:"):
        lengths.sample(1, rng(), max_model_len=shortest)
    pairs = lengths.sample(10, rng(), max_model_len=shortest + 20)
    assert all(shortest <= p + o < shortest + 20 for p, o in pairs)
