"""The two architectures that the paper evaluates, and how their weights are found and loaded.

Importing this package imports no torch: the catalog of shapes is plain data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from minipaged.config import ModelConfig
    from minipaged.models.causal_lm import CausalLM


def build_model(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> CausalLM:
    """A model of this shape, its parameters allocated but not filled: each must be given by
    ``load_weight``, and then ``finish_loading`` makes the model ready to run."""
    if config.architecture == "opt":
        from minipaged.models.opt import OPTForCausalLM

        return OPTForCausalLM(config, dtype, device)
    from minipaged.models.llama import LlamaForCausalLM

    return LlamaForCausalLM(config, dtype, device)
