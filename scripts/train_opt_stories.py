"""Make the embedded model ``opt-stories``: a real OPT of about one million parameters.

Two steps, together or one at a time::

    python scripts/train_opt_stories.py --write 4000 --train

``--write N`` lets SmolLM2-135M-Instruct, served by this engine, write stories until the corpus
holds ``N`` of them; stopped and started again, it goes on where it was. ``--train`` trains a
byte-level BPE tokenizer and the model on the corpus, stops early by stories that training
never sees, and writes the model's folder with its card. Every number in the card is computed
from the float16 file that was saved.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, OPTConfig, OPTForCausalLM

REPOSITORY = Path(__file__).resolve().parents[1]
CORPUS = REPOSITORY / "build" / "stories.txt"
MODEL_FOLDER = REPOSITORY / "minipaged" / "models" / "opt_stories"
SIZE_LIMIT = 3_000_000  # bytes of the whole folder: it lives in git

# ids as OPT has them; </s> opens every text and ends it
BOS, PAD, EOS = "<s>", "<pad>", "</s>"
SPECIAL_IDS = {BOS: 0, PAD: 1, EOS: 2}
EOS_ID, PAD_ID = SPECIAL_IDS[EOS], SPECIAL_IDS[PAD]
IGNORED = -100  # a label that costs nothing


@dataclass(frozen=True)
class Recipe:
    """Everything that the result depends on, beside the corpus."""

    seed: int = 0
    vocab_size: int = 1024
    num_layers: int = 4
    hidden_size: int = 128
    num_heads: int = 4
    ffn_dim: int = 512
    max_positions: int = 512
    dropout: float = 0.1
    rows: int = 2
    """Rows of ``max_positions`` tokens a step."""
    epochs: float = 10.0
    """The most times that a training token is seen, and the length of the cosine."""
    warmup: int = 50
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    evaluations: int = 12
    patience: int = 3
    """Evaluations without progress on the held-out stories that end the training."""
    threads: int = 2
    """Of torch: they order its sums, so they are part of the recipe."""


# --------------------------------------------------------------------------- the corpus
ENDED, CUT = "<|end|>", "<|cut|>"
"""The line after a story: it came to its end, or to the writer's token limit."""


@dataclass(frozen=True)
class Story:
    text: str
    ended: bool


def read_stories(corpus: Path) -> list[Story]:
    """All stories of a corpus, in order. Text after the last mark is an interrupted write, and
    is left out."""
    pieces = re.split(r"(<\|(?:end|cut)\|>)", corpus.read_text("utf-8"))
    return [Story(t.strip(), m == ENDED) for t, m in zip(pieces[::2], pieces[1::2], strict=False)]


HEROES = (
    "a little girl named Lily", "a boy named Tom", "a small dog", "a kind rabbit", "a brave cat",
    "a tiny bird", "an old farmer", "a young robot", "a hungry mouse", "a big brown bear",
    "a baker", "a fisherman", "a shy fox", "a green frog", "a red boat", "a lonely cloud",
    "a wise owl", "a girl named Mia", "a boy named Ben", "a funny duck", "a slow turtle",
    "a baby elephant", "a princess", "a little train", "a sleepy lion", "a white horse",
    "two brothers", "a clever crow", "a busy bee", "a grandmother", "a sad king", "a teacher",
)  # fmt: skip
MATTERS = (
    "a lost toy", "a rainy day", "a new friend", "a birthday cake", "a long way home",
    "a secret garden", "being afraid of the dark", "a broken cup", "sharing", "a big storm",
    "a snowy night", "learning to swim", "a magic stone", "telling the truth", "a noisy party",
    "an old tree", "a trip to the sea", "helping a neighbor", "a race", "a surprise",
    "a missing hat", "a song", "a letter", "planting a seed", "a cold winter", "a little star",
)  # fmt: skip


