"""Tensors for graded tests, which never import torch.

It runs where the submission runs: in the worker, or in the tests' own process for debugging.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Lab:
    """Makes and reads what a submission works on."""

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """A tensor that holds a copy of an array, of the same type."""
        import torch

        return torch.from_numpy(np.array(array, order="C"))

    def read(self, tensor: Any) -> np.ndarray[Any, Any]:
        """A copy of what a tensor holds.

        Raises:
            TypeError: not a tensor, or of a type that numpy does not have.
        """
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
        if tensor.dtype is torch.bfloat16:
            raise TypeError("expected a type that numpy knows, got torch.bfloat16")
        return np.array(tensor.detach().cpu().numpy())

    def attention_batch(
        self,
        *,
        slot_mapping: np.ndarray[Any, Any],
        query_start: np.ndarray[Any, Any],
        context_lens: np.ndarray[Any, Any],
        block_tables: np.ndarray[Any, Any],
        num_decodes: int,
        max_query_len: int,
        max_context_len: int,
        block_size: int,
    ) -> Any:
        """A :class:`minipaged.attention.AttentionBatch`, its tensors in the types that it says."""
        from minipaged.attention import AttentionBatch

        def int32(array: np.ndarray[Any, Any]) -> Any:
            return self.tensor(np.asarray(array, dtype=np.int32))

        return AttentionBatch(
            slot_mapping=self.tensor(np.asarray(slot_mapping, dtype=np.int64)),
            query_start=int32(query_start),
            context_lens=int32(context_lens),
            block_tables=int32(block_tables),
            num_decodes=num_decodes,
            max_query_len=max_query_len,
            max_context_len=max_context_len,
            block_size=block_size,
        )
