"""The committed model ``opt-stories``: its files, its numbers, and its answers in two engines."""

import importlib.util
import json
import math
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoTokenizer, OPTForCausalLM

import minipaged
from minipaged.models.causal_lm import split_heads
from minipaged.models.loader import load_model

FOLDER = Path(minipaged.__file__).parent / "models" / "opt_stories"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_opt_stories.py"
END = 2  # </s>
FOREIGN_BOUND = 3.8  # the same, for a story by another author
HELD_OUT_BOUND = 3.3  # nats a token; a uniform guess over the vocabulary is 6.93
PROMPT = "Once upon a time"

# Not in the corpus, but of its kind.
FOREIGN_STORY = (
    "Once upon a time, there was a little girl named Anna. She lived in a small village with her "
    "mother and her dog. One day, Anna and her dog went to the forest to play. They saw a big "
    "bird in a tree. The bird was sad because it could not find its friends. Anna wanted to help. "
    "She looked for the friends of the bird all day, and she found them near the river. The bird "
    "was very happy and thanked Anna. From that day on, they were the best of friends."
)


@pytest.fixture(scope="module")
def reference():
    return OPTForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def loaded():
    return load_model("opt-stories", dtype="float32")


@pytest.fixture(scope="module")
def card():
    return (FOLDER / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def maker():
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("train_opt_stories", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def number(card, label):
    """A value of the card's table."""
    return float(re.search(rf"^\| {re.escape(label)} \| ([\d.]+) \|$", card, re.M).group(1))


def shown_stories(card):
    """The card's held-out stories, each with whether its end is part of it."""
    text = re.search(r"```text\n(.*?)```", card, re.S).group(1)
    pieces = re.split(r"\n<\|(end|cut)\|>\n", text)
    assert pieces.pop() == ""
    return [(story, mark == "end") for story, mark in zip(pieces[::2], pieces[1::2])]


@torch.inference_mode()
def story_loss(model, tokenizer, text, ended):
    """Sum of nats over what follows each token of a story, and the number of those tokens."""
    ids = tokenizer(text).input_ids
    targets = ids[1:] + [END] * ended
    logits = model(torch.tensor([ids])).logits[0, : len(targets)]
    return F.cross_entropy(logits, torch.tensor(targets), reduction="sum").item(), len(targets)


@torch.inference_mode()
def dense_logits(model, ids):
    """Logits of a minipaged model at every position, without any cache."""

    def attend(layer, heads, rotary):
        q, k, v = (x.transpose(0, 1) for x in split_heads(heads, model.config, rotary))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)

    tokens = torch.tensor(ids)
    return model.logits(model(tokens, torch.arange(len(ids)), attend))


def test_the_folder_is_complete_and_small():
    names = {file.name for file in FOLDER.iterdir()}
    assert names == {
        "README.md", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 3_000_000


def test_it_is_an_opt_of_a_million_parameters_in_float16(reference):
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["OPTForCausalLM"]
    assert config["dtype"] == "float16"
    assert 0.9e6 < sum(p.numel() for p in reference.parameters()) < 1.2e6


def test_minipaged_gives_the_logits_of_transformers_at_every_position(reference, loaded):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 1024, (loaded.config.max_model_len,), generator=generator).tolist()
    ids[0] = END
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(dense_logits(loaded.model, ids), expected, atol=1e-4, rtol=0)


def test_both_tokenizers_open_a_text_with_the_end_token_and_give_it_back(tokenizer, loaded):
    texts = [FOREIGN_STORY, "", " two  spaces ", 'He said: "Stop!"\n\nnaïve 漢字 👩‍👩‍👧 12345']
    for text in texts:
        ids = tokenizer(text).input_ids
        assert ids[0] == END
        assert loaded.tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert loaded.tokenizer.decode(ids) == text


def test_special_tokens_have_the_ids_of_opt(tokenizer, loaded):
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>"]) == [0, 1, END]
    assert loaded.tokenizer.eos_token_ids == (END,)
    assert loaded.tokenizer.vocab_size == loaded.config.vocab_size == len(tokenizer)


def test_the_card_states_the_loss_that_the_file_gives(reference, tokenizer, card):
    stories = shown_stories(card)
    losses = [story_loss(reference, tokenizer, *story) for story in stories]
    mean = sum(loss for loss, _ in losses) / sum(count for _, count in losses)
    label = f"loss on the {len(stories)} held-out stories below, nats a token"
    assert len(stories) >= 4
    assert mean == pytest.approx(number(card, label), abs=1e-3)
    assert mean < HELD_OUT_BOUND


def test_the_numbers_of_the_card_agree_with_each_other(card, maker):
    train, held_out = (
        number(card, f"{side} loss, nats a token") for side in ("training", "held-out")
    )
    assert train < held_out < HELD_OUT_BOUND
    assert held_out - train < 0.5, "it has learned its stories by heart"
    characters, tokens = re.search(
        r"held-out set.* (\d+) characters, (\d+) tokens", card
    ).groups()  # fmt: skip
    bits = held_out * int(tokens) / int(characters) / math.log(2)
    assert bits == pytest.approx(number(card, "held-out bits a byte"), rel=0.01)


def test_no_story_of_the_card_was_trained_on(card, maker):
    for text, ended in shown_stories(card):
        assert maker.is_held_out(maker.Story(text, ended))


def test_a_story_that_it_never_saw_is_likely_and_its_scrambled_words_are_not(reference, tokenizer):
    loss, count = story_loss(reference, tokenizer, FOREIGN_STORY, True)
    words = FOREIGN_STORY.split()
    scrambled, scrambled_count = story_loss(
        reference, tokenizer, " ".join(words[i * 29 % len(words)] for i in range(len(words))), True
    )
    assert loss / count < FOREIGN_BOUND
    assert scrambled / scrambled_count > loss / count + 1


@torch.inference_mode()
def test_the_greedy_story_is_the_one_in_the_card_and_made_of_english_words(
    reference, tokenizer, card
):
    ids = torch.tensor([tokenizer(PROMPT).input_ids])
    out = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=60)
    text = tokenizer.decode(out[0], skip_special_tokens=True)
    quoted = re.search(r"Greedy, .*?\n\n((?:>.*\n)+)", card).group(1)
    story = "\n".join(line[1:].removeprefix(" ") for line in quoted.splitlines())
    # Less its last word: arithmetic of another machine may part ways somewhere far on.
    assert story.startswith(text[:80])
    known = set(re.findall(r"[a-z]+", " ".join(s for s, _ in shown_stories(card)).lower()))
    words = re.findall(r"[a-z]+", text.lower())
    assert len(words) > 30
    assert sum(word in known for word in words) > 0.7 * len(words)


