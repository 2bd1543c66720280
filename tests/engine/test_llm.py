"""The offline interface, on the embedded OPT: prompts in, outputs out, nothing left behind."""

from __future__ import annotations

import json

import pytest

from minipaged import LLM, SamplingParams
from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.errors import MinipagedError, RequestError
from minipaged.trace import TraceWriter

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = ["Once upon a time", "One day, a little", "The sun"]


@pytest.fixture(scope="module")
def llm():
    return LLM(
        "opt-stories",
        device="cpu",
        cache=CacheConfig(block_size=4, num_gpu_blocks=64, num_cpu_blocks=32),
        scheduler=SchedulerConfig(max_num_seqs=16),
        check=True,
    )


@pytest.fixture(autouse=True)
def idle_afterwards(llm):
    yield
    kv = llm.engine.kv
    assert not llm.engine.has_unfinished()
    assert kv.num_free_gpu_blocks == kv.num_gpu_blocks
    assert kv.num_free_cpu_blocks == kv.num_cpu_blocks


def test_outputs_come_in_the_order_of_the_prompts(llm):
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (9, 3, 6)]
    outputs = llm.generate(PROMPTS, params, progress=False)
    assert [o.prompt for o in outputs] == PROMPTS
    assert [len(o.outputs[0].token_ids) for o in outputs] == [9, 3, 6]
    alone = [llm.generate(p, w, progress=False)[0] for p, w in zip(PROMPTS, params)]
    assert [o.outputs[0].token_ids for o in alone] == [o.outputs[0].token_ids for o in outputs]
    assert all(o.finished and o.outputs[0].text for o in outputs)


def test_token_ids_are_prompts_too(llm):
    ids = llm.tokenize(PROMPTS[0])
    (text,) = llm.generate(PROMPTS[0], GREEDY, progress=False)
    (tokens,) = llm.generate(ids, GREEDY, progress=False)
    several = llm.generate([ids, PROMPTS[0]], GREEDY, progress=False)
    assert {tuple(o.outputs[0].token_ids) for o in [text, tokens, *several]} == {
        tuple(text.outputs[0].token_ids)
    }
    assert tokens.prompt is None


def test_the_text_is_what_the_tokens_say(llm):
    (output,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=40))
    completion = output.outputs[0]
    whole = llm.tokenizer.decode(output.prompt_token_ids + completion.token_ids)
    assert whole.endswith(completion.text)
    assert whole.startswith(PROMPTS[0])


def test_n_samples_share_the_prompt_and_differ(llm):
    most_shared = 0

    def watch(engine):
        nonlocal most_shared
        refs = [engine.kv.gpu.ref_count(b) for b in range(64)]
        most_shared = max(most_shared, sum(r == 3 for r in refs))

    params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=8)
    prompt = "Once upon a time, there was a little girl named Lily."
    (output,) = llm.generate(prompt, params, progress=False, on_step=watch)
    assert len({tuple(c.token_ids) for c in output.outputs}) == 3
    assert most_shared == -(-len(output.prompt_token_ids) // 4)
    (again,) = llm.generate(prompt, params, progress=False)
    assert [c.token_ids for c in again.outputs] == [c.token_ids for c in output.outputs]


def test_one_bad_prompt_starts_none(llm):
    with pytest.raises(RequestError, match="at least one token"):
        llm.generate([[5, 6], []], GREEDY, progress=False)
    with pytest.raises(RequestError, match="token id 1024; the model's ids are 0 to 1023"):
        llm.generate([[5, 6], [1024]], GREEDY, progress=False)
    with pytest.raises(RequestError, match="2 sampling parameters for 3 prompts"):
        llm.generate(PROMPTS, [GREEDY] * 2, progress=False)


def test_a_prompt_that_cannot_fit_is_answered_with_the_limit(llm):
    long = [5] * 257
    refused, served = llm.generate([long, PROMPTS[0]], GREEDY, progress=False)
    assert refused.outputs[0].finish_reason == "error"
    assert "257 prompt tokens needs 65 blocks of 4, the whole pool has 64" in (
        refused.outputs[0].stop_reason
    )
    assert served.outputs[0].finish_reason == "length"


def test_a_small_pool_is_told():
    small = LLM("opt-stories", device="cpu", cache=CacheConfig(block_size=4, num_gpu_blocks=8))
    assert any("holds 32 tokens, fewer than the longest" in note for note in small.notes)
    with pytest.raises(MinipagedError, match="max_model_len must be between 2 and"):
        LLM("opt-stories", device="cpu", max_model_len=100_000)


def test_ctrl_c_leaves_nothing_behind(llm):
    def interrupt(engine):
        if engine.num_steps % 5 == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY, progress=False, on_step=interrupt)
    assert not llm.engine.has_unfinished()
    assert llm.generate(PROMPTS[0], GREEDY, progress=False)[0].finished


def test_a_model_without_a_template_cannot_chat(llm):
    assert not llm.can_chat
    with pytest.raises(MinipagedError, match="template"):
        llm.chat([{"role": "user", "content": "hi"}], GREEDY)


def test_the_trace_has_a_line_a_step(tmp_path):
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as trace:
        llm = LLM(
            "opt-stories",
            device="cpu",
            cache=CacheConfig(block_size=4, num_gpu_blocks=12, num_cpu_blocks=12),
            trace=trace,
        )
        params = SamplingParams(n=2, temperature=1.0, seed=3, max_tokens=12)
        llm.generate(PROMPTS, params, progress=False)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(llm.engine.num_steps))
    assert lines[0]["admitted"]
    assert sum(len(line["finished"]) for line in lines) == 3
    assert sum(len(line["copies"]) for line in lines) > 0
    assert sum(len(line["preempted"]) for line in lines) > 0
    assert lines[-1]["free_gpu_blocks"] == 12
    for line in lines:
        for _, start, count, table in line["spans"]:
            assert len(table) == -(-(start + count) // 4)


@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle"])
def test_contiguous_baselines_give_the_same_tokens(llm, reservation):
    cache = CacheConfig(block_size=4, num_gpu_blocks=256, num_cpu_blocks=0, reservation=reservation)
    engine = llm.make_engine(cache, SchedulerConfig(max_num_seqs=16), check=True)
    expected = llm.generate(PROMPTS, GREEDY, progress=False)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), llm.tokenize(prompt), GREEDY)
    got = {}
    while engine.has_unfinished():
        got |= {o.request_id: o.outputs[0].token_ids for o in engine.step()}
    assert [got[str(i)] for i in range(3)] == [o.outputs[0].token_ids for o in expected]


def test_requests_of_others_go_on_and_keep_their_outputs(llm):
    llm.add(PROMPTS[1], SamplingParams(temperature=0, max_tokens=3), request_id="short")
    llm.add(PROMPTS[1], SamplingParams(temperature=0, max_tokens=30), request_id="long")
    (mine,) = llm.generate(PROMPTS[0], GREEDY, progress=False)
    assert mine.prompt == PROMPTS[0]
    assert llm.engine.has_unfinished(), "generate waits for its own requests only"
    assert [output.request_id for output in llm.run()] == ["short", "long"]


def test_a_request_is_scheduled_with_its_first_chunk_not_with_its_first_token(llm):
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8, chunked_prefill=True)
    cache = CacheConfig(block_size=4, num_gpu_blocks=32, num_cpu_blocks=0)
    engine = llm.make_engine(cache, config, check=True)
    engine.clock = lambda: float(engine.num_steps)
    engine.add_request("a", [5] * 20, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    metrics = outputs[-1].metrics
    assert (metrics.first_scheduled_time, metrics.first_token_time) == (0.0, 3.0)
