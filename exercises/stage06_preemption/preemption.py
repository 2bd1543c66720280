"""Taking memory back from a running group, and giving it again (paper, section 4.5).

Stage 6, preemption::

    read    lessons/06-preemption.md
    write   6.1  The victim, whole  10 points
            6.2  Recompute          12 points
    also    robustness 14 points, counterexample.toml 6 points
    check   minipaged grade 6
    stuck   minipaged hint 6.1
    use it  minipaged plan --preemption --parts mine
    next    swap.py, beside this file
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from minipaged.contracts import Preempted
from minipaged.sequence import Status

if TYPE_CHECKING:
    from typing import Literal

    from minipaged.config import PreemptionMode
    from minipaged.contracts import KVManager, StepPlan
    from minipaged.sequence import SequenceGroup


class Preemption:
    """Decides who gives up its blocks and how, and carries it out on the block manager.

    A group is preempted whole (I6): its sequences wait for each other anyway. It comes back
    by *swap*, its blocks having been kept in host memory, or by *recompute*, its keys and
    values being computed again from its tokens. Neither changes a token of its output (I7).

    The scheduler moves the group between its queues; this class changes blocks, the plan, and
    the status and ``num_computed`` of the sequences. Those of a group that have ended
    (``group.finished_seqs``) hold nothing, count for nothing, and stay as they are.

    Attributes:
        kv: who owns the blocks. It is asked ``can_swap_out(group)`` and
            ``can_swap_in(group, headroom)``, which change nothing, and told to ``swap_out(group)``,
            ``swap_in(group)`` and ``release(group)``, which take the whole group. What each
            promises is in :class:`minipaged.contracts.KVManager`.
        mode: ``auto``, ``swap`` or ``recompute``.
    """

    def __init__(self, kv: KVManager, mode: PreemptionMode) -> None:
        self.kv = kv
        self.mode = mode

    def evict(self, candidates: Seq[SequenceGroup], plan: StepPlan) -> SequenceGroup:
        """Preempt the last of ``candidates``: running groups, in order, of which none has got
        its slots in this step. The others stay as they are, and so does the list.

        Returns:
            The victim. Its status says how: WAITING after recompute, SWAPPED after swap.

        Example: of the candidates ``r1``, ``r4``, ``r7``, in this order, ``r7`` is preempted and
        returned, whatever it holds. It came last, so nobody is overtaken.
        """
        raise NotImplementedError("stage 6, task 6.1: see lessons/06-preemption.md")

    def preempt(self, group: SequenceGroup, plan: StepPlan) -> None:
        """Take every device block of a running group, of all its live sequences at once.

        How is what :meth:`choose` says. Afterwards:

        * after a *swap* the blocks are in host memory; the pairs that the manager gave,
          (device, host), come after those that ``plan.swap_out`` has already; live sequences are
          SWAPPED, and their ``num_computed`` is as it was, for nothing is lost;
        * after a *recompute*, what :meth:`recompute` says;
        * either way ``plan.preempted`` ends with ``Preempted(group.request_id, how)``, ``how``
          being ``"swap"`` or ``"recompute"``, and the group was preempted once more
          (``num_preemptions``).
        """
        raise NotImplementedError("stage 6, task 6.1: see lessons/06-preemption.md")

    def recompute(self, group: SequenceGroup) -> None:
        """Free what the group holds, on whatever side; everything will be computed again.

        ``kv.release(group)`` does the freeing. It also notes in ``group.shape`` which blocks the
        tables of several siblings shared, for :meth:`refill_starts`.

        Afterwards every live sequence is WAITING with nothing in the cache, and the group is not
        ``prefilling``, if it was. Its tokens are those that it had, sampled ones included; so is
        ``num_prompt_tokens``: what is computed again is not what was asked. No plan is touched.
        """
        raise NotImplementedError("stage 6, task 6.2: see lessons/06-preemption.md")

    def choose(self, group: SequenceGroup) -> Literal["swap", "recompute"]:
        """Swap or recompute?

        ``auto`` recomputes a group with one live sequence and swaps one with several; ``swap``
        swaps both. Whatever the mode, a group that is not fully computed yet (``prefilling``), or
        for which the host has no room, is recomputed. Nothing changes here.

        Example: a group of three of which two have ended is recomputed in ``auto``.
        """
        raise NotImplementedError("stage 6, task 6.1: see lessons/06-preemption.md")

    def resume(self, group: SequenceGroup, plan: StepPlan, headroom: int) -> bool:
        """Bring a swapped group back if the device has room for its blocks and for its next
        token, with ``headroom`` blocks left free.

        Then the pairs that the manager gave, (host, device), come after those that
        ``plan.swap_in`` has already, ``plan.resumed`` ends with ``group.request_id``, and the live
        sequences are RUNNING, with ``num_computed`` as it was.

        Returns:
            Is it back? If not, nothing has changed.

        Example: 5 blocks in host memory and a next token that takes 2. With 8 free blocks on the
        device the group comes back for a ``headroom`` of 0 or 1, and not for 2.
        """
        raise NotImplementedError("stage 6, task 6.1: see lessons/06-preemption.md")

    def refill_starts(self, tables: Seq[list[int]], num_tokens: Seq[int]) -> list[int]:
        """Where each sequence of a recomputed group of several begins to compute.

        A block that several tables hold is computed once, by the first that holds it; sequences
        behind it begin after it. What is missing is computed up to the last token but one: that
        one is fed in the ordinary decode step that follows, by all sequences together.

        Args:
            tables: block numbers, or any labels that are equal where the block is. Tables that
                share a block share all before it. They may be empty.
            num_tokens: of each sequence, its last token included. Without that one they fill the
                table's blocks, the last of them perhaps in part.

        Returns:
            For each sequence the position of the first token that it computes;
            ``num_tokens - 1`` for one that computes nothing.

        Example (``B = 4``): tables ``[7 2] [7 2] [7 5]`` of 8, 8 and 7 tokens begin at 0, 7
        and 4.
        """
        raise NotImplementedError("stage 6, task 6.2: see lessons/06-preemption.md")
