"""From logits to decisions: siblings, ends, log-probabilities, prompts, errors, selection."""

from __future__ import annotations

import json
import math

import pytest
import torch

from minipaged.contracts import Span, StepLogits, StepPlan
from minipaged.errors import InvariantError
from minipaged.sampling.decide import TorchSampling
from minipaged.sampling.logprobs import MIN_LOGPROB, extend_prompt_logprobs, token_logprobs
from minipaged.sampling.sampler import NO_TOKEN
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup, Status

EOS = 2
VOCAB = 50


def make_group(params, prompt=(1, 5), outputs=((),), arrival=0, seq_id=0):
    """A group whose sequences have the given outputs."""
    group = SequenceGroup(f"r{arrival}", Sequence(seq_id, prompt), params, arrival_index=arrival)
    group.seqs.clear()
    for i, output in enumerate(outputs):
        seq = Sequence(seq_id + i, prompt, i)
        seq.token_ids += output
        group.seqs[seq.seq_id] = seq
    return group


def make_plan(*groups):
    return StepPlan(
        spans=[Span(s.seq_id, 0, s.token_ids, []) for group in groups for s in group.live]
    )


def sampling(max_model_len=100, **options):
    return TorchSampling(max_model_len, eos_token_ids=(EOS,), **options)


def forced(*tokens):
    """Logits whose likeliest tokens are these."""
    rows = torch.zeros(len(tokens), VOCAB)
    rows[range(len(tokens)), list(tokens)] = 9.0
    return StepLogits(rows)


def only(decisions):
    (decision,) = decisions
    (child,) = decision.children
    return child


# --------------------------------------------------------------------------- ends
@pytest.mark.parametrize(
    ("token", "outputs", "options", "finish", "reason"),
    [
        (7, [8], {}, None, None),
        (EOS, [8], {}, "stop", None),
        (EOS, [8], {"ignore_eos": True}, None, None),
        (EOS, [8, 8], {"max_tokens": 3}, "stop", None),  # stop goes before length
        (7, [8], {"stop_token_ids": (6, 7)}, "stop", 7),
        (7, [8, 8], {"stop_token_ids": (7,), "max_tokens": 3}, "stop", 7),
        (EOS, [8], {"stop_token_ids": (EOS,)}, "stop", None),
        (EOS, [8], {"stop_token_ids": (EOS,), "ignore_eos": True}, "stop", EOS),
        (7, [], {"max_tokens": 1}, "length", None),
        (7, [8], {"max_tokens": 3}, None, None),
        (7, [8, 8], {"max_tokens": 3}, "length", None),
        (7, [8] * 97, {"max_tokens": None}, "length", None),  # 2 + 97 + 1 = the model's length
        (7, [8] * 96, {"max_tokens": None}, None, None),
        (7, [8] * 97, {"max_tokens": 10**9}, "length", None),
    ],
)
def test_how_a_sequence_ends(token, outputs, options, finish, reason):
    group = make_group(SamplingParams(temperature=0, **options), outputs=[outputs])
    child = only(sampling().decide(make_plan(group), forced(token), [group]))
    assert (child.token_id, child.finish, child.stop_reason) == (token, finish, reason)
    assert child.parent is group.live[0]


def test_tokens_that_end_a_sequence_are_not_sampled_before_min_tokens():
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(7,))
    rows = torch.zeros(1, VOCAB)
    rows[0, [EOS, 7, 9]] = torch.tensor([9.0, 8.0, 7.0])
    for outputs, token in (([], 9), ([8], 9), ([8, 8], EOS)):
        group = make_group(params, outputs=[outputs])
        child = only(sampling().decide(make_plan(group), StepLogits(rows), [group]))
        assert child.token_id == token


# --------------------------------------------------------------------------- siblings
def test_a_prompt_is_sampled_once_for_each_sibling_and_a_sibling_once():
    params = SamplingParams(n=2, best_of=3, seed=4)
    group = make_group(params)
    (decision,) = sampling().decide(make_plan(group), StepLogits(torch.zeros(1, 999)), [group])
    assert [child.index for child in decision.children] == [0, 1, 2]
    assert {child.parent for child in decision.children} == {group.live[0]}
    assert len({child.token_id for child in decision.children}) == 3
    assert not decision.done

    group = make_group(params, outputs=[(3,), (4,), (6,)])
    del group.seqs[1]  # the middle sibling is finished
    (decision,) = sampling().decide(make_plan(group), StepLogits(torch.zeros(2, 999)), [group])
    assert [(child.index, child.parent.seq_id) for child in decision.children] == [(0, 0), (2, 2)]


