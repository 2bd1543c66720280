"""Traces in CSV: Azure's, Vidur's, BurstGPT's. Columns are found by name, in any order."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from minipaged.sim.traces.rows import TOKENS, Place, Row, open_text

FAILED = "the request failed (no response tokens)"


@dataclass(frozen=True)
class Table:
    """A CSV format: which column holds what.

    Attributes:
        time, prompt, output: names of the columns.
        read_time: seconds from the text of a cell, which it may refuse.
        time_optional: may the time's column be missing?
        failures: are rows without output requests that failed? Elsewhere they are mistakes.
    """

    time: str
    prompt: str
    output: str
    read_time: Callable[[Place, str, str], float]
    time_optional: bool = False
    failures: bool = False

    def describes(self, header: list[str]) -> bool:
        """Has a file with these columns this format?"""
        needed = {self.prompt, self.output} | (set() if self.time_optional else {self.time})
        return needed <= set(header)


def read_table(path: Path, table: Table, skipped: Counter[str]) -> Iterator[Row]:
    """The requests of a CSV file. Blank lines are passed over.

    Args:
        skipped: counts what is left out, by its reason.

    Raises:
        ConfigError: the file cannot be read.
        TraceFormatError: a column is missing, or a cell does not hold what it should.
    """
    with open_text(path) as file:
        lines = _lines(path, file)
        place, header = next(lines, (Place(path, 1), []))
        if not table.describes(header):
            raise place.wrong("header", ",".join(header), ", ".join(_columns(table)))
        time_at = header.index(table.time) if table.time in header else None
        prompt_at, output_at = header.index(table.prompt), header.index(table.output)
        for place, cells in lines:
            if len(cells) != len(header):
                raise place.wrong("line", ",".join(cells), f"{len(header)} cells")
            if table.failures and cells[output_at] == "0":
                skipped[FAILED] += 1
                continue
            time = None
            if time_at is not None:
                time = table.read_time(place, table.time, cells[time_at])
            prompt_len = place.whole(table.prompt, cells[prompt_at], 1, TOKENS)
            output_len = place.whole(table.output, cells[output_at], 1, TOKENS)
            yield Row(time, prompt_len, output_len)


def _lines(path: Path, file: TextIO) -> Iterator[tuple[Place, list[str]]]:
    """The cells of each line that has any, without spaces around them. A quoted cell may go on for
    several lines: the first is its place."""
    reader = csv.reader(file, strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield Place(path, line), [cell.strip() for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise Place(path, line).wrong("line", str(error), "CSV") from error


def _columns(table: Table) -> list[str]:
    return [table.time, table.prompt, table.output][table.time_optional :]


def _moment(place: Place, field: str, text: str) -> float:
    """Of a date and time of day; in UTC if it does not say where."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise place.wrong(field, text, "a time such as 2023-11-16 18:17:03.97") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(place: Place, field: str, text: str) -> float:
    return place.finite(field, text, "a number of seconds")


#: Microsoft Azure's public traces of 2023 and 2024.
AZURE = Table("TIMESTAMP", "ContextTokens", "GeneratedTokens", _moment)
#: Of the simulator Vidur; without a time, the file holds the lengths of a dataset.
VIDUR = Table("arrived_at", "num_prefill_tokens", "num_decode_tokens", _seconds, time_optional=True)
#: Of the ChatGPT and GPT-4 service of a university.
BURSTGPT = Table("Timestamp", "Request tokens", "Response tokens", _seconds, failures=True)
