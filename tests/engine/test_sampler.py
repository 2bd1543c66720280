"""The batched sampler against a slow one that works row by row in float64."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from minipaged.sampling.sampler import NO_TOKEN, Sampler, SampleRow, invert_cdf
from minipaged.sampling.uniforms import request_seed, uniforms
from minipaged.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0)


def row(params, token_ids=(1,), num_prompt=1, seed=0, siblings=(0,)):
    return SampleRow(params, list(token_ids), num_prompt, seed, siblings)


# --------------------------------------------------------------------------- a slow reference
def slow_adjust(scores, r, eos):
    p, scores = r.params, [float(x) for x in scores]
    output = list(r.token_ids[r.num_prompt_tokens :])
    for token, bias in (p.logit_bias or {}).items():
        if token < len(scores):
            scores[token] += bias
    for token in range(len(scores)):
        if token in r.token_ids:
            x = scores[token]
            scores[token] = x / p.repetition_penalty if x > 0 else x * p.repetition_penalty
        count = output.count(token)
        scores[token] -= count * p.frequency_penalty + (p.presence_penalty if count else 0.0)
    if len(output) < p.min_tokens:
        for token in (*p.stop_token_ids, *(() if p.ignore_eos else eos)):
            if token < len(scores):
                scores[token] = -math.inf
    return scores


def slow_probabilities(scores, p):
    """Temperature, top-k, top-p, min-p; the set that each keeps by its definition."""
    top = max(scores)
    weight = [math.exp((x - top) / p.temperature) for x in scores]
    if p.top_k:
        least = sorted(weight, reverse=True)[: p.top_k][-1]
        weight = [w if w >= least else 0.0 for w in weight]
    if p.top_p < 1:
        total = sum(weight)
        weight = [
            w if sum(v for v in weight if v > w) < p.top_p * total else 0.0 for w in weight
        ]  # fmt: skip
    weight = [w if w >= p.min_p * max(weight) else 0.0 for w in weight]
    return [w / sum(weight) for w in weight]


def slow_sample(logits, r, eos=()):
    scores = slow_adjust(logits.tolist(), r, eos)
    if r.params.temperature == 0:
        return [int(np.argmax(scores))] * len(r.siblings)
    probabilities = slow_probabilities(scores, r.params)
    step = len(r.token_ids) - r.num_prompt_tokens
    tokens = []
    for u in uniforms([r.seed] * len(r.siblings), r.siblings, [step] * len(r.siblings)):
        cdf = np.cumsum(probabilities)
        tokens.append(int(np.argmax(cdf > u * cdf[-1])))
    return tokens


def random_params(dice):
    pick = dice.choice
    return SamplingParams(
        temperature=pick([0, 0.3, 1.0, 1.7]), top_k=pick([0, 0, 1, 5, 70, 5000]),
        top_p=pick([1.0, 1.0, 0.2, 0.9, 0.999]), min_p=pick([0.0, 0.0, 0.05, 1.0]),
        repetition_penalty=pick([1.0, 1.3, 0.8]), presence_penalty=pick([0.0, 0.7, -0.5]),
        frequency_penalty=pick([0.0, 0.4, -0.4]),
        logit_bias=pick([None, {3: 4.0, 8: -100.0, 10_000: 9.0}]),
        min_tokens=pick([0, 4]), stop_token_ids=pick([(), (11, 12)]), max_tokens=64,
        ignore_eos=pick([False, True]),
    )  # fmt: skip


@pytest.mark.parametrize("vocab", [50, 300, 1500])
def test_a_mixed_batch_equals_the_slow_reference(vocab):
    dice = random.Random(vocab)
    torch.manual_seed(vocab)
    rows = [
        row(
            random_params(dice), [dice.randrange(min(40, vocab)) for _ in range(12)],
            num_prompt=dice.choice([6, 9, 12]), seed=dice.randrange(-(2**63), 2**63),
            siblings=dice.choice([(0,), (2,), (0, 1, 2)]),
        )
        for _ in range(80 if vocab < 1000 else 15)
    ]  # fmt: skip
    logits = torch.randn(len(rows), vocab) * 2
    before = logits.clone()
    got = Sampler(eos_token_ids=(2, 7)).sample(logits, rows)
    assert torch.equal(logits, before), "the executor's logits were changed"
    assert got == [slow_sample(logits[i], r, (2, 7)) for i, r in enumerate(rows)]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 1}, {1, 3}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {0, 1, 3, 4}),
        ({"top_p": 0.1}, {1, 3}),
        ({"top_p": 0.75}, {0, 1, 3, 4}),
        ({"top_k": 4, "top_p": 0.6}, {1, 3}),
        ({"min_p": 0.5}, {0, 1, 3, 4}),
        ({"min_p": 0.51}, {1, 3}),
        ({"top_k": 5}, {0, 1, 2, 3, 4}),
    ],
)
def test_tokens_that_tie_stay_or_go_together(options, kept):
    logits = torch.log(torch.tensor([[2.0, 4.0, 1.0, 4.0, 2.0]]))
    params = SamplingParams(**options)
    rows = [row(params, seed=seed) for seed in range(400)]
    assert {t for (t,) in Sampler().sample(logits.expand(400, 5), rows)} == kept


def test_wide_nuclei_and_narrow_ones_in_one_batch():
    torch.manual_seed(0)
    vocab = 5000
    logits = torch.stack([torch.zeros(vocab), torch.randn(vocab) * 8, torch.randn(vocab) * 0.1])
    params = SamplingParams(top_p=0.7)
    rows = [row(params, seed=5, siblings=range(20)) for _ in logits]
    fast = Sampler().sample(logits, rows)
    for i in (1, 2):
        weight = torch.softmax(logits[i].double(), 0)
        order = weight.argsort(descending=True)
        before = weight[order].cumsum(0) - weight[order]
        nucleus = set(order[before < 0.7].tolist())
        assert set(fast[i]) <= nucleus
        kept = torch.where(torch.tensor([t in nucleus for t in range(vocab)]), weight, 0.0)
        cdf = kept.cumsum(0)
        u = torch.tensor(uniforms([5] * 20, range(20), [0] * 20))
        assert fast[i] == torch.searchsorted(cdf, u * cdf[-1], right=True).tolist()
    assert max(fast[0]) > vocab * 0.75  # all tie: all stay


# --------------------------------------------------------------------------- the draw
def test_frequencies_match_the_probabilities():
    vocab, draws = 600, 60_000
    rng = np.random.default_rng(1)
    weight = torch.tensor(rng.dirichlet([0.05] * vocab), dtype=torch.float32)
    padded = torch.zeros(1, 768)
    padded[0, :vocab] = weight
    u = torch.from_numpy(uniforms([7] * draws, [0] * draws, range(draws)))
    tokens = invert_cdf(padded, torch.zeros(draws, dtype=torch.long), u)
    counts = torch.bincount(tokens, minlength=vocab).double()
    expected = weight.double() / weight.double().sum() * draws
    large = expected >= 5
    statistic = float(((counts - expected)[large] ** 2 / expected[large]).sum())
    degrees = int(large.sum()) - 1
    # the 99.9th percentile of chi-square, in Wilson and Hilferty's approximation
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3
    assert statistic < limit


@pytest.mark.parametrize("u", [0.0, 0.25, 0.5 - 2**-40, 0.5, 1 - 2**-53])
def test_a_token_without_probability_is_never_drawn(u):
    weight = torch.zeros(1, 1024)
    weight[0, [300, 700]] = torch.tensor([1.0, 1.0])
    (token,) = invert_cdf(weight, torch.tensor([0]), torch.tensor([u], dtype=torch.float64))
    assert int(token) == (300 if u < 0.5 else 700)


def test_the_largest_uniform_finds_a_token_for_any_weights():
    torch.manual_seed(0)
    weight = torch.rand(500, 1024) ** 12 * (torch.rand(500, 1024) > 0.7)
    weight[:, -200:] = 0.0
    weight[:, 5] += 1e-30
    u = torch.full((500,), 1 - 2**-53, dtype=torch.float64)
    tokens = invert_cdf(weight, torch.arange(500), u)
    assert bool((weight.gather(1, tokens[:, None]) > 0).all())


def test_uniforms_are_a_function_of_seed_sibling_and_step():
    size = 3000
    u = uniforms([1] * size, [0] * size, range(size))
    assert u.dtype == np.float64
    assert (u >= 0).all()
    assert (u < 1).all()
    assert abs(u.mean() - 0.5) < 0.02
    assert abs(u.var() - 1 / 12) < 0.005
    assert len(set(u.tolist())) == size
    alone = [float(uniforms([1], [0], [k])[0]) for k in (0, 1, size - 1)]
    assert alone == u[[0, 1, size - 1]].tolist()
    grid = {float(uniforms([s], [i], [k])[0])
            for s in (0, 1, -1, 2**63) for i in range(4) for k in range(4)}  # fmt: skip
    assert len(grid) == 64
    assert uniforms([-1], [0], [0]) == uniforms([2**64 - 1], [0], [0])
    # neighbours, in any of the three, are independent
    for other in (
        uniforms([2] * size, [0] * size, range(size)),
        uniforms([1] * size, [1] * size, range(size)),
        uniforms([1] * size, [0] * size, range(1, size + 1)),
    ):
        assert abs(np.corrcoef(u, other)[0, 1]) < 0.06


def test_requests_without_a_seed_get_different_ones():
    seeds = {request_seed(e, i) for e in (0, 1, -3) for i in range(500)}
    assert len(seeds) == 1500


# --------------------------------------------------------------------------- trap B22
def test_a_seed_belongs_to_its_request():
    torch.manual_seed(3)
    vocab, steps = 400, 12
    tables = torch.randn(vocab, vocab)
    dice = random.Random(0)

    def generate(neighbours, place):
        """Sample one request for some steps; the next logits depend on the last token."""
        params = SamplingParams(temperature=1.0, seed=7)
        tokens = [5]
        for _ in range(steps):
            rows = [
                row(random_params(dice), [3, 4, dice.randrange(30)], 2, seed=dice.randrange(99))
                for _ in range(neighbours)
            ]
            logits = torch.randn(neighbours + 1, vocab)
            logits[place] = tables[tokens[-1]]
            rows.insert(place, row(params, tokens, 1, seed=7))
            tokens = tokens + Sampler().sample(logits, rows)[place]
        return tokens

    alone = generate(0, 0)
    assert len(set(alone)) > 5
    assert generate(5, 0) == alone
    assert generate(5, 3) == alone
    assert generate(40, 40) == alone


def test_siblings_differ_and_equal_requests_are_equal():
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    params = SamplingParams(n=3, seed=7)
    rows = [row(params, [1, 2], 2, seed=7, siblings=range(3)) for _ in range(2)]
    one, two = Sampler().sample(logits, rows)
    assert one == two
    assert len(set(one)) == 3
    # siblings that have a row of their own draw as they did from the shared one
    alone = [
        Sampler().sample(logits[:1], [row(params, [1, 2], 2, 7, (i,))])[0][0] for i in range(3)
    ]
    assert alone == one


# --------------------------------------------------------------------------- edges
def test_ids_past_the_tokenizer_do_not_exist():
    logits = torch.zeros(3, 20)
    logits[:, 15:] = 50.0
    params = SamplingParams(logit_bias={16: 100.0}, repetition_penalty=1.5)
    rows = [row(GREEDY), row(SamplingParams(), seed=3, siblings=range(50)), row(params, [1, 17])]
    for tokens in Sampler(vocab_size=15).sample(logits, rows):
        assert max(tokens) < 15
    logits[:, 15:] = float("nan")
    assert NO_TOKEN not in Sampler(vocab_size=15).sample(logits, rows)[0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_reported_and_disturbs_no_other(bad):
    torch.manual_seed(1)
    logits = torch.randn(6, 100)
    sampled = SamplingParams(top_p=0.9, seed=1)
    rows = [row(GREEDY), row(GREEDY), row(sampled, seed=1), row(sampled, seed=1),
            row(SamplingParams(temperature=0, presence_penalty=1.0)),
            row(sampled, seed=1, siblings=range(2))]  # fmt: skip
    clean = Sampler().sample(logits, rows)
    for i in (1, 3, 5):
        if bad == -float("inf"):
            logits[i] = bad
        else:
            logits[i, 17] = bad
    got = Sampler().sample(logits, rows)
    assert [got[i] for i in (0, 2, 4)] == [clean[i] for i in (0, 2, 4)]
    assert [got[i] for i in (1, 3, 5)] == [[NO_TOKEN], [NO_TOKEN], [NO_TOKEN] * 2]


def test_one_negative_infinity_only_forbids_its_token():
    logits = torch.zeros(1, 4)
    logits[0, [0, 2]] = -float("inf")
    tokens = Sampler().sample(logits, [row(SamplingParams(), seed=1, siblings=range(60))])[0]
    assert set(tokens) == {1, 3}


def test_masking_everything_is_reported():
    params = SamplingParams(min_tokens=1, stop_token_ids=(0, 1))
    assert Sampler(eos_token_ids=(2,)).sample(torch.zeros(1, 3), [row(params)]) == [[NO_TOKEN]]
    assert Sampler(eos_token_ids=(2,)).sample(torch.zeros(1, 3), [row(params, [0, 1])])[0][0] >= 0


def test_extreme_options_overflow_nothing():
    logits = torch.tensor([[3e38, -3e38, 0.0, 2.9e38]])
    for options in ({"temperature": 1e-9}, {"temperature": 100.0}, {"logit_bias": {0: -100.0}}):
        params = SamplingParams(**options)
        assert Sampler().sample(logits, [row(params, siblings=range(9))]) == [[0] * 9]


def test_penalties_see_output_tokens_wherever_a_prefill_put_them():
    """After a preemption by recomputation the output is part of what is prefilled: the penalties
    follow the sequence, not the batch (trap B10)."""
    params = SamplingParams(temperature=0, frequency_penalty=1.0)
    logits = torch.tensor([[0.0, 2.0, 1.5, 0.0]])
    assert Sampler().sample(logits, [row(params, [1, 1, 1], 3)]) == [[1]]
    assert Sampler().sample(logits, [row(params, [1, 1, 1], 2)]) == [[2]]
