"""A GGUF file (llama.cpp's container) as the parts of a transformers folder.

The ``gguf`` library parses the file and expands its quantized blocks; what is here is the
difference between the two worlds' conventions: names of tensors, the order of the rows of the
query and key projections, the configuration, the tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minipaged.errors import ModelError
from minipaged.models.gguf_tokenizer import build_tokenizer

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GGUFFile:
    """One ``.gguf`` file that holds a model of the ``llama`` architecture.

    Raises:
        ModelError: the file is not GGUF, is truncated, or holds an architecture or a feature
            that minipaged does not implement; the message names it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._reader = _open(self.path)
        architecture = self._get("general.architecture", "")
        if architecture != "llama":
            raise ModelError(
                f"{self.path} holds a model of the architecture {architecture!r}; "
                "of GGUF files minipaged reads 'llama' alone"
            )
        if self._get("llama.expert_count", 0):
            raise ModelError(
                f"{self.path} is a mixture of experts (llama.expert_count = "
                f"{self._get('llama.expert_count', 0)}), which minipaged does not implement"
            )
        self._shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in self._tensors}
        if "rope_freqs.weight" in self._shapes:
            raise ModelError(
                f"{self.path} scales its rotary frequencies (tensor 'rope_freqs.weight', rope "
                "scaling of Llama 3.1 and later), which minipaged does not implement"
            )

    # ------------------------------------------------------------------ metadata
    @cached_property
    def config(self) -> dict[str, Any]:
        """What ``config.json`` of the same model holds, in transformers' terms."""
        heads = self._need("llama.attention.head_count")
        hidden = self._need("llama.embedding_length")
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self._shape("token_embd.weight")[0],
            "hidden_size": hidden,
            "intermediate_size": self._need("llama.feed_forward_length"),
            "num_hidden_layers": self._need("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._get("llama.attention.head_count_kv", heads),
            "head_dim": self._get("llama.attention.key_length", hidden // heads),
            "max_position_embeddings": self._need("llama.context_length"),
            "rms_norm_eps": _shortest(self._need("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(self._get("llama.rope.freq_base", 10000.0)),
            "hidden_act": "silu",
            "attention_bias": "blk.0.attn_q.bias" in self._shapes,
            "mlp_bias": "blk.0.ffn_up.bias" in self._shapes,
            "tie_word_embeddings": "output.weight" not in self._shapes,
            "torch_dtype": "float32",
            "bos_token_id": self._get("tokenizer.ggml.bos_token_id", None),
            "eos_token_id": self._get("tokenizer.ggml.eos_token_id", None),
            "pad_token_id": self._get("tokenizer.ggml.padding_token_id", None),
        }
        scaling = self._get("llama.rope.scaling.type", "none")
        if scaling != "none":
            config["rope_scaling"] = {
                "rope_type": scaling,
                "factor": self._get("llama.rope.scaling.factor", 1.0),
            }
        rotated = self._get("llama.rope.dimension_count", config["head_dim"])
        if rotated != config["head_dim"]:
            raise ModelError(
                f"{self.path} rotates {rotated} of the {config['head_dim']} dimensions of a head "
                "(llama.rope.dimension_count), which minipaged does not implement"
            )
        return config

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the metadata describes."""
        return build_tokenizer(self._get, self.path)

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """What ``tokenizer_config.json`` of the same model holds."""
        tokens = self._need("tokenizer.ggml.tokens")
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self._need("llama.context_length"),
            "clean_up_tokenization_spaces": False,
        }
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            index = self._get(f"tokenizer.ggml.{key}_token_id", None)
            if index is not None:
                config[f"{role}_token"] = tokens[index]
        template = self._get("tokenizer.chat_template", None)
        if template is not None:
            config["chat_template"] = template
        return config

    # ------------------------------------------------------------------ weights
    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight as (transformers' name, float32 tensor), one at a time.

        Raises:
            ModelError: the file has a tensor that is not part of the llama architecture.
        """
        import torch
        from gguf import dequantize

        heads = self.config["num_attention_heads"]
        kv_heads = self.config["num_key_value_heads"]
        for tensor in self._tensors:
            name = self._transformers_name(tensor.name)
            values = dequantize(tensor.data, tensor.tensor_type).reshape(self._shape(tensor.name))
            if ".q_proj." in name:
                values = half_split_rows(values, heads)
            elif ".k_proj." in name:
                values = half_split_rows(values, kv_heads)
            # A copy, because dequantize hands out read-only views of float32 tensors.
            yield name, torch.from_numpy(np.array(values, dtype=np.float32, order="C"))

    def _transformers_name(self, name: str) -> str:
        if name in _TOP_LEVEL:
            return _TOP_LEVEL[name]
        match = _BLOCK_TENSOR.fullmatch(name)
        if match is None or match[2] not in _IN_BLOCK:
            raise ModelError(f"{self.path} holds an unexpected tensor {name!r}")
        return f"model.layers.{match[1]}.{_IN_BLOCK[match[2]]}.{match[3]}"

    # ------------------------------------------------------------------ access
    @property
    def _tensors(self) -> list[Any]:
        return list(self._reader.tensors)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise ModelError(f"{self.path} has no tensor {name!r}")
        return self._shapes[name]

    def _get(self, key: str, default: Any) -> Any:
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def _need(self, key: str) -> Any:
        value = self._get(key, None)
        if value is None:
            raise ModelError(f"{self.path} lacks {key!r} in its metadata")
        return value


def half_split_rows(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows of a query or key projection (weight or bias) from llama.cpp's order to transformers'.

    llama.cpp rotates neighbors (0, 1), (2, 3), ... of a head, transformers the pairs
    (i, i + head_dim / 2), so their rows of the same projection stand in a different order.

    Args:
        rows: ``[num_heads * head_dim, ...]``, pairs interleaved.

    Returns:
        The same shape, first all first elements of a head's pairs, then all second ones.
    """
    pairs = rows.shape[0] // num_heads // 2
    by_pair = rows.reshape(num_heads, pairs, 2, *rows.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(rows.shape)


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    try:
        return GGUFReader(path)
    except Exception as error:
        # The library checks little: a short file shows as whatever numpy says first.
        size = path.stat().st_size
        raise ModelError(
            f"{path} ({size} bytes) is not a whole GGUF file ({error}); get it again"
        ) from error


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 9.99999974737e-06 was written as 1e-05."""
    return float(str(np.float32(value)))
