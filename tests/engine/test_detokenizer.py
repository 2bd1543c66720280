"""Text from tokens, one at a time, for real tokenizers that are trained here (trap B26)."""

from __future__ import annotations

import json
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from minipaged.sampling.detokenizer import REPLACEMENT, IncrementalDetokenizer
from minipaged.sampling.text_stream import TextStream
from minipaged.sampling_params import SamplingParams

CORPUS = [
    "Once upon a time there was a little girl. She liked to read, and to read again.",
    "the quick brown fox jumps over the lazy dog; né à Paris, l'été dernier",
    "漢字と仮名 漢字 漢字", "  two spaces,\n\na new paragraph\tand a tab",
] * 20  # fmt: skip
TEXTS = [
    "né漢👩‍👩‍👧", "Once upon a time", " leading space", "  two", "a b  c   d\n\ne",
    "naïve 漢字 test",
    "👩‍👩‍👧👩‍👩‍👧 fox", "été", "the fox, the dog", "\n", "x" * 50, "ÀÉ𝄞 𝔘𝔫𝔦",
]  # fmt: skip


class Adapter:
    """The engine's view of a tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.eos_token_ids = (tokenizer.token_to_id("</s>"),)
        self.decoded = 0

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def decode(self, token_ids, skip_special_tokens=True):
        self.decoded += len(token_ids)
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece():
    """As LLaMA's: spaces written as U+2581, a leading one stripped, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, limit_alphabet=60,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Bytes are ordinary tokens of a SentencePiece model, not special ones.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(data))


@pytest.fixture(scope="module")
def tokenizers():
    return {"byte_level": Adapter(byte_level()), "sentencepiece": Adapter(sentencepiece())}


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request, tokenizers):
    return tokenizers[request.param]


def pieces(tokenizer, tokens, prompt=(), **options):
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, **options)
    return [detokenizer.push(token) for token in tokens] + [detokenizer.finish()]


def test_the_training_texts_exercise_split_characters(tokenizer):
    tokens = tokenizer.encode("né漢👩‍👩‍👧")
    assert any(tokenizer.decode([t]) == REPLACEMENT for t in tokens)


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_to_the_text_and_hold_no_half_character(tokenizer, text):
    tokens = tokenizer.encode(text)
    got = pieces(tokenizer, tokens)
    assert "".join(got) == tokenizer.decode(tokens)
    assert REPLACEMENT not in "".join(got)
    assert got[-1] == ""


@pytest.mark.parametrize("text", TEXTS)
def test_text_goes_on_where_the_prompt_ends(tokenizer, text):
    """The output keeps a leading space that only shows behind a prompt."""
    for head in ("Once upon", "né漢👩‍👩‍👧", "été " * 30, "漢字" * 20, "丁丂七" * 5):
        prompt = tokenizer.encode(head)
        whole = tokenizer.encode(head + text)
        if whole[: len(prompt)] != prompt:  # the tokenizer merged across the border
            whole = prompt + tokenizer.encode(text)
        expected = tokenizer.decode(whole)[len(tokenizer.decode(prompt)) :]
        assert "".join(pieces(tokenizer, whole[len(prompt) :], prompt)) == expected


def test_a_leading_space_is_kept(tokenizers):
    tokenizer = tokenizers["sentencepiece"]
    prompt, output = tokenizer.encode("Once upon"), tokenizer.encode("a time")
    assert tokenizer.decode(output) == "a time"
    assert "".join(pieces(tokenizer, output, prompt)) == " a time"
    assert "".join(pieces(tokenizer, output, [1])) == "a time"  # nothing but a BOS before it


def test_each_character_is_out_with_its_last_token(tokenizer):
    tokens = tokenizer.encode("né漢👩‍👩‍👧 fox")
    prompt = tokenizer.encode("the")
    start = tokenizer.decode(prompt)
    detokenizer, shown = IncrementalDetokenizer(tokenizer, prompt), ""
    for i, token in enumerate(tokens, 1):
        shown += detokenizer.push(token)
        whole = tokenizer.decode(prompt + tokens[:i])
        if not whole.endswith(REPLACEMENT):
            assert start + shown == whole


def test_an_incomplete_character_at_the_end_is_one_replacement_character(tokenizers):
    for tokenizer in tokenizers.values():
        tokens = tokenizer.encode("fox👩")
        for cut in (1, 2, 3):
            if tokenizer.decode(tokens[:-cut]).endswith(REPLACEMENT):
                assert "".join(pieces(tokenizer, tokens[:-cut])) == "fox" + REPLACEMENT


