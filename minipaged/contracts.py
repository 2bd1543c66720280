"""The seams of the engine: plain data that crosses them, and the Protocols on either side.

One step (see :meth:`minipaged.engine.Engine.step`)::

    plan      = scheduler.schedule()      # StepPlan
    logits    = executor.execute(plan)    # StepLogits
    decisions = sampling.decide(...)      # list[Decision]
    outputs   = scheduler.commit(...)

Nothing here imports torch: arrays that cross the executor's seam are typed ``Any``.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from minipaged.sequence import Sequence, SequenceGroup, TokenLogprob

BlockPair = tuple[int, int]
"""(source block, target block)"""


# --------------------------------------------------------------------------- one step, as data
@dataclass(slots=True)
class Span:
    """The tokens of one sequence that a step computes.

    ``token_ids[j]`` stands at position ``start + j``; its key and value go to slot
    ``block_table[p // B] * B + p % B``, and it attends to positions ``0 .. start + j``.
    """

    seq_id: int
    start: int
    token_ids: list[int]
    block_table: list[int]
    """The whole table of the sequence, not a copy: whoever wants to keep it copies it."""
    sample: bool = True
    """Is the logits row of the last token wanted? Not for a chunk that is not the last."""
    prompt_logprobs: bool = False
    """Are the logits of every token of this span wanted?"""

    @property
    def context_len(self) -> int:
        """Tokens in the cache after this step."""
        return self.start + len(self.token_ids)


@dataclass(slots=True)
class Preempted:
    request_id: str
    mode: Literal["swap", "recompute"]


@dataclass(slots=True)
class StepPlan:
    """What one step does, in this order: swap in, swap out, copy, forward.

    Swapped blocks are (host, device) pairs on the way in and (device, host) on the way out.
    """

    step: int = 0
    spans: list[Span] = field(default_factory=list)
    swap_in: list[BlockPair] = field(default_factory=list)
    swap_out: list[BlockPair] = field(default_factory=list)
    copies: list[BlockPair] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    """Requests that came back from host memory in this step."""
    admitted: list[str] = field(default_factory=list)
    """Requests that left the waiting queue in this step."""

    @property
    def num_tokens(self) -> int:
        return sum([len(span.token_ids) for span in self.spans])

    @property
    def idle(self) -> bool:
        """Is there nothing for the executor to do?"""
        return not (self.spans or self.swap_in or self.swap_out or self.copies)


@dataclass(slots=True)
class StepLogits:
    """The rows of logits that a step produced.

    Attributes:
        rows: ``[R, vocab]``, float32: one row a span with ``sample``, in the order of the plan.
        prompt_rows: for each span with ``prompt_logprobs``, by ``seq_id``: ``[len, vocab]``,
            the logits after each of its tokens.
    """

    rows: Any
    prompt_rows: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Decision:
    """One continuation of one sequence. A sequence with several decisions forks, one with none
    (in a step that sampled it) is dropped: a beam that lost.
    """

    parent: Sequence
    token_id: int
    """Below 0: none could be chosen, and nothing is appended (with ``finish="error"``)."""
    logprob: float
    index: int = 0
    """The sibling that this continuation is."""
    top: TokenLogprob | None = None
    """Log-probabilities, where the request asked for them."""
    finish: str | None = None
    """Ends the continuation with this token."""
    stop_reason: str | int | None = None
    text: Any = None
    """The continuation's text stream after this token (see ``Sequence.text``)."""


@dataclass(slots=True)
class GroupDecision:
    """What a step decided for one group."""

    group: SequenceGroup
    children: list[Decision] = field(default_factory=list)
    done: bool = False
    """End the group whatever its children say: its beam search is over. Its live sequences
    are dropped, and the hypotheses that the search kept are its result."""


# --------------------------------------------------------------------------- admission
class Verdict(enum.Enum):
    """May a waiting group be admitted? (paper, section 4.5)"""

    OK = "ok"
    LATER = "later"
    """Not now: memory, the token budget or the sequence limit is used up."""
    NEVER = "never"
    """Not in this engine, however long it waits: it is refused."""


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    verdict: Verdict
    reason: str = ""
    """For LATER what it waits for; for NEVER a sentence that names the value and the limit."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step holds already when the next group asks for admission.

    Attributes:
        num_tokens: tokens that it computes.
        num_seqs: places taken by running groups: their sequences, and those that they may
            still fork into.
    """

    num_tokens: int
    num_seqs: int

    @property
    def empty(self) -> bool:
        return self.num_seqs == 0


# --------------------------------------------------------------------------- the seams
class KVManager(Protocol):
    """Owns the mapping from sequences to physical blocks. Paged and contiguous managers
    implement it, so that the paper's baselines run in the same engine.

    A *group* argument stands for its live sequences.
    """

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    preemptible: bool
    """Can running groups be preempted? Contiguous managers reserve everything up front."""

    @property
    def num_free_gpu_blocks(self) -> int: ...
    @property
    def num_free_cpu_blocks(self) -> int: ...
    @property
    def num_usable_gpu_blocks(self) -> int:
        """Total minus pinned: what one group could have at best."""

    # admission
    def blocks_needed(self, group: SequenceGroup) -> int:
        """Blocks that admitting the group takes (after a recompute preemption: the unique
        blocks of its shape)."""

    def fits(self, group: SequenceGroup, headroom: int = 0) -> bool:
        """Could the group be allocated now, with ``headroom`` blocks left free?"""

    def fits_ever(self, group: SequenceGroup) -> bool:
        """Could it be allocated in an empty pool?"""

    def allocate(self, group: SequenceGroup) -> None:
        """Give a waiting group its blocks. Raises OutOfBlocks, with nothing changed."""

    # growth
    def can_append(self, group: SequenceGroup) -> bool:
        """Is there room for the next token of each live sequence?"""

    def append(self, groups: Iterable[SequenceGroup]) -> list[BlockPair]:
        """Room for the token that each live sequence of the groups feeds in this step.

        Returns the copies that must be made before it is written (copy-on-write)."""

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """The child gets the parent's tokens."""

    def free(self, seq: Sequence) -> None:
        """Give back what the sequence holds, wherever it is; nothing for one that holds nothing."""

    def take_copies(self) -> list[BlockPair]:
        """Copies that forks have asked for since the last call (contiguous managers)."""

    # preemption
    def release(self, group: SequenceGroup) -> None:
        """Free the group's blocks, on whatever side they are, for recomputation; records
        ``group.shape``."""

    def can_swap_out(self, group: SequenceGroup) -> bool: ...
    def swap_out(self, group: SequenceGroup) -> list[BlockPair]:
        """Move the group's blocks to host memory: (device, host) pairs, each block once."""

    def can_swap_in(self, group: SequenceGroup, headroom: int = 0) -> bool:
        """Is there room for its blocks *and* for the next token of each sequence?"""

    def swap_in(self, group: SequenceGroup) -> list[BlockPair]:
        """Move the group's blocks back: (host, device) pairs, each block once."""

    # looking
    def block_table(self, seq_id: int) -> list[int]:
        """The live table of a sequence; empty for one that holds nothing."""

    def check(self, groups: Seq[SequenceGroup]) -> None:
        """Raise InvariantError unless I1 and I2 hold for these (all) groups."""


class PrefixSharing(KVManager, Protocol):
    """What a manager can do, beside the rest, whose sequences share the full blocks that they
    begin with (paper, section 4.4). It says so by an attribute ``shares_prefixes`` that is true.

    :meth:`KVManager.allocate` gives a group the blocks of its beginning that are in the cache;
    blocks that are in the cache and that no sequence holds count as free.
    """

    cached: Container[int]
    """The blocks that can be found: full, computed, and never written again."""

    def cached_tokens(self, group: SequenceGroup) -> int:
        """Tokens that a waiting group would find in the cache; its last one is never among them.

        None for one that needs the logits of its prompt, nor for several sequences that are
        recomputed."""

    def publish(self, groups: Iterable[SequenceGroup]) -> None:
        """Let the blocks of running groups be found that are full and computed by now
        (``num_computed`` of their sequences)."""

    def forget(self) -> None:
        """What blocks hold is not known any more: none can be found. Registered prefixes have to
        be computed again."""

    def register(self, token_ids: Seq[int]) -> int:
        """Keep the blocks of a prefix for good, once a request that begins with it has computed
        them. Only whole blocks can be shared.

        Returns the tokens in them. Raises RequestError: no block would be left for anything
        else."""


class Executor(Protocol):
    """The only thing that touches a device."""

    def execute(self, plan: StepPlan) -> StepLogits: ...


class Sampling(Protocol):
    """Turns logits into tokens."""

    def decide(
        self, plan: StepPlan, logits: StepLogits, groups: Seq[SequenceGroup]
    ) -> list[GroupDecision]:
        """Choose the next tokens, one decision for each group that sampled in this step; and
        record the prompt log-probabilities that the step gave.

        ``groups`` are at least those with a span in the plan."""

    def select_outputs(self, group: SequenceGroup) -> list[Sequence]:
        """The ``n`` outputs of a group, best first where there is a best."""


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    eos_token_ids: tuple[int, ...]
    vocab_size: int
    """Ids at or past it have no text: they are never sampled."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Seq[int], skip_special_tokens: bool = True) -> str: ...


class Clock(Protocol):
    """Seconds since some start. Injected, so that a simulation never reads wall time."""

    def __call__(self) -> float: ...
