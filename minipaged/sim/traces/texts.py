"""Datasets of texts in JSON, ShareGPT's and Alpaca's: a tokenizer tells how long they are."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Protocol

from minipaged.sim.traces.rows import Place, Row, open_text

#: Who asks, in ShareGPT's ``from``; everybody else but ``system`` answers.
ASKING = ("human", "user")

NO_ANSWER = "the conversation has no question that is answered"
NO_TOKENS = "the question or the answer is empty"


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str) -> Sequence[int]: ...


def read_sharegpt(path: Path, tokenizer: Encoder, skipped: Counter[str]) -> Iterator[Row]:
    """The first question of each conversation and its answer, as ``vllm bench serve`` takes them.

    The file holds a list of ``{"conversations": [{"from": "human", "value": "..."}, ...]}``.

    Args:
        skipped: counts the conversations that are left out, by their reason.

    Raises:
        ConfigError: the file cannot be read.
        TraceFormatError: it is not such a list.
    """
    for place, entry in read_entries(path):
        pair = _first_pair(place, _field(place, entry, "conversations", list, "a list of turns"))
        if pair is None:
            skipped[NO_ANSWER] += 1
        else:
            yield from _row(tokenizer, *pair, skipped)


def read_alpaca(path: Path, tokenizer: Encoder, skipped: Counter[str]) -> Iterator[Row]:
    """The instructions of a list of ``{"instruction": "...", "input": "...", "output": "..."}``.

    A prompt is the instruction, and on a new line the input if there is one: the frame of words
    that Alpaca was trained with is left away, as in the paper, whose prompts have 19 tokens
    (figure 11).

    Args:
        skipped: counts the entries that are left out, by their reason.

    Raises:
        ConfigError: the file cannot be read.
        TraceFormatError: it is not such a list.
    """
    for place, entry in read_entries(path):
        prompt = _field(place, entry, "instruction", str, "a text")
        if entry.get("input"):
            prompt += "\n" + _field(place, entry, "input", str, "a text")
        output = _field(place, entry, "output", str, "a text")
        yield from _row(tokenizer, prompt, output, skipped)


def read_entries(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a JSON list, each with the line that it begins on.

    One is decoded at a time: the text is in memory whole, its objects are not.

    Raises:
        ConfigError: the file cannot be read.
        TraceFormatError: it is not a list of objects.
    """
    with open_text(path) as file:
        text = file.read()
    decoder = json.JSONDecoder()
    at, line = _expect(path, text, _skip_spaces(text, 0), "["), 1
    counted = 0
    at = _skip_spaces(text, at)
    while text[at : at + 1] != "]":
        line += text.count("\n", counted, at)
        counted = at
        try:
            entry, at = decoder.raw_decode(text, at)
        except JSONDecodeError as error:
            raise Place(path, error.lineno).wrong(
                "text", text[error.pos : error.pos + 40], f"JSON ({error.msg})"
            ) from error
        place = Place(path, line)
        if not isinstance(entry, dict):
            raise place.wrong("entry", entry, "a JSON object")
        yield place, entry
        at = _skip_spaces(text, at)
        if text[at : at + 1] != "]":
            at = _skip_spaces(text, _expect(path, text, at, ","))


def _skip_spaces(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def _expect(path: Path, text: str, at: int, sign: str) -> int:
    """The position behind the sign that must stand at ``at``."""
    if text[at : at + 1] == sign:
        return at + 1
    place = Place(path, 1 + text.count("\n", 0, at))
    raise place.wrong("text", text[at : at + 40], f"{sign!r} of a JSON list")


def _first_pair(place: Place, turns: list[Any]) -> tuple[str, str] | None:
    for asked, answered in itertools.pairwise(turns):
        for turn in (asked, answered):
            if not isinstance(turn, dict):
                raise place.wrong("conversations", turn, "turns that are JSON objects")
        if asked.get("from") in ASKING and answered.get("from") not in (*ASKING, "system"):
            question = _field(place, asked, "value", str, "a text")
            return question, _field(place, answered, "value", str, "a text")
    return None


def _field(place: Place, entry: dict[str, Any], name: str, kind: type, expected: str) -> Any:
    value = entry.get(name)
    if not isinstance(value, kind):
        raise place.wrong(name, value, expected)
    return value


def _row(tokenizer: Encoder, prompt: str, output: str, skipped: Counter[str]) -> Iterator[Row]:
    prompt_len, output_len = len(tokenizer.encode(prompt)), len(tokenizer.encode(output))
    if prompt_len and output_len:
        yield Row(None, prompt_len, output_len)
    else:
        skipped[NO_TOKENS] += 1
