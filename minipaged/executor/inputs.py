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
from minipaged.device import to_device

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]

#: The number of tokens of a step is rounded up to a multiple of this.
TOKEN_MULTIPLE = 8
#: Entries of a row of the block tables on a device, likewise.
_ROW_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class HostInputs:
    """What a plan says, as arrays on the host.

    Attributes:
        tokens, positions: ``[T]`` int64; padding has token 0 at position 0.
        slots: ``[T]`` int64; padding has -1.
        query_start, context_lens: ``[S + 1]`` and ``[S]`` int32, as in
            :class:`~minipaged.attention.AttentionBatch`; sequences of one token come first.
        block_tables: ``[S, max_blocks]`` int32, a view into the builder's memory: good until the
            next plan.
        num_decodes, max_query_len: as in the batch.
        block_size: slots a block.
        sample_rows: ``[R]`` int64: the tokens whose logits are sampled, in the order of the plan.
        prompt_rows: for each span with ``prompt_logprobs``, by ``seq_id``, its tokens.
    """

    tokens: _Int64
    positions: _Int64
    slots: _Int64
    query_start: _Int32
    context_lens: _Int32
    block_tables: _Int32
    num_decodes: int
    max_query_len: int
    block_size: int
    sample_rows: _Int64
    prompt_rows: dict[int, slice]

    @property
    def decodes_alone(self) -> bool:
        """Has every sequence one token, whose logits are sampled, in the order of the plan?"""
        return self.max_query_len == 1 and np.array_equal(
            self.sample_rows, np.arange(len(self.context_lens))
        )

    def to(self, device: torch.device) -> StepInputs:
        """The same on a device."""
        tables = self.block_tables
        if device.type != "cpu":
            # A kernel is compiled once more for a row length that is no multiple of 16.
            rows, width = tables.shape
            tables = np.zeros((rows, -(-width // _ROW_MULTIPLE) * _ROW_MULTIPLE), np.int32)
            tables[:, :width] = self.block_tables
        tokens, positions, slots, query_start, context_lens, tables_there, sample_rows = to_device(
            (self.tokens, self.positions, self.slots, self.query_start, self.context_lens,
             tables, self.sample_rows), device,
        )  # fmt: skip
        batch = AttentionBatch(
            slot_mapping=slots,
            query_start=query_start,
            context_lens=context_lens,
            block_tables=tables_there[:, : self.block_tables.shape[1]],
            num_decodes=self.num_decodes,
            max_query_len=self.max_query_len,
            max_context_len=int(self.context_lens.max()),
            block_size=self.block_size,
        )
        return StepInputs(tokens, positions, batch, sample_rows, self.prompt_rows)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What one forward pass takes, all on one device.

    Attributes:
        tokens, positions: ``[T]`` int64; padding has token 0 at position 0.
        batch: where the tokens stand; sequences of one token come first.
        sample_rows, prompt_rows: as in :class:`HostInputs`.
    """

    tokens: Tensor
    positions: Tensor
    batch: AttentionBatch
    sample_rows: Tensor
    prompt_rows: dict[int, slice]


class InputBuilder:
    """Builds a step's inputs, and remembers the block tables of the step before."""

    def __init__(self, block_size: int, *, max_seqs: int = 8, max_blocks: int = 8) -> None:
        """
        Args:
            block_size: slots a block.
            max_seqs, max_blocks: sequences a step and blocks a sequence to begin with; both
                grow as they must.
        """
        self.block_size = block_size
        self._step = -1
        #: the sequences of the last step, in the order of its batch: row i belongs to the i-th
        self._ids: list[int] = []
        self._context_lens: _Int32 = np.empty(0, np.int32)
        self._tables: _Int32 = np.zeros((max_seqs, max_blocks), np.int32)

    def build(self, plan: StepPlan, device: torch.device | str = "cpu") -> StepInputs:
        """The inputs of a plan that has at least one span. On a CPU the block tables are a view
        into the builder's memory: good until the next plan."""
        return self.on_host(plan).to(torch.device(device))

    def on_host(self, plan: StepPlan) -> HostInputs:
        """The same, on the host yet."""
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
        padded = padded_tokens(total)
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

        width = -(-int(context_lens.max()) // self.block_size)
        sample_rows, prompt_rows = _wanted_rows(plan.spans, places, query_start)
        return HostInputs(
            tokens=tokens,
            positions=positions,
            slots=slots,
            query_start=query_start,
            context_lens=context_lens,
            block_tables=self._tables[: len(spans), :width],
            num_decodes=num_decodes,
            max_query_len=int(lengths.max()),
            block_size=self.block_size,
            sample_rows=sample_rows,
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


def padded_tokens(count: int) -> int:
    """Rows of a step that has ``count`` tokens."""
    return -(-count // TOKEN_MULTIPLE) * TOKEN_MULTIPLE


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
