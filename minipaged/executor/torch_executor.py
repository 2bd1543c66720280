"""Runs a model in PyTorch over a paged pool: the executor that serves.

On a GPU the host runs ahead of the device: a step is put into its queue without waiting for
anything, and the first to wait is the sampling, for its token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minipaged.attention import AttentionBackend, AttentionBatch
from minipaged.contracts import StepLogits, StepPlan
from minipaged.device import on_device
from minipaged.executor.decode_graphs import Capture, DecodeGraphs
from minipaged.executor.inputs import HostInputs, InputBuilder
from minipaged.models.causal_lm import split_heads

if TYPE_CHECKING:
    from minipaged.kvcache.pool import KVPool
    from minipaged.models.causal_lm import Attend, CausalLM
    from minipaged.models.layers import Rotary

#: Rows of prompt logits that are computed at a time: one row is as wide as the vocabulary.
_LOGIT_ROWS = 256


class TorchExecutor:
    """Implements :class:`minipaged.contracts.Executor` with a model and its KV pool.

    Attributes:
        model, pool: as they were given.
    """

    def __init__(self, model: CausalLM, pool: KVPool, backend: AttentionBackend) -> None:
        """
        Args:
            model: ready to run, on the device of the pool.
            pool: the keys and values of its layers.
            backend: writes to the pool and reads from it. One with ``rotate_and_write`` also
                rotates queries and keys; one that is ``capturable`` can be held by CUDA graphs.
        """
        self.model = model
        self.pool = pool
        self._backend = backend
        self._scale = model.config.head_dim**-0.5
        self._inputs = InputBuilder(pool.block_size)
        self._graphs: DecodeGraphs | None = None
        self._rotate_and_write = getattr(backend, "rotate_and_write", None)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepLogits:
        """Move the plan's blocks (in, out, copies), then compute its spans.

        Logits are computed for the rows that are wanted, and no others.
        """
        with on_device(self.pool.device):
            return self._execute(plan)

    def _execute(self, plan: StepPlan) -> StepLogits:
        self.pool.swap_in(plan.swap_in)
        self.pool.swap_out(plan.swap_out)
        # The host prepares the inputs while blocks travel.
        inputs = self._inputs.on_host(plan) if plan.spans else None
        self.pool.join()
        self.pool.copy(plan.copies)
        if inputs is None:
            return StepLogits(torch.empty(0, self.model.config.vocab_size, device=self.pool.device))
        hidden = self._graphs.run(inputs) if self._graphs is not None else None
        if hidden is not None:
            return StepLogits(self.model.logits(hidden))
        return self._forward(inputs)

    @torch.inference_mode()
    def capture_decodes(self, sizes: Sequence[int], max_model_len: int, capture: Capture) -> None:
        """Run decode steps as graphs from now on: see :class:`DecodeGraphs`. The backend must be
        ``capturable``."""
        with on_device(self.pool.device):
            self._graphs = DecodeGraphs(
                self._hidden,
                sizes,
                block_size=self.pool.block_size,
                max_model_len=max_model_len,
                hidden_size=self.model.config.hidden_size,
                dtype=self.model.dtype,
                device=self.pool.device,
                capture=capture,
            )

    def poison(self, device_blocks: Iterable[int], host_blocks: Iterable[int] = ()) -> None:
        """Overwrite blocks that no one holds, so that whoever still reads them shows it."""
        self.pool.poison(device_blocks, host_blocks)

    def _forward(self, host_inputs: HostInputs) -> StepLogits:
        inputs = host_inputs.to(self.pool.device)
        hidden = self._hidden(inputs.tokens, inputs.positions, inputs.batch)
        return StepLogits(
            rows=self.model.logits(hidden.index_select(0, inputs.sample_rows)),
            prompt_rows={
                seq_id: self._prompt_logits(hidden[rows])
                for seq_id, rows in inputs.prompt_rows.items()
            },
        )

    def _hidden(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> Tensor:
        """``[T], [T]`` -> the final hidden states ``[T, hidden]``; the cache is written."""
        return self.model(tokens, positions, self._attend(batch))  # type: ignore[no-any-return]

    def _attend(self, batch: AttentionBatch) -> Attend:
        config, backend = self.model.config, self._backend

        # All keys and values of the step are in the cache before any query reads it.
        def attend(layer: int, heads: Tensor, rotary: Rotary | None) -> Tensor:
            k_cache, v_cache = self.pool.k_cache[layer], self.pool.v_cache[layer]
            if rotary is not None and self._rotate_and_write is not None:
                q, k, v = split_heads(heads, config, None)
                q = self._rotate_and_write(q, k, v, *rotary, k_cache, v_cache, batch)
            else:
                q, k, v = split_heads(heads, config, rotary)
                backend.write(k, v, k_cache, v_cache, batch)
            return backend.attend(q, k_cache, v_cache, batch, self._scale)

        return attend

    def _prompt_logits(self, hidden: Tensor) -> Tensor:
        """``[n, hidden]`` -> ``[n, vocab]``, a few rows at a time: a head in half precision is
        followed by a copy in float32."""
        logits = torch.empty(len(hidden), self.model.config.vocab_size, device=hidden.device)
        for start in range(0, len(hidden), _LOGIT_ROWS):
            part = slice(start, start + _LOGIT_ROWS)
            logits[part] = self.model.logits(hidden[part])
        return logits
