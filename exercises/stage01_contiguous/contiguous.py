"""Contiguous reservation, as systems before PagedAttention manage their memory: the paper's
three Orca baselines (sections 3.1 and 6.1), behind the same contract as the paged manager.

Stage 1, contiguous memory::

    read    lessons/01-contiguous.md
    write   1.3  Reservations   8 points
    also    robustness 9 points, counterexample.toml 5 points
    check   minipaged grade 1
    stuck   minipaged hint 1.3
    use it  minipaged generate --parts mine --reservation max --model opt-stories --raw "Once"
    next    accounting.py, beside this file
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

from minipaged.contracts import BlockPair
from minipaged.errors import InvariantError, OutOfBlocks

if TYPE_CHECKING:
    from minipaged.kvcache.buddy import BuddyAllocator
    from minipaged.sequence import Sequence, SequenceGroup


class Reservation(NamedTuple):
    """What a group has reserved.

    Attributes:
        requested_tokens: slots that each of its sequences asked for.
        region_slots: slots of the region that each got: at least as many, the allocator
            rounds up.
        spare_regions: regions that no live sequence is in (yet).
    """

    requested_tokens: int
    region_slots: int
    spare_regions: int


@dataclass(slots=True)
class _Region:
    start: int
    table: list[int]


@dataclass(slots=True)
class _Held:
    """The regions of one group."""

    keep_spares: bool
    of: dict[int, _Region] = field(default_factory=dict)
    spare: list[_Region] = field(default_factory=list)


class ContiguousKVManager:
    """Implements :class:`minipaged.contracts.KVManager` with one region a sequence.

    A group reserves everything at its admission: one region for each of the ``params.width``
    sequences that it may run at a time, each for

        ``min(prompt + estimate, max_model_len)``

    tokens, in whole blocks, which the allocator rounds up to a power of two. The estimate of
    the output's length depends on the system (paper, section 6.1):

    ========== =============================================================================
    ``max``    none: always ``max_model_len`` tokens in all
    ``pow2``   the true length, rounded up to the next power of two (at most 2x too much)
    ``oracle`` the true length
    ========== =============================================================================

    The true length is ``group.expected_output_len``, or else ``params.max_tokens``; where both
    are None, ``max_model_len`` tokens are reserved.

    What follows from that:

    * A block table is the whole region, a run of consecutive blocks that never changes. So the
      rest of the engine need not know which manager it has.
    * Nothing grows, so nothing is ever preempted or swapped, and no headroom is needed for
      growth: ``fits`` ignores it. A sequence that fills its region (it was told a length that is
      too short) cannot go on: ``can_append`` is False for good.
    * Nothing is shared: a fork takes one of the group's spare regions, and all blocks that hold
      computed tokens are copied before the next step's forward pass.
    * A finished sequence gives its region back at once, except in a beam search, where it
      becomes a spare for a later fork. When the last live sequence of a group is freed, all of
      the group's regions go back.

    Args:
        allocator: the pool, which nobody else uses. Its ``max_chunk`` should hold
            ``max_model_len`` tokens: a group that asks for more than that never fits.
        block_size: tokens a block.
        max_model_len: most tokens of a sequence, prompt and output.
        reservation: which of the three systems.

    So 982 blocks of 16 (OPT-13B on an A100) hold 7 regions of 2048 tokens: ``max`` runs 7
    requests at a time, whatever their lengths.
    """

    preemptible = False
    num_cpu_blocks = 0
    num_free_cpu_blocks = 0

    def __init__(
        self,
        allocator: BuddyAllocator,
        block_size: int,
        max_model_len: int,
        reservation: Literal["max", "pow2", "oracle"],
    ) -> None:
        if reservation not in ("max", "pow2", "oracle"):
            raise ValueError(f"reservation must be max, pow2 or oracle, not {reservation!r}")
        self.allocator = allocator
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.policy = reservation
        self.num_gpu_blocks = allocator.num_blocks
        #: seq_id -> the regions of its group; one entry for each sequence that holds a region
        self._held: dict[int, _Held] = {}
        #: target block -> source block, of the copies that forks wait for
        self._copies: dict[int, int] = {}

    @property
    def num_free_gpu_blocks(self) -> int:
        return self.allocator.free_blocks

    @property
    def num_usable_gpu_blocks(self) -> int:
        return self.num_gpu_blocks

    # -- admission ---------------------------------------------------------------------------
    def requested_tokens(self, group: SequenceGroup) -> int:
        """Slots that each sequence of the group asks for, by the rule of the system.

        The prompt has ``group.live[0].num_prompt_tokens`` tokens.
        """
        raise NotImplementedError("stage 1, task 1.3: see lessons/01-contiguous.md")

    def blocks_needed(self, group: SequenceGroup) -> int:
        """Blocks of all regions of the group, the rounding of the allocator included.

        ``group.places()`` is how many sequences the group may have from now on.
        """
        raise NotImplementedError("stage 1, task 1.3: see lessons/01-contiguous.md")

    def fits(self, group: SequenceGroup, headroom: int = 0) -> bool:
        """Are there regions for all sequences of the group now? ``headroom`` is ignored.

        Free blocks are not enough: each region needs them side by side.
        """
        raise NotImplementedError("stage 1, task 1.3: see lessons/01-contiguous.md")

    def fits_ever(self, group: SequenceGroup) -> bool:
        """Would there be regions for all of them if the pool were empty?"""
        raise NotImplementedError("stage 1, task 1.3: see lessons/01-contiguous.md")

    def allocate(self, group: SequenceGroup) -> None:
        blocks = self._blocks_per_region(group)
        if not self.fits(group):
            raise OutOfBlocks(
                f"buddy pool: request {group.request_id!r} needs {group.places()} free regions of "
                f"{self.allocator.region_size(blocks)} blocks each, "
                f"{self.allocator.available(blocks)} are there"
            )
        held = _Held(keep_spares=group.params.use_beam_search)
        for _ in range(group.places()):
            start = self.allocator.allocate(blocks)
            end = start + self.allocator.region_size(blocks)
            held.spare.append(_Region(start, list(range(start, end))))
        for seq_id in group.seqs:
            held.of[seq_id] = held.spare.pop(0)
            self._held[seq_id] = held
        group.shape = None

    def _blocks_per_region(self, group: SequenceGroup) -> int:
        """Whole blocks for the slots that each sequence asks for; the allocator rounds up later."""
        raise NotImplementedError("stage 1, task 1.3: see lessons/01-contiguous.md")

    # -- growth ------------------------------------------------------------------------------
    def can_append(self, group: SequenceGroup) -> bool:
        """Is each live sequence still within its region, the token being fed included?"""
        return all(
            seq.num_tokens <= len(self.block_table(seq.seq_id)) * self.block_size
            for seq in group.seqs.values()
        )

    def append(self, groups: Iterable[SequenceGroup]) -> list[BlockPair]:
        """Nothing to do: the room is reserved.

        Raises:
            OutOfBlocks: a sequence has outgrown its region.
        """
        for group in groups:
            if not self.can_append(group):
                raise OutOfBlocks(
                    f"a sequence of request {group.request_id!r} has outgrown the "
                    f"{self.requested_tokens(group)} tokens that were reserved for it"
                )
        return []

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give the child a spare region of its group, and queue a copy of every block of the
        parent that holds a computed token.

        Raises:
            OutOfBlocks: the group has no region left for it.
        """
        held = self._held[parent.seq_id]
        # What a queued copy has yet to read must not be a target at the same time.
        sources = set(self._copies.values())
        region = next((r for r in held.spare if not sources.intersection(r.table)), None)
        if region is None:
            raise OutOfBlocks(
                f"buddy pool: the group of sequence {parent.seq_id} reserved "
                f"{len(held.of) + len(held.spare)} regions, none is left for a fork"
            )
        held.spare.remove(region)
        held.of[child.seq_id] = region
        self._held[child.seq_id] = held
        num_computed_blocks = -(-parent.num_computed // self.block_size)
        for source, target in zip(held.of[parent.seq_id].table[:num_computed_blocks], region.table):
            # The parent's own block may be waiting for its contents.
            self._copies[target] = self._copies.get(source, source)

    def take_copies(self) -> list[BlockPair]:
        copies = [(source, target) for target, source in self._copies.items()]
        self._copies.clear()
        return copies

    def free(self, seq: Sequence) -> None:
        held = self._held.pop(seq.seq_id, None)
        if held is None:
            return
        region = held.of.pop(seq.seq_id)
        for block in region.table:
            self._copies.pop(block, None)
        if held.of and held.keep_spares:
            held.spare.append(region)
        elif held.of:
            self.allocator.free(region.start)
        else:
            for last in (region, *held.spare):
                self.allocator.free(last.start)

    # -- preemption: never -------------------------------------------------------------------
    def release(self, group: SequenceGroup) -> None:
        tables = {seq_id: self.block_table(seq_id) for seq_id in group.seqs}
        group.shape = tables if len(tables) > 1 else None
        for seq in group.live:
            self.free(seq)

    def can_swap_out(self, group: SequenceGroup) -> bool:
        return False

    def swap_out(self, group: SequenceGroup) -> NoReturn:
        raise OutOfBlocks("host pool: reserved regions are never swapped, it has no blocks")

    def can_swap_in(self, group: SequenceGroup, headroom: int = 0) -> bool:
        return False

    def swap_in(self, group: SequenceGroup) -> NoReturn:
        raise OutOfBlocks("host pool: reserved regions are never swapped, it has no blocks")

    # -- looking -----------------------------------------------------------------------------
    def block_table(self, seq_id: int) -> list[int]:
        held = self._held.get(seq_id)
        return held.of[seq_id].table if held is not None else []

    def reservation(self, group: SequenceGroup) -> Reservation:
        """What the group has reserved; all zeros if it holds nothing."""
        held = next((self._held[s] for s in group.seqs if s in self._held), None)
        if held is None:
            return Reservation(0, 0, 0)
        slots = len(next(iter(held.of.values())).table) * self.block_size
        return Reservation(self.requested_tokens(group), slots, len(held.spare))

    def check(self, groups: Seq[SequenceGroup]) -> None:
        live = {seq_id for group in groups for seq_id in group.seqs}
        for seq_id in self._held.keys() - live:
            raise InvariantError("I1", f"sequence {seq_id} has ended and still holds a region")
        every = {id(held): held for held in self._held.values()}.values()
        regions = [region for held in every for region in (*held.of.values(), *held.spare)]
        for region in regions:
            if region.table != list(range(region.start, region.start + len(region.table))):
                raise InvariantError("I1", f"table {region.table} is not a run of blocks")
        booked = sorted((region.start, len(region.table)) for region in regions)
        if booked != self.allocator.regions():
            raise InvariantError(
                "I1", f"groups hold the regions {booked}, the pool gave {self.allocator.regions()}"
            )
        end = 0
        for start, size in sorted([*booked, *self.allocator.free_chunks()]):
            if start != end:
                raise InvariantError(
                    "I2", f"held and free chunks meet at {end} and {start}: a hole or an overlap"
                )
            end = start + size
        if end != self.num_gpu_blocks:
            raise InvariantError("I2", f"free + held blocks are {end}, not {self.num_gpu_blocks}")
