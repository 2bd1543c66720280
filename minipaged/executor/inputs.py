"""From a plan to the flat arrays that a model and its attention take.

What a decode step needs of a sequence's block table is in place already when the sequence ran in
the step before: only the block of the new token is looked up. So the work of a step does not
grow with the lengths of its sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minipaged.attention import AttentionBatch
from minipaged.contracts import Span, StepPlan

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]

#: The number of tokens of a step is rounded up to a multiple of this.
TOKEN_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What one forward pass takes, all on one device.

    Attributes:
        tokens, positions: ``[T]`` int64; padding has token 0 at position 0.
        batch: where the tokens stand; sequences of one token come first.
        sample_rows: ``[R]`` int64: the tokens whose logits are sampled, in the order of the plan.
        prompt_rows: for each span with ``prompt_logprobs``, by ``seq_id``, its tokens.
    """

    tokens: Tensor
    positions: Tensor
    batch: AttentionBatch
    sample_rows: Tensor
    prompt_rows: dict[int, slice]


class InputBuilder:
    """Builds a step's inputs, and remembers the block tables of the step before.

    The block tables of :attr:`StepInputs.batch` are a view into this memory: good until the
    next :meth:`build`.
    """

    def __init__(
        self,
        block_size: int,
        *,
        max_seqs: int = 8,
        max_blocks: int = 8,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Args:
            block_size: slots a block.
            max_seqs, max_blocks: sequences a step and blocks a sequence to begin with; both
                grow as they must.
        """
        self.block_size = block_size
        self.device = torch.device(device)
        self._step = -1
        #: the sequences of the last step, in the order of its batch: row i belongs to the i-th
        self._ids: list[int] = []
        self._context_lens: _Int32 = np.empty(0, np.int32)
        self._tables: _Int32 = np.zeros((max_seqs, max_blocks), np.int32)

    def build(self, plan: StepPlan) -> StepInputs:
        """The inputs of a plan that has at least one span."""
        spans = plan.spans
        lengths = np.array([len(span.token_ids) for span in spans], np.int32)
        num_decodes = int(np.count_nonzero(lengths == 1))
        places = np.arange(len(spans))  # of the plan's spans in the batch
        if lengths[:num_decodes].max(initial=1) > 1:
            order = np.argsort(lengths > 1, kind="stable")
            spans, lengths = [spans[i] for i in order.tolist()], lengths[order]
            places[order] = np.arange(len(spans))
        starts = np.array([span.start for span in spans], np.int32)
        context_lens = starts + lengths
        self._update_tables(plan.step, spans, starts, lengths, context_lens)

        query_start = np.zeros(len(spans) + 1, np.int32)
        np.cumsum(lengths, out=query_start[1:])
        total = int(query_start[-1])
        padded = -(-total // TOKEN_MULTIPLE) * TOKEN_MULTIPLE
        tokens = np.zeros(padded, np.int64)
        positions = np.zeros(padded, np.int64)
        slots = np.full(padded, -1, np.int64)
        if total == len(spans):
            tokens[:total] = [span.token_ids[0] for span in spans]
            sequence = np.arange(total)  # [total]: whose token it is
            positions[:total] = starts
        else:
            tokens[:total] = [token for span in spans for token in span.token_ids]
            sequence = np.arange(len(spans)).repeat(lengths)
            positions[:total] = np.arange(total) + (starts - query_start[:-1])[sequence]
        block, offset = np.divmod(positions[:total], self.block_size)
        slots[:total] = self._tables[sequence, block] * np.int64(self.block_size) + offset

        longest = int(context_lens.max())
        width = -(-longest // self.block_size)
        batch = AttentionBatch(
            slot_mapping=self._to_device(slots),
            query_start=self._to_device(query_start),
            context_lens=self._to_device(context_lens),
            block_tables=self._to_device(self._tables[: len(spans), :width]),
            num_decodes=num_decodes,
            max_query_len=int(lengths.max()),
            max_context_len=longest,
            block_size=self.block_size,
        )
        sample_rows, prompt_rows = _wanted_rows(plan.spans, places, query_start)
        return StepInputs(
            tokens=self._to_device(tokens),
            positions=self._to_device(positions),
            batch=batch,
            sample_rows=self._to_device(sample_rows),
            prompt_rows=prompt_rows,
        )

    def _update_tables(
        self,
        step: int,
        spans: Sequence[Span],
        starts: _Int32,
        lengths: _Int32,
        context_lens: _Int32,
    ) -> None:
        """Make row ``i`` of the matrix the table of ``spans[i]``.

        A row of the last step is still right where the sequence goes on from where it was, but
        for the block that it writes to: that one may be new, or a copy (copy-on-write).
        """
        ids = [span.seq_id for span in spans]
        self._grow(len(ids), max(context_lens.max(initial=0) - 1, 0) // self.block_size + 1)
        known = np.full(len(ids), -1, np.int32)  # the context that each row covers
        if self._ids and step == self._step + 1:
            if ids == self._ids:
                known = self._context_lens
            else:
                known = self._rearrange(ids)
        self._step, self._ids, self._context_lens = step, ids, context_lens

        goes_on = (known == starts) & (lengths == 1)
        written = starts // self.block_size
        blocks = [span.block_table[i] for span, i in zip(spans, written.tolist())]
        self._tables[np.arange(len(ids)), written] = blocks
        for row in np.flatnonzero(~goes_on).tolist():
            used = -(-int(context_lens[row]) // self.block_size)
            self._tables[row, :used] = spans[row].block_table[:used]

    def _rearrange(self, ids: list[int]) -> _Int32:
        """Bring the rows that are kept into the new order; what each covers, or -1."""
        row_of = {seq_id: row for row, seq_id in enumerate(self._ids)}
        rows = np.array([row_of.get(seq_id, -1) for seq_id in ids])
        width = int(self._context_lens.max(initial=0) - 1) // self.block_size + 1
        self._tables[: len(ids), :width] = self._tables[rows, :width]
        return np.where(rows >= 0, self._context_lens[rows], np.int32(-1))

    def _grow(self, num_seqs: int, num_blocks: int) -> None:
        rows, columns = self._tables.shape
        if num_seqs > rows or num_blocks > columns:
            larger = np.zeros((_at_least(num_seqs, rows), _at_least(num_blocks, columns)), np.int32)
            larger[:rows, :columns] = self._tables
            self._tables = larger

    def _to_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _at_least(wanted: int, present: int) -> int:
    """Room for ``wanted``, doubled so that growing is rare."""
    while present < wanted:
        present *= 2
    return present


def _wanted_rows(
    spans: Sequence[Span], places: _Int64, query_start: _Int32
) -> tuple[_Int64, dict[int, slice]]:
    """Rows of the batch whose logits a plan asks for: see :class:`StepInputs`."""
    last = query_start[places + 1].astype(np.int64) - 1
    silent = [i for i, span in enumerate(spans) if not span.sample]
    prompts = {
        spans[i].seq_id: slice(int(query_start[places[i]]), int(last[i]) + 1)
        for i in [i for i, span in enumerate(spans) if span.prompt_logprobs]
    }
    return np.delete(last, silent) if silent else last, prompts
