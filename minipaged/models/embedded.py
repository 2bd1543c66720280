"""The models that come with minipaged: one is fetched once, one is part of the package."""

from __future__ import annotations

from pathlib import Path

from minipaged import fetch
from minipaged.errors import ModelError

EMBEDDED_MODELS = {
    "smollm2-135m": "a chat model of 135M parameters, fetched on first use (93 MB)",
    "opt-stories": "an OPT of 1M parameters that tells children's stories, part of the package",
}
EMBEDDED_ALIASES = {"smollm2": "smollm2-135m", "smollm2-135m-instruct": "smollm2-135m"}
_OPT_STORIES = Path(__file__).parent / "opt_stories"


def embedded_folder(name: str, progress: bool = True) -> Path | None:
    """The folder of an embedded model, fetched if need be; None for a name of no such model.

    Raises:
        ModelError: the model cannot be fetched.
    """
    name = name.lower()
    name = EMBEDDED_ALIASES.get(name, name)
    if name == "smollm2-135m":
        return fetch.fetch_smollm2(progress=progress)
    if name == "opt-stories":
        if not (_OPT_STORIES / "config.json").is_file():
            raise ModelError(
                f"this installation lacks the model opt-stories ({_OPT_STORIES}): install "
                "minipaged again"
            )
        return _OPT_STORIES
    return None
