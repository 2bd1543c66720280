"""Mooncake's traces: JSON lines that tell which blocks of a prompt are the same text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minipaged.sim.traces.rows import TOKENS, Place, Row, open_text
from minipaged.sim.workloads import Piece

#: Tokens that a hash stands for; the last one of a prompt may stand for fewer.
HASHED_TOKENS = 512
_BLOCK_ID = "a list of whole numbers, at least 0"


def read_mooncake(path: Path) -> Iterator[Row]:
    """The requests of a file with lines such as ``{"timestamp": 3000, "input_length": 600,
    "output_length": 9, "hash_ids": [0, 7]}``: milliseconds, tokens, and an id for each 512 tokens
    of the prompt, equal where they and all before them are. Without ``hash_ids``, a prompt shares
    nothing. Blank lines are passed over.

    Raises:
        ConfigError: the file cannot be read.
        TraceFormatError: a line or a field of it is wrong.
    """
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _row(Place(path, number), line)


def _row(place: Place, line: str) -> Row:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise place.wrong("line", line.strip(), "a JSON object")
    milliseconds = place.finite("timestamp", fields.get("timestamp"), "a number of milliseconds")
    prompt_len = place.whole("input_length", fields.get("input_length"), 1, TOKENS)
    output_len = place.whole("output_length", fields.get("output_length"), 1, TOKENS)
    content = _content(place, fields.get("hash_ids"), prompt_len)
    return Row(milliseconds / 1000, prompt_len, output_len, content)


def _content(place: Place, ids: Any, prompt_len: int) -> tuple[Piece, ...]:
    """The pieces of a prompt: whole blocks, and what is left for the last one."""
    if ids is None:
        return ()
    if not isinstance(ids, list):
        raise place.wrong("hash_ids", ids, _BLOCK_ID)
    for value in ids:
        place.whole("hash_ids", value, 0, _BLOCK_ID)
    if len(ids) != math.ceil(prompt_len / HASHED_TOKENS):
        raise place.wrong(
            "hash_ids",
            ids,
            f"an id for each {HASHED_TOKENS} of the {prompt_len} tokens, not {len(ids)}",
        )
    rest = prompt_len - HASHED_TOKENS * (len(ids) - 1)
    return (*((value, HASHED_TOKENS) for value in ids[:-1]), (ids[-1], rest))