@torch.inference_mode()
def test_stories_end(reference, tokenizer):
    torch.manual_seed(0)
    ids = torch.tensor([tokenizer(PROMPT).input_ids] * 8)
    out = reference.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=350, do_sample=True, top_k=0
    )
    ended = (out[:, ids.shape[1] :] == END).any(dim=1)
    assert ended.sum() >= 3


# --------------------------------------------------------------------------- the script
def test_an_interrupted_corpus_goes_on_where_its_last_whole_story_ends(maker, tmp_path):
    corpus = tmp_path / "stories.txt"
    corpus.write_text("One. Two\n<|end|>\nThree.\n<|cut|>\nFour, and th")
    assert maker.read_stories(corpus) == [
        maker.Story("One. Two", True),
        maker.Story("Three.", False),
    ]
    maker.write_stories(corpus, count=2, seed=0)  # two are there: no model is asked
    assert corpus.read_text() == "One. Two\n<|end|>\nThree.\n<|cut|>\n"


class Writer:
    """In SmolLM2's place: a text for each prompt and seed; every third one runs out of tokens."""

    def __init__(self, model):
        assert model == "smollm2-135m"

    def generate(self, prompts, params):
        for prompt, p in zip(prompts, params, strict=True):
            reason = "length" if p.seed % 3 == 2 else "stop"
            output = SimpleNamespace(text=f" {len(prompt)} of {p.seed}.", finish_reason=reason)
            yield SimpleNamespace(outputs=[output])


