"""Known traps, in what a request asks for and gets (B19 to B30), and in interrupted runs: a whole
engine on a tiny random model. The table of all of them is ``tests/traps.md``."""

import json
import math
from functools import partial

import numpy
import pytest
import torch
from tiny_models import logits as plain_logits
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from trap_rig import BLOCK_SIZE, Pieces, Rig, greedy, ids, prompt, reasons, reference, tiny_model

from minipaged.config import CacheConfig
from minipaged.errors import RequestError
from minipaged.llm import LLM
from minipaged.sampling_params import SamplingParams
from minipaged.tokenizer import HFTokenizer


@pytest.fixture(scope="module", params=["opt", "llama"])
def model(request):
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


@pytest.fixture(scope="module")
def loaded():
    return LLM(
        "opt-stories", max_model_len=64, check=True,
        cache=CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=40, num_cpu_blocks=8),
    )  # fmt: skip


@pytest.fixture
def llm(loaded):
    """A real model with its tokenizer; idle before and after each test."""
    yield loaded
    assert_idle(loaded)


def assert_idle(llm):
    kv, scheduler = llm.engine.kv, llm.engine.scheduler
    assert not llm.engine.has_unfinished()
    assert not scheduler.groups
    assert not scheduler.ended
    assert not kv.tables
    assert kv.num_free_gpu_blocks == kv.num_gpu_blocks
    assert kv.num_free_cpu_blocks == kv.num_cpu_blocks


# ----------------------------------------------------------------------------- B19
def _waiting(rig):
    pass


def _prefilling(rig):
    rig.step()
    assert rig.groups["x"].prefilling


def _running(rig):
    while rig.groups["x"].prefilling or not rig.groups["x"].started:
        rig.step()


def _preempted(rig):
    _running(rig)
    rig.preempt_next("x")
    rig.step()
    assert rig.groups["x"] not in rig.scheduler.running


@pytest.mark.parametrize(
    ("reach", "mode"),
    [(_waiting, "auto"), (_prefilling, "auto"), (_running, "auto"), (_preempted, "swap"),
     (_preempted, "recompute")],
)  # fmt: skip
def test_b19_abort_in_every_state_ends_that_request_and_no_other(llama, reach, mode):
    rig = Rig(
        llama, gpu=30, cpu=10, preemption=mode, chunked_prefill=True, max_num_seqs=8,
        max_num_batched_tokens=12,
    )  # fmt: skip
    rig.add("before", prompt(5), greedy())
    rig.add("x", prompt(18, 1), SamplingParams(n=2, seed=1, max_tokens=None))
    rig.add("behind", prompt(6, 2), greedy())
    reach(rig)
    others = sum(len(set().union(*rig.tables(name))) for name in ("before", "behind"))
    assert rig.engine.abort("x")
    assert (rig.gpu_used(), rig.cpu_used()) == (others, 0), "blocks come back at once"
    assert not rig.engine.abort("x"), "twice"
    assert not rig.engine.abort("never seen")
    assert "x" in {output.request_id for output in rig.step()}
    done = rig.run()
    assert set(reasons(done["x"])) == {"abort"}
    assert ids(done["before"]) == ids(reference(llama, prompt(5), greedy()))
    assert ids(done["behind"]) == ids(reference(llama, prompt(6, 2), greedy()))
    assert not rig.engine.abort("before"), "it has ended"
    assert rig.engine.step() == []


def test_b19_a_list_of_ids_with_others_in_between(llm):
    params = greedy(max_tokens=5)
    expected = llm.generate("Once upon a time", params, progress=False)[0].outputs[0].token_ids
    for name in "abcdefg":
        llm.add("Once upon a time", params, request_id=name)
    llm.engine.step()
    gone = llm.abort(["b", "nobody", "d", "b", "f"])
    assert [output.request_id for output in gone] == ["b", "d", "f"]
    assert all(reasons(output) == ["abort"] for output in gone)
    left = {output.request_id: output for output in llm.run()}
    assert left.keys() == set("aceg")
    assert all(ids(output) == [expected] for output in left.values())


def test_b19_one_id_is_not_a_list_of_letters(llm):
    for name in ("1", "0", "10"):
        llm.add("Once", greedy(max_tokens=2), request_id=name)
    assert [output.request_id for output in llm.abort("10")] == ["10"]
    assert [output.request_id for output in llm.run()] == ["1", "0"]


