"""What graded tests say when something is wrong: one sentence that names the situation, what
was expected and what came instead.

The sentence is what a student reads, and its first line is what tells one misconception from
another: it must not depend on addresses, timings or the order of a set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from minipaged.viz.state import Pool, PoolState, format_state


def expect(got: Any, want: Any, why: str) -> None:
    """Fail unless ``got`` is ``want``.

    True is not 1, nor is 1.0: a bool or a number is expected in its own type.

    Args:
        why: what was done and what must hold, in words; it starts the message.

    Raises:
        AssertionError: "<why>: expected <want>, got <got>"; with the types of both, where nothing
            else tells them apart.
    """
    same = type(got) is type(want) if isinstance(want, bool | int | float) else True
    if not (same and got == want):
        tell = _with_type if not same and got == want else repr
        raise AssertionError(f"{why}: expected {tell(want)}, got {tell(got)}")


class expect_error:
    """``with expect_error(OutOfBlocks, "GPU", why="the pool is empty"): pool.allocate()``.

    Fails unless the body raises the error (or a subclass), and its message has all the words.
    """

    def __init__(self, kind: type[Exception], *words: str, why: str) -> None:
        self.kind, self.words, self.why = kind, words, why

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            raise AssertionError(f"{self.why}: expected {self.kind.__name__}, got no error")
        if not isinstance(error, Exception):
            return False  # the worker has ended, or the user has: that is told as it is
        if not isinstance(error, self.kind):
            raise AssertionError(
                f"{self.why}: expected {self.kind.__name__}, got {_told(error)}"
            ) from error
        for word in self.words:
            if word not in str(error):
                raise AssertionError(
                    f"{self.why}: the message of {self.kind.__name__} must name {word!r}, "
                    f"and is {str(error)!r}"
                )
        return True


@contextmanager
def expect_no_error(why: str) -> Iterator[None]:
    """``with expect_no_error("the last free block is asked for"): pool.allocate()``: what the
    body raises is told together with the fact that nothing was to be refused."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{why}: expected no error, got {_told(error)}") from error


def _with_type(value: Any) -> str:
    """``7 (an int)``."""
    kind = type(value).__name__
    return f"{value!r} ({'an' if kind[0] in 'aeiou' else 'a'} {kind})"


def _told(error: Exception) -> str:
    """An exception in words. One that comes from a worker has a note that tells where it came up
    in the submission."""
    notes = getattr(error, "__notes__", None)
    return str(notes[0]) if notes else f"{type(error).__name__}: {error}"


def expect_same_outputs(
    mine: Mapping[str, Any],
    want: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    block_size: int,
) -> None:
    """Fail at the first token of an engine's outputs that is another than the reference's, and say
    where in the cache what chose it stands.

    Args:
        mine, want: what :func:`minipaged.course.judge.serving.serve` returned.
        requests: what was served.

    Raises:
        AssertionError: as that of :func:`expect`.
    """
    for number, request in enumerate(requests):
        length = len(request["prompt"])
        who = f"request {number}, a prompt of {length} tokens"
        theirs = want["outputs"][number]
        expect(len(mine["outputs"][number]), len(theirs), f"{who}: outputs")
        for index, (got, wanted) in enumerate(zip(mine["outputs"][number], theirs)):
            which = f"{who}, output {index}" if len(theirs) > 1 else who
            for at, (token, other) in enumerate(zip(got["token_ids"], wanted["token_ids"])):
                # The logits of position p choose the token of position p + 1.
                block, offset = divmod(length + at - 1, block_size)
                where = f"block {block} of its table, offset {offset}"
                expect(token, other, f"{which}: token {at}, which follows the one in {where}")
            expect(len(got["token_ids"]), len(wanted["token_ids"]), f"{which}: tokens")
            for key, what in (("text", "its text"), ("finish", "why it ended")):
                expect(got[key], wanted[key], f"{which}: {what}")


def state_of(pool: Any) -> str:
    """A block allocator in the course's notation: ``free:{0 1} refs{2:1 3:2}``.

    Asks only ``num_blocks``, ``free_blocks`` and ``ref_count``.
    """
    num_blocks = pool.num_blocks
    counts = {block: pool.ref_count(block) for block in range(num_blocks)}
    held = {block: count for block, count in counts.items() if count}
    return format_state(PoolState(2, Pool(num_blocks, {}, {}, list(pool.free_blocks), held)))
