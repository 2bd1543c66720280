"""An executor whose "model" is a hash of the cache: exact, fast, and blind to nothing.

Each slot of its cache stores the (token, position) that was written there, in place of a key
and a value. The logits after a token are a pseudo-random function of everything that the
sequence's block table leads to, so that one wrong block, slot, copy or lost swap changes every
later token. Rows do not depend on what else is in the batch, so two runs of the engine agree
exactly or have a reason.

It never looks for faults: it computes what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from minipaged.contracts import Span, StepLogits, StepPlan

_Words = npt.NDArray[np.uint64]

POISON = -0x5EED
"""What a poisoned slot holds, as token and as position."""

_TOKEN = np.uint64(0x9E3779B97F4A7C15)
_POSITION = np.uint64(0xC2B2AE3D27D4EB4F)
_INDEX = np.uint64(0x165667B19E3779F9)


def _mix(words: _Words) -> _Words:
    """A bijection of 64-bit words in which every input bit reaches every output bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class HashExecutor:
    """Implements :class:`minipaged.contracts.Executor` over integers.

    Attributes:
        device, host: ``[num_blocks, block_size, 2]`` int64: (token, position) of each slot.
        vocab_size: width of a row of logits.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        block_size: int,
        vocab_size: int = 64,
        *,
        spread: float = 2.0,
        salt: int = 0,
    ) -> None:
        """
        Args:
            spread: standard deviation of the logits: the larger, the more a row prefers
                its best token.
            salt: another model: other logits for the same tokens.
        """
        self.device = np.full((num_gpu_blocks, block_size, 2), POISON, dtype=np.int64)
        self.host = np.full((num_cpu_blocks, block_size, 2), POISON, dtype=np.int64)
        self.block_size = block_size
        self.vocab_size = vocab_size
        self._spread = np.float32(spread)
        self._vocabulary = _mix(np.arange(1, vocab_size + 1, dtype=np.uint64) * _TOKEN)
        self._salt = _mix(np.array([salt], dtype=np.uint64))[0]

    def execute(self, plan: StepPlan) -> StepLogits:
        """Swap in, swap out, copy, write the tokens of all spans, then read them back."""
        for source, target in plan.swap_in:
            self.device[target] = self.host[source]
        for source, target in plan.swap_out:
            self.host[target] = self.device[source]
        for source, target in plan.copies:
            self.device[target] = self.device[source]
        for span in plan.spans:
            self._write(span)
        return self._read(plan.spans)

    def poison(self, device_blocks: Iterable[int], host_blocks: Iterable[int] = ()) -> None:
        """Overwrite blocks that no one holds, so that whoever still reads them shows it."""
        self.device[list(device_blocks)] = POISON
        self.host[list(host_blocks)] = POISON

    def _slots(self, span: Span, start: int) -> tuple[npt.NDArray[np.int64], ...]:
        """Block and offset of the positions ``start .. context_len - 1``."""
        positions = np.arange(start, span.context_len, dtype=np.int64)
        table = np.asarray(span.block_table, dtype=np.int64)
        return table[positions // self.block_size], positions % self.block_size, positions

    def _write(self, span: Span) -> None:
        blocks, offsets, positions = self._slots(span, span.start)
        self.device[blocks, offsets, 0] = span.token_ids
        self.device[blocks, offsets, 1] = positions

    def _read(self, spans: list[Span]) -> StepLogits:
        import torch  # the sampler's type; all else here is numpy

        rows: list[npt.NDArray[np.float32]] = []
        prompt_rows: dict[int, Any] = {}
        for span in spans:
            if not (span.sample or span.prompt_logprobs):
                continue
            digests = self._digests(span)
            if span.sample:
                rows.append(self._logits(digests[-1:]))
            if span.prompt_logprobs:
                prompt_rows[span.seq_id] = torch.from_numpy(self._logits(digests[span.start :]))
        stacked = np.concatenate(rows) if rows else np.empty((0, self.vocab_size), np.float32)
        return StepLogits(torch.from_numpy(stacked), prompt_rows)

    def _digests(self, span: Span) -> _Words:
        """``[context_len]``: for each position, a hash of all slots up to it, as they are now."""
        blocks, offsets, positions = self._slots(span, 0)
        stored = self.device[blocks, offsets].astype(np.uint64)  # [context_len, 2]
        words = _mix(stored[:, 0] * _TOKEN + self._salt)
        words = _mix(words ^ (stored[:, 1] * _POSITION))
        words = _mix(words + positions.astype(np.uint64) * _INDEX)
        return np.cumsum(words, dtype=np.uint64)

    def _logits(self, digests: _Words) -> npt.NDArray[np.float32]:
        """``[R]`` hashes -> ``[R, vocab]``, roughly normal with the wanted spread."""
        words = _mix(digests[:, None] ^ self._vocabulary[None, :])
        pieces = words[..., None] >> np.array([0, 16, 32, 48], dtype=np.uint64)
        total = (pieces & np.uint64(0xFFFF)).sum(axis=-1).astype(np.float32)
        # The sum of four uniforms over 0 .. 65535: mean 2 * 65535, variance 4 / 12 * 65536 ** 2.
        normal = (total - np.float32(2 * 65535)) / np.float32(65536 / 3**0.5)
        scaled: npt.NDArray[np.float32] = normal * self._spread
        return scaled
