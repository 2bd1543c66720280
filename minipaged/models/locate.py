"""What ``--model`` may be, and where on this machine it then is."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path

from minipaged.errors import ModelError
from minipaged.models.embedded import EMBEDDED_ALIASES, EMBEDDED_MODELS, embedded_folder
from minipaged.models.hub import download_model

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_EXAMPLES = (
    *(f"facebook/opt-{n}" for n in ("125m", "350m", "1.3b", "2.7b", "6.7b", "13b", "30b", "66b")),
    *(f"huggyllama/llama-{n}" for n in ("7b", "13b", "30b", "65b")),
)


def locate_model(model: str | Path, revision: str | None = None) -> Path:
    """The local folder or ``.gguf`` file of a model, fetched or downloaded if need be.

    A folder or file that exists comes first, then the embedded names, then hub ids.

    Raises:
        ModelError: there is no such model; the message lists what may be given.
    """
    text = str(model)
    path = Path(text).expanduser()
    if text and (path.is_dir() or (path.is_file() and path.suffix == ".gguf")):
        return path
    if path.is_file():
        raise ModelError(f"{path} is a file: give the folder that it is in, or a .gguf file")
    if isinstance(model, str) and (folder := embedded_folder(model)) is not None:
        return folder
    if isinstance(model, Path) or _means_a_path(text):
        raise ModelError(f"there is no folder or file {path} (looked in {Path.cwd()})")
    if _HUB_ID.fullmatch(text):
        return download_model(text, revision)
    raise ModelError(f"there is no model {text!r}{_did_you_mean(text)}. {_what_may_be_given()}")


def _means_a_path(text: str) -> bool:
    return text.startswith((".", "~", "/", os.sep)) or text.endswith(".gguf")


def _did_you_mean(text: str) -> str:
    by_short_name = {name: name for name in EMBEDDED_MODELS} | EMBEDDED_ALIASES
    by_short_name |= {name.split("/")[1]: name for name in _HUB_EXAMPLES}
    near = get_close_matches(text.lower(), by_short_name, n=1, cutoff=0.7)
    return f" (did you mean {by_short_name[near[0]]!r}?)" if near else ""


def _what_may_be_given() -> str:
    embedded = "; ".join(f"{name!r}, {what}" for name, what in EMBEDDED_MODELS.items())
    return (
        f"A model is one of: {embedded}; a hub id such as 'facebook/opt-125m'; a folder that "
        "transformers saved; a .gguf file of the llama architecture"
    )