def story_prompt(seed: int, index: int) -> tuple[str, str]:
    """The prompt for one story, and the words of it that belong to the story.

    The instruct model is asked in its own chat format, with the first words of its answer
    given: so stories differ, start as they should, and come to an end.
    """
    rng = random.Random(f"{seed}:{index}")
    hero, matter = rng.choice(HEROES), rng.choice(MATTERS)
    was = "were" if hero.startswith("two") else "was"
    opening = f"Once upon a time, there {was} {hero}."
    request = f"Write a very short story, of two paragraphs, about {hero} and {matter}."
    chat = f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n{opening}"
    return chat, opening


def write_stories(corpus: Path, count: int, seed: int, batch: int = 128) -> None:
    """Let SmolLM2 write until ``corpus`` holds ``count`` stories.

    Story ``i`` depends on ``(seed, i)`` alone, so an interrupted run continues as if it had
    never stopped.
    """
    corpus.parent.mkdir(parents=True, exist_ok=True)
    done = _drop_unfinished_tail(corpus)
    if done >= count:
        return
    from minipaged import LLM, SamplingParams  # here: training needs no engine

    llm = LLM("smollm2-135m")
    for start in range(done, count, batch):
        indices = range(start, min(start + batch, count))
        prompts, openings = zip(*(story_prompt(seed, i) for i in indices), strict=True)
        params = [
            SamplingParams(
                temperature=0.8,
                top_p=0.95,
                frequency_penalty=0.3,  # so small a model goes round in circles without it
                max_tokens=240,
                seed=(seed << 32) + i,
            )
            for i in indices
        ]
        results = [r.outputs[0] for r in llm.generate(list(prompts), params)]
        with corpus.open("a", encoding="utf-8") as file:
            for opening, result in zip(openings, results, strict=True):
                mark = ENDED if result.finish_reason == "stop" else CUT
                file.write(f"{opening}{result.text.rstrip()}\n{mark}\n")
            file.flush()
            os.fsync(file.fileno())
        print(f"{indices.stop} of {count} stories in {corpus}", flush=True)


def _drop_unfinished_tail(corpus: Path) -> int:
    """Cut the corpus after its last mark; the number of stories that it then holds."""
    if not corpus.exists():
        return 0
    text = corpus.read_text("utf-8")
    ends = [mark.end() for mark in re.finditer(r"<\|(?:end|cut)\|>\n", text)]
    whole = ends[-1] if ends else 0
    if whole < len(text):
        corpus.write_text(text[:whole], "utf-8")
    return len(ends)


# --------------------------------------------------------------------------- from text to rows
def whole_sentences(story: Story) -> Story:
    """The story up to its last finished sentence, which is then its end.

    Nobody should learn to stop in the middle of a sentence; and one that the token limit cut
    ends all the same, because the writer seldom comes to an end by itself.
    """
    ends = [m.end() for m in re.finditer(r"[.!?][\"'”’)]*(?=\s|$)", story.text)]
    return Story(story.text[: ends[-1]] if ends else "", ended=True)


def goes_round_in_circles(story: Story, limit: float = 0.15) -> bool:
    """Are more than ``limit`` of its 4-word runs repetitions of earlier ones?"""
    words = re.findall(r"\w+", story.text.lower())
    runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(set(runs)) < (1 - limit) * len(runs)


def drop_near_copies(stories: Iterable[Story], limit: float = 0.5) -> list[Story]:
    """Leave out each story that shares more than ``limit`` of its 4-word runs with an earlier
    one; else a held-out story might be one that was trained on."""
    kept: list[Story] = []
    holders: dict[tuple[str, ...], list[int]] = {}
    for story in stories:
        words = re.findall(r"\w+", story.text.lower())
        runs = {tuple(words[i : i + 4]) for i in range(len(words) - 3)}
        shared: dict[int, int] = {}
        for run in runs:
            for holder in holders.get(run, ()):
                shared[holder] = shared.get(holder, 0) + 1
        if not runs or max(shared.values(), default=0) > limit * len(runs):
            continue
        for run in runs:
            holders.setdefault(run, []).append(len(kept))
        kept.append(story)
    return kept


