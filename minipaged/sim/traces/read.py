"""A workload from a trace file of any format that is known."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from minipaged.errors import ConfigError, RequestError
from minipaged.sim.traces.mooncake import read_mooncake
from minipaged.sim.traces.rows import Place, Row, open_text
from minipaged.sim.traces.tables import AZURE, BURSTGPT, VIDUR, Table, read_table
from minipaged.sim.traces.texts import Encoder, read_alpaca, read_sharegpt
from minipaged.sim.workloads import Piece, Request, Workload
from minipaged.sim.workloads.checks import require_at_least, require_positive

Format = Literal["azure", "mooncake", "vidur", "burstgpt", "sharegpt", "alpaca"]
FORMATS: tuple[Format, ...] = get_args(Format)

_TABLES: tuple[tuple[Format, Table], ...] = (
    ("azure", AZURE),
    ("vidur", VIDUR),
    ("burstgpt", BURSTGPT),
)
#: Characters that tell a format.
_HEAD = 65536


def read_trace(
    path: str | Path,
    format: Format | Literal["auto"] = "auto",
    tokenizer: Encoder | None = None,
    limit: int | None = None,
    *,
    max_model_len: int | None = None,
    too_long: Literal["drop", "clip"] = "drop",
    rate_scale: float = 1.0,
    rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Workload:
    """The requests of a trace file. The first arrives at 0 s.

    Args:
        format: ``azure`` and ``burstgpt`` (CSV with real times), ``vidur`` (CSV with or without),
            ``mooncake`` (JSON lines with shared content), ``sharegpt`` and ``alpaca`` (JSON with
            texts and no times); ``auto``: the file's beginning tells.
        tokenizer: counts the tokens of texts.
        limit: requests at most; the file is read no further.
        max_model_len: tokens that a request may have, prompt and output together; None: as many
            as the longest one has.
        too_long: leave longer requests out, or ``clip`` the end of their prompts, and their
            outputs only where these alone leave no token for a prompt. Either is counted in
            :attr:`Workload.notes`.
        rate_scale: let them arrive so many times as fast.
        rate: requests a second, drawn at random instead of the file's own times; see
            :meth:`Workload.redrawn` for ``burstiness`` and ``seed``. A file without times needs
            it.

    Raises:
        TraceFormatError: a line of the file is wrong, or its format is not known.
        ConfigError: the file cannot be read, or an argument is out of its range or missing.
        RequestError: no request is left.
    """
    path = Path(path)
    require_positive(rate_scale=rate_scale)
    require_at_least(1, limit=limit)
    require_at_least(2, max_model_len=max_model_len)
    if rate is not None and rate_scale != 1:
        raise ConfigError(f"rate {rate} draws new times: rate_scale {rate_scale} has none to scale")
    if too_long not in ("drop", "clip"):
        raise ConfigError(f"too_long must be drop or clip, not {too_long!r}")
    skipped: Counter[str] = Counter()
    rows = _rows(path, detect_format(path) if format == "auto" else format, tokenizer, skipped)
    kept, notes = _fitting(rows, limit, max_model_len, too_long == "clip", skipped)
    if not kept:
        raise RequestError(f"{path} has no request to run; {'; '.join(notes) or 'it is empty'}")
    if rate is None and kept[0].time is None:
        raise ConfigError(f"{path} has no arrival times: give a rate to draw them at")
    workload = _workload(path.stem, kept, notes, max_model_len)
    if rate is not None:
        return workload.redrawn(rate, seed, burstiness)
    return workload if rate_scale == 1 else workload.scaled(rate_scale)


def detect_format(path: Path) -> Format:
    """The format of a file, from its beginning.

    Raises:
        ConfigError: the file cannot be read.
        TraceFormatError: it is none of :data:`FORMATS`.
    """
    with open_text(path) as file:
        head = file.read(_HEAD).lstrip()
    if head.startswith("[") and (key := re.search(r'"(conversations|instruction)"\s*:', head)):
        return "sharegpt" if key[1] == "conversations" else "alpaca"
    first = head.partition("\n")[0].strip()
    if first.startswith("{") and '"input_length"' in first:
        return "mooncake"
    header = [name.strip() for name in next(csv.reader([first]), [])]
    for name, table in _TABLES:
        if table.describes(header):
            return name
    raise Place(path, 1).wrong("format", first, f"the beginning of one of {', '.join(FORMATS)}")


def _rows(
    path: Path, format: str, tokenizer: Encoder | None, skipped: Counter[str]
) -> Iterator[Row]:
    for name, table in _TABLES:
        if format == name:
            return read_table(path, table, skipped)
    if format == "mooncake":
        return read_mooncake(path)
    if format not in FORMATS:
        raise ConfigError(f"format must be auto, {', '.join(FORMATS)}, not {format!r}")
    if tokenizer is None:
        raise ConfigError(f"{path} holds texts: a tokenizer is needed to count their tokens")
    read_texts = read_sharegpt if format == "sharegpt" else read_alpaca
    return read_texts(path, tokenizer, skipped)


def _fitting(
    rows: Iterator[Row],
    limit: int | None,
    max_model_len: int | None,
    clip: bool,
    skipped: Counter[str],
) -> tuple[list[Row], tuple[str, ...]]:
    """The first ``limit`` rows that the model has positions for, and what became of others."""
    kept: list[Row] = []
    clipped = 0
    for row in rows:
        if max_model_len is not None and row.prompt_len + row.output_len > max_model_len:
            if not clip:
                skipped[f"more than {max_model_len} tokens, prompt and output together"] += 1
                continue
            row = _clipped(row, max_model_len)
            clipped += 1
        kept.append(row)
        if len(kept) == limit:
            break
    total = len(kept) + skipped.total()
    notes = [f"{n:,} of {total:,} requests left out: {why}" for why, n in sorted(skipped.items())]
    if clipped:
        notes.append(f"{clipped:,} of {total:,} requests cut to {max_model_len} tokens")
    return kept, tuple(notes)


def _clipped(row: Row, max_model_len: int) -> Row:
    output_len = min(row.output_len, max_model_len - 1)
    prompt_len = min(row.prompt_len, max_model_len - output_len)
    pieces: list[Piece] = []
    room = prompt_len
    for content_id, tokens in row.content:
        if room:
            pieces.append((content_id, min(tokens, room)))
            room -= pieces[-1][1]
    return row._replace(prompt_len=prompt_len, output_len=output_len, content=tuple(pieces))


def _workload(
    name: str, rows: list[Row], notes: tuple[str, ...], max_model_len: int | None
) -> Workload:
    """Of rows with times or without, which then all arrive at once."""
    rows.sort(key=lambda row: row.time or 0.0)
    start = rows[0].time or 0.0
    requests = tuple(
        Request((row.time or 0.0) - start, row.prompt_len, row.output_len, content=row.content)
        for row in rows
    )
    longest = max_model_len or max(request.total_len for request in requests)
    return Workload(name, requests, longest, notes=notes)
