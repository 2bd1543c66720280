"""OPT (Zhang et al., 2022), with the variants that its checkpoints have.

The names of the modules are those of a checkpoint, but for the projections that are computed
together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minipaged.config import ModelConfig
from minipaged.models.causal_lm import Attend, CausalLM
from minipaged.models.layers import Embedding, LayerNorm, Linear

POSITION_OFFSET = 2
"""The first rows of OPT's position table belong to no position: position 0 is row 2."""


class OPTAttention(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        hidden, bias = config.hidden_size, config.enable_bias
        self.qkv_proj = Linear(
            hidden,
            {"q_proj": hidden, "k_proj": hidden, "v_proj": hidden},
            bias=bias,
            dtype=dtype,
            device=device,
        )
        self.out_proj = Linear(hidden, hidden, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        """``[T, hidden]`` -> ``[T, hidden]``."""
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))  # [T, 3 H, d]
        mixed = attend(layer, heads, None)  # [T, H, d]
        return self.out_proj(mixed.flatten(1))  # type: ignore[no-any-return]


class OPTDecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        affine, bias = config.layer_norm_affine, config.enable_bias
        self.norm_before = config.do_layer_norm_before
        self.self_attn = OPTAttention(config, dtype, device)
        self.self_attn_layer_norm = LayerNorm(hidden, affine=affine, dtype=dtype, device=device)
        self.fc1 = Linear(hidden, inner, bias=bias, dtype=dtype, device=device)
        self.fc2 = Linear(inner, hidden, bias=bias, dtype=dtype, device=device)
        self.final_layer_norm = LayerNorm(hidden, affine=affine, dtype=dtype, device=device)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        """``[T, hidden]`` -> ``[T, hidden]``; ``x`` itself is overwritten."""
        if self.norm_before:
            x.add_(self.self_attn(self.self_attn_layer_norm(x), layer, attend))
            return x.add_(self._mlp(self.final_layer_norm(x)))
        x = self.self_attn_layer_norm(x.add_(self.self_attn(x, layer, attend)))
        return self.final_layer_norm(x.add_(self._mlp(x)))  # type: ignore[no-any-return]

    def _mlp(self, x: Tensor) -> Tensor:
        inner = F.relu(self.fc1(x), inplace=True)  # [T, inner]
        return self.fc2(inner)  # type: ignore[no-any-return]  # [T, hidden]


class OPTDecoder(nn.Module):
    project_in: Linear | None
    project_out: Linear | None
    final_layer_norm: LayerNorm | None

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        hidden, embed = config.hidden_size, config.embed_dim
        rows = config.max_model_len + POSITION_OFFSET
        self.embed_tokens = Embedding(config.vocab_size, embed, dtype=dtype, device=device)
        self.embed_positions = Embedding(rows, hidden, dtype=dtype, device=device)
        self.project_in = self.project_out = None
        if embed != hidden:
            self.project_in = Linear(embed, hidden, bias=False, dtype=dtype, device=device)
            self.project_out = Linear(hidden, embed, bias=False, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            OPTDecoderLayer(config, dtype, device) for _ in range(config.num_layers)
        )
        self.final_layer_norm = None
        if config.final_layer_norm:
            affine = config.layer_norm_affine
            self.final_layer_norm = LayerNorm(hidden, affine=affine, dtype=dtype, device=device)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[T], [T]`` -> ``[T, hidden]``."""
        x = self.embed_tokens(tokens)  # [T, embed]
        if self.project_in is not None:
            x = self.project_in(x)  # [T, hidden]
        x.add_(self.embed_positions(positions + POSITION_OFFSET))  # [T, hidden]
        for index, layer in enumerate(self.layers):
            x = layer(x, index, attend)  # [T, hidden]
        if self.final_layer_norm is not None:
            x = self.final_layer_norm(x)
        return x  # type: ignore[no-any-return]


class OPTModel(nn.Module):
    """Nothing but the level of names that checkpoints have: ``model.decoder``."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.decoder = OPTDecoder(config, dtype, device)


class OPTForCausalLM(CausalLM):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config)
        self.model = OPTModel(config, dtype, device)
        self.lm_head = self.make_head(self.model.decoder.embed_tokens)
        self._parameters_are_made()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self.model.decoder(tokens, positions, attend)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        # Projected here and not in forward: only the rows that are sampled need it.
        project_out = self.model.decoder.project_out
        return super().logits(hidden if project_out is None else project_out(hidden))
