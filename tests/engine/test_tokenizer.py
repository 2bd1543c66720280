"""HFTokenizer against transformers' AutoTokenizer, for the kinds that OPT and LLaMA models use."""

import json
import struct
from itertools import pairwise

import pytest
from tokenizers import ByteLevelBPETokenizer, SentencePieceBPETokenizer
from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer, PreTrainedTokenizerFast

from minipaged.errors import ModelError, RequestError
from minipaged.models.bpe import byte_level_bpe
from minipaged.tokenizer import HFTokenizer

SENTENCES = [
    "Once upon a time, there was a little girl named Lily. She lived in a big city.",
    "The dog's name was Tom; he couldn't swim, but he didn't mind!",
    "One day in 1987 they counted 12345 stars and 678 moons.",
    "Él comió piñas en el café — naïve façade, 漢字 and emoji 🙂.",
    "def add(a, b):\n    return a + b\n\n\tprint(add(1, 2))",
] * 4
TEXTS = [
    "",
    " ",
    "Hello there, little girl.",
    "  two  spaces   and a tail ",
    "line\n\n\nbreaks\tand tabs\r\n",
    "In 1987: 12345 + 678 = 13023",
    "it's, they'll, DON'T",
    "unseen: жук, 漢字, 👩‍👩‍👧, \u0301combining",
    "x = {'a': [1, 2]}  # code",
    "before</s>after </s> end",
    "<s>spelled out",
]


def special(content, **sides):
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"__type": "AddedToken", "content": content, **plain, **sides}


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """A folder with vocab.json and merges.txt."""
    folder = tmp_path_factory.mktemp("byte_level")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        SENTENCES, vocab_size=420, special_tokens=["<s>", "<pad>", "</s>", "<unk>"]
    )
    trained.save_model(str(folder))
    return folder


@pytest.fixture(scope="module")
def pieces():
    """A vocabulary as LLaMA's: special pieces, bytes, then merges by falling score."""
    trained = SentencePieceBPETokenizer(add_prefix_space=False)
    trained.train_from_iterator(SENTENCES, vocab_size=400, special_tokens=["<unk>"])
    learned = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    head = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    body = [piece for piece, _ in learned if piece not in head]
    characters = [piece for piece in body if len(piece) == 1]
    merged = [piece for piece in body if len(piece) > 1]
    scores = [0.0] * len(head) + [float(-i) for i in range(len(merged))]
    scores += [float(-len(merged) - i) for i in range(len(characters))]
    return head + merged + characters, scores


def opt_folder(tmp_path, byte_level):
    """What facebook/opt-125m holds: no tokenizer.json, special tokens as maps."""
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text((byte_level / name).read_text())
    end = special("</s>", normalized=True)
    settings = {
        **dict.fromkeys(("unk_token", "bos_token", "eos_token"), end),
        "pad_token": special("<pad>", normalized=True),
        "add_prefix_space": False,
        "add_bos_token": True,
        "errors": "replace",
        "tokenizer_class": "GPT2Tokenizer",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "opt", "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1})
    )
    return tmp_path


def llama_model_file(pieces, model_type=2, charsmap=b"", remove_spaces=0):
    """``tokenizer.model``, encoded by hand as a protocol buffer."""

    def varint(value):
        out = b""
        while value > 0x7F:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    def field(number, value):
        if isinstance(value, float):
            return varint(number << 3 | 5) + struct.pack("<f", value)
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    message = b""
    for index, (text, score) in enumerate(zip(*pieces)):
        kind = 2 if index == 0 else 3 if index < 3 else 6 if index < 259 else 1
        message += field(1, field(1, text.encode()) + field(2, score) + field(3, kind))
    message += field(2, field(3, model_type))
    return message + field(3, field(2, charsmap) + field(3, 1) + field(4, remove_spaces))


def assert_same(ours, theirs, texts=TEXTS):
    for text in texts:
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids, text
        bare = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text, add_special_tokens=False) == bare, text
        for skip in (True, False):
            told = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == told, text


def test_opt_repository_without_tokenizer_json_equals_transformers(tmp_path, byte_level):
    folder = opt_folder(tmp_path, byte_level)
    ours = HFTokenizer.from_folder(folder)
    assert_same(ours, AutoTokenizer.from_pretrained(folder))
    assert ours.encode("Hello")[0] == 2, "OPT starts every text with </s>"
    assert ours.eos_token_ids == (2,)
    assert ours.bos_token_id == 2


