"""Chat templates as transformers renders them: Jinja in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from minipaged.errors import ModelError, RequestError

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}``"""


class ChatTemplate:
    """A model's way of writing a conversation as one text.

    Raises:
        ModelError: the template is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """``special_tokens`` are the names that a template may use: ``bos_token``, ..."""
        from jinja2 import TemplateError

        try:
            self._template = _compile(source)
        except TemplateError as error:
            raise ModelError(f"the model's chat template is not valid ({error})") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The conversation as text; with ``add_generation_prompt`` it ends where the model's
        answer begins.

        Raises:
            RequestError: no messages, a message without a role, or a conversation that the
                template refuses.
        """
        from jinja2 import TemplateError

        if not messages:
            raise RequestError("a chat needs at least one message, not an empty list")
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise RequestError(
                    f"a message must be a map with 'role' and 'content', not {message!r}"
                )
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except (TemplateError, TypeError) as error:
            raise RequestError(
                f"the model's chat template refuses the messages: {error}"
            ) from error


def _compile(source: str) -> Template:
    # Imported here: a completion needs no template.
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the model's own words for training; here it says nothing."""

        tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment.from_string(source)
