"""Plain text in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def align(rows: Sequence[Sequence[str]], right: Iterable[int]) -> list[str]:
    """Columns as wide as their widest entry, two spaces apart; a line each.

    Args:
        right: the columns whose entries stand at the right.
    """
    to_the_right = set(right)
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.rjust(width) if at in to_the_right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