def test_opt_with_tokenizer_json_as_transformers_saves_it(tmp_path, byte_level):
    theirs = AutoTokenizer.from_pretrained(opt_folder(tmp_path, byte_level))
    theirs.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    ours = HFTokenizer.from_folder(tmp_path / "saved")
    assert_same(ours, theirs)
    assert ours.encode("Hello")[0] == 2
    assert ours.eos_token_ids == (2,), "without a config.json, the id of eos_token"


def test_gpt2_without_bos_equals_transformers(tmp_path, byte_level):
    theirs = GPT2Tokenizer(
        vocab=str(byte_level / "vocab.json"),
        merges=str(byte_level / "merges.txt"),
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>"),
    )
    theirs.save_pretrained(tmp_path)
    ours = HFTokenizer.from_folder(tmp_path)
    assert_same(ours, AutoTokenizer.from_pretrained(tmp_path))
    assert ours.encode("") == []


def test_smollm2_style_splits_digits_and_adds_nothing(tmp_path, byte_level):
    from tokenizers import pre_tokenizers

    vocab = json.loads((byte_level / "vocab.json").read_text())
    lines = (byte_level / "merges.txt").read_text().splitlines()[1:]
    split = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    backend = byte_level_bpe(vocab, [tuple(line.split(" ")) for line in lines], split)
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(tmp_path)
    ours = HFTokenizer.from_folder(tmp_path)
    assert_same(ours, AutoTokenizer.from_pretrained(tmp_path))
    assert len(ours.encode("1987", add_special_tokens=True)) == 4


@pytest.mark.parametrize("legacy", [False, True])
def test_llama_sentencepiece_file_equals_transformers(tmp_path, pieces, legacy):
    (tmp_path / "tokenizer.model").write_bytes(llama_model_file(pieces))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {**named, "add_bos_token": True, "add_eos_token": False, "legacy": legacy}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    from transformers.tokenization_utils_base import generate_merges

    vocab = {piece: index for index, piece in enumerate(pieces[0])}
    skip = ["<unk>", "<s>", "</s>"]
    theirs = LlamaTokenizer(
        vocab=vocab, merges=generate_merges(vocab, dict(zip(*pieces)), skip), **settings
    )
    assert_same(HFTokenizer.from_folder(tmp_path), theirs)


def test_llama_merges_follow_sentencepiece_own_algorithm(tmp_path, pieces):
    """SentencePiece joins, again and again, the neighbors whose union has the highest score."""
    (tmp_path / "tokenizer.model").write_bytes(llama_model_file(pieces))
    ours = HFTokenizer.from_folder(tmp_path)
    score = dict(zip(*pieces))
    for text in SENTENCES[:5]:
        symbols = list("▁" + text.replace(" ", "▁"))
        while True:
            joins = [
                (score[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in score
            ]
            if not joins:
                break
            at = -max(joins)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        expected = []
        for symbol in symbols:
            known = [symbol] if symbol in score else [f"<0x{b:02X}>" for b in symbol.encode()]
            expected += known
        assert [ours.id_to_token(i) for i in ours.encode(text)] == expected


def test_llama_with_tokenizer_json_equals_transformers(tmp_path, pieces):
    (tmp_path / "tokenizer.model").write_bytes(llama_model_file(pieces))
    vocab = {piece: index for index, piece in enumerate(pieces[0])}
    from transformers.tokenization_utils_base import generate_merges

    merges = generate_merges(vocab, dict(zip(*pieces)), ["<unk>", "<s>", "</s>"])
    LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    ours = HFTokenizer.from_folder(tmp_path)
    assert_same(ours, AutoTokenizer.from_pretrained(tmp_path))
    assert ours.encode("Hello")[0] == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": 1}, "another kind than BPE"),
        ({"charsmap": b"x"}, "normalizes"),
        ({"remove_spaces": 1}, "normalizes"),
    ],
)
def test_other_sentencepiece_kinds_are_refused(tmp_path, pieces, change, named):
    (tmp_path / "tokenizer.model").write_bytes(llama_model_file(pieces, **change))
    with pytest.raises(ModelError, match=named):
        HFTokenizer.from_folder(tmp_path)


