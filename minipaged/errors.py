"""The engine's own exceptions."""

from __future__ import annotations


class MinipagedError(Exception):
    """Base of the errors that a user can cause and mend: one sentence, no traceback needed."""


class OutOfBlocks(MinipagedError):
    """A pool has no free block left; the message names the pool."""


class DoubleFree(MinipagedError):
    """A block that is free already was freed, shared or asked for its references."""


class ConfigError(MinipagedError, ValueError):
    """A setting has a value that the engine cannot work with; the message names both."""


class InvariantError(AssertionError):
    """An invariant of the engine does not hold; the message starts with its number."""

    def __init__(self, number: str, message: str) -> None:
        super().__init__(f"{number}: {message}")
        self.number = number


class ModelError(MinipagedError):
    """A model or checkpoint cannot be used; the message names what is wrong with it."""


class RequestError(MinipagedError, ValueError):
    """A request has a value that the engine refuses."""


class CourseError(MinipagedError):
    """The course cannot do what was asked: an unknown stage, a part that does not fit."""