def test_a_corpus_written_in_two_goes_is_the_one_written_in_one(maker, tmp_path, monkeypatch):
    monkeypatch.setitem(vars(minipaged), "LLM", Writer)
    one, two = tmp_path / "a" / "one.txt", tmp_path / "two.txt"
    maker.write_stories(one, count=10, seed=3, batch=4)
    maker.write_stories(two, count=7, seed=3, batch=3)
    with two.open("a") as file:
        file.write("Once upon")
    maker.write_stories(two, count=10, seed=3, batch=2)
    assert one.read_text() == two.read_text()
    stories = maker.read_stories(one)
    assert len(stories) == 10
    assert 0 < sum(story.ended for story in stories) < 10
    assert all(story.text.startswith("Once upon a time, there w") for story in stories)


def test_a_story_depends_on_its_number_alone(maker):
    prompts = [maker.story_prompt(0, i) for i in range(200)]
    assert prompts == [maker.story_prompt(0, i) for i in range(200)]
    assert len(set(prompts)) > 150
    assert all(chat.endswith(opening) for chat, opening in prompts)


def test_near_copies_are_left_out_and_half_sentences_cut_off(maker):
    one = maker.Story(FOREIGN_STORY + " The next day Anna", True)
    two = maker.Story(FOREIGN_STORY.replace("Anna", "Maria"), True)
    other = maker.Story("A fox wanted to swim. So it went to the lake, and swam for a day.", False)
    whole = [maker.whole_sentences(story) for story in (one, two, other)]
    assert whole[0].text == FOREIGN_STORY
    assert maker.drop_near_copies(whole) == [whole[0], whole[2]]


def test_a_story_that_goes_round_in_circles_is_known(maker):
    assert not maker.goes_round_in_circles(maker.Story(FOREIGN_STORY, True))
    circles = FOREIGN_STORY + " She ate an egg at a time. She ate an egg at a time." * 3
    assert maker.goes_round_in_circles(maker.Story(circles, True))
    assert not maker.goes_round_in_circles(maker.Story("The end.", True))


def test_labels_are_the_next_tokens_and_a_cut_story_has_no_end(maker):
    recipe = maker.Recipe(vocab_size=300)
    tokenizer = maker.train_tokenizer([FOREIGN_STORY], recipe)
    ended, cut = maker.encode(
        [maker.Story("Anna.", True), maker.Story("Anna.", False)], tokenizer, 512
    )
    assert ended.inputs[0] == END
    assert ended.labels == [*ended.inputs[1:], END]
    assert cut.labels == [*cut.inputs[1:], maker.IGNORED]


@pytest.fixture
def torch_settings():
    """Puts back what the script sets for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def test_the_script_makes_a_model_and_twice_the_same(maker, tmp_path, torch_settings):
    rng = random.Random(0)
    words = sorted(set(FOREIGN_STORY.split()))
    stories = [" ".join(rng.choices(words, k=40)) + "." for _ in range(60)]
    corpus = tmp_path / "stories.txt"
    corpus.write_text("".join(f"{story}\n<|end|>\n" for story in stories))
    recipe = maker.Recipe(
        vocab_size=320, num_layers=1, hidden_size=16, num_heads=2, ffn_dim=32, max_positions=64,
        epochs=2, warmup=2, evaluations=3, threads=1,
    )  # fmt: skip
    for name in ("one", "two"):
        maker.make_model(corpus, tmp_path / name, recipe)
    files = {file.name for file in (tmp_path / "one").iterdir()}
    assert files == {file.name for file in FOLDER.iterdir()}
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    loss = number((tmp_path / "one" / "README.md").read_text(), "training loss, nats a token")
    assert loss < math.log(320) - 0.3
