"""From the name of a model to a model that is ready to run, with its tokenizer.

The model is made without weights, and each tensor of the checkpoint is copied to its place as it
is read, so loading never holds more than the model and one mapped file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from minipaged.errors import ModelError
from minipaged.models import build_model
from minipaged.models.checkpoint import Weight, read_checkpoint
from minipaged.models.dtype import choose_dtype, overflows, require_float
from minipaged.models.hf_config import model_config_from_hf
from minipaged.models.locate import locate_model
from minipaged.tokenizer import HFTokenizer

if TYPE_CHECKING:
    from minipaged.config import ModelConfig
    from minipaged.models.causal_lm import CausalLM

_BUFFERS = ("rotary_emb.inv_freq", "cos_cached", "sin_cached")
"""Tables that some versions of transformers stored; they follow from the configuration."""
_LM_HEAD = "lm_head.weight"


@dataclass
class LoadedModel:
    """A model, ready to run."""

    model: CausalLM
    config: ModelConfig
    tokenizer: HFTokenizer | None
    """None where the folder has none: prompts must then be token ids."""
    dtype: torch.dtype
    path: Path
    """The folder or file that it was read from."""
    notes: list[str] = field(default_factory=list)
    """What was chosen on the user's behalf, one sentence each."""


class _Source(NamedTuple):
    raw_config: dict[str, Any]
    weights: Iterable[Weight]
    tokenizer: HFTokenizer | None


def load_model(
    model: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    revision: str | None = None,
) -> LoadedModel:
    """Load a model with its weights and its tokenizer.

    Args:
        model: a folder as transformers saves it, a ``.gguf`` file, an embedded name
            (``smollm2-135m``, fetched on first use, or ``opt-stories``), or a hub id such as
            ``facebook/opt-125m``.
        dtype: ``float32``, ``float16``, ``bfloat16``, or ``auto``: the checkpoint's own type on a
            GPU, float32 on a CPU. What ``auto`` chose is in the result's notes.
        device: where the weights go; ``meta`` checks names and shapes and copies nothing.
        revision: branch, tag or commit on the hub.

    Raises:
        ModelError: nothing is found under that name; the model is of a kind that minipaged does
            not implement; a tensor is missing, unexpected or of a wrong shape; a file is damaged.
    """
    path = locate_model(model, revision)
    source = _open_gguf(path) if path.suffix == ".gguf" else _open_folder(path)
    name = model if isinstance(model, str) else path.name
    config = model_config_from_hf(source.raw_config, name=name)
    device = torch.device(device)
    chosen, note = choose_dtype(dtype, config.dtype, device)
    network = build_model(config, chosen, device)
    load_weights(network, source.weights, chosen, tied=config.tie_word_embeddings)
    loaded = LoadedModel(network, config, source.tokenizer, chosen, path)
    if note:
        loaded.notes.append(note)
    if source.tokenizer is None:
        loaded.notes.append(f"{path} has no tokenizer: prompts must be token ids")
    return loaded


def load_weights(
    model: CausalLM, weights: Iterable[Weight], dtype: torch.dtype, *, tied: bool
) -> None:
    """Copy a checkpoint into ``model``, tensor by tensor.

    Names may lack transformers' prefixes ``model.`` and ``decoder.``, or have them where the
    canonical name has not. Rotary tables and empty tensors that the model does not have are
    ignored. A tied model accepts an ``lm_head.weight`` that equals its embedding.

    Raises:
        ModelError: a tensor is missing, unexpected, given twice, of a wrong shape, not a float
            type, or holds values that ``dtype`` cannot; the message names it and its file.
    """
    expected: set[str] = set(model.expected_weights())
    by_stem = {_stem(name): name for name in expected}
    loaded: dict[str, Path] = {}
    head: Weight | None = None
    file = None
    for weight in weights:
        file = weight.file
        name = by_stem.get(_stem(weight.name))
        if name is None:
            if _stem(weight.name) == _LM_HEAD and tied:
                head = weight
            elif not _ignorable(weight):
                raise _unexpected(weight, expected)
            continue
        if name in loaded:
            raise ModelError(f"{file} holds {name!r} a second time, as {weight.name!r}")
        _load_one(model, name, weight, dtype)
        loaded[name] = file
    _require_all(expected - loaded.keys(), len(expected), file)
    if head is not None:
        _require_tied(model, head, expected)
    model.finish_loading()


# --------------------------------------------------------------------------- one tensor
def _load_one(model: CausalLM, name: str, weight: Weight, dtype: torch.dtype) -> None:
    require_float(weight)
    on_meta = next(model.parameters()).is_meta
    if not on_meta and overflows(weight.tensor, dtype):
        raise ModelError(
            f"{weight.file}: tensor {weight.name!r} holds values beyond the range of "
            f"{str(dtype).removeprefix('torch.')}; load it with dtype bfloat16 or float32"
        )
    try:
        model.load_weight(name, weight.tensor)
    except ModelError as error:
        raise ModelError(f"{weight.file}: tensor {weight.name!r}: {error}") from error


def _stem(name: str) -> str:
    return name.removeprefix("model.").removeprefix("decoder.")


def _ignorable(weight: Weight) -> bool:
    return weight.name.endswith(_BUFFERS) or weight.tensor.numel() == 0


def _unexpected(weight: Weight, expected: set[str]) -> ModelError:
    from difflib import get_close_matches

    near = get_close_matches(weight.name, expected, n=1)
    hint = f" (the nearest that it has: {near[0]!r})" if near else ""
    return ModelError(
        f"{weight.file} holds the tensor {weight.name!r} of shape {list(weight.tensor.shape)}, "
        f"which the model of config.json does not have{hint}"
    )


def _require_all(missing: set[str], total: int, file: Path | None) -> None:
    if not missing:
        return
    shown = ", ".join(repr(name) for name in sorted(missing)[:3])
    where = "the checkpoint" if file is None else f"the checkpoint in {file.parent}"
    raise ModelError(
        f"{where} lacks {len(missing)} of the model's {total} tensors: {shown}"
        f"{', ...' if len(missing) > 3 else ''}"
    )


def _require_tied(model: CausalLM, head: Weight, expected: set[str]) -> None:
    name = next(name for name in expected if name.endswith("embed_tokens.weight"))
    embedding = model.get_parameter(name)
    same_shape = head.tensor.shape == embedding.shape
    if embedding.is_meta and same_shape:
        return
    if not same_shape or not torch.equal(head.tensor.to(embedding), embedding):
        raise ModelError(
            f"{head.file}: {head.name!r} differs from the embedding {name!r}, but config.json "
            "ties the two; set tie_word_embeddings to false there if the model has its own head"
        )


# --------------------------------------------------------------------------- where from
def _open_folder(folder: Path) -> _Source:
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise ModelError(f"{folder} has no config.json: it is no folder that transformers saved")
    try:
        raw = json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{config_file} is not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{config_file} holds a {type(raw).__name__}, not a model's settings")
    return _Source(raw, read_checkpoint(folder), HFTokenizer.find(folder))


def _open_gguf(path: Path) -> _Source:
    from minipaged.models.gguf_reader import GGUFFile

    file = GGUFFile(path)
    weights = (Weight(name, tensor, path) for name, tensor in file.tensors())
    eos = file.config["eos_token_id"]
    tokenizer = HFTokenizer(
        file.tokenizer, file.tokenizer_config, () if eos is None else (int(eos),)
    )
    return _Source(file.config, weights, tokenizer)
