"""A model without a checkpoint: random weights, made on the device.

It takes the memory and the time of a real one of its shape, and says nothing of sense.
"""

from __future__ import annotations

from pathlib import Path

import torch

from minipaged.config import ModelConfig
from minipaged.models import build_model
from minipaged.models.loader import LoadedModel


def random_model(
    config: ModelConfig,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> LoadedModel:
    """A model of this shape, ready to run, without a tokenizer. The same seed gives the same
    weights on the same kind of device.

    Matrices have the scale that keeps activations near 1 (normal, with a variance of one over the
    inputs), norms and biases change nothing: so float16 holds the values, however many layers
    there are.
    """
    model = build_model(config, dtype, device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, shape in model.expected_weights().items():
        tensor = torch.zeros(shape, dtype=dtype, device=device)
        if len(shape) == 2:
            tensor.normal_(0.0, shape[1] ** -0.5, generator=generator)
        elif name.endswith("norm.weight"):
            tensor.fill_(1.0)
        model.load_weight(name, tensor)
    model.finish_loading()
    name = config.name or config.architecture
    note = f"the weights of {name} are random: its output means nothing"
    return LoadedModel(model, config, None, dtype, Path("random"), [note])
