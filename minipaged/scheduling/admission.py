"""May a waiting group start? (paper, sections 4.3 and 4.5)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minipaged.contracts import AdmissionDecision, Verdict

if TYPE_CHECKING:
    from minipaged.config import SchedulerConfig
    from minipaged.contracts import Batch, KVManager
    from minipaged.sequence import SequenceGroup

OK = AdmissionDecision(Verdict.OK)


class Admission:
    """Decides on one group, given what the step holds already.

    A group is admitted when the pool has room for it *and* for the growth of those that run
    (the watermark), the step has tokens left in its budget, and the engine has places left
    for all sequences that the group may fork into. Neither the watermark nor the token budget
    applies while nothing else runs: waiting longer would not help.
    """

    def __init__(self, config: SchedulerConfig, kv: KVManager, watermark_blocks: int) -> None:
        """
        Args:
            watermark_blocks: free blocks to leave.
        """
        self.config = config
        self.kv = kv
        self.watermark_blocks = watermark_blocks

    def decide(self, group: SequenceGroup, tokens: int, batch: Batch) -> AdmissionDecision:
        """OK, LATER or NEVER.

        Args:
            tokens: those that the group must compute before it can sample. With chunked
                prefill one token of budget is enough to begin.
        """
        if not group.started:
            reason = self._impossible(group)
            if reason:
                return AdmissionDecision(Verdict.NEVER, reason)
        places = group.places(self.config.count_max_seqs)
        if batch.num_seqs + places > self.config.max_num_seqs:
            return AdmissionDecision(Verdict.LATER, "sequence limit")
        least = 1 if self.config.chunked_prefill else tokens
        if batch.num_tokens + least > self.config.max_num_batched_tokens and not batch.empty:
            return AdmissionDecision(Verdict.LATER, "token budget")
        if not self.kv.fits(group, headroom=0 if batch.empty else self.watermark_blocks):
            return AdmissionDecision(Verdict.LATER, "memory")
        return OK

    def _impossible(self, group: SequenceGroup) -> str:
        """Why the group can never run here, or an empty string."""
        prompt = group.live[0].num_tokens
        if group.params.width > self.config.max_num_seqs:
            return (
                f"the request asks for {group.params.width} sequences, the engine runs at most "
                f"{self.config.max_num_seqs} (max_num_seqs)"
            )
        if prompt >= self.config.max_model_len:
            return (
                f"the prompt has {prompt} tokens and leaves no room for an output: the limit is "
                f"{self.config.max_model_len} (max_model_len), prompt and output together"
            )
        if not self.kv.fits_ever(group):
            blocks, pool = self.kv.blocks_needed(group), self.kv.num_usable_gpu_blocks
            return (
                f"a request with {prompt} prompt tokens needs {blocks} blocks of "
                f"{self.kv.block_size}, the whole pool has {pool}"
            )
        return ""
