"""Tiny OPT and LLaMA models of transformers with random weights, one for each variant, and a
plain attention to run ours with.

transformers starts biases at 0 and norms at 1, which would hide that one of them is not applied:
here every tensor is random.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minipaged.config import ModelConfig
from minipaged.models import build_model
from minipaged.models.causal_lm import split_heads
from minipaged.models.hf_config import model_config_from_hf
from minipaged.models.layers import Rotary

VOCAB_SIZE = 97
MAX_POSITIONS = 128

_OPT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "ffn_dim": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "word_embed_proj_dim": 32,
}
_LLAMA = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "rms_norm_eps": 1e-5,
}

OPT_VARIANTS: dict[str, dict[str, Any]] = {
    "opt-pre-norm": {},
    "opt-post-norm-projected": {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
    "opt-no-final-norm": {"_remove_final_layer_norm": True},
    "opt-no-bias": {"enable_bias": False},
    "opt-plain-norm": {"layer_norm_elementwise_affine": False},
    "opt-untied": {"tie_word_embeddings": False},
}
LLAMA_VARIANTS: dict[str, dict[str, Any]] = {
    "llama-mha": {},
    "llama-gqa": {"num_key_value_heads": 2},
    "llama-mqa": {"num_key_value_heads": 1},
    "llama-theta-500000": {"rope_theta": 500000.0, "num_key_value_heads": 2},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
    "llama-wide-heads": {"head_dim": 24},
}
VARIANTS = (*OPT_VARIANTS, *LLAMA_VARIANTS)


def hf_config(variant: str, **changes: Any) -> Any:
    """transformers' configuration of a tiny model."""
    from transformers import LlamaConfig, OPTConfig

    if variant in OPT_VARIANTS:
        return OPTConfig(**{**_OPT, **OPT_VARIANTS[variant], **changes})
    settings = {**_LLAMA, **LLAMA_VARIANTS[variant], **changes}
    theta = settings.pop("rope_theta", 10000.0)
    config = LlamaConfig(**settings, rope_theta=theta)
    assert config.to_dict()["rope_parameters"]["rope_theta"] == theta
    return config


def hf_model(variant: str, seed: int = 0, **changes: Any) -> Any:
    """transformers' model, every weight random, float32, for evaluation."""
    from transformers import LlamaForCausalLM, OPTForCausalLM

    config = hf_config(variant, **changes)
    config._attn_implementation = "eager"
    cls = OPTForCausalLM if variant in OPT_VARIANTS else LlamaForCausalLM
    model = cls(config).eval()
    randomize(model, seed)
    return model


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Random values of a size that keeps activations near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(0.3 * noise + ("norm" in name and name.endswith("weight")))
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)


def canonical_weights(model: Any) -> dict[str, Tensor]:
    """The tensors of transformers' model, without the copy of a tied head."""
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def config_of(model: Any) -> ModelConfig:
    """Ours, read from what transformers would write to ``config.json``."""
    return model_config_from_hf(json.loads(model.config.to_json_string(use_diff=False)))


def ours(
    model: Any,
    *,
    dtype: torch.dtype = torch.float32,
    prepack: bool = True,
    edit: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
) -> Any:
    """Our model with the weights of transformers' one; ``edit`` may change a tensor first."""
    made = build_model(config_of(model), dtype, "cpu")
    for name, tensor in canonical_weights(model).items():
        made.load_weight(name, edit(name, tensor))
    made.finish_loading(prepack=prepack)
    return made


def save(model: Any, folder: Path) -> Path:
    """A folder as a user has it: ``config.json`` and ``model.safetensors``."""
    model.save_pretrained(folder)
    return folder


def prompt(length: int, seed: int = 1) -> Tensor:
    """``[length]`` random token ids."""
    return torch.randint(VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed))


class CausalAttention:
    """``attend`` for one sequence: keeps the keys and values of all tokens so far, so that the
    sequence may come in any number of pieces."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.k: dict[int, Tensor] = {}
        self.v: dict[int, Tensor] = {}

    def __call__(self, layer: int, heads: Tensor, rotary: Rotary | None) -> Tensor:
        q, k, v = split_heads(heads, self.config, rotary)
        config, new = self.config, len(q)
        assert q.shape == (new, config.num_heads, config.head_dim)
        assert k.shape == v.shape == (new, config.num_kv_heads, config.head_dim)
        k = self.k[layer] = torch.cat((self.k[layer], k)) if layer in self.k else k.clone()
        v = self.v[layer] = torch.cat((self.v[layer], v)) if layer in self.v else v.clone()
        group, total = config.num_heads // config.num_kv_heads, len(k)
        wide_k = k.repeat_interleave(group, dim=1).float()  # [total, H, d]
        wide_v = v.repeat_interleave(group, dim=1).float()  # [total, H, d]
        scores = torch.einsum("qhd,khd->hqk", q.float(), wide_k) * config.head_dim**-0.5
        visible = torch.ones(new, total, dtype=torch.bool).tril(total - new)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)  # [H, new, total]
        return torch.einsum("hqk,khd->qhd", weights, wide_v).to(q.dtype)


def logits(model: Any, tokens: Tensor, *, pieces: list[int] | None = None) -> Tensor:
    """Our model's logits ``[len(tokens), vocab]``, computed in pieces of these lengths."""
    attend = CausalAttention(model.config)
    rows, start = [], 0
    with torch.inference_mode():
        for length in pieces or [len(tokens)]:
            end = start + length
            hidden = model(tokens[start:end], torch.arange(start, end), attend)
            rows.append(model.logits(hidden))
            start = end
    assert start == len(tokens)
    return torch.cat(rows)


def hf_logits(model: Any, tokens: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(tokens[None]).logits[0]
