"""The two kinds of BPE tokenizer that OPT and LLaMA models use, built from their raw parts.

Most folders hold a ``tokenizer.json`` and need none of this. OPT's own repositories hold
``vocab.json`` and ``merges.txt``, LLaMA's a SentencePiece ``tokenizer.model``, and GGUF files
carry either kind in their metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from minipaged.errors import ModelError


def byte_level_bpe(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    split: pre_tokenizers.PreTokenizer | None = None,
    add_prefix_space: bool = False,
) -> Tokenizer:
    """GPT-2's kind, which OPT and SmolLM2 share: BPE over bytes.

    Args:
        vocab: token to id.
        merges: pairs, the first merged first.
        split: how text is cut before; None: GPT-2's rule.
    """
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
    tokenizer.pre_tokenizer = split or pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece_bpe(
    pieces: Sequence[str],
    scores: Sequence[float],
    special: Iterable[str],
    *,
    add_prefix_space: bool = True,
    legacy: bool = False,
) -> Tokenizer:
    """LLaMA's kind: SentencePiece BPE, bytes for what the vocabulary lacks.

    Args:
        pieces: the vocabulary by id.
        scores: of each piece; of two possible merges the one with the higher score goes first.
        special: pieces that text becomes only if it spells them out, and that no merge makes.
        add_prefix_space: a text starts with a space that it does not show.
        legacy: and so does the text after each special token.
    """
    special_pieces = set(special)
    vocab = {piece: index for index, piece in enumerate(pieces)}
    unknown = next((piece for piece in ("<unk>", pieces[0]) if piece in vocab), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_by_score(vocab, scores, special_pieces),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prepend = "never" if not add_prefix_space else "always" if legacy else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    tail = [decoders.Strip(content=" ", left=1)] if add_prefix_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
    )
    add_special_tokens(tokenizer, [piece for piece in pieces if piece in special_pieces])
    return tokenizer


def add_special_tokens(tokenizer: Tokenizer, tokens: Iterable[str | AddedToken]) -> None:
    """Make these tokens special: found in text before anything else, left out of decoded text."""
    present = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    wanted = [
        token
        if isinstance(token, AddedToken)
        else AddedToken(token, special=True, normalized=False)
        for token in tokens
    ]
    tokenizer.add_special_tokens([token for token in wanted if token.content not in present])


def surround(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Let every encoded text start with ``bos`` and end with ``eos`` (None: nothing)."""
    named = [token for token in (bos, eos) if token is not None]
    tokenizer.post_processor = TemplateProcessing(
        single=" ".join([*([bos] if bos else []), "$A", *([eos] if eos else [])]),
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(named)],
    )


def read_vocab_and_merges(folder: Path, add_prefix_space: bool) -> Tokenizer:
    """The tokenizer of a folder with ``vocab.json`` and ``merges.txt``.

    Raises:
        ModelError: one of the files is damaged, or they do not fit together.
    """
    try:
        vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#ver")]
        return byte_level_bpe(vocab, merges, add_prefix_space=add_prefix_space)  # type: ignore[arg-type]
    except Exception as error:  # tokenizers raises Exception itself
        raise ModelError(
            f"vocab.json and merges.txt in {folder} make no tokenizer ({error})"
        ) from error


def _merges_by_score(
    vocab: Mapping[str, int], scores: Sequence[float], special: set[str]
) -> list[tuple[str, str]]:
    """SentencePiece stores no merges: each split of a piece into two pieces is one, and its rank
    is the score of what it makes."""
    ranked = []
    for piece, index in vocab.items():
        if piece in special:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab and not {left, right} & special:
                ranked.append((-scores[index], index, vocab[left], vocab[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]
