"""The shapes of the models that the paper evaluates (section 6.1) and of their families.

Plain numbers: sizing a deployment needs neither weights nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from minipaged.config import ModelConfig


def _opt(size: str, hidden: int, layers: int, heads: int, embed: int = 0) -> ModelConfig:
    """OPT (Zhang et al., 2022). The 350m alone normalizes after each block and projects a
    narrower embedding."""
    post_norm = embed != 0
    return ModelConfig(
        architecture="opt",
        name=f"opt-{size}",
        vocab_size=50272,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        max_model_len=2048,
        dtype="float16",
        bos_token_id=2,
        eos_token_ids=(2,),
        word_embed_proj_dim=embed,
        do_layer_norm_before=not post_norm,
        final_layer_norm=not post_norm,
    )


def _llama(
    size: str, hidden: int, intermediate: int, layers: int, heads: int, eps: float = 1e-6
) -> ModelConfig:
    """LLaMA (Touvron et al., 2023), first version."""
    return ModelConfig(
        architecture="llama",
        name=f"llama-{size}",
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        max_model_len=2048,
        tie_word_embeddings=False,
        dtype="float16",
        bos_token_id=1,
        eos_token_ids=(2,),
        rms_norm_eps=eps,
    )


CATALOG: Mapping[str, ModelConfig] = MappingProxyType(
    {
        config.name: config
        for config in (
            _opt("125m", 768, 12, 12),
            _opt("350m", 1024, 24, 16, embed=512),
            _opt("1.3b", 2048, 24, 32),
            _opt("2.7b", 2560, 32, 32),
            _opt("6.7b", 4096, 32, 32),
            _opt("13b", 5120, 40, 40),
            _opt("30b", 7168, 48, 56),
            _opt("66b", 9216, 64, 72),
            _opt("175b", 12288, 96, 96),
            _llama("7b", 4096, 11008, 32, 32),
            _llama("13b", 5120, 13824, 40, 40),
            _llama("30b", 6656, 17920, 60, 52),
            _llama("65b", 8192, 22016, 80, 64, eps=1e-5),
        )
    }
)
"""By name, ``opt-125m`` to ``opt-175b`` and ``llama-7b`` to ``llama-65b``, smallest first."""


def parameter_count(config: ModelConfig) -> int:
    """Weights of the model, each counted once: a head tied to the embedding is not counted again.

    Example: ``parameter_count(CATALOG["opt-13b"])`` is 12 853 473 280.
    """
    embedding = config.vocab_size * config.embed_dim
    heads = 1 if config.tie_word_embeddings else 2
    body = _opt_body(config) if config.architecture == "opt" else _llama_body(config)
    return heads * embedding + body


def _opt_body(config: ModelConfig) -> int:
    hidden, inner = config.hidden_size, config.intermediate_size
    norm = 2 * hidden if config.layer_norm_affine else 0
    biases = 5 * hidden + inner if config.enable_bias else 0  # q, k, v, out, fc2; fc1
    layer = 4 * hidden * hidden + 2 * hidden * inner + biases + 2 * norm
    positions = (config.max_model_len + 2) * hidden
    projections = 2 * config.embed_dim * hidden if config.embed_dim != hidden else 0
    final_norm = norm if config.final_layer_norm else 0
    return positions + projections + config.num_layers * layer + final_norm


def _llama_body(config: ModelConfig) -> int:
    hidden, inner = config.hidden_size, config.intermediate_size
    q = config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    attention = hidden * (q + 2 * kv) + q * hidden
    if config.attention_bias:
        attention += q + 2 * kv + hidden
    mlp = 3 * hidden * inner
    if config.mlp_bias:
        mlp += 2 * inner + hidden
    norms = 2 * hidden
    return config.num_layers * (attention + mlp + norms) + hidden
