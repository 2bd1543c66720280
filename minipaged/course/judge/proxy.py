"""What a graded test holds in place of the submission's objects.

Attributes, calls, ``len`` and setting an attribute go over the wire. Nothing else does: a proxy has
no ``==``, no order, no iteration and no truth, so that no object of a submission ever decides a
comparison.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from minipaged.course.catalog import Part
from minipaged.course.judge.pen import Ended, Pen
from minipaged.course.judge.remote import Fault, printable
from minipaged.course.judge.transcript import Transcript, call_of, cut, shown
from minipaged.course.judge.wire import WireError, decode, encode

#: A module whose calls a test does not make by hand: they are not in the transcript.
_UNSEEN = "minipaged.course.testing"


class Client:
    """Asks one worker; remembers what was asked."""

    def __init__(self, pen: Pen) -> None:
        self.pen = pen
        self.transcript = Transcript()
        self._proxies: dict[int, Proxy] = {}
        self._faults: list[tuple[Exception, Fault]] = []

    def symbol(self, part: Part, name: str, graded: bool) -> Any:
        """A public name of a part.

        Raises:
            Ended: the submission's file cannot be loaded, or lacks it. That is never what a test
                expects.
        """
        request = {"op": "symbol", "part": part.name, "module": part.module, "name": name}
        if not graded:
            request["part"] = ""
        answer = self.pen.ask(request, f"{part.name}.py, while it is being loaded")
        fault = self._fault(answer)
        if fault is None:
            return self._value(answer, name)
        if fault.name == "AttributeError" and not fault.frames:
            raise Ended(f"your {part.name}.py has no {name}")
        raise Ended(f"your {part.name}.py cannot be loaded: {fault}")

    def lab(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the lab in the worker. It is not of the submission: the transcript tells
        what objects it made, but for tensors, which show their shape where they are used."""
        request = {"op": "lab", "name": name, **self._arguments(args, kwargs)}
        answer = self.pen.ask(request, f"lab.{name}()")
        self._raise(answer)
        value = self._value(answer, "")
        if isinstance(value, Proxy) and not value._kind.startswith("tensor["):
            value._rename(self.transcript.name_for(value._kind))
            self.transcript.made(f"{value._label} = {call_of(f'lab.{name}', args, kwargs)}")
        return value

    def get(self, proxy: Proxy, name: str) -> Any:
        """Read an attribute."""
        label = f"{proxy._label}.{name}"
        answer = self.pen.ask({"op": "get", "on": proxy._handle, "name": name}, label)
        self._raise(answer, label)
        if answer.get("method") is True:
            return Method(proxy, name)
        return self._value(answer, label)

    def set(self, proxy: Proxy, name: str, value: Any) -> None:
        """Set an attribute."""
        label = f"{proxy._label}.{name} = {shown(value)}"
        request = {"op": "set", "on": proxy._handle, "name": name, "value": self._sent(value)}
        self._raise(self.pen.ask(request, label), label)
        self.transcript.called(label)

    def length(self, proxy: Proxy) -> int:
        """``len`` of an object."""
        answer = self.pen.ask({"op": "len", "on": proxy._handle}, f"len({proxy._label})")
        self._raise(answer, f"len({proxy._label})")
        length = self._value(answer, "len")
        if type(length) is not int:
            self.pen.end("your code wrote to the grader's channel")
        return int(length)

    def call(
        self,
        proxy: Proxy,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        through: str = "",
    ) -> Any:
        """Call an object, or a method of it.

        Args:
            method: its name; empty to call the object itself.
            through: a method of the lab that calls the object, and watches over it.
        """
        name = f"{proxy._label}.{method}" if method else proxy._label
        line = call_of(name, args, kwargs)
        request = {
            "op": "method" if method else "call",
            "on": proxy._handle,
            "name": method,
            **self._arguments(args, kwargs),
        }
        if through:
            request |= {"op": "lab", "name": through}
            request["args"].insert(0, self._sent(proxy))
        try:
            answer = self.pen.ask(request, f"{method or name}()")
        except Ended:
            self.transcript.called(line)
            raise
        seen = sys._getframe(2).f_globals.get("__name__") != _UNSEEN
        self._raise(answer, line)
        value = self._value(answer, "")
        if isinstance(value, Proxy) and not value._label:
            value._rename(self.transcript.name_for(value._kind))
            note = self.transcript.made if proxy._kind == "type" else self.transcript.called
            note(f"{value._label} = {line}")
        elif seen:
            self.transcript.called(line if value is None else f"{line} -> {shown(value)}")
        return value

    def fault_of(self, error: BaseException) -> Fault | None:
        """Where an exception came from, if it came from the worker."""
        return next((fault for raised, fault in self._faults if raised is error), None)

    def _raise(self, answer: dict[str, Any], line: str = "") -> None:
        fault = self._fault(answer)
        if fault is None:
            return
        if line:
            self.transcript.called(f"{line} -> {cut(fault.summary.splitlines()[0], 80)}")
        error = fault.exception()
        error.add_note(str(fault))
        self._faults.append((error, fault))
        raise error

    def _fault(self, answer: dict[str, Any]) -> Fault | None:
        if "error" not in answer:
            return None
        try:
            return Fault.read(answer["error"])
        except WireError as error:
            return self.pen.end(f"your code wrote to the grader's channel: {error}")

    def _value(self, answer: dict[str, Any], label: str) -> Any:
        def resolve(message: dict[str, Any]) -> Proxy:
            handle = message["h"]
            if type(handle) is not int:
                raise TypeError("a handle is a number")
            if handle not in self._proxies:
                self._proxies[handle] = Proxy(self, handle, printable(message["n"], 100), label)
            return self._proxies[handle]

        try:
            return decode(answer["ok"], resolve)
        except (WireError, KeyError) as error:
            self.pen.end(f"your code wrote to the grader's channel: {error}")

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {
            "args": [self._sent(x) for x in args],
            "kwargs": {name: self._sent(x) for name, x in kwargs.items()},
        }

    def _sent(self, value: Any) -> Any:
        return encode(value, self._handle)

    def _handle(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Proxy) and value._client is self:
            return {"h": value._handle}
        raise WireError(f"a test cannot send a {type(value).__name__} to a submission")


