"""LLaMA (Touvron et al., 2023), with grouped-query attention as in its second version.

The names of the modules are those of a checkpoint, but for the projections that are computed
together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minipaged.config import ModelConfig
from minipaged.models.causal_lm import Attend, CausalLM
from minipaged.models.layers import (
    Embedding,
    Linear,
    RMSNorm,
    Rotary,
    RotaryEmbedding,
    SiluMul,
)


class LlamaAttention(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q = config.num_heads * config.head_dim
        kv = config.num_kv_heads * config.head_dim
        bias = config.attention_bias
        self.qkv_proj = Linear(
            config.hidden_size,
            {"q_proj": q, "k_proj": kv, "v_proj": kv},
            bias=bias,
            dtype=dtype,
            device=device,
        )
        self.o_proj = Linear(q, config.hidden_size, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor, layer: int, rotary: Rotary, attend: Attend) -> Tensor:
        """``[T, hidden]`` -> ``[T, hidden]``."""
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))  # [T, H + 2 KVH, d]
        mixed = attend(layer, heads, rotary)  # [T, H, d]
        return self.o_proj(mixed.flatten(1))  # type: ignore[no-any-return]


class LlamaMLP(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(
            hidden, {"gate_proj": inner, "up_proj": inner}, bias=bias, dtype=dtype, device=device
        )
        self.act = SiluMul()
        self.down_proj = Linear(inner, hidden, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden]`` -> ``[T, hidden]``."""
        return self.down_proj(self.act(self.gate_up_proj(x)))  # type: ignore[no-any-return]


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.self_attn = LlamaAttention(config, dtype, device)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.mlp = LlamaMLP(config, dtype, device)

    def forward(
        self, x: Tensor, update: Tensor | None, layer: int, rotary: Rotary, attend: Attend
    ) -> Tensor:
        """What this layer's MLP adds to the residual stream, ``[T, hidden]``.

        Args:
            x: the stream ``[T, hidden]``; ``update`` and this layer's attention are added to it
                in place.
            update: what the layer before adds to it: a sum and the norm that follows it are one
                pass over memory.
        """
        y = self.self_attn(self.input_layernorm(x, update), layer, rotary, attend)
        return self.mlp(self.post_attention_layernorm(x, y))  # type: ignore[no-any-return]


class LlamaModel(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, dtype=dtype, device=device
        )
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(config, dtype, device) for _ in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.rotary_emb = RotaryEmbedding(
            config.head_dim, config.max_model_len, config.rope_theta, dtype=dtype, device=device
        )

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[T], [T]`` -> ``[T, hidden]``."""
        x = self.embed_tokens(tokens)  # [T, hidden]
        rotary = self.rotary_emb(positions)
        update = None
        for index, layer in enumerate(self.layers):
            update = layer(x, update, index, rotary, attend)  # [T, hidden]
        return self.norm(x, update)  # type: ignore[no-any-return]


class LlamaForCausalLM(CausalLM):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config)
        self.model = LlamaModel(config, dtype, device)
        self.lm_head = self.make_head(self.model.embed_tokens)
        self._parameters_are_made()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self.model(tokens, positions, attend)  # type: ignore[no-any-return]
