"""The whole engine against transformers' ``generate``: the same tokens, greedy and by beams."""

from __future__ import annotations

import pytest
import tiny_models
import torch

from minipaged import LLM, SamplingParams
from minipaged.config import CacheConfig

LENGTHS = (3, 8, 17, 30)
NEW_TOKENS = 20


def serve(llm, prompts, params):
    """Token ids and texts of the best outputs, all prompts in one batch."""
    outputs = llm.generate(prompts, params, progress=False)
    return [[c.token_ids for c in output.outputs] for output in outputs]


def transformers_outputs(model, prompts, *, beams=1, n=1, new_tokens=NEW_TOKENS, **options):
    results = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            rows = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                num_beams=beams,
                num_return_sequences=n,
                max_new_tokens=new_tokens,
                pad_token_id=1,
                **options,
            )
        results.append([strip(row[len(prompt) :].tolist(), model) for row in rows])
    return results


def strip(tokens, model):
    """Without the padding behind the end of the sequence."""
    eos = model.generation_config.eos_token_id
    ends = {eos} if isinstance(eos, int) else set(eos or ())
    end = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


@pytest.fixture(scope="module", params=tiny_models.VARIANTS)
def pair(request, tmp_path_factory):
    model = tiny_models.hf_model(request.param)
    folder = tiny_models.save(model, tmp_path_factory.mktemp("model"))
    llm = LLM(
        folder,
        device="cpu",
        cache=CacheConfig(block_size=4, num_gpu_blocks=96, num_cpu_blocks=32),
        check=True,
    )
    return model, llm


def prompts():
    return [tiny_models.prompt(n, seed=n).flatten().tolist() for n in LENGTHS]


def test_greedy_tokens_are_those_of_transformers(pair):
    model, llm = pair
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    assert serve(llm, prompts(), params) == transformers_outputs(model, prompts())


@pytest.mark.parametrize(("beams", "n", "penalty"), [(2, 1, 1.0), (4, 3, 0.6)])
def test_beams_are_those_of_transformers(pair, beams, n, penalty):
    model, llm = pair
    params = SamplingParams(
        n=n, best_of=beams, use_beam_search=True, length_penalty=penalty, max_tokens=NEW_TOKENS
    )
    expected = transformers_outputs(model, prompts(), beams=beams, n=n, length_penalty=penalty)
    assert serve(llm, prompts(), params) == expected


def test_smollm2_says_what_it_says_in_transformers(smollm2_path):
    from transformers import AutoModelForCausalLM

    llm = LLM(smollm2_path, device="cpu", cache=CacheConfig(num_gpu_blocks=64, num_cpu_blocks=8))
    questions = ["What is the capital of France?", "Name three colors.", "Why do cats purr?"]
    chats = [llm.chat_tokens([{"role": "user", "content": q}]) for q in questions]
    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32)
    greedy = SamplingParams(temperature=0, max_tokens=24)
    ours = serve(llm, chats, greedy)
    assert ours == transformers_outputs(model, chats, new_tokens=24)
    assert "Paris" in llm.tokenizer.decode(ours[0][0])
    beam = SamplingParams(n=1, best_of=3, use_beam_search=True, max_tokens=12)
    assert serve(llm, chats[1:], beam) == transformers_outputs(
        model, chats[1:], beams=3, new_tokens=12
    )