class Proxy:
    """An object that lives in the worker."""

    __slots__ = ("_client", "_handle", "_kind", "_label", "_methods")

    _client: Client
    _handle: int
    _kind: str
    _label: str
    _methods: dict[str, Method]

    def __init__(self, client: Client, handle: int, kind: str, label: str) -> None:
        """
        Args:
            kind: the name of its type.
            label: what a transcript calls it; empty for one that has no name yet.
        """
        for name, value in (
            ("_client", client),
            ("_handle", handle),
            ("_kind", kind),
            ("_label", label),
            ("_methods", {}),
        ):
            object.__setattr__(self, name, value)

    def _rename(self, label: str) -> None:
        object.__setattr__(self, "_label", label)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a test uses public names only, not {name}")
        if name not in self._methods:
            value = self._client.get(self, name)
            if not isinstance(value, Method):
                return value
            self._methods[name] = value
        return self._methods[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise AttributeError(f"a test uses public names only, not {name}")
        self._client.set(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._client.call(self, "", args, kwargs)

    def __len__(self) -> int:
        return self._client.length(self)

    def __repr__(self) -> str:
        if self._kind.startswith("tensor[") or not self._label:
            return self._kind
        return self._label

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} stays in the submission's process: ask for what it holds, a test does not "
            "compare it, iterate over it or take its truth"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __iter__ = __contains__ = __getitem__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Method:
    """A method of an object that lives in the worker; it is looked up there at each call."""

    def __init__(self, proxy: Proxy, name: str) -> None:
        self._proxy, self._name = proxy, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._proxy._client.call(self._proxy, self._name, args, kwargs)

    def __repr__(self) -> str:
        return f"{self._proxy!r}.{self._name}"


class RemoteLab:
    """:class:`minipaged.course.judge.lab.Lab`, in the worker; what concerns the transcript is done
    here."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def scene(self, state: str, **objects: Any) -> None:
        self._client.transcript.begin(f"in {state}")
        self.named(**objects)

    def named(self, **objects: Any) -> None:
        for name, value in objects.items():
            if isinstance(value, Proxy):
                self._client.transcript.rename(value._label, name)
                value._rename(name)

    def launch(self, function: Proxy, *args: Any, **kwargs: Any) -> Any:
        return self._client.call(function, "", args, kwargs, through="launch")

    def traffic(self, function: Proxy, *args: Any, **kwargs: Any) -> Any:
        return self._client.call(function, "", args, kwargs, through="traffic")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._client.lab(name, args, kwargs)
