"""The tokenizer of a model folder, over the ``tokenizers`` library alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minipaged.errors import ModelError, RequestError
from minipaged.models.chat_template import ChatTemplate, Message

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


class HFTokenizer:
    """Text to ids and back, as transformers' ``AutoTokenizer`` does it.

    Implements :class:`minipaged.contracts.Tokenizer`.
    """

    def __init__(
        self,
        backend: Tokenizer,
        settings: Mapping[str, Any] | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """
        Args:
            backend: the tokenizer itself; it is changed as ``settings`` say.
            settings: what ``tokenizer_config.json`` holds: special tokens, ``add_bos_token`` and
                ``add_eos_token``, ``chat_template``.
            eos_token_ids: ids that end a text; if there are none, that of ``eos_token``.
        """
        self._settings = dict(settings or {})
        self._backend = backend
        self._configure()
        ids = tuple(dict.fromkeys(eos_token_ids))
        named = self.special_tokens.get("eos_token")
        if not ids and named is not None and (index := backend.token_to_id(named)) is not None:
            ids = (index,)
        self.eos_token_ids: tuple[int, ...] = ids
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values())

    # ------------------------------------------------------------------ from files
    @classmethod
    def from_folder(cls, folder: str | Path) -> HFTokenizer:
        """The tokenizer of a model folder: ``tokenizer.json``, or ``tokenizer.model``, or
        ``vocab.json`` with ``merges.txt``; with ``tokenizer_config.json``,
        ``special_tokens_map.json`` and ``chat_template.jinja`` where they are there.

        Raises:
            ModelError: there is none, or a file is damaged; the message names it.
        """
        tokenizer = cls.find(folder)
        if tokenizer is None:
            raise ModelError(
                f"{folder} has no tokenizer: expected tokenizer.json, tokenizer.model, or "
                "vocab.json with merges.txt"
            )
        return tokenizer

    @classmethod
    def find(cls, folder: str | Path) -> HFTokenizer | None:
        """:meth:`from_folder`, but None for a folder that has no tokenizer at all."""
        folder = Path(folder)
        settings = _read_settings(folder)
        backend = _read_backend(folder, settings)
        return None if backend is None else cls(backend, settings, _read_eos_ids(folder))

    # ------------------------------------------------------------------ text and ids
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text, with the tokens that the model wants around it (OPT: ``</s>`` first,
        LLaMA: ``<s>``). A special token that the text spells out becomes its id.

        Args:
            add_special_tokens: False for a text that a chat template wrote: it has them already.

        Raises:
            RequestError: the text is not valid Unicode.
        """
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(f"a prompt must be a text of valid Unicode ({error})") from error

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids. Bytes that are no whole character become U+FFFD; ids without a
        token become nothing; spaces are left as the tokens have them."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None for an id that has none."""
        return self._backend.id_to_token(token_id)

    # ------------------------------------------------------------------ special tokens, chat
    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """The named special tokens: ``{"bos_token": "<s>", ...}``."""
        return {role: _content(self._settings[role]) for role in _ROLES if self._settings.get(role)}

    @property
    def bos_token_id(self) -> int | None:
        named = self.special_tokens.get("bos_token")
        return None if named is None else self._backend.token_to_id(named)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._settings.get("chat_template"))

    def apply_chat_template(
        self, messages: Sequence[Message], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the model was trained to read it. Encode it with
        ``add_special_tokens=False``.

        Raises:
            ModelError: the model has no chat template, or one that is not valid.
            RequestError: the template refuses the messages.
        """
        return self._chat_template.render(messages, add_generation_prompt)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        source = self._settings.get("chat_template")
        if isinstance(source, list):
            by_name = {entry["name"]: entry["template"] for entry in source}
            source = by_name.get("default")
        if not source:
            raise ModelError(
                "the model has no chat template: it is a base model, give it a prompt to continue"
            )
        return ChatTemplate(source, self.special_tokens)

    def _configure(self) -> None:
        from minipaged.models.bpe import add_special_tokens, surround

        backend, settings = self._backend, self._settings
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
        declared = [_added_token(settings[role]) for role in _ROLES if settings.get(role)]
        extra = settings.get("additional_special_tokens") or []
        add_special_tokens(backend, declared + [_added_token(token) for token in extra])
        if "add_bos_token" in settings or "add_eos_token" in settings:
            named = self.special_tokens
            surround(
                backend,
                named.get("bos_token") if settings.get("add_bos_token") else None,
                named.get("eos_token") if settings.get("add_eos_token") else None,
            )


# --------------------------------------------------------------------------- reading a folder
def _read_backend(folder: Path, settings: Mapping[str, Any]) -> Tokenizer | None:
    if (folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises Exception itself
            raise ModelError(f"{folder / 'tokenizer.json'} is no tokenizer ({error})") from error
    if (folder / "tokenizer.model").is_file():
        from minipaged.models.sentencepiece_model import read_sentencepiece

        return read_sentencepiece(folder / "tokenizer.model", bool(settings.get("legacy", False)))
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        from minipaged.models.bpe import read_vocab_and_merges

        return read_vocab_and_merges(folder, bool(settings.get("add_prefix_space", False)))
    return None


def _read_settings(folder: Path) -> dict[str, Any]:
    settings = _read_json(folder / "special_tokens_map.json")
    settings |= _read_json(folder / "tokenizer_config.json")
    template = folder / "chat_template.jinja"
    if template.is_file():
        settings["chat_template"] = template.read_text(encoding="utf-8")
    return settings


def _read_eos_ids(folder: Path) -> list[int]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        given = _read_json(folder / name).get("eos_token_id")
        ids += given if isinstance(given, list) else [] if given is None else [given]
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}, not settings by name")
    return content


def _content(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _added_token(token: str | Mapping[str, Any]) -> AddedToken:
    from tokenizers import AddedToken

    if isinstance(token, str):
        return AddedToken(token, special=True, normalized=False)
    sides = {side: bool(token.get(side)) for side in ("single_word", "lstrip", "rstrip")}
    return AddedToken(
        _content(token), special=True, normalized=bool(token.get("normalized")), **sides
    )
