"""The tokenizer that a GGUF file describes in its metadata, as a ``tokenizers.Tokenizer``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from minipaged.errors import ModelError

_CONTROL = 3
"""GGUF's token type for special tokens."""
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
    if kind != "gpt2":
        raise ModelError(
            f"{path} has a tokenizer of the kind {kind!r}; of GGUF tokenizers minipaged reads "
            "byte-level BPE ('gpt2') alone: use the model's safetensors folder instead"
        )
    tokens: list[str] = get("tokenizer.ggml.tokens", [])
    merges = [tuple(merge.split(" ", 1)) for merge in get("tokenizer.ggml.merges", [])]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(get("tokenizer.ggml.pre", "default"), path)
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = get("tokenizer.ggml.token_type", [])
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, type_ in zip(tokens, types)
            if type_ == _CONTROL
        ]
    )
    if get("tokenizer.ggml.add_bos_token", False):
        _prepend_bos(tokenizer, tokens[get("tokenizer.ggml.bos_token_id", 0)])
    return tokenizer


def _pre_tokenizer(name: str, path: Path) -> pre_tokenizers.PreTokenizer:
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


def _prepend_bos(tokenizer: Tokenizer, bos: str) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
