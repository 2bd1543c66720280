"""What the judge and a worker say to each other: JSON lines over a socket.

Plain values travel; every other object stays where it is and travels as a handle. Nothing that
arrives is ever run or unpickled. One line is one message.

A value is JSON's own ``null``, boolean, integer or string, or a tagged one::

    {"f": "0.1"}                    float, as repr() writes it: -0.0, inf and nan too
    {"l": [...]}  {"t": [...]}      list, tuple
    {"s": [...]}  {"z": [...]}      set, frozenset
    {"d": [[key, value], ...]}      dict
    {"a": [dtype, shape, base64]}   numpy array; {"g": [dtype, base64]}: numpy scalar
    {"h": 3, "n": "BlockTable"}     an object that stayed behind: its handle and its type's name
"""

from __future__ import annotations

import base64
import json
import select
import socket
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

MAX_DEPTH = 40

#: Kinds of numpy types that are bytes and nothing else: booleans and numbers.
_KINDS = frozenset("biufc")

_TAGS: dict[type[Collection[Any]], str] = {list: "l", tuple: "t", set: "s", frozenset: "z"}


class WireError(Exception):
    """A value that cannot travel, or a message that is none."""


class Closed(WireError):
    """The other side is gone."""


def encode(value: Any, handle: Callable[[Any], dict[str, Any]], depth: int = 0) -> Any:
    """A value as a message.

    Containers of a subclass travel as the plain container; a number or string of a subclass does
    not travel at all, for its author may have changed what ``==`` means.

    Args:
        handle: gives the message for an object that stays behind, or raises :class:`WireError`.

    Raises:
        WireError: bytes, a number too long to print, a container in itself.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"f": repr(value)}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return {"g": [value.dtype.str, _to_text(value.tobytes())]}
    if issubclass(kind, np.ndarray) and value.dtype.kind in _KINDS:
        return {"a": [value.dtype.str, list(value.shape), _to_text(value.tobytes())]}
    if issubclass(kind, bytes | bytearray | memoryview):
        raise WireError(f"{kind.__name__} cannot be sent: only numbers, strings and containers")
    if depth > MAX_DEPTH:
        raise WireError(f"a container that is nested deeper than {MAX_DEPTH} cannot be sent")
    for container, tag in _TAGS.items():
        if issubclass(kind, container):
            wanted = handle if container in (list, tuple) else _no_handle
            return {tag: [encode(x, wanted, depth + 1) for x in container.__iter__(value)]}
    if issubclass(kind, dict):
        pairs = dict.items(value)
        return {
            "d": [
                [encode(k, _no_handle, depth + 1), encode(v, handle, depth + 1)] for k, v in pairs
            ]
        }
    return handle(value)


def decode(message: Any, resolve: Callable[[dict[str, Any]], Any]) -> Any:
    """The value of a message.

    Args:
        resolve: gives the object that a handle stands for.

    Raises:
        WireError: it is no message of :func:`encode`.
    """
    try:
        return _decode(message, resolve)
    except (AttributeError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise WireError(f"not a value: {type(error).__name__}: {error}") from None


def _decode(message: Any, resolve: Callable[[dict[str, Any]], Any]) -> Any:
    if message is None or isinstance(message, bool | int | str):
        return message
    if "h" in message:
        return resolve(message)
    ((tag, inside),) = message.items()
    match tag:
        case "f":
            return float(inside)
        case "l":
            return [_decode(x, resolve) for x in inside]
        case "t":
            return tuple(_decode(x, resolve) for x in inside)
        case "s":
            return {_decode(x, resolve) for x in inside}
        case "z":
            return frozenset(_decode(x, resolve) for x in inside)
        case "d":
            return {_decode(k, resolve): _decode(v, resolve) for k, v in inside}
        case "a":
            dtype, shape, text = inside
            return _array(dtype, text).reshape(shape)
        case "g":
            dtype, text = inside
            return _array(dtype, text).reshape(())[()]
    raise ValueError(f"unknown tag {tag!r}")


def _no_handle(value: Any) -> dict[str, Any]:
    raise WireError(f"a {type(value).__name__} in a set or as a key of a dict cannot be sent")


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _array(name: str, text: str) -> np.ndarray[Any, Any]:
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS:
        raise ValueError(f"arrays of {dtype} are not sent")
    data = base64.b64decode(text, validate=True)
    return np.frombuffer(data, dtype).copy()  # a copy, so that it can be written


class Channel:
    """One end of a socket, line by line.

    Args:
        longest: a longer line is refused.
    """

    def __init__(self, sock: socket.socket, longest: int = 64 << 20) -> None:
        self.sock, self.longest = sock, longest
        self._buffer = bytearray()
        self._searched = 0

    def send(self, message: dict[str, Any]) -> None:
        """
        Raises:
            Closed: nobody is there.
            WireError: a number with more digits than Python prints.
        """
        try:
            line = json.dumps(message, check_circular=False)
        except ValueError as error:
            raise WireError(str(error)) from None
        try:
            self.sock.sendall(line.encode("ascii") + b"\n")
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message; None if none came in ``timeout`` seconds (None: wait for ever).

        Raises:
            Closed: the other side is gone.
            WireError: it is no message, or too long.
        """
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                return self._parse(line)
            self._searched = len(self._buffer)
            if timeout is not None and not select.select([self.sock], [], [], timeout)[0]:
                return None
            try:
                data = self.sock.recv(1 << 18)
            except OSError as error:
                raise Closed(str(error)) from None
            if not data:
                raise Closed("the channel is closed")
            self._buffer += data
            if len(self._buffer) > self.longest:
                raise WireError(f"an answer of more than {self.longest >> 20} MiB")

    @property
    def idle(self) -> bool:
        """Is there nothing to read?"""
        return not self._buffer and not select.select([self.sock], [], [], 0)[0]

    @staticmethod
    def _parse(line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise WireError("not a line of JSON") from None
        if not isinstance(message, dict):
            raise WireError("not a message")
        return message
