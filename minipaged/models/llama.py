"""LLaMA (Touvron et al., 2023), with grouped-query attention as in its second version.

The names of the modules are those of a checkpoint, but for the projections that are computed
together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipaged.config import ModelConfig
from minipaged.models.causal_lm import Attend, CausalLM
from minipaged.models.layers import Embedding, Linear, RMSNorm, RotaryEmbedding, rotate


class LlamaAttention(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.num_rotated = config.num_heads + config.num_kv_heads
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

    def forward(
        self, x: Tensor, layer: int, rotary: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """``[T, hidden]`` -> ``[T, hidden]``."""
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))  # [T, H + 2 KVH, d]
        rotated = rotate(heads[:, : self.num_rotated], *rotary)  # [T, H + KVH, d]
        q, k = rotated[:, : self.num_heads], rotated[:, self.num_heads :]  # [T, H | KVH, d]
        v = heads[:, self.num_rotated :]  # [T, KVH, d]
        mixed = attend(layer, q, k, v)  # [T, H, d]
        return self.o_proj(mixed.flatten(1))  # type: ignore[no-any-return]


class LlamaMLP(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(
            hidden, {"gate_proj": inner, "up_proj": inner}, bias=bias, dtype=dtype, device=device
        )
        self.down_proj = Linear(inner, hidden, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden]`` -> ``[T, hidden]``."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)  # [T, inner] each, views
        inner = F.silu(gate, inplace=True) * up  # [T, inner]
        return self.down_proj(inner)  # type: ignore[no-any-return]


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.self_attn = LlamaAttention(config, dtype, device)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.mlp = LlamaMLP(config, dtype, device)

    def forward(self, x: Tensor, layer: int, rotary: tuple[Tensor, Tensor], attend: Attend) -> None:
        """Add this layer to the residual stream ``x: [T, hidden]``, in place."""
        x.add_(self.self_attn(self.input_layernorm(x), layer, rotary, attend))
        x.add_(self.mlp(self.post_attention_layernorm(x)))


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
        for index, layer in enumerate(self.layers):
            layer(x, index, rotary, attend)
        return self.norm(x)  # type: ignore[no-any-return]


class LlamaForCausalLM(CausalLM):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config)
        self.model = LlamaModel(config, dtype, device)
        self.lm_head = self.make_head(self.model.embed_tokens)
        self._parameters_are_made()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self.model(tokens, positions, attend)  # type: ignore[no-any-return]
