"""Beam search against transformers' ``generate``, and its rules in small."""

from __future__ import annotations

import itertools

import pytest
import torch

from minipaged.contracts import Span, StepLogits, StepPlan
from minipaged.sampling.beam_search import BeamSearch, hypothesis_score
from minipaged.sampling.decide import TorchSampling
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup, Status

EOS = 3
VOCAB = 24
MAX_LEN = 64


def opt_model(seed):
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(seed)
    config = OPTConfig(
        vocab_size=VOCAB, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
        word_embed_proj_dim=16, max_position_embeddings=MAX_LEN, init_std=0.4,
        bos_token_id=1, eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    return OPTForCausalLM(config).eval()


def llama_model(seed):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=MAX_LEN,
        initializer_range=0.4, bos_token_id=1, eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


MODELS = {"opt": opt_model, "llama": llama_model}


class Commit:
    """Books decisions as the scheduler does: forks from the parents as they were, then appends."""

    def __init__(self, params, prompt):
        self.seq_ids = itertools.count()
        self.group = SequenceGroup("r", Sequence(next(self.seq_ids), prompt), params)

    def __call__(self, decision):
        group = self.group
        children = [(child.parent.fork(next(self.seq_ids), child.index), child)
                    for child in decision.children]  # fmt: skip
        group.seqs.clear()
        for seq, child in sorted(children, key=lambda pair: pair[1].index):
            seq.token_ids.append(child.token_id)
            seq.cumulative_logprob += child.logprob
            if child.top is not None:
                seq.logprobs.append(child.top)
            if child.finish is None:
                group.seqs[seq.seq_id] = seq
            else:
                seq.status, seq.finish_reason = Status.FINISHED, child.finish
                seq.stop_reason = child.stop_reason
                group.finished_seqs.append(seq)
        group.started = True
        if decision.done:
            group.seqs.clear()


@torch.inference_mode()
def search(model, prompt, params, max_model_len=MAX_LEN):
    """Run a beam search with the model as the executor; returns the group."""
    sampling = TorchSampling(max_model_len, vocab_size=VOCAB, eos_token_ids=(EOS,))
    commit = Commit(params, prompt)
    group = commit.group
    for _ in range(max_model_len):
        seqs = group.live[::-1]  # the order in the batch must not matter
        plan = StepPlan(spans=[Span(s.seq_id, 0, s.token_ids, []) for s in seqs])
        rows = model(torch.tensor([s.token_ids for s in seqs])).logits[:, -1].float()
        (decision,) = sampling.decide(plan, StepLogits(rows), [group])
        assert len({child.index for child in decision.children}) == len(decision.children)
        commit(decision)
        if not group.seqs:
            return group
    raise AssertionError("the search did not end")


@torch.inference_mode()
def reference(model, prompt, params, max_new):
    eos = [*params.stop_token_ids, *([] if params.ignore_eos else [EOS])]
    model.generation_config.eos_token_id = eos or None
    out = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=params.width, num_return_sequences=params.n, do_sample=False,
        max_new_tokens=max_new, min_new_tokens=params.min_tokens or None,
        length_penalty=params.length_penalty, early_stopping=params.early_stopping,
        repetition_penalty=params.repetition_penalty, eos_token_id=eos or None, pad_token_id=0,
        sequence_bias={(t,): float(b) for t, b in (params.logit_bias or {}).items()} or None,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    ids = []
    for row in out.sequences.tolist():
        row = row[len(prompt) :]
        ends = [i for i, token in enumerate(row) if token in eos and i >= params.min_tokens]
        ids.append(row[: ends[0] + 1] if ends else row)
    return ids, out.sequences_scores.tolist()


def check(model, prompt, params, max_model_len=MAX_LEN):
    room = max_model_len - len(prompt)
    expected, scores = reference(model, prompt, params, min(params.max_tokens or room, room))
    group = search(model, prompt, params, max_model_len)
    outputs = TorchSampling(max_model_len).select_outputs(group)
    # rows that ended before the longest one are padded with token 0
    assert [seq.output_token_ids for seq in outputs] == [
        ids[: len(seq.output_token_ids)] for ids, seq in zip(expected, outputs, strict=True)
    ]
    for seq, ids in zip(outputs, expected):
        assert set(ids[len(seq.output_token_ids) :]) <= {0}
    ours = [
        hypothesis_score(s.cumulative_logprob, s.num_output_tokens, params.length_penalty)
        for s in outputs
    ]
    assert ours == pytest.approx(scores, rel=1e-5)
    return outputs


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("family", MODELS)
def test_outputs_order_and_scores_equal_transformers(family, early):
    ends = set()
    grid = list(enumerate(itertools.product((2, 3, 4, 6), (0.5, 1.0, 2.0))))
    for seed, (width, penalty) in grid[family == "llama" :: 2]:
        params = SamplingParams(
            n=1 + seed % width, best_of=width, use_beam_search=True, length_penalty=penalty,
            early_stopping=early, max_tokens=14,
        )  # fmt: skip
        prompt = [1, 5 + seed % 7, 9, 4 + seed % 3]
        outputs = check(MODELS[family](seed), prompt, params)
        ends |= {seq.finish_reason for seq in outputs}
    assert ends == {"stop", "length"}


OPTIONS = {
    "min_tokens": {"min_tokens": 5},
    "ignore_eos": {"ignore_eos": True},
    "stop ids": {"stop_token_ids": (7, 11)},
    "bias": {"logit_bias": {4: 3.0, 9: -5.0}},
    "repetition": {"repetition_penalty": 1.4},
    "short": {"max_tokens": 1},
    "negative penalty": {"length_penalty": -1.0},
    "no penalty": {"length_penalty": 0.0},
    "never, negative penalty": {"length_penalty": -1.0, "early_stopping": "never"},
    "many stops": {"stop_token_ids": tuple(range(4, 19)), "early_stopping": "never"},
    "early stopping, many stops": {"stop_token_ids": tuple(range(10, 18)), "early_stopping": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("family", MODELS)
def test_options_equal_transformers(family, options):
    for seed, width in ((20, 2), (21, 4), (22, 3)):
        params = SamplingParams(
            n=width, use_beam_search=True, **{"max_tokens": 12, **options}
        )  # fmt: skip
        check(MODELS[family](seed), [1, 6, 8], params)


def test_the_model_length_bounds_the_search_as_max_tokens_does():
    params = SamplingParams(n=3, use_beam_search=True, max_tokens=None, early_stopping="never")
    for seed in range(3):
        outputs = check(llama_model(seed), [1, 6, 8, 2], params, max_model_len=13)
        assert all(seq.num_tokens <= 13 for seq in outputs)


def test_stop_reasons_tell_a_stop_id_from_the_end_of_sequence():
    params = SamplingParams(n=4, use_beam_search=True, stop_token_ids=(7, 11), max_tokens=20)
    reasons = {
        (seq.token_ids[-1], seq.finish_reason, seq.stop_reason)
        for seed in range(4)
        for seq in search(opt_model(seed), [1, 6, 8], params).finished_seqs
    }
    assert reasons <= {(EOS, "stop", None), (7, "stop", 7), (11, "stop", 11)} | {
        (token, "length", None) for token in range(VOCAB)
    }
    assert (EOS, "stop", None) in reasons
    assert {reason for _, _, reason in reasons} & {7, 11}


def test_logprobs_of_a_beam_add_up_to_its_score():
    params = SamplingParams(n=3, use_beam_search=True, logprobs=2, max_tokens=10)
    for seq in search(llama_model(1), [1, 6, 8], params).finished_seqs:
        assert [entry.token_id for entry in seq.logprobs] == seq.output_token_ids
        total = sum(entry.logprob for entry in seq.logprobs)
        assert total == pytest.approx(seq.cumulative_logprob, abs=1e-4)
        assert all(len(entry.top) in (2, 3) for entry in seq.logprobs)


def test_a_hypothesis_that_does_not_get_into_a_full_pool_is_not_handed_out():
    params = SamplingParams(n=2, use_beam_search=True, early_stopping="never", max_tokens=20)
    commit = Commit(params, [1])
    group, beam_search = commit.group, BeamSearch(max_model_len=40)
    stops = {0: None}

    def step(*rows):
        beams = group.live
        scores = torch.log(torch.tensor(rows[: len(beams)]))
        decision = beam_search.advance(group, scores, beams, stops)
        commit(decision)
        return decision

    step([0.4, 0.3, 0.2, 0.1])  # EOS is the best candidate of two
    assert [s.output_token_ids for s in group.finished_seqs] == [[0]]
    assert [s.output_token_ids for s in group.live] == [[1], [2]]
    step([0.45, 0.3, 0.2, 0.05], [0.1, 0.1, 0.4, 0.4])
    assert [s.output_token_ids for s in group.finished_seqs] == [[0], [1, 0]]
    worst = min(group.beam.pool)
    step([0.01, 0.9, 0.08, 0.01], [0.9, 0.05, 0.04, 0.01])
    assert all(score >= worst for score in group.beam.pool)
    assert len(group.beam.pool) == 2
    assert len(group.finished_seqs) == 3


def test_never_counts_on_the_longest_output_only_where_length_helps():
    """With a negative length penalty a longer output scores worse, not better."""
    params = SamplingParams(
        n=2, use_beam_search=True, early_stopping="never", length_penalty=-1.0, max_tokens=20
    )  # fmt: skip
    commit = Commit(params, [1])
    for rows in ([[0.4, 0.3, 0.2, 0.1]], [[0.4, 0.55, 0.03, 0.02], [0.25] * 4]):
        scores = torch.log(torch.tensor(rows))
        decision = BeamSearch(40).advance(commit.group, scores, commit.group.live, {0: None})
        commit(decision)
    assert [s.output_token_ids for s in commit.group.finished_seqs] == [[0], [1, 0]]
    assert not decision.done


def test_ties_do_not_depend_on_the_order_in_the_batch():
    params = SamplingParams(n=3, use_beam_search=True, max_tokens=5)
    results = []
    for flip in (1, -1):
        commit = Commit(params, [1])
        for _ in range(5):
            beams = commit.group.live[::flip]
            scores = torch.full((len(beams), 6), -1.5)
            commit(BeamSearch(40).advance(commit.group, scores, beams, {}))
        results.append(sorted(s.output_token_ids for s in commit.group.finished_seqs))
    assert results[0] == results[1]
    assert len(results[0]) == 3


def test_a_row_that_is_not_finite_ends_the_search_with_a_sentence():
    params = SamplingParams(n=2, use_beam_search=True)
    commit = Commit(params, [1, 2])
    plan = StepPlan(spans=[Span(0, 0, [1, 2], [])])
    sampling = TorchSampling(40, eos_token_ids=(EOS,))
    (decision,) = sampling.decide(
        plan, StepLogits(torch.full((1, 8), float("nan"))), [commit.group]
    )
    assert decision.done
    assert [child.finish for child in decision.children] == ["error"]
    assert "not finite" in decision.children[0].stop_reason


def test_an_extreme_length_penalty_overflows_nothing():
    for penalty in (-100.0, 100.0):
        assert hypothesis_score(-5.0, 2000, penalty) <= 0.0