def test_damaged_tokenizer_files_are_named(tmp_path, pieces):
    whole = llama_model_file(pieces)
    for content in (whole[:-3], whole[: len(whole) // 2], b"", b"version https://git-lfs"):
        (tmp_path / "tokenizer.model").write_bytes(content)
        with pytest.raises(ModelError, match=r"tokenizer\.model"):
            HFTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        HFTokenizer.from_folder(tmp_path)


def test_a_folder_without_a_tokenizer(tmp_path):
    assert HFTokenizer.find(tmp_path) is None
    with pytest.raises(ModelError, match=r"vocab\.json with merges\.txt"):
        HFTokenizer.from_folder(tmp_path)


# --------------------------------------------------------------------------- ids and sizes
def test_eos_ids_come_from_both_configs_without_repeats(tmp_path, byte_level):
    folder = opt_folder(tmp_path, byte_level)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert HFTokenizer.from_folder(folder).eos_token_ids == (7, 2)


def test_vocab_size_covers_every_id_that_has_text(tmp_path, byte_level):
    ours = HFTokenizer.from_folder(opt_folder(tmp_path, byte_level))
    assert ours.id_to_token(ours.vocab_size - 1) is not None
    assert ours.id_to_token(ours.vocab_size) is None
    assert ours.decode([ours.vocab_size, 10**6]) == ""


def test_text_that_is_no_unicode_is_a_request_error(tmp_path, byte_level):
    ours = HFTokenizer.from_folder(opt_folder(tmp_path, byte_level))
    with pytest.raises(RequestError, match="Unicode"):
        ours.encode("half a surrogate: \ud83d")


def test_truncation_stored_in_the_file_is_not_applied(tmp_path, byte_level):
    theirs = AutoTokenizer.from_pretrained(opt_folder(tmp_path, byte_level))
    theirs.backend_tokenizer.enable_truncation(max_length=4)
    theirs.save_pretrained(tmp_path / "saved")
    ours = HFTokenizer.from_folder(tmp_path / "saved")
    assert len(ours.encode(SENTENCES[0])) > 10


# --------------------------------------------------------------------------- chat templates
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message['role'] == 'user' %}[INST] {{ message['content'] | trim }} [/INST]"
    "{% elif message['role'] == 'assistant' %}\n"
    "        {% generation %}{{ message['content'] }}{% endgeneration %}{{ eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}\n"
    "{% endfor %}{{ {'é': 1} | tojson }}{% if tools is none %}!{% endif %}"
)
CHAT = [
    {"role": "user", "content": " What is 漢? "},
    {"role": "assistant", "content": "A character."},
    {"role": "user", "content": "<b>Thanks</b> & bye"},
]


def with_template(byte_level, tmp_path, template):
    folder = opt_folder(tmp_path, byte_level)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("template", [CHATML, LLAMA2])
@pytest.mark.parametrize("prompt", [True, False])
def test_chat_template_equals_transformers(tmp_path, byte_level, template, prompt):
    folder = with_template(byte_level, tmp_path, template)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=prompt
    )
    assert HFTokenizer.from_folder(folder).apply_chat_template(CHAT, prompt) == theirs


def test_chat_template_from_its_own_file_or_a_list(tmp_path, byte_level):
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    folder = with_template(byte_level, tmp_path, named)
    assert "Be kind" in HFTokenizer.from_folder(folder).apply_chat_template(CHAT)
    (folder / "chat_template.jinja").write_text("from the file")
    assert HFTokenizer.from_folder(folder).apply_chat_template(CHAT) == "from the file"


def test_a_model_without_chat_template_says_so(tmp_path, byte_level):
    ours = HFTokenizer.from_folder(opt_folder(tmp_path, byte_level))
    assert not ours.has_chat_template
    with pytest.raises(ModelError, match="no chat template"):
        ours.apply_chat_template(CHAT)


@pytest.mark.parametrize(
    "messages", [[], ["hi"], [{"content": "no role"}], [{"role": "system", "content": "x"}]]
)
def test_messages_that_a_template_refuses(tmp_path, byte_level, messages):
    ours = HFTokenizer.from_folder(with_template(byte_level, tmp_path, LLAMA2))
    with pytest.raises(RequestError):
        ours.apply_chat_template(messages)


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path, byte_level):
    template = "{{ messages.__class__.__base__.__subclasses__() }}"
    ours = HFTokenizer.from_folder(with_template(byte_level, tmp_path, template))
    with pytest.raises(RequestError, match="unsafe"):
        ours.apply_chat_template(CHAT)


def test_a_template_that_is_no_jinja_is_a_model_error(tmp_path, byte_level):
    ours = HFTokenizer.from_folder(with_template(byte_level, tmp_path, "{% for %}"))
    with pytest.raises(ModelError, match="not valid"):
        ours.apply_chat_template(CHAT)
