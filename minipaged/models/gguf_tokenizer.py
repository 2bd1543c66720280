"""The tokenizer that a GGUF file describes in its metadata, as a ``tokenizers.Tokenizer``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from minipaged.errors import ModelError
from minipaged.models.bpe import add_special_tokens, byte_level_bpe, sentencepiece_bpe, surround

_UNKNOWN, _CONTROL = 2, 3
"""GGUF's token types of tokens that no text is made of."""
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(get: Callable[[str, Any], Any], path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file.

    Args:
        get: ``get(key, default)`` reads a value of the metadata.
        path: the file, for messages.

    Raises:
        ModelError: the kind of tokenizer is not known; the message names it.
    """
    kind = get("tokenizer.ggml.model", "")
    tokens: list[str] = get("tokenizer.ggml.tokens", [])
    types: list[int] = get("tokenizer.ggml.token_type", [])
    if kind == "gpt2":
        merges = [_pair(merge) for merge in get("tokenizer.ggml.merges", [])]
        vocab = {token: index for index, token in enumerate(tokens)}
        split = _split_rule(get("tokenizer.ggml.pre", "default"), path)
        tokenizer = byte_level_bpe(vocab, merges, split)
        add_special_tokens(tokenizer, [t for t, type_ in zip(tokens, types) if type_ == _CONTROL])
    elif kind == "llama":
        tokenizer = sentencepiece_bpe(
            tokens,
            get("tokenizer.ggml.scores", []),
            [token for token, type_ in zip(tokens, types) if type_ in (_UNKNOWN, _CONTROL)],
            add_prefix_space=get("tokenizer.ggml.add_space_prefix", True),
        )
    else:
        raise ModelError(
            f"{path} has a tokenizer of the kind {kind!r}; of GGUF tokenizers minipaged reads "
            "'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)"
        )
    ends = {
        role: tokens[get(f"tokenizer.ggml.{role}_token_id", 0)]
        for role, default in (("bos", kind == "llama"), ("eos", False))
        if get(f"tokenizer.ggml.add_{role}_token", default)
    }
    if ends:
        surround(tokenizer, ends.get("bos"), ends.get("eos"))
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ", 1)
    return left, right


def _split_rule(name: str, path: Path) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in ("gpt-2", "default"):
        return byte_level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name == "llama-bpe":
        split = pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated")
        return pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    raise ModelError(
        f"{path} splits words by the rule {name!r} (tokenizer.ggml.pre); minipaged knows "
        "gpt-2, smollm and llama-bpe"
    )
