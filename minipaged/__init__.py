"""minipaged: PagedAttention (Kwon et al., SOSP 2023), built stage by stage.

``from minipaged import LLM, SamplingParams`` is the whole offline interface. Both are loaded
when they are first asked for, so that ``import minipaged`` costs nothing and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minipaged.llm import LLM as LLM
    from minipaged.sampling_params import SamplingParams as SamplingParams

# Keep this below 0.2 and then go to 1.x: some versions of transformers look for a package
# named "kernels" and could take this number for that package's own.
__version__ = "0.1.0"

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    home = {"LLM": "minipaged.llm", "SamplingParams": "minipaged.sampling_params"}.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
