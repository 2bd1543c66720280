"""What the executor and the loader know of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minipaged.config import ModelConfig
from minipaged.errors import ModelError
from minipaged.models.layers import Embedding, Linear, RMSNorm, Rotary, SiluMul, rotate

Attend = Callable[[int, Tensor, Rotary | None], Tensor]
"""``attend(layer, heads, rotary)``: rotates queries and keys by their positions, where ``rotary``
is given; stores the step's keys and values; and attends to all that the tokens may see, themselves
included. Scores are scaled by ``1 / sqrt(head_dim)``.

``heads: [T, num_heads + 2 * num_kv_heads, d]``, queries, then keys, then values, as one matrix
product gives them -> ``[T, num_heads, d]``. All three are in one call, so that a kernel can rotate
the keys on their way into the cache. :func:`split_heads` does it apart."""


def split_heads(
    heads: Tensor, config: ModelConfig, rotary: Rotary | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What an ``attend`` is given -> queries ``[T, num_heads, d]``, keys and values
    ``[T, num_kv_heads, d]``, rotated where ``rotary`` is given. They are views, of ``heads`` or of
    new memory: only their last dimension is contiguous."""
    q_end, k_end = config.num_heads, config.num_heads + config.num_kv_heads
    v = heads[:, k_end:]
    if rotary is not None:
        heads = rotate(heads[:, :k_end], rotary)  # [T, H + KVH, d]: both in one go
    return heads[:, :q_end], heads[:, q_end:k_end], v


class _Place(NamedTuple):
    """Rows ``start .. start + shape[0]`` of a parameter hold one tensor of a checkpoint."""

    parameter: nn.Parameter
    start: int
    shape: torch.Size


class CausalLM(nn.Module):
    """A decoder over a flat batch. It knows nothing of caches, sequences or batches: what a token
    may see is up to the ``attend`` that it is given.

    A model goes through three states: made (parameters without values), loaded (each tensor of
    :meth:`expected_weights` given to :meth:`load_weight`), and ready (:meth:`finish_loading`).
    Values are never clamped: an activation past the range of float16 ends as NaN or infinity in
    the logits, for whoever samples to refuse.
    """

    lm_head: Linear

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self._shapes: dict[str, torch.Size] = {}
        self._places: dict[str, _Place] = {}
        self._missing: set[str] = set()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``tokens, positions: [T]`` int64 -> the final hidden states ``[T, hidden]``."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The type that it computes in."""
        return next(self.parameters()).dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """``[R, hidden]``, rows of what :meth:`forward` gave -> ``[R, vocab]`` float32."""
        return self.lm_head(hidden).float()  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ weights
    def expected_weights(self) -> dict[str, torch.Size]:
        """Every tensor that a checkpoint of this model must hold, by its name in transformers'
        ``state_dict``, with its shape. A head tied to the embedding has no tensor of its own."""
        return dict(self._shapes)

    def load_weight(self, name: str, tensor: Tensor) -> None:
        """Copy one tensor to its place, in the model's type.

        Raises:
            ModelError: the model has no such tensor, or its shape is another; or the model is
                ready already.
        """
        if not self._places:
            raise ModelError(f"{name!r} comes too late: the model has finished loading")
        place = self._places.get(name)
        if place is None:
            raise ModelError(f"the model has no tensor {name!r}")
        if tensor.shape != place.shape:
            raise ModelError(
                f"{name!r} has the shape {list(tensor.shape)}, "
                f"but the model needs {list(place.shape)}"
            )
        place.parameter.data.narrow(0, place.start, place.shape[0]).copy_(tensor)
        self._missing.discard(name)

    def finish_loading(self, *, prepack: bool = True) -> None:
        """Make a loaded model ready to run. Needs memory for one layer's largest matrix.

        Args:
            prepack: pack the weights for oneDNN where that is possible (see
                :meth:`Linear.prepack`); False keeps them as plain parameters.

        Raises:
            ModelError: a tensor was not loaded.
        """
        if self._missing:
            some = ", ".join(repr(name) for name in sorted(self._missing)[:3])
            raise ModelError(
                f"{len(self._missing)} of the model's {len(self._shapes)} tensors are not "
                f"loaded: {some}{', ...' if len(self._missing) > 3 else ''}"
            )
        self._places.clear()  # or the plain weights would live on beside the packed ones
        for module in self.modules():
            if prepack and isinstance(module, Linear):
                module.prepack()

    def use_kernels(self, wanted: bool = True) -> None:
        """Compute norms and gates by Triton kernels, one launch each, or by PyTorch's operations.
        Kernels are for a GPU, or for Triton's interpreter; Triton must be there."""
        kernels: dict[type, Callable[..., Tensor]] = {}
        if wanted:
            from minipaged.kernels.rms_norm import rms_norm
            from minipaged.kernels.silu_mul import silu_mul

            kernels = {RMSNorm: rms_norm, SiluMul: silu_mul}
        for module in self.modules():
            if isinstance(module, RMSNorm | SiluMul):
                module.kernel = kernels.get(type(module))

    def make_head(self, embedding: Embedding) -> Linear:
        """The projection to the vocabulary: the embedding itself where the two are tied."""
        weight = embedding.weight
        tied = self.config.tie_word_embeddings
        # Tied, its own matrix is never allocated: it is the embedding's parameter from the start.
        device = "meta" if tied else weight.device
        rows, width = weight.shape
        head = Linear(width, rows, bias=False, dtype=weight.dtype, device=device)
        if tied:
            head.weight = weight
        return head

    def _parameters_are_made(self) -> None:
        """Called once by each architecture, when all its layers stand."""
        self._places = dict(self._find_places())
        self._shapes = {name: place.shape for name, place in self._places.items()}
        self._missing = set(self._shapes)

    def _find_places(self) -> Iterator[tuple[str, _Place]]:
        for path, module in self.named_modules():
            if module is self.lm_head and self.config.tie_word_embeddings:
                continue
            parent, _, own_name = path.rpartition(".")
            parts = module.parts if isinstance(module, Linear) else {}
            for kind, parameter in module.named_parameters(recurse=False):
                start = 0
                for part, rows in (parts or {own_name: parameter.shape[0]}).items():
                    shape = torch.Size((rows, *parameter.shape[1:]))
                    name = ".".join(filter(None, (parent, part, kind)))
                    yield name, _Place(parameter, start, shape)
                    start += rows