def test_rows_follow_the_plan_and_decisions_the_groups():
    params = SamplingParams(temperature=0)
    beam = SamplingParams(n=2, use_beam_search=True)
    groups = [
        make_group(params, arrival=0, seq_id=0),
        make_group(beam, arrival=1, seq_id=10),
        make_group(params, arrival=2, seq_id=20),
        make_group(params, arrival=3, seq_id=30),  # not in the plan
    ]
    plan = make_plan(groups[2], groups[0], groups[1])
    plan.spans.insert(1, Span(99, 0, [1, 1], [], sample=False))
    decisions = sampling().decide(plan, forced(12, 10, 11), groups)
    assert [d.group for d in decisions] == groups[:3]
    assert [d.children[0].token_id for d in decisions] == [10, 11, 12]
    assert len(decisions[1].children) == 2


def test_requests_without_a_seed_differ_and_are_reproducible():
    rows = StepLogits(torch.zeros(6, VOCAB))

    def tokens(engine_seed):
        groups = [make_group(SamplingParams(), arrival=i, seq_id=i) for i in range(6)]
        decisions = sampling(seed=engine_seed).decide(make_plan(*groups), rows, groups)
        return [d.children[0].token_id for d in decisions]

    assert tokens(0) == tokens(0)
    assert tokens(0) != tokens(1)
    assert len(set(tokens(0))) > 3


# --------------------------------------------------------------------------- errors
def test_logits_that_are_not_finite_end_their_request_only():
    """Trap B21: an overflow is an error, and never the token 0 for ever."""
    params = SamplingParams(temperature=0)
    groups = [
        make_group(params, arrival=0, seq_id=0),
        make_group(SamplingParams(n=2, seed=1), outputs=[(3,), (4,)], arrival=1, seq_id=10),
        make_group(params, arrival=2, seq_id=20),
    ]
    logits = forced(10, 11, 12, 13)
    logits.rows[2, 5] = float("nan")
    decisions = sampling().decide(make_plan(*groups), logits, groups)
    assert [c.token_id for c in decisions[0].children + decisions[2].children] == [10, 13]
    bad = decisions[1].children
    assert [(c.finish, c.token_id, c.index) for c in bad] == [
        ("error", NO_TOKEN, 0), ("error", NO_TOKEN, 1),
    ]  # fmt: skip
    assert "not finite" in bad[0].stop_reason


def test_a_vocabulary_that_is_all_masked_says_so():
    params = SamplingParams(temperature=0, min_tokens=1, stop_token_ids=(0, 1))
    group = make_group(params)
    child = only(sampling().decide(make_plan(group), StepLogits(torch.zeros(1, 3)), [group]))
    assert child.finish == "error"
    assert "min_tokens" in child.stop_reason


# --------------------------------------------------------------------------- log-probabilities
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.5, "seed": 3}])
@pytest.mark.parametrize("count", [0, 3, 500])
def test_logprobs_are_the_models_own(count, options):
    torch.manual_seed(1)
    rows = torch.randn(1, VOCAB) * 3
    params = SamplingParams(logprobs=count, top_k=5, presence_penalty=2.0, **options)
    group = make_group(params, outputs=[(4, 9)])
    child = only(sampling().decide(make_plan(group), StepLogits(rows), [group]))
    expected = rows[0].double().log_softmax(0)
    assert child.logprob == pytest.approx(float(expected[child.token_id]), abs=1e-5)
    top = child.top.top
    assert child.top.token_id == child.token_id
    assert child.token_id in top
    assert list(top)[:count] == expected.argsort(descending=True)[:count].tolist()
    assert len(top) in ({1} if count == 0 else {min(count, VOCAB), min(count + 1, VOCAB)})
    for token, logprob in top.items():
        assert logprob == pytest.approx(float(expected[token]), abs=1e-5)


def test_logprobs_cost_nothing_where_nobody_asked():
    group = make_group(SamplingParams(temperature=0))
    child = only(sampling().decide(make_plan(group), forced(4), [group]))
    assert child.top is None
    assert child.logprob == 0.0
    best_of = make_group(SamplingParams(best_of=2, seed=1))
    (decision,) = sampling().decide(make_plan(best_of), forced(4), [best_of])
    assert all(child.logprob < 0 and child.top is None for child in decision.children)


def test_ruled_out_tokens_have_finite_logprobs():
    rows = torch.full((2, 6), -float("inf"))
    rows[:, 1] = 0.0
    rows[1, 3] = -1e5
    for entry in token_logprobs(rows, [1, 3], [6, 6]):
        json.dumps(entry.top, allow_nan=False)
        assert min(entry.top.values()) >= MIN_LOGPROB
    assert token_logprobs(rows, [1, 3], [0, 0])[1].logprob == MIN_LOGPROB