def test_b19_ids_that_change_while_they_are_aborted(llm):
    for _ in range(4):
        llm.add("Once", greedy())
    llm.engine.step()
    gone = llm.abort(group.request_id for group in llm.engine.scheduler.running)
    rest = llm.abort([group.request_id for group in llm.engine.scheduler.groups])
    assert len(gone) + len(rest) == 4


def test_b19_abort_in_the_middle_of_generate(llm):
    def abort_one(engine):
        if engine.scheduler.running:
            engine.abort(engine.scheduler.running[0].request_id)

    outputs = llm.generate(["Once", "upon", "a time"], greedy(), progress=False, on_step=abort_one)
    assert [reasons(output) for output in outputs] == [["abort"]] * 3
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]


# ----------------------------------------------------------------------------- B21
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("architecture", ["opt", "llama"])
def test_b21_half_types_are_finite_for_short_and_long_side_by_side(architecture, dtype):
    rig = Rig(tiny_model(architecture, dtype=dtype))
    for length in (1, 40):
        params = greedy(max_tokens=4, logprobs=0, prompt_logprobs=0)
        rig.add(f"r{length}", prompt(length), params)
    for output in rig.run().values():
        assert reasons(output) == ["length"]
        entries = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        assert all(-30 < entry.logprob <= 0 for entry in entries)


@pytest.mark.parametrize("architecture", ["opt", "llama"])
def test_b21_an_overflow_is_an_error_and_never_token_0_for_ever(architecture):
    def grow(name, tensor):
        return tensor * 3e4 if any(part in name for part in ("fc2.w", "down_proj.w")) else tensor

    half = Rig(tiny_model(architecture, dtype=torch.float16, edit=grow))
    half.add("r", prompt(6), greedy())
    (output,) = half.run()["r"].outputs
    assert output.finish_reason == "error"
    assert "float32" in output.stop_reason
    assert output.token_ids == []
    whole = Rig(tiny_model(architecture, edit=grow))
    whole.add("r", prompt(6), greedy())
    assert reasons(whole.run()["r"]) == ["length"]


def test_b21_numbers_that_overflow_stay_with_their_request():
    def spoil(name, tensor):
        if "embed_tokens" in name:
            tensor[96] = math.nan
        return tensor

    model = tiny_model("llama", edit=spoil)
    rig = Rig(model, gpu=6)
    clean = [token % 90 for token in prompt(6)]
    rig.add("good", clean, greedy())
    rig.add("bad", [*clean[:3], 96], greedy())
    rig.step()
    assert reasons(rig.done["bad"]) == ["error"]
    rig.add("next", clean[1:], greedy())  # in the blocks that held NaN
    done = rig.run()
    for name, tokens in (("good", clean), ("next", clean[1:])):
        assert ids(done[name]) == ids(reference(model, tokens, greedy()))


# ----------------------------------------------------------------------------- B22
SEEDED = SamplingParams(seed=7, max_tokens=10)


@pytest.mark.parametrize(
    ("neighbors", "first", "options"),
    [
        (5, True, {}),
        (5, False, {}),
        (2, False, {"forced_preemption": 0.5, "preemption": "recompute"}),
        (2, True, {"forced_preemption": 0.5, "preemption": "swap"}),
        (2, False, {"chunked_prefill": True, "max_num_seqs": 8, "max_num_batched_tokens": 8}),
    ],
)
def test_b22_a_seed_belongs_to_its_request(model, neighbors, first, options):
    rig = Rig(model, gpu=40, cpu=20, **options)
    if first:
        rig.add("seeded", prompt(6), SEEDED)
    for i in range(neighbors):
        rig.add(f"r{i}", prompt(4 + i, i), SamplingParams(n=1 + i % 2, temperature=0.5 + i))
    if not first:
        rig.step()
        rig.add("seeded", prompt(6), SEEDED)
    assert ids(rig.run()["seeded"]) == ids(reference(model, prompt(6), SEEDED))
    assert (rig.happened["preempted"] > 1) == ("forced_preemption" in options)


