"""The model opt-stories, once in a process. Workers have it from the one that they are forked
from, which may not load the engine: some of it can be the student's."""

from __future__ import annotations

from functools import cache

from minipaged.models.loader import LoadedModel, load_model


@cache
def stories() -> LoadedModel:
    return load_model("opt-stories", dtype="float32")
