"""Reading a SentencePiece ``tokenizer.model`` without the SentencePiece library.

The file is one protocol buffer message. Of its fields these are read: the pieces with their
scores and kinds, the kind of model, and the normalizer's switches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from minipaged.errors import ModelError
from minipaged.models.bpe import sentencepiece_bpe

# Field numbers of ModelProto, of its pieces, and of the two specifications.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_KIND = 1, 2, 3
_MODEL_TYPE = 3
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES = 2, 3, 4
_BPE = 2
_UNKNOWN, _CONTROL = 2, 3


def read_sentencepiece(path: Path, legacy: bool = False) -> Tokenizer:
    """The tokenizer of a SentencePiece model of the BPE kind, as LLaMA's is.

    Args:
        legacy: see :func:`minipaged.models.bpe.sentencepiece_bpe`.

    Raises:
        ModelError: the file is damaged, or of a kind that is not known; the message names it.
    """
    try:
        message = list(_fields(path.read_bytes()))
        pieces = [_piece(data) for number, data in message if number == _PIECES]
        trainer = dict(_fields(_last(message, _TRAINER)))
        normalizer = dict(_fields(_last(message, _NORMALIZER)))
    except (IndexError, ValueError, TypeError, struct.error) as error:
        raise ModelError(f"{path} is no SentencePiece model ({error}); get it again") from error
    if not pieces:
        raise ModelError(f"{path} is no SentencePiece model (it holds no pieces); get it again")
    if trainer.get(_MODEL_TYPE, 1) != _BPE:
        raise ModelError(f"{path} is a SentencePiece model of another kind than BPE")
    if normalizer.get(_CHARSMAP) or normalizer.get(_REMOVE_SPACES, 1):
        raise ModelError(f"{path} normalizes text before it splits it, which is not implemented")
    return sentencepiece_bpe(
        [text for text, _, _ in pieces],
        [score for _, score, _ in pieces],
        [text for text, _, kind in pieces if kind in (_UNKNOWN, _CONTROL)],
        add_prefix_space=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        legacy=legacy,
    )


def _piece(data: bytes | int | float) -> tuple[str, float, int]:
    fields = dict(_fields(data))
    text, score = fields.get(_PIECE_TEXT, b""), fields.get(_PIECE_SCORE, 0.0)
    kind = fields.get(_PIECE_KIND, 1)
    if not isinstance(text, bytes) or not isinstance(score, float) or not isinstance(kind, int):
        raise ValueError("a piece has fields of the wrong type")
    return text.decode("utf-8"), score, kind


def _last(message: list[tuple[int, bytes | int | float]], number: int) -> bytes | int | float:
    return next((data for n, data in reversed(message) if n == number), b"")


def _fields(data: bytes | int | float) -> Iterator[tuple[int, bytes | int | float]]:
    """(field number, value) of each field of a message, in the order of the file."""
    if not isinstance(data, bytes):
        raise ValueError("a number where a message was expected")
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire_type == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("it is truncated")
            yield number, data[at : at + length]
            at += length
        elif wire_type in (1, 5):
            size, code = (8, "<d") if wire_type == 1 else (4, "<f")
            yield number, float(struct.unpack_from(code, data, at)[0])
            at += size
        else:
            raise ValueError(f"unknown wire type {wire_type}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
