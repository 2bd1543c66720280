"""The pool in a terminal: a live grid where there is one, plain lines where there is not."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from minipaged.viz.palette import color_of, letter_of
from minipaged.viz.state import Fill, Pool, PoolState

SHADES = "▁▂▃▄▅▆▇█"
FREE = "·"
RESERVED = "□"
PINNED = "■"
SHARED = "‡"
_LEGEND = "a▅ block of seq a, partly filled   a‡ shared   ·  free"


@dataclass(frozen=True)
class Status:
    """What stands beside the pool.

    Attributes:
        step: number of the engine's step.
        running, waiting, swapped: names of the requests in each queue, in order.
        gauges: name -> value as it is to be shown, such as ``{"tokens/s": "143"}``.
    """

    step: int = 0
    running: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    swapped: list[str] = field(default_factory=list)
    gauges: dict[str, str] = field(default_factory=dict)

    @property
    def queues(self) -> dict[str, list[str]]:
        return {"running": self.running, "waiting": self.waiting, "swapped": self.swapped}


def pool_grid(state: PoolState, pool: Pool, columns: int = 32) -> Text:
    """The blocks of a pool, two characters each: the letter of the sequence and how full the
    block is, or ``‡`` where several sequences share it."""
    holders = state.holders(pool)
    free = set(pool.free)
    grid = Text()
    for block in range(pool.num_blocks):
        if block and block % columns == 0:
            grid.append("\n")
        cell, style = _cell(state, holders.get(block), block in free)
        grid.append(cell, style)
    return grid


def _cell(state: PoolState, holders: list[Fill] | None, free: bool) -> tuple[str, str]:
    if holders is None:
        return (f"{FREE} ", "dim") if free else (f"{PINNED} ", "bold")
    seq, _, tokens = holders[0]
    if len(holders) > 1:
        return f"{letter_of(seq)}{SHARED}", f"bold {color_of(seq)}"
    if tokens == 0:
        return f"{letter_of(seq)}{RESERVED}", color_of(seq)
    shade = SHADES[-(-tokens * len(SHADES) // state.block_size) - 1]
    return f"{letter_of(seq)}{shade}", color_of(seq)


def render(state: PoolState, status: Status | None = None, width: int = 80) -> RenderableType:
    """Pools, queues and gauges, as one thing that rich can print."""
    # A cell has two characters; the panel's border and padding take four.
    columns = max(8, min(64, (width - 4) // 2 // 8 * 8))
    parts: list[RenderableType] = []
    for title, pool in state.pools():
        used = f"{pool.num_used}/{pool.num_blocks} blocks, {len(pool.shared)} shared"
        parts.append(
            Panel(
                pool_grid(state, pool, columns),
                title=f"{title} pool: {used}",
                title_align="left",
                subtitle=_LEGEND if title == "GPU" else None,
                subtitle_align="right",
                expand=False,
                width=min(width, 2 * columns + 4),
            )
        )
    if status is not None:
        parts.append(_queues(status, width))
    return Group(*parts)


def _queues(status: Status, width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, requests in status.queues.items():
        shown = Text(" ".join(requests), overflow="ellipsis", no_wrap=True)
        shown.truncate(max(10, width - 20), overflow="ellipsis")
        table.add_row(Text(name, "bold"), Text(str(len(requests)), justify="right"), shown)
    gauges = "   ".join(f"{name} {value}" for name, value in status.gauges.items())
    table.add_row(Text("step", "bold"), Text(str(status.step), justify="right"), Text(gauges))
    return table


def plain_line(state: PoolState, status: Status) -> str:
    """The same in one line, for logs and pipes."""
    words = [f"{len(requests)} {name}" for name, requests in status.queues.items()]
    for title, pool in state.pools():
        shared = f" ({len(pool.shared)} shared)" if pool.shared else ""
        words.append(f"{title} {pool.num_used}/{pool.num_blocks} blocks{shared}")
    words += [f"{name} {value}" for name, value in status.gauges.items()]
    return f"step {status.step}: {', '.join(words)}"


class PoolView:
    """Shows the pool while an engine runs; use it as a context manager.

    In a terminal the picture is drawn in place, at most ``frames_per_second`` times a second.
    Elsewhere a line is printed whenever the queues' lengths have changed, and every
    ``plain_every`` steps.
    """

    def __init__(
        self,
        console: Console | None = None,
        frames_per_second: float = 12.0,
        plain_every: int = 25,
    ) -> None:
        self.console = console or Console()
        self._period = 1.0 / frames_per_second
        self._plain_every = plain_every
        self._live = (
            Live(console=self.console, auto_refresh=False, transient=False)
            if self.console.is_terminal
            else None
        )
        self._last: tuple[PoolState, Status] | None = None
        self._drawn_at = 0.0
        self._lengths: list[int] = []

    def __enter__(self) -> PoolView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            if self._last is not None:
                self._draw(*self._last)
            self._live.stop()

    @property
    def due(self) -> bool:
        """Would :meth:`show` draw now? Whoever wants to save the cost of a state asks first."""
        return self._live is None or time.monotonic() - self._drawn_at >= self._period

    def show(self, state: PoolState, status: Status) -> None:
        """Take a new state; it is drawn when it is due, and the last one at the end."""
        self._last = (state, status)
        if self._live is None:
            lengths = [len(requests) for requests in status.queues.values()]
            if lengths != self._lengths or status.step % self._plain_every == 0:
                self.console.print(plain_line(state, status), markup=False, highlight=False,
                                   soft_wrap=True)  # fmt: skip
            self._lengths = lengths
        elif self.due:
            self._draw(state, status)

    def note(self, text: str) -> None:
        """An event, as a line that stays: above the picture, or between the plain lines."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _draw(self, state: PoolState, status: Status) -> None:
        assert self._live is not None
        self._drawn_at = time.monotonic()
        self._live.update(render(state, status, self.console.width), refresh=True)
