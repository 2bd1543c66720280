"""The pool as an SVG picture: for a page, a notebook or the book.

The picture takes its ink from the text around it (``currentColor``), so that it fits light and
dark pages; shared blocks are hatched and every block carries its number, so that nothing is said
by color alone; its text alternative is the state's notation.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from minipaged.viz.palette import color_of
from minipaged.viz.state import Fill, Pool, PoolState, format_state

CELL = 30
GAP = 4
PITCH = CELL + GAP
LINE = 18
MARGIN = 8
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

# `svg:root` holds only where the picture is a document of its own: inside a page the ink is the
# page's.
STYLE = f"""
svg:root {{ color: #24292f; }}
@media (prefers-color-scheme: dark) {{ svg:root {{ color: #d8dee4; }} }}
.mp-pool text {{ fill: currentColor; font-family: {FONT}; font-size: 11px; }}
.mp-pool .mp-head {{ font-size: 13px; font-weight: 600; }}
.mp-pool .mp-faint {{ opacity: 0.55; }}
.mp-pool .mp-number {{ text-anchor: middle; }}
.mp-pool .mp-shared {{ font-weight: 700; }}
""".strip()


def to_svg(
    state: PoolState, title: str = "", columns: int = 16, tables: bool = True, wide: int = 24
) -> str:
    """An SVG document of both pools.

    Args:
        title: what the picture is called; default: "Block pool".
        columns: blocks a row.
        tables: draw each sequence's block table under its pool.
        wide: blocks of a table that are drawn before the rest is told as a number.
    """
    title = title or "Block pool"
    notation = format_state(state)
    key = f"mp{zlib.crc32((title + notation).encode()):08x}"
    body: list[str] = []
    y, width = MARGIN, 0
    for name, pool in state.pools():
        drawing = _PoolDrawing(state, name, pool, columns, wide, key)
        body += drawing.draw(y, tables)
        y += drawing.height(tables) + 2 * MARGIN
        width = max(width, drawing.width(tables))
    width += 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="mp-pool" role="img" '
            f'viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
            f'style="max-width: 100%; height: auto" aria-labelledby="{key}t {key}d">',
            f'<title id="{key}t">{escape(title)}</title>',
            f'<desc id="{key}d">{escape(notation)}</desc>',
            f"<style>{STYLE}</style>",
            f'<defs><pattern id="{key}h" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="1.5" height="6" fill="currentColor" '
            'opacity="0.3"/></pattern></defs>',
            *body,
            "</svg>",
        ]
    )


@dataclass(frozen=True)
class SvgPicture:
    """A state that a notebook shows as a picture: let it be a cell's last value."""

    state: PoolState
    title: str = ""
    columns: int = 16

    def _repr_html_(self) -> str:
        return to_svg(self.state, self.title, self.columns)

    def __repr__(self) -> str:
        return format_state(self.state)


@dataclass(frozen=True)
class _PoolDrawing:
    state: PoolState
    name: str
    pool: Pool
    columns: int
    wide: int
    key: str

    @property
    def _grid_bottom(self) -> int:
        """Distance from the top of the drawing to the end of the grid."""
        return LINE + -(-self.pool.num_blocks // self.columns) * PITCH

    @property
    def _label_width(self) -> int:
        """Room for the names beside the tables: 7 units a character at 11px."""
        return 7 * max((len(self._label(seq)) for seq in self.pool.tables), default=0) + 12

    def _label(self, seq: str) -> str:
        return f"{seq}  {self.pool.num_tokens[seq]} tok"

    def height(self, tables: bool) -> int:
        if not tables or not self.pool.tables:
            return self._grid_bottom
        return self._grid_bottom + MARGIN + len(self.pool.tables) * PITCH

    def width(self, tables: bool) -> int:
        grid = min(self.columns, max(self.pool.num_blocks, 8)) * PITCH
        longest = max((len(blocks) for blocks in self.pool.tables.values()), default=0)
        drawn = min(longest, self.wide) + (2 if longest > self.wide else 0)
        return max(grid, self._label_width + drawn * PITCH if tables else 0)

    def draw(self, top: int, tables: bool) -> Iterator[str]:
        pool = self.pool
        shared = f", {len(pool.shared)} shared" if pool.shared else ""
        head = f"{pool.num_used} of {pool.num_blocks} blocks used{shared}"
        yield _text(MARGIN, top + 11, f"{self.name} pool", "mp-head")
        yield _text(MARGIN + 76, top + 11, head, "mp-faint")
        holders = self.state.holders(pool)
        free = set(pool.free)
        for block in range(pool.num_blocks):
            row, column = divmod(block, self.columns)
            x, y = MARGIN + column * PITCH, top + LINE + row * PITCH
            yield from self._cell(x, y, block, holders.get(block, []), block in free)
        if tables:
            yield from self._tables(top + self._grid_bottom + MARGIN)

    def _tables(self, top: int) -> Iterator[str]:
        shared = set(self.pool.shared)
        for row, (seq, blocks) in enumerate(self.pool.tables.items()):
            y = top + row * PITCH
            yield _text(MARGIN, y + 19, self._label(seq))
            for i, block in enumerate(blocks[: self.wide]):
                fill = (seq, i, self.state.tokens_in(self.pool, seq, i))
                x = MARGIN + self._label_width + i * PITCH
                yield from self._filled(x, y, block, [fill], block in shared)
            if len(blocks) > self.wide:
                x = MARGIN + self._label_width + self.wide * PITCH
                yield _text(x, y + 19, f"… +{len(blocks) - self.wide}", "mp-faint")

    def _cell(self, x: int, y: int, block: int, held: list[Fill], free: bool) -> Iterator[str]:
        if held:
            tip = "\n".join(self._tip(block, fill) for fill in held)
            shared = len(held) > 1 or self.pool.ref_counts.get(block, 0) > 1
            yield f"<g><title>{escape(tip)}</title>"
            yield from self._filled(x, y, block, held, shared)
            yield "</g>"
            return
        dashes = ' stroke-dasharray="2 3" class="mp-faint"' if free else ' stroke-width="2"'
        yield (
            f"<g><title>block {block}: {'free' if free else 'held by no sequence'}</title>"
            + _rect(x, y, CELL, CELL, f'fill="none" stroke="currentColor"{dashes}')
            + _text(x + CELL // 2, y + 19, str(block), "mp-number mp-faint")
            + "</g>"
        )

    def _filled(self, x: int, y: int, block: int, held: list[Fill], shared: bool) -> Iterator[str]:
        """A block, filled from the left as far as it holds tokens: a band for each holder."""
        band = CELL / len(held)
        for i, (seq, _, tokens) in enumerate(held):
            color, at = color_of(seq), y + i * band
            if tokens < self.state.block_size:
                yield _rect(x, at, CELL, band, f'fill="{color}" opacity="0.14"')
            if tokens:
                width = max(3, CELL * tokens / self.state.block_size)
                yield _rect(x, at, width, band, f'fill="{color}" opacity="0.5"')
        if shared:
            yield _rect(x, y, CELL, CELL, f'fill="url(#{self.key}h)"')
        outline = color_of(held[0][0]) if len(held) == 1 else "currentColor"
        yield _rect(x, y, CELL, CELL, f'fill="none" stroke="{outline}" stroke-width="1.5"')
        css = "mp-number mp-shared" if shared else "mp-number"
        yield _text(x + CELL // 2, y + 19, str(block), css)

    def _tip(self, block: int, fill: Fill) -> str:
        seq, index, tokens = fill
        text = self.state.text_in(seq, index)
        told = f"block {block}: {seq}, logical block {index}, {tokens} of {self.state.block_size}"
        return f"{told}: {text!r}" if text else told


def _rect(x: float, y: float, width: float, height: float, look: str) -> str:
    rounding = f' rx="{4 if height == CELL else 1}"'
    return (
        f'<rect x="{x:g}" y="{y:.4g}" width="{width:.3g}" height="{height:.3g}"{rounding} {look}/>'
    )


def _text(x: int, y: int, text: str, css: str = "") -> str:
    attribute = f' class="{css}"' if css else ""
    return f'<text x="{x}" y="{y}"{attribute} xml:space="preserve">{escape(text)}</text>'