def test_ids_past_the_tokenizer_are_not_listed():
    rows = torch.arange(10.0)[None]
    (entry,) = token_logprobs(rows, [3], [2], vocab_size=8)
    assert list(entry.top) == [7, 6, 3]
    assert entry.logprob == pytest.approx(float(rows[0].log_softmax(0)[3]))


# --------------------------------------------------------------------------- prompts
def prompt_expectation(rows, prompt):
    table = rows.double().log_softmax(-1)
    return [None] + [float(table[p - 1, prompt[p]]) for p in range(1, len(prompt))]


@pytest.mark.parametrize(
    "cuts", [[7], [3, 7], [1, 2, 3, 4, 5, 6, 7], [3, 0, 2, 5, 0, 9], [5, 0, 9]]
)
def test_prompt_logprobs_by_chunk_and_after_preemption(cuts):
    """The chunks end at ``cuts``; a 0 is a preemption, which starts again at the first token.
    A refill reaches past the prompt, over output tokens."""
    torch.manual_seed(2)
    prompt, output = [1, 5, 9, 9, 3, 7, 4], [8, 6]
    rows = torch.randn(9, VOCAB)
    group = make_group(SamplingParams(prompt_logprobs=2), prompt=prompt, outputs=[output])
    start = 0
    for end in cuts:
        if end:
            span = Span(0, start, (prompt + output)[start:end], [], False, True)
            plan = StepPlan(spans=[span])
            logits = StepLogits(torch.empty(0, VOCAB), {0: rows[start:end]})
            assert sampling().decide(plan, logits, [group]) == []
        start = end
    got = [entry and entry.logprob for entry in group.prompt_logprobs]
    assert got[0] is None
    assert got[1:] == pytest.approx(prompt_expectation(rows, prompt)[1:], abs=1e-5)
    assert [entry.token_id for entry in group.prompt_logprobs[1:]] == prompt[1:]
    assert all(len(entry.top) in (2, 3) for entry in group.prompt_logprobs[1:])


def test_a_prompt_of_one_token_has_one_entry():
    group = make_group(SamplingParams(prompt_logprobs=0), prompt=[4])
    extend_prompt_logprobs(group, Span(0, 0, [4], []), torch.zeros(1, VOCAB))
    assert group.prompt_logprobs == [None]


def test_a_gap_in_the_prompt_is_an_error():
    group = make_group(SamplingParams(prompt_logprobs=0), prompt=[1, 2, 3, 4, 5])
    with pytest.raises(InvariantError, match="skips prompt tokens 0 to 2"):
        extend_prompt_logprobs(group, Span(0, 3, [4, 5], []), torch.zeros(2, VOCAB))


# --------------------------------------------------------------------------- selection
def finished_group(params, entries):
    """entries: (index, cumulative log-probability, output tokens)."""
    group = make_group(params)
    group.seqs.clear()
    for i, (index, total, length) in enumerate(entries):
        seq = Sequence(i, [1, 5], index)
        seq.token_ids += [7] * length
        seq.cumulative_logprob = total
        seq.status, seq.finish_reason = Status.FINISHED, "stop"
        group.finished_seqs.append(seq)
    return group


def test_siblings_come_in_order():
    group = finished_group(SamplingParams(n=3), [(2, -1.0, 4), (0, -9.0, 4), (1, -5.0, 4)])
    assert [seq.index for seq in sampling().select_outputs(group)] == [0, 1, 2]


def test_best_of_takes_the_highest_means():
    group = finished_group(
        SamplingParams(n=2, best_of=4), [(0, -8.0, 2), (1, -8.0, 8), (2, -3.0, 2), (3, -9.0, 3)]
    )  # fmt: skip
    assert [seq.index for seq in sampling().select_outputs(group)] == [1, 2]


def test_beams_are_ordered_by_their_score():
    entries = [(4, -6.0, 2), (5, -6.5, 4), (6, -20.0, 9)]
    for penalty, order in ((0.0, [4, 5]), (1.0, [5, 6]), (2.0, [6, 5])):
        params = SamplingParams(n=2, best_of=3, use_beam_search=True, length_penalty=penalty)
        group = finished_group(params, entries)
        assert [seq.index for seq in sampling().select_outputs(group)] == order


def test_an_error_is_not_hidden_by_better_outputs():
    group = finished_group(SamplingParams(n=1, best_of=2), [(0, -1.0, 2), (1, -math.inf, 1)])
    group.finished_seqs[1].finish_reason = "error"
    assert [seq.index for seq in sampling().select_outputs(group)] == [1]