def test_bytes_that_are_no_character_do_not_spoil_their_neighbors(tokenizers):
    for name, token_of in (("byte_level", "ÿ"), ("sentencepiece", "<0xFF>")):
        tokenizer = tokenizers[name]
        bad = tokenizer.tokenizer.token_to_id(token_of)
        fox, kanji = tokenizer.encode("fox"), tokenizer.encode("x𝄞")[-4:]
        tail = tokenizer.decode(tokenizer.encode("x") + fox)[1:]
        got = "".join(pieces(tokenizer, [*fox, *kanji, bad, *fox]))
        assert got == "fox𝄞" + REPLACEMENT + tail
        got = "".join(pieces(tokenizer, [bad, *fox], kanji))
        assert got.startswith(REPLACEMENT)
        assert got.strip(REPLACEMENT).strip() == "fox"


def letters(text):
    return [c for c in text if c.isascii() and not c.isspace()]


def test_random_tokens_never_break_the_stream(tokenizer):
    """Garbage gives U+FFFD, but no text is lost, doubled or taken back."""
    dice = random.Random(1)
    # An ASCII byte token beside a bad byte is a letter or U+FFFD, depending on what is decoded
    # together; all other letters are certain.
    ascii_bytes = tuple(f"<0x{digit}" for digit in range(8))
    name = tokenizer.tokenizer.id_to_token
    vocab = [t for t in range(3, tokenizer.vocab_size) if not name(t).startswith(ascii_bytes)]
    for _ in range(200):
        tokens = dice.choices(vocab, k=40)
        prompt = dice.choices(vocab, k=dice.randrange(9))
        got = "".join(pieces(tokenizer, tokens, prompt))
        whole, before = tokenizer.decode(prompt + tokens), tokenizer.decode(prompt)
        assert letters(got) == letters(whole)[len(letters(before)) :]


class Bytes:
    """A byte-level tokenizer whose tokens are given."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def decode(self, token_ids, skip_special_tokens=True):
        return b"".join(self.tokens[t] for t in token_ids).decode("utf-8", "replace")


def test_whole_characters_do_not_wait_for_the_half_one_behind_them():
    tokenizer = Bytes(b"a\xc3", b"\xa9\xc3", b"\xa9b")
    assert pieces(tokenizer, [0, 1, 1, 2]) == ["a", "é", "é", "éb", ""]


def test_special_tokens_have_text_only_if_asked_for(tokenizers):
    tokenizer = tokenizers["byte_level"]
    tokens = [*tokenizer.encode("fox"), 1, *tokenizer.encode("dog")]
    assert "".join(pieces(tokenizer, tokens)) == "foxdog"
    assert "".join(pieces(tokenizer, tokens, skip_special_tokens=False)) == "fox</s>dog"


def test_a_clone_has_a_future_of_its_own(tokenizer):
    tokens = tokenizer.encode("fox👩")
    one = IncrementalDetokenizer(tokenizer)
    shown = "".join(one.push(token) for token in tokens[:-1])
    two = one.clone()
    assert shown + one.push(tokens[-1]) + one.finish() == "fox👩"
    assert shown + two.finish() == "fox" + REPLACEMENT


@pytest.mark.parametrize("kind", ["text", "kanji", "bad bytes"])
def test_the_cost_of_a_token_does_not_grow(tokenizer, kind):
    text = {"text": "the quick brown fox ", "kanji": "漢字𝄞👩‍👩‍👧", "bad bytes": "é"}[kind]
    tokens = tokenizer.encode(text * 200)
    if kind == "bad bytes":
        broken = tokenizer.encode("👩")[0]
        tokens = [broken] * 500
    detokenizer = IncrementalDetokenizer(tokenizer)
    costs = []
    for token in tokens:
        before = tokenizer.decoded
        detokenizer.push(token)
        costs.append(tokenizer.decoded - before)
    assert max(costs) <= 120
    assert sum(costs[-100:]) <= 1.5 * sum(costs[50:150])


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_gives_the_same_text_whole_and_in_pieces(tokenizer, text):
    for max_tokens in (1, 2, 3, 5, 100):
        tokens = tokenizer.encode(text)[:max_tokens]
        whole, streamed = (TextStream(tokenizer, [], SamplingParams()) for _ in range(2))
        deltas = []
        for token in tokens:
            whole.push(token)
            streamed.push(token)
            deltas.append(streamed.delta())
            assert REPLACEMENT not in deltas[-1]
        whole.finish("length")
        streamed.finish("length")
        deltas.append(streamed.delta())
        assert "".join(deltas) == streamed.text == whole.text
        decoded = tokenizer.decode(tokens)
        cut = REPLACEMENT if decoded.endswith(REPLACEMENT) else ""
        assert whole.text == decoded.rstrip(REPLACEMENT) + cut
        assert deltas[-1] in ("", REPLACEMENT)


def test_a_stop_string_can_be_a_character_of_several_tokens(tokenizer):
    text = TextStream(tokenizer, [], SamplingParams(stop=("👩",)))
    matches = [text.push(token) for token in tokenizer.encode("fox👩")]
    assert matches[-1] is not None
    assert matches[-1].stop == "👩"
    assert text.text == "fox"