def is_held_out(story: Story) -> bool:
    """One story in ten, by its text: a corpus that grows moves no story to the other side."""
    return hashlib.sha256(story.text.encode()).digest()[0] < 26


def train_tokenizer(texts: list[str], recipe: Recipe) -> Tokenizer:
    """Byte-level BPE with OPT's special tokens; encoding puts ``</s>`` first, as OPT's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        special_tokens=list(SPECIAL_IDS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{EOS} $A", pair=f"{EOS} $A {EOS} $B", special_tokens=[(EOS, EOS_ID)]
            ),
        ]
    )
    return tokenizer


@dataclass(frozen=True)
class Encoded:
    """A story as inputs and labels, each ``[tokens]``; ``labels[i]`` is what follows token ``i``:
    ``</s>`` at the end of a story that ended, nothing at the end of one that was cut."""

    inputs: list[int]
    labels: list[int]


def encode(stories: Iterable[Story], tokenizer: Tokenizer, longest: int) -> list[Encoded]:
    encoded = []
    for story in stories:
        ids = tokenizer.encode(story.text).ids
        labels = [*ids[1:], EOS_ID if story.ended else IGNORED]
        encoded.append(Encoded(ids[:longest], labels[:longest]))
    return encoded


def training_rows(stories: list[Encoded], length: int, rng: random.Random) -> Iterator[Encoded]:
    """Rows of ``length`` tokens, for ever: shuffled stories one after the other.

    Every row starts with a story, as a prompt does; later ones give the later positions
    something to learn. What does not fit is left for another shuffle.
    """
    inputs: list[int] = []
    labels: list[int] = []
    while True:
        for story in rng.sample(stories, len(stories)):
            inputs += story.inputs
            labels += story.labels
            if len(inputs) >= length:
                yield Encoded(inputs[:length], labels[:length])
                inputs, labels = [], []


def as_batch(rows: list[Encoded]) -> tuple[Tensor, Tensor]:
    """``[rows, longest]`` inputs and labels, padded on the right."""
    longest = max(len(row.inputs) for row in rows)
    inputs = [row.inputs + [PAD_ID] * (longest - len(row.inputs)) for row in rows]
    labels = [row.labels + [IGNORED] * (longest - len(row.labels)) for row in rows]
    return torch.tensor(inputs), torch.tensor(labels)


# --------------------------------------------------------------------------- training
def build_model(recipe: Recipe) -> OPTForCausalLM:
    config = OPTConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        ffn_dim=recipe.ffn_dim,
        max_position_embeddings=recipe.max_positions,
        word_embed_proj_dim=recipe.hidden_size,
        dropout=recipe.dropout,
        tie_word_embeddings=True,
        bos_token_id=EOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    return OPTForCausalLM(config)


def total_loss(model: OPTForCausalLM, rows: list[Encoded]) -> tuple[Tensor, int]:
    """Cross-entropy in nats, summed over the labels, and the number of labels."""
    inputs, labels = as_batch(rows)
    # An explicit mask of ones: otherwise transformers masks what looks like padding.
    logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits
    loss = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return loss, int((labels != IGNORED).sum())


@torch.inference_mode()
def mean_loss(model: OPTForCausalLM, stories: list[Encoded], batch: int = 16) -> float:
    """Nats a token, each story by itself from position 0."""
    model.eval()
    by_length = sorted(stories, key=lambda story: len(story.inputs))
    starts = range(0, len(by_length), batch)
    parts = [total_loss(model, by_length[start : start + batch]) for start in starts]
    return sum(loss.item() for loss, _ in parts) / sum(count for _, count in parts)


def learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """At step 1 .. ``steps``: warm-up, then a cosine down to a twentieth."""
    if step <= recipe.warmup:
        return recipe.learning_rate * step / recipe.warmup
    progress = (step - recipe.warmup) / (steps - recipe.warmup)
    return recipe.learning_rate * (0.525 + 0.475 * math.cos(math.pi * progress))


def build_optimizer(model: OPTForCausalLM, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98))


def train_step(
    model: OPTForCausalLM, optimizer: torch.optim.Optimizer, rows: list[Encoded]
) -> float:
    """One update; the loss before it, in nats a token."""
    model.train()
    total, count = total_loss(model, rows)
    loss = total / count
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def train(train_set: list[Encoded], held_out: list[Encoded], recipe: Recipe) -> OPTForCausalLM:
    """The model at its lowest held-out loss."""
    torch.manual_seed(recipe.seed)
    model = build_model(recipe)
    optimizer = build_optimizer(model, recipe)
    rows = training_rows(train_set, recipe.max_positions, random.Random(recipe.seed))
    tokens = sum(len(story.inputs) for story in train_set)
    steps = math.ceil(recipe.epochs * tokens / (recipe.rows * recipe.max_positions))
    eval_every = math.ceil(steps / recipe.evaluations)
    best, best_step, best_weights = math.inf, 0, model.state_dict()
    started = time.perf_counter()
    recent: list[float] = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, recipe)
        recent.append(train_step(model, optimizer, list(itertools.islice(rows, recipe.rows))))
        if step % eval_every and step < steps:
            continue
        now = mean_loss(model, held_out)
        seconds = time.perf_counter() - started
        print(
            f"step {step} of {steps}: train {sum(recent) / len(recent):.3f}, "
            f"held-out {now:.3f}, {seconds:.0f} s",
            flush=True,
        )
        recent.clear()
        if now < best:
            best, best_step = now, step
            best_weights = {name: w.clone() for name, w in model.state_dict().items()}
        elif step - best_step >= recipe.patience * eval_every:
            break
    model.load_state_dict(best_weights)
    print(f"best: held-out {best:.3f} at step {best_step}")
    return model


# --------------------------------------------------------------------------- the model's folder
def save(model: OPTForCausalLM, tokenizer: Tokenizer, folder: Path, recipe: Recipe) -> None:
    """Weights in float16, config and tokenizer, in the layout of the Hugging Face hub."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=EOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID
    )
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes for the owner alone
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": EOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": recipe.max_positions,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")


