"""What graded tests, which import neither torch nor the engine, give to a submission.

It runs where the submission runs: in the worker, or in the tests' own process for debugging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minipaged.config import ModelConfig


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

    def model_config(
        self, *, num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, **others: Any
    ) -> ModelConfig:
        """The shape of a model.

        Args:
            others: its other fields; a vocabulary, a width and so on that go with the shape stand
                for what is left out.
        """
        width = num_heads * head_dim
        defaults: dict[str, Any] = {
            "architecture": "llama",
            "vocab_size": 32000,
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "max_model_len": 2048,
        }
        return ModelConfig(
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            **(defaults | others),
        )

    def empty(self, owner: Any, name: str) -> None:
        """Read a list that an object gives, and take everything out of it, as a careless caller
        may: that must not show in the object.

        Raises:
            TypeError: what the object gives is no list.
        """
        given = getattr(owner, name)
        if not isinstance(given, list):
            raise TypeError(f"{name} must be a list, not {type(given).__name__}")
        given.clear()

    def overwrite(self, owner: Any, method: str, *args: Any) -> None:
        """Call a method, and then overwrite the arrays that went in and came out, as a careless
        caller may: that must not show in the object."""
        given = [np.array(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        returned = getattr(owner, method)(*given)
        for array in (*given, *(returned if isinstance(returned, tuple) else ())):
            if isinstance(array, np.ndarray):
                array[...] = 0

    def sequence_group(
        self,
        *,
        prompt: int,
        computed: Sequence[int] = (0,),
        first_id: int = 0,
        n: int = 1,
        beam: bool = False,
        max_tokens: int | None = 16,
        expected_output_len: int | None = None,
    ) -> Any:
        """A :class:`minipaged.sequence.SequenceGroup`.

        Args:
            prompt: tokens of the prompt.
            computed: a live sequence each: how many of its tokens are in the cache. One that has
                its whole prompt there has sampled one token more, and the group has started.
            first_id: the sequences are numbered from here on.
        """
        from minipaged.sampling_params import SamplingParams
        from minipaged.sequence import Sequence as Stream
        from minipaged.sequence import SequenceGroup

        params = SamplingParams(n=n, use_beam_search=beam, max_tokens=max_tokens)
        first = Stream(first_id, [0] * prompt)
        group = SequenceGroup(
            f"r{first_id}", first, params, expected_output_len=expected_output_len
        )
        group.started = computed[0] >= prompt
        for index, tokens in enumerate(computed):
            seq = first if index == 0 else first.fork(first_id + index, index)
            seq.token_ids = [0] * max(prompt, tokens + group.started)
            seq.num_computed = tokens
            group.seqs[seq.seq_id] = seq
        return group

    def block_tables(self, block_size: int, tables: Mapping[int, list[int]]) -> Any:
        """A KV manager to look at: it has these tables, and nothing else."""
        return BlockTables(block_size, tables)

    def reservation(
        self, requested_tokens: int, region_slots: int, spare_regions: int
    ) -> Callable[[Any], Any]:
        """A function from any group to this reservation."""
        from minipaged.kvcache.contiguous import Reservation

        booked = Reservation(requested_tokens, region_slots, spare_regions)

        def reservation(group: Any) -> Reservation:
            return booked

        return reservation

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


class BlockTables:
    """Given block tables."""

    def __init__(self, block_size: int, tables: Mapping[int, list[int]]) -> None:
        self.block_size = block_size
        self._tables = {seq_id: list(blocks) for seq_id, blocks in tables.items()}

    def block_table(self, seq_id: int) -> list[int]:
        """The table of a sequence; empty for one that holds nothing."""
        return self._tables.get(seq_id, [])
