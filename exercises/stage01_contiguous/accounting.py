"""Where does the KV memory go? The paper's four classes (figure 2 and section 3.1).

What is counted are token slots of the whole pool, whatever manages it.

Stage 1, contiguous memory::

    read    lessons/01-contiguous.md
    write   1.4  Four memory classes   8 points
    also    robustness 9 points, counterexample.toml 5 points
    check   minipaged grade 1
    stuck   minipaged hint 1.4
    use it  minipaged generate --parts mine --reservation max --model opt-stories --raw "Once"
    next    lessons/02-block-allocator.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.contracts import KVManager
    from minipaged.kvcache.contiguous import Reservation
    from minipaged.sequence import SequenceGroup


@dataclass(frozen=True, slots=True)
class SequenceMemory:
    """The memory of one sequence, at one moment.

    Attributes:
        tokens: tokens whose keys and values are in the cache.
        final_tokens: tokens that it will have when it ends.
        slots: slots that it holds: whole blocks, or a whole region.
        requested_slots: of these, the slots that were asked for. The rest is what the
            allocator added because it hands out certain sizes only; None: it added nothing.
        shared_slots: the first that many of its slots are also held by a sequence that is
            counted before it, and were sorted with that one.
    """

    tokens: int
    final_tokens: int
    slots: int
    requested_slots: int | None = None
    shared_slots: int = 0


@dataclass(frozen=True, slots=True)
class MemoryClasses:
    """Every slot of a pool is in exactly one class.

    Attributes:
        token_states: holds the key and value of a token.
        reserved: empty now, and will hold a token of the sequence that it is reserved for.
        internal: was asked for, and will never be used: internal fragmentation.
        external: everything else: free slots, whether or not the next request could have them,
            and what an allocator adds to a request by rounding up ("external and other").
    """

    token_states: float
    reserved: float
    internal: float
    external: float

    @property
    def total(self) -> float:
        return self.token_states + self.reserved + self.internal + self.external

    def shares(self) -> MemoryClasses:
        """The same in percent of the pool."""
        scale = 100 / self.total
        return MemoryClasses(
            self.token_states * scale,
            self.reserved * scale,
            self.internal * scale,
            self.external * scale,
        )


def memory_classes(sequences: Iterable[SequenceMemory], pool_slots: int) -> MemoryClasses:
    """Sort all slots of a pool into the four classes. A shared slot counts once.

    The tokens of a sequence fill its slots from the first on, up to ``final_tokens`` of them, or
    as many slots as it holds. A slot that holds a token, or will hold one, is of that class
    whether or not it was asked for. A sequence may have more tokens already than it was expected
    to end with: then nothing of it is reserved.

    Args:
        sequences: all that hold memory (a reserved region that no sequence is in yet is one
            with no tokens).
        pool_slots: slots of the pool.

    Returns:
        Slots; they add up to ``pool_slots``.

    Example: a pool of 32 slots and a sequence of 5 tokens that will end with 7. In blocks of 4
    it holds 8 slots: 5 token states, 2 reserved, 1 internal, 24 external. In a region of 16,
    of which 10 were asked for: 5, 2, 3 and 22.

    Raises:
        ValueError: token states, reserved and internal slots are more than the pool has, or a
            sequence has more tokens than slots.
    """
    raise NotImplementedError("stage 1, task 1.4: see lessons/01-contiguous.md")


def sequence_memory(
    manager: KVManager,
    groups: Iterable[SequenceGroup],
    max_model_len: int,
    reservation: Callable[[SequenceGroup], Reservation] | None = None,
) -> list[SequenceMemory]:
    """What the sequences on the device hold, ready for :func:`memory_classes`.

    The tokens in the cache are ``num_computed``: the token sampled last is not there yet. The final
    length is what a contiguous reservation with an oracle is told: the prompt and
    ``expected_output_len``, or else ``params.max_tokens``, up to ``max_model_len``; if both are
    None, ``max_model_len``. The slots are those of the sequence's block table.

    Args:
        manager: has ``block_size`` and ``block_table(seq_id)``.
        groups: the running groups. ``group.live`` is the list of a group's live sequences, which
            have one prompt; each has ``seq_id``, ``num_prompt_tokens`` and ``num_computed``.
        reservation: what a group has reserved (``ContiguousKVManager.reservation``); None for a
            paged manager, where nothing is asked for beyond what a table holds.

    Returns:
        One for each live sequence, group by group. Behind those of a group with a reservation
        comes one for each of its spare regions: it has no tokens yet, and the final length and the
        requested slots of the others, since a fork may still come to fill it. In a paged manager
        tables may begin with the same blocks: ``shared_slots`` are the slots of blocks that the
        table of an earlier sequence has, too. Reserved regions share nothing.
    """
    raise NotImplementedError("stage 1, task 1.4: see lessons/01-contiguous.md")


class MemoryMeter:
    """The mean of the four classes over the steps of a run; steps may have weights.

    Two steps, one of which lasts three times as long: 10 token states with weight 1 and 30 with
    weight 3 are 25 in the mean.
    """

    def __init__(self) -> None:
        raise NotImplementedError("stage 1, task 1.4: see lessons/01-contiguous.md")

    def add(self, classes: MemoryClasses, weight: float = 1.0) -> None:
        """Count one step; ``weight`` may be its duration in seconds, for a mean over time."""
        raise NotImplementedError("stage 1, task 1.4: see lessons/01-contiguous.md")

    def mean(self) -> MemoryClasses:
        """The weighted mean, in the unit of what was added.

        Raises:
            ValueError: nothing was added, or all that was has the weight 0.
        """
        raise NotImplementedError("stage 1, task 1.4: see lessons/01-contiguous.md")