def load(folder: Path) -> tuple[OPTForCausalLM, Tokenizer]:
    """What was saved, computing in float32."""
    model = OPTForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


@torch.inference_mode()
def sample(model: OPTForCausalLM, tokenizer: Tokenizer, temperature: float, seed: int = 0) -> str:
    """A story from "Once upon a time"; greedy at temperature 0."""
    torch.manual_seed(seed)
    prompt = torch.tensor([tokenizer.encode("Once upon a time").ids])
    how: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0}
    ids = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_length=min(MAX_SAMPLE, model.config.max_position_embeddings),
        **how,
    )[0].tolist()
    return tokenizer.decode(ids) + ("" if ids[-1] == EOS_ID else " […]")


def write_card(
    folder: Path, train_set: list[Story], held_out: list[Story], origin: int, recipe: Recipe
) -> None:
    """README.md of the folder, from what the saved files give."""
    model, tokenizer = load(folder)

    def loss(stories: list[Story]) -> float:
        return mean_loss(model, encode(stories, tokenizer, recipe.max_positions))

    def size(stories: list[Story]) -> str:
        tokens = sum(len(tokenizer.encode(story.text).ids) for story in stories)
        characters = sum(len(story.text) for story in stories)
        return f"{len(stories)} stories, {characters} characters, {tokens} tokens"

    held_out_loss, shown = loss(held_out), held_out[:SHOWN]
    tokens = sum(len(tokenizer.encode(story.text).ids) for story in held_out)
    text_bytes = sum(len(story.text.encode()) for story in held_out)
    card = CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        r=recipe,
        origin=origin,
        train_size=size(train_set),
        held_out_size=size(held_out),
        train_loss=loss(train_set),
        held_out_loss=held_out_loss,
        bits=held_out_loss * tokens / text_bytes / math.log(2),
        shown=len(shown),
        shown_loss=loss(shown),
        greedy=quote(sample(model, tokenizer, 0.0)),
        sampled=quote(sample(model, tokenizer, 0.8)),
        recipe=json.dumps(asdict(recipe), indent=2),
        stories="".join(f"{s.text}\n{ENDED if s.ended else CUT}\n" for s in shown),
    )
    (folder / "README.md").write_text(card, "utf-8")


def quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


SHOWN = 6  # held-out stories in the card, by which anyone can check its numbers
MAX_SAMPLE = 300  # tokens
CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# opt-stories

An OPT (`OPTForCausalLM`) of {parameters} parameters that tells short stories for children. It is
small enough to live in a repository, and real enough to test an engine with: learned positions,
biases, ReLU, LayerNorm, a tied head, an end-of-text token that it does produce.

{r.num_layers} layers, width {r.hidden_size}, {r.num_heads} heads, feed-forward {r.ffn_dim}, \
vocabulary {r.vocab_size} (byte-level BPE), {r.max_positions} positions, float16.
As in OPT, `</s>` (id 2) opens every text and ends it; `<pad>` is 1 and `<s>` is 0.

## Data and licence

All text was written by SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0): {origin} stories.
Each is kept up to its last whole sentence; those that go round in circles, and near copies of
others, are left out. Weights, tokenizer and this card: Apache-2.0.

It knows nothing but such stories, contradicts itself, and is not for any use beyond tests and
teaching.

## Numbers

All from the float16 file, each story by itself, computed in float32.

| | |
| --- | --- |
| training set | {train_size} |
| held-out set (one story in ten) | {held_out_size} |
| training loss, nats a token | {train_loss:.4f} |
| held-out loss, nats a token | {held_out_loss:.4f} |
| held-out bits a byte | {bits:.4f} |
| loss on the {shown} held-out stories below, nats a token | {shown_loss:.4f} |

Training stopped where the held-out loss was lowest, so it is a slightly hopeful estimate.

## Samples

Greedy, from "Once upon a time":

{greedy}

Temperature 0.8, seed 0:

{sampled}

## How to make it again

```
python scripts/train_opt_stories.py --write {origin} --train
```

with this recipe:

```json
{recipe}
```

The same corpus, recipe and version of torch give the same file.

## Held-out stories

The first {shown}, in the corpus's own format.

```text
{stories}```
"""


def make_model(corpus: Path, folder: Path, recipe: Recipe) -> None:
    """Tokenizer, model and card, from a corpus."""
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    written = read_stories(corpus)
    whole = [whole_sentences(story) for story in written]
    stories = drop_near_copies(story for story in whole if not goes_round_in_circles(story))
    train_set = [story for story in stories if not is_held_out(story)]
    held_out = [story for story in stories if is_held_out(story)]
    print(f"{len(written)} stories: {len(train_set)} to train on, {len(held_out)} held out")
    tokenizer = train_tokenizer([story.text for story in train_set], recipe)
    model = train(
        encode(train_set, tokenizer, recipe.max_positions),
        encode(held_out, tokenizer, recipe.max_positions),
        recipe,
    )
    save(model, tokenizer, folder, recipe)
    write_card(folder, train_set, held_out, len(written), recipe)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"saved to {folder}: {size} bytes")
    if size > SIZE_LIMIT:
        raise SystemExit(f"the folder holds {size} bytes, and may hold {SIZE_LIMIT}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=int, metavar="N", help="let the corpus hold N stories")
    parser.add_argument("--train", action="store_true", help="train on the corpus and save")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=MODEL_FOLDER, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--epochs", type=float, default=Recipe.epochs, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=Recipe.threads, help="default: %(default)s")
    args = parser.parse_args()
    if args.write is None and not args.train:
        parser.error("nothing to do: give --write N, --train, or both")
    if args.write is not None:
        write_stories(args.corpus, args.write, args.seed)
    if args.train:
        if not args.corpus.exists():
            parser.error(f"there is no corpus at {args.corpus}: write one first, with --write N")
        recipe = Recipe(seed=args.seed, epochs=args.epochs, threads=args.threads)
        make_model(args.corpus, args.output, recipe)


if __name__ == "__main__":
    main()
