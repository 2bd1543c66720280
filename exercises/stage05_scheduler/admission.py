"""May a waiting group start? (paper, sections 4.3 and 4.5)

Stage 5, the scheduler::

    read    lessons/05-scheduler.md
    write   5.1  Admission         16 points
            5.3  OK, LATER, NEVER  10 points
    also    robustness 14 points, counterexample.toml 6 points
    check   minipaged grade 5
    stuck   minipaged hint 5.1
    use it  minipaged demo --parts mine --model opt-stories
    next    scheduler.py, beside this file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minipaged.contracts import AdmissionDecision, Verdict

if TYPE_CHECKING:
    from minipaged.config import SchedulerConfig
    from minipaged.contracts import Batch, KVManager
    from minipaged.sequence import SequenceGroup


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

    def over_limit(self, group: SequenceGroup, tokens: int, batch: Batch) -> str:
        """The limit that a step would break if the group joined it with this many tokens.

        Two limits of the configuration hold for a step, and both may be reached, but not passed:

        * ``max_num_seqs`` for the places that the groups take. Those of the batch are counted in
          it; the group's own are ``group.places(config.count_max_seqs)``.
        * ``max_num_batched_tokens`` for the tokens that the step computes. It does not hold for a
          group that joins an empty batch: a prompt longer than the budget runs alone.

        Returns:
            ``"sequence limit"`` or ``"token budget"``; the first if it is both; an empty string
            if it is neither.

        Example (8 sequences and 20 tokens a step): to a batch of 15 tokens and 6 places, a group
        that may fork into 2 can come with 5 tokens, and not with 6.
        """
        raise NotImplementedError("stage 5, task 5.1: see lessons/05-scheduler.md")

    def shortage(self, group: SequenceGroup, tokens: int, batch: Batch) -> str:
        """What the group must wait for, before it can be admitted to this batch.

        The limits of the step come first (:meth:`over_limit`). Where prefill is chunked
        (``config.chunked_prefill``), one token of budget is enough to begin. Then memory: the block
        manager must have room for the group that leaves the watermark free (``kv.fits``), or, for a
        group that joins an empty batch, room for the group.

        Args:
            tokens: those that the group must compute before it can sample.

        Returns:
            ``"sequence limit"``, ``"token budget"`` or ``"memory"``, the first of them that it
            must wait for; an empty string if nothing is in its way.

        Example (10 blocks free, a watermark of 2): a prompt of 9 blocks waits for memory as long as
        anything runs; alone it can start.
        """
        raise NotImplementedError("stage 5, task 5.1: see lessons/05-scheduler.md")

    def refusal(self, group: SequenceGroup) -> str:
        """Why a group that has not started can never run in this engine, however long it waits.

        There are three such reasons. If several hold, the first is given:

        * It asks for more sequences than ``max_num_seqs`` (``group.params.width``).
        * Its prompt leaves no room for an output: ``max_model_len`` counts prompt and output
          together, and there is at least one token of output.
        * The pool is too small for it, even when nothing else is in it (``kv.fits_ever``).

        Returns:
            A sentence for whoever sent the request, that has the value and the limit as numbers:
            the sequences asked for and ``max_num_seqs``; the tokens of the prompt and
            ``max_model_len``; the blocks that it needs (``kv.blocks_needed``) and those that the
            pool has (``kv.num_usable_gpu_blocks``). An empty string if it can run some day.
        """
        raise NotImplementedError("stage 5, task 5.3: see lessons/05-scheduler.md")

    def decide(self, group: SequenceGroup, tokens: int, batch: Batch) -> AdmissionDecision:
        """OK, LATER or NEVER.

        NEVER, with the reason, for a group with a :meth:`refusal`. It is decided once and for all
        at the first admission: a group that has started, and comes back after a preemption, has
        run here before, and is not refused. Otherwise LATER for one with a :meth:`shortage`, with
        that as the reason; otherwise OK.

        Args:
            tokens: those that the group must compute before it can sample.
        """
        raise NotImplementedError("stage 5, task 5.3: see lessons/05-scheduler.md")