def test_b22_equal_seeds_are_equal_and_siblings_differ(llama):
    rig = Rig(llama)
    for name, seed, n in (("a", 7, 1), ("b", 7, 1), ("c", 8, 1), ("d", 7, 3), ("e", 7, 3)):
        rig.add(name, prompt(6), SamplingParams(n=n, seed=seed, max_tokens=10))
    done = {name: ids(output) for name, output in rig.run().items()}
    assert done["a"] == done["b"] != done["c"]
    assert done["d"] == done["e"]
    assert len({tuple(tokens) for tokens in done["d"]}) == 3


# ----------------------------------------------------------------------------- B24
WORDS = ["ab", "cST", "OPde", "ST", "ay", "S", "T", "O", "P", "x", "STOP", "pSTOPqEND"]
TOKENS = Pieces(WORDS)


@pytest.mark.parametrize("preempted", [None, "swap", "recompute"])
@pytest.mark.parametrize(
    ("pieces", "options", "text", "reason"),
    [
        (["ab", "cST", "OPde"], {}, "abc", "stop"),
        (["ab", "cST", "OPde"], {"include_stop_str_in_output": True}, "abcSTOP", "stop"),
        (["x", "ST", "ay"], {}, "xSTay", "length"),
        (["x", "S", "T", "O"], {}, "xSTO", "length"),
        (["x", "S", "S", "T", "O", "P"], {}, "xS", "stop"),
        (["x", "pSTOPqEND"], {"stop": ("END", "STOP")}, "xp", "stop"),
        (["x", "STOP", "ab", "STOP"], {"min_tokens": 3}, "xSTOPab", "stop"),
    ],
)
def test_b24_stop_strings_need_not_align_with_tokens(
    llama, pieces, options, text, reason, preempted
):
    params = greedy(**{"stop": ("STOP",), "max_tokens": len(pieces), **options})
    rig = Rig(
        llama, gpu=20, cpu=8, tokenizer=TOKENS, preemption=preempted or "auto",
        script={"r": [WORDS.index(piece) for piece in pieces]},
    )  # fmt: skip
    rig.add("r", [9, 9, 9], params)
    while rig.engine.has_unfinished():
        if preempted and rig.groups["r"] in rig.scheduler.running:
            rig.preempt_next("r")
            rig.step()
        rig.step()
        # What is out is never taken back: the rig holds the pieces against the text.
    (one,) = rig.run()["r"].outputs
    assert (one.text, one.finish_reason) == (text, reason)
    assert one.stop_reason == ("STOP" if reason == "stop" else None)
    assert "".join(rig.deltas["r", 0]) == text
    assert (rig.groups["r"].num_preemptions > 0) == (preempted is not None)
    assert len(one.token_ids) == len(pieces), "tokens are counted whether their text shows or not"


# ----------------------------------------------------------------------------- B26
FAMILY = "né漢👩‍👩‍👧 a"


def _byte_level():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return HFTokenizer(backend)


