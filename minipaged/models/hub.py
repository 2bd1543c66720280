"""Models from the Hugging Face hub, through its own client.

The client keeps its cache, resumes interrupted downloads and reads ``HF_TOKEN``, ``HF_HOME``,
``HF_ENDPOINT`` and ``HF_HUB_OFFLINE``. What is decided here is which files to ask for.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from minipaged.errors import ModelError
from minipaged.models.checkpoint import find_weight_files

_KINDS = (
    ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json"),
)
"""Name patterns of the weights, in the order of preference; never both."""
_SMALL = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"),
    *("special_tokens_map.json", "chat_template.jinja", "LICENSE", "LICENSE.txt"),
)


def download_model(
    model_id: str, revision: str | None = None, cache_dir: str | Path | None = None
) -> Path:
    """The files of a hub model that minipaged needs, as a local folder.

    Weights in safetensors if the repository has them, else in ``.bin``. Without a network, what
    the client's cache holds.

    Args:
        model_id: ``owner/name``.
        revision: branch, tag or commit; None: the main branch.
        cache_dir: the client's cache; None: its default.

    Raises:
        ModelError: no such model or revision, no permission, no network, no weights in a format
            that minipaged reads, or a download that broke off.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        # Of the calls that list a repository this one does not retry for half a minute.
        siblings = HfApi().model_info(model_id, revision=revision, timeout=10).siblings
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status is None or status >= 500:
            return _from_cache(model_id, revision, cache_dir, error)
        raise _refused(model_id, revision, error, status) from error
    except Exception as error:
        # The client lets errors of its HTTP library through; which one that is has changed.
        return _from_cache(model_id, revision, cache_dir, error)
    wanted = patterns_to_get(model_id, [file.rfilename for file in siblings or []])
    try:
        return Path(
            snapshot_download(
                model_id, revision=revision, cache_dir=cache_dir, allow_patterns=wanted
            )
        )
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None) or 0
        raise _refused(model_id, revision, error, status) from error
    except Exception as error:
        raise _broke_off(model_id, error) from error


def patterns_to_get(model_id: str, names: Iterable[str]) -> list[str]:
    """Name patterns of what to download of a repository: one kind of weights, the configuration,
    the tokenizer.

    Args:
        names: the files that it has.

    Raises:
        ModelError: it has no weights in a format that minipaged reads.
    """
    names = sorted(names)
    for kind in _KINDS:
        weights = [pattern for pattern in kind if not pattern.endswith(".json")]
        if any(fnmatchcase(name, pattern) for name in names for pattern in weights):
            return [*kind, *_SMALL]
    shown = ", ".join(name for name in names if "/" not in name)
    raise ModelError(
        f"{model_id} has no weights in safetensors or PyTorch's .bin format; it holds: {shown}"
    )


def _refused(model_id: str, revision: str | None, error: Exception, status: int) -> ModelError:
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        return ModelError(f"{model_id} has no revision {revision!r} on the hub")
    if isinstance(error, GatedRepoError) or status == 403:
        return ModelError(
            f"{model_id} is gated: accept its conditions on its page on the hub, and set HF_TOKEN "
            "to a token of that account (or run `hf auth login`)"
        )
    if status in (401, 404):
        return ModelError(
            f"there is no model {model_id} on the hub, or it is private and HF_TOKEN is not of an "
            "account that may read it"
        )
    return ModelError(f"the hub refused {model_id} (HTTP {status}): {_first_line(error)}")


def _broke_off(model_id: str, error: Exception) -> ModelError:
    advice = "try again: files that have arrived whole are kept"
    if getattr(error, "errno", None) == errno.ENOSPC:
        advice = "make room, or set HF_HOME to a folder on another disk"
    return ModelError(f"the download of {model_id} broke off ({_first_line(error)}); {advice}")


def _from_cache(
    model_id: str, revision: str | None, cache_dir: str | Path | None, error: Exception
) -> Path:
    from huggingface_hub import snapshot_download

    for kind in _KINDS:
        try:
            folder = snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=[*kind, *_SMALL],
                local_files_only=True,
            )
            find_weight_files(Path(folder))
        except Exception:  # not cached, or not whole, or not of this kind
            continue
        return Path(folder)
    raise ModelError(
        f"cannot reach the hub for {model_id} ({_first_line(error)}), and the local cache does "
        "not hold it, or only in part. Check the name, the network, HF_ENDPOINT and "
        "HF_HUB_OFFLINE, or give a folder"
    ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
