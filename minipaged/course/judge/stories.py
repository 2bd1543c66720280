"""Models for checkpoints, each once in a process: opt-stories, and one that says nothing of sense.
Workers have the former from the one that they are forked from, which may not load the engine: some
of it can be the student's."""

from __future__ import annotations

from functools import cache

from minipaged.config import ModelConfig
from minipaged.models.loader import LoadedModel, load_model
from minipaged.models.random_weights import random_model


@cache
def stories() -> LoadedModel:
    return load_model("opt-stories", dtype="float32")


@cache
def grouped() -> LoadedModel:
    """A LLaMA of random weights, whose query heads share keys by threes."""
    return random_model(
        ModelConfig(
            architecture="llama",
            vocab_size=512,
            hidden_size=96,
            intermediate_size=128,
            num_layers=2,
            num_heads=6,
            num_kv_heads=2,
            head_dim=16,
            max_model_len=256,
            name="grouped",
        )
    )