def _sentencepiece():
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "n", "a", "é"]
    backend = Tokenizer(
        models.BPE({c: i for i, c in enumerate(names)}, [], byte_fallback=True, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    return HFTokenizer(backend)


@pytest.fixture(scope="module")
def wide():
    return tiny_model("llama", vocab_size=270)


@pytest.fixture(scope="module", params=[_byte_level, _sentencepiece])
def tokenizer(request):
    return request.param()


@pytest.mark.parametrize("mode", [None, "swap", "recompute"])
def test_b26_a_character_of_several_tokens_is_streamed_whole(wide, tokenizer, mode):
    """To siblings that fork in the middle of the run, and through preemptions."""
    head, tokens = tokenizer.encode("na"), tokenizer.encode(FAMILY)
    rig = Rig(wide, gpu=80, cpu=40, tokenizer=tokenizer, preemption=mode or "auto",
              forced_preemption=0.3 if mode else 0.0, script={"r": tokens})  # fmt: skip
    rig.add("r", head, SamplingParams(n=2, max_tokens=len(tokens)))
    done = rig.run()["r"]
    expected = tokenizer.decode(head + tokens)[len(tokenizer.decode(head)) :]
    assert expected.strip(" ") == FAMILY
    assert expected.startswith(" ") == (tokenizer.id_to_token(tokens[0]) == "▁")
    for one in done.outputs:
        assert one.text == expected
        pieces = rig.deltas["r", one.index]
        assert "".join(pieces) == expected
        assert not any("\ufffd" in piece for piece in pieces)
    assert (rig.happened["preempted"] > 2) == (mode is not None)


def test_b26_a_character_cut_by_max_tokens_is_one_replacement_streamed_or_not(wide, tokenizer):
    head, tokens = tokenizer.encode("na"), tokenizer.encode("né👩")
    rig = Rig(wide, tokenizer=tokenizer, script=dict.fromkeys(map(str, range(99)), tokens))
    rig.script |= {f"whole {count}": tokens for count in range(99)}
    for count in range(1, len(tokens) + 1):
        rig.add(str(count), head, greedy(max_tokens=count))
        rig.add(f"whole {count}", head, greedy(max_tokens=count), stream=False)
    done = rig.run()
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(head + tokens[:count])[len(tokenizer.decode(head)) :]
        expected = text.rstrip("\ufffd") + "\ufffd" * text.endswith("\ufffd")
        assert done[str(count)].outputs[0].text == expected
        assert "".join(rig.deltas[str(count), 0]) == expected
        assert done[f"whole {count}"].outputs[0].text == expected


# ----------------------------------------------------------------------------- B27
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5"])
def test_b27_max_tokens_that_is_no_number_of_tokens_is_refused(llm, value):
    with pytest.raises(RequestError, match="max_tokens must be an integer of at least 1"):
        llm.generate("Once", SamplingParams(max_tokens=value), progress=False)
    assert_idle(llm)


def test_b27_one_token_takes_one_step(model):
    rig = Rig(model)
    rig.add("r", prompt(6), greedy(max_tokens=1))
    rig.step()
    (one,) = rig.run()["r"].outputs
    assert rig.engine.num_steps == 1
    assert one.finish_reason == "length"
    assert [one.token_ids] == [ids(reference(model, prompt(6), greedy()))[0][:1]]


@pytest.mark.parametrize("reservation", ["paged", "max", "oracle"])
@pytest.mark.parametrize("most", [None, 10**9])
def test_b27_no_limit_is_the_models_and_takes_no_memory_up_front(llama, most, reservation):
    cache = CacheConfig(block_size=BLOCK_SIZE, reservation=reservation)
    rig = Rig(llama, cache=cache, max_model_len=30)
    rig.add("r", prompt(6), greedy(max_tokens=most, min_tokens=3))
    rig.step()
    if reservation == "paged":
        assert rig.gpu_used() == 2
    (one,) = rig.run()["r"].outputs
    assert len(one.token_ids) == 30 - 6
    assert (one.finish_reason, one.stop_reason) == ("length", None)


def test_b27_no_limit_runs_to_the_end_of_sequence_token(llama):
    free = ids(reference(llama, prompt(6), greedy(max_tokens=20)))[0]
    eos = next(token for i, token in enumerate(free[8:], 8) if token not in free[:i])
    rig = Rig(llama, eos=(eos,))
    rig.add("r", prompt(6), greedy(max_tokens=None))
    rig.add("ignores", prompt(6), greedy(max_tokens=20, ignore_eos=True))
    done = rig.run()
    assert ids(done["r"]) == [free[: free.index(eos) + 1]]
    assert reasons(done["r"]) == ["stop"]
    assert ids(done["ignores"]) == [free]


def test_b27_the_last_place_of_the_model_length_can_be_used(llama):
    rig = Rig(llama, max_model_len=20)
    rig.add("r", prompt(19), greedy(max_tokens=None))
    rig.add("full", prompt(20), greedy())
    done = rig.run()
    assert ids(done["r"]) == [ids(reference(llama, prompt(19), greedy()))[0][:1]]
    assert reasons(done["full"]) == ["error"]
    assert "20 (max_model_len)" in done["full"].outputs[0].stop_reason


# ----------------------------------------------------------------------------- B28
def test_b28_an_empty_text_is_a_prompt_where_the_tokenizer_adds_a_bos(llm):
    alone, beside, _ = (
        *llm.generate("", greedy(), progress=False),
        *llm.generate(["", "hi"], greedy(), progress=False),
    )
    assert len(alone.prompt_token_ids) == 1
    assert ids(alone) == ids(beside)
    assert len(ids(alone)[0]) > 0


def test_b28_an_empty_prompt_is_refused_and_leaves_nothing(llm, monkeypatch):
    monkeypatch.setattr(
        llm.tokenizer, "encode", partial(llm.tokenizer.encode, add_special_tokens=False)
    )
    for prompts in ("", ["", "hi"], ["hi", ""], [[]], ["hi", []]):
        with pytest.raises(RequestError, match="the prompt is empty"):
            llm.generate(prompts, greedy(), progress=False)
        assert_idle(llm)
    assert llm.generate([], greedy(), progress=False) == []
    (output,) = llm.generate("hi", greedy(max_tokens=2), progress=False)
    assert reasons(output) == ["length"]


@pytest.mark.parametrize("bad", [-1, 97, 10**12])
@pytest.mark.parametrize("where", ["prompt", "logit_bias", "stop_token_ids"])
def test_b28_token_ids_that_do_not_exist_are_refused(llama, where, bad):
    def add(where):
        if where == "prompt":
            rig.add("r", [1, bad, 2])
        else:
            rig.add("r", [1, 2], greedy(**{where: {bad: 1.0} if where == "logit_bias" else (bad,)}))

    rig = Rig(llama)
    with pytest.raises(RequestError, match=str(bad)):
        add(where)
    rig.assert_idle()


@pytest.mark.parametrize("bad", [1.5, "1", None, [1]])
def test_b28_what_is_no_token_id_is_refused(llm, bad):
    with pytest.raises(RequestError, match="where a token id should be"):
        llm.generate([[1, 2], [1, bad]], greedy(), progress=False)


def test_b28_token_ids_may_come_from_numpy(llm):
    outputs = llm.generate([[4, 5], numpy.array([4, 5])], greedy(), progress=False)
    assert ids(outputs[0]) == ids(outputs[1])
    assert json.dumps(outputs[1].prompt_token_ids) == "[4, 5]"


# ----------------------------------------------------------------------------- B30
@pytest.mark.parametrize("count", [0, 1, 3, 10**6])
@pytest.mark.parametrize(
    "options",
    [{}, {"chunked_prefill": True, "max_num_seqs": 4, "max_num_batched_tokens": 5},
     {"forced_preemption": 0.4}],
    ids=["whole", "chunked", "preempted"],
)  # fmt: skip
def test_b30_logprobs_are_those_of_a_plain_forward(llama, count, options):
    params = SamplingParams(
        seed=3, temperature=1.5, max_tokens=8, logprobs=count, prompt_logprobs=count
    )
    rig = Rig(llama, **options)
    rig.add("other", prompt(5, 1), greedy())
    rig.add("r", prompt(11), params)
    output = rig.run()["r"]
    (one,) = output.outputs
    assert len(one.logprobs) == len(one.token_ids) == 8
    assert len(output.prompt_logprobs) == 11
    assert output.prompt_logprobs[0] is None
    tokens = prompt(11) + one.token_ids
    expected = plain_logits(llama, torch.tensor(tokens[:-1])).log_softmax(-1)
    entries = [*output.prompt_logprobs[1:], *one.logprobs]
    for entry, token, row in zip(entries, tokens[1:], expected, strict=True):
        assert entry.token_id == token
        assert entry.top[token] == entry.logprob
        listed = min(count, 97)
        assert len(entry.top) - listed in (0, 1)
        best = set(row.topk(listed).indices.tolist())
        assert entry.top.keys() == best | {token}
        for other, logprob in entry.top.items():
            assert logprob == pytest.approx(float(row[other]), abs=1e-4)
        ranked = list(entry.top.values())[:listed]
        assert ranked == sorted(ranked, reverse=True)
    total = sum(entry.logprob for entry in one.logprobs)
    assert one.cumulative_logprob == pytest.approx(total, abs=1e-4)


def test_b30_tokens_that_are_ruled_out_have_numbers_that_json_knows(llama):
    """By bias, by min_tokens, by top-k, and by a tokenizer smaller than the model."""
    rig = Rig(llama, tokenizer=Pieces([f"<{i}>" for i in range(60)]), eos=(5, 6, 7))
    tokens = [token % 60 for token in prompt(6)]
    for name, options in {
        "banned": {"logit_bias": dict.fromkeys(range(50), -100.0)},
        "forced": {"logit_bias": {11: 100.0}},
        "held": {"min_tokens": 8},
        "narrow": {"temperature": 0.7, "top_k": 1, "seed": 1},
    }.items():
        options = {"temperature": 0.0, **options}
        params = SamplingParams(max_tokens=8, logprobs=97, prompt_logprobs=97, **options)
        rig.add(name, tokens, params)
    done = rig.run()
    assert set(ids(done["banned"])[0]) <= set(range(50, 60))
    assert set(ids(done["forced"])[0]) == {11}
    assert not {5, 6, 7} & set(ids(done["held"])[0][:7])
    for output in done.values():
        (one,) = output.outputs
        for entry in [*output.prompt_logprobs[1:], *one.logprobs]:
            text = json.dumps([entry.logprob, entry.top], allow_nan=False)
            assert entry.logprob <= 0, text
            assert max(entry.top) < 60
    assert math.isfinite(done["forced"].outputs[0].cumulative_logprob)


# ----------------------------------------------------------------------------- I14
def test_usage_counts_token_ids_and_not_text(llama):
    """Tokens without text, half a character, a stop string that is cut off, the token that ends
    the output: each is one token."""
    words = Pieces(["", "x", "STOP", "</s>"])
    script = {"empty": [0] * 5, "stop": [1, 2], "eos": [1, 0, 3], "length": [1] * 4}
    rig = Rig(llama, tokenizer=words, eos=(3,), script=script)
    for name, tokens in script.items():
        rig.add(name, [1, 1, 1], greedy(max_tokens=len(tokens), stop=("STOP",)))
    done = rig.run()
    assert {name: len(output.outputs[0].token_ids) for name, output in done.items()} == {
        name: len(tokens) for name, tokens in script.items()
    }
    assert all(len(output.prompt_token_ids) == 3 for output in done.values())
    assert {name: output.outputs[0].text for name, output in done.items()} == {
        "empty": "", "stop": "x", "eos": "x", "length": "xxxx"
    }  # fmt: skip
    assert rig.engine.num_steps == 5


# ----------------------------------------------------------------------------- interrupted runs
class Interrupted:
    """Stands before a method, and at its third call acts as Ctrl-C does."""

    def __init__(self, call):
        self.call, self.calls = call, 0

    def __call__(self, *args):
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt
        return self.call(*args)


@pytest.mark.parametrize(
    "where", ["on_step", "execute", "decide", "schedule", "commit", "select_outputs"]
)
def test_ctrl_c_in_the_middle_of_generate_leaves_an_engine_that_works(llm, where):
    prompts = ["Once upon a time", "hi", "The dog", "She"]
    params = [greedy(max_tokens=8), SamplingParams(n=3, seed=1, max_tokens=8)] * 2
    expected = [ids(output) for output in llm.generate(prompts, params, progress=False)]
    engine, on_step = llm.engine, None
    with pytest.MonkeyPatch.context() as patch:
        if where == "on_step":
            on_step = Interrupted(lambda engine: None)
        else:
            owners = (engine.executor, engine.sampling, engine.scheduler)
            owner = next(owner for owner in owners if hasattr(owner, where))
            patch.setattr(owner, where, Interrupted(getattr(owner, where)))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, params, progress=False, on_step=on_step)
    assert_idle(llm)
    assert [ids(output) for output in llm.generate(prompts, params, progress=False)] == expected


def test_ctrl_c_in_generate_leaves_the_requests_of_others_alone(llm):
    (expected,) = llm.generate("hi", greedy(), progress=False)
    llm.add("hi", greedy(), request_id="other")
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["She", "Once"], greedy(), progress=False,
                     on_step=Interrupted(lambda engine: None))  # fmt: skip
    (other,) = llm.run()
    assert other.request_id == "other"
    assert ids(other) == ids(expected)


# ----------------------------------------------------------------------------- B05, the notes
def test_b05_a_pool_smaller_than_the_longest_request_is_told(loaded):
    small = CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=8, num_cpu_blocks=0)
    llm = LLM("opt-stories", max_model_len=64, cache=small)
    (note,) = [note for note in llm.notes if "KV pool" in note]
    assert "holds 32 tokens" in note
    assert "longest request may have (64)" in note
    assert not [note for note in loaded.notes if "fewer than" in note]
    outputs = llm.generate(["Once " * 40, "Once"], greedy(), progress=False)
    assert [reasons(output) for output in outputs] == [["error"], ["length"]]
