"""What must hold at every step of the engine, checked by number (I1 .. I15).

Everything here looks at plain data (a plan, block tables, statuses) and changes nothing. A
violation raises :class:`~minipaged.errors.InvariantError`, whose message starts with the number.

* :func:`check_plan`: between schedule and execute, while the plan can still be judged before
  anything is overwritten (I3, I4, I5, I6, I15).
* :class:`InvariantMonitor`: the same, and what needs a memory of earlier steps or the state
  after commit (I1, I2, I8, I9, I10, I11).
* :func:`check_idle`: nothing is left behind (I2).

Not checked here, because they compare runs or read text: I7 and I12 (the same tokens as an
undisturbed engine), I13 (streamed pieces), I14 (usage).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from minipaged.contracts import BlockPair, KVManager, StepPlan
from minipaged.errors import InvariantError
from minipaged.sequence import Sequence, SequenceGroup, Status


class StepResult(Protocol):
    """What the monitor reads of a request's output."""

    @property
    def request_id(self) -> str: ...
    @property
    def finished(self) -> bool:
        """Is it the terminal output of its request?"""


def _demand(condition: bool, number: str, message: str) -> None:
    if not condition:
        raise InvariantError(number, message)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# --------------------------------------------------------------------------- one plan
def check_plan(
    plan: StepPlan,
    kv: KVManager,
    groups: Seq[SequenceGroup],
    block_size: int,
    *,
    exact: bool = True,
    cached: Container[int] = (),
) -> None:
    """Raise InvariantError unless I3, I4, I5, I6 and I15 hold for a plan not yet executed.

    Args:
        plan: what the scheduler just made; ``num_computed`` of its sequences does not yet
            count the plan's own tokens.
        groups: every group that the scheduler knows, in whatever queue.
        block_size: tokens a block.
        exact: a paged manager holds exactly the blocks that its tokens need and copies only
            what is shared; False for a contiguous one, which reserves ahead and copies at forks.
        cached: blocks that other requests may find.
    """
    _check_directions(plan)
    _check_whole_groups(plan, kv, groups)
    _check_tables(plan, kv, groups, block_size, exact)
    owners = _device_owners(kv, groups)
    _check_block_operations(plan, owners, _host_owners(kv, groups), exact)
    _check_writes(plan, owners, block_size, cached)


class _Owner(NamedTuple):
    group: SequenceGroup
    seq: Sequence
    logical: int
    """Which logical block of the sequence it is."""


def _device_owners(kv: KVManager, groups: Seq[SequenceGroup]) -> dict[int, list[_Owner]]:
    """Device block -> the sequences that hold it, in the order of their groups."""
    owners: dict[int, list[_Owner]] = defaultdict(list)
    for group in groups:
        for seq in group.live:
            if seq.status is Status.RUNNING:
                for logical, block in enumerate(kv.block_table(seq.seq_id)):
                    owners[block].append(_Owner(group, seq, logical))
    return owners


def _host_owners(kv: KVManager, groups: Seq[SequenceGroup]) -> dict[int, str]:
    """Host block -> the group that holds it."""
    return {
        block: group.request_id
        for group in groups
        for seq in group.live
        if seq.status is Status.SWAPPED
        for block in kv.block_table(seq.seq_id)
    }


def _check_directions(plan: StepPlan) -> None:
    """I5."""
    _demand(
        not (plan.swap_in and plan.swap_out),
        "I5",
        f"step {plan.step} swaps {len(plan.swap_in)} blocks in and {len(plan.swap_out)} out",
    )


def _check_whole_groups(plan: StepPlan, kv: KVManager, groups: Seq[SequenceGroup]) -> None:
    """I6: one status a group, one fate a group; the finished hold nothing."""
    scheduled = {span.seq_id for span in plan.spans}
    sampled = {span.seq_id for span in plan.spans if span.sample}
    left = {p.request_id: p.mode for p in plan.preempted}
    for group in groups:
        name, live = group.request_id, group.live
        statuses = {seq.status for seq in live}
        _demand(
            len(statuses) <= 1,
            "I6",
            f"group {name!r} is split: {[(s.seq_id, s.status.value) for s in live]}",
        )
        for seq in group.finished_seqs:
            table = kv.block_table(seq.seq_id)
            _demand(not table, "I6", f"finished sequence {seq.seq_id} of {name!r} holds {table}")
        mine = {seq.seq_id for seq in live}
        if mine & sampled:
            _demand(
                mine <= sampled,
                "I6",
                f"group {name!r} samples {sorted(mine & sampled)} without its siblings "
                f"{sorted(mine - sampled)}",
            )
        if mine & scheduled:
            _demand(
                statuses == {Status.RUNNING},
                "I6",
                f"group {name!r} is scheduled but {statuses.pop().value}",
            )
        if name in left:
            expected = Status.SWAPPED if left[name] == "swap" else Status.WAITING
            _demand(
                statuses == {expected} and not mine & scheduled,
                "I6",
                f"group {name!r} was preempted by {left[name]} in step {plan.step}, but is "
                f"{[s.value for s in statuses]} and has {sorted(mine & scheduled)} scheduled",
            )
        if statuses == {Status.WAITING}:
            for seq in live:
                table = kv.block_table(seq.seq_id)
                _demand(not table, "I6", f"waiting sequence {seq.seq_id} of {name!r} holds {table}")


def _check_tables(
    plan: StepPlan, kv: KVManager, groups: Seq[SequenceGroup], block_size: int, exact: bool
) -> None:
    """I4, and that each span speaks of the table that its sequence holds."""
    by_id = {seq.seq_id: (seq, group) for group in groups for seq in group.live}
    for span in plan.spans:
        _demand(
            span.seq_id in by_id,
            "I4",
            f"step {plan.step} schedules sequence {span.seq_id}, which is not alive",
        )
        seq, group = by_id[span.seq_id]
        table = kv.block_table(seq.seq_id)
        _demand(
            span.block_table == table,
            "I4",
            f"the span of sequence {seq.seq_id} has the table {span.block_table}, "
            f"but the sequence holds {table}",
        )
        # Several siblings that compute without sampling are being refilled after a recompute
        # preemption: they have the blocks of then, those of all tokens but the last, which the
        # next ordinary decode step feeds.
        refilling = len(group.seqs) > 1 and not span.sample
        tokens = seq.num_tokens - refilling
        need = _ceil_div(tokens, block_size)
        _demand(
            len(table) == need if exact else len(table) >= need,
            "I4",
            f"sequence {seq.seq_id} holds {len(table)} blocks for {tokens} tokens of which "
            f"{block_size} fit a block: it should be {'' if exact else 'at least '}{need}",
        )
        _demand(
            len(span.token_ids) > 0 and span.context_len <= seq.num_tokens,
            "I4",
            f"sequence {seq.seq_id} of {seq.num_tokens} tokens is to compute the positions "
            f"{span.start}..{span.context_len - 1}",
        )


def _check_block_operations(
    plan: StepPlan, owners: dict[int, list[_Owner]], host_owners: dict[int, str], exact: bool
) -> None:
    """I15: the block operations of a step do not get into each other's way."""

    def once(blocks: Iterable[object], what: str) -> None:
        twice = [block for block, count in Counter(blocks).items() if count > 1]
        _demand(not twice, "I15", f"step {plan.step} has {what} more than once: blocks {twice}")

    def ends(pairs: list[BlockPair]) -> tuple[list[int], list[int]]:
        return [a for a, _ in pairs], [b for _, b in pairs]

    in_sources, in_targets = ends(plan.swap_in)
    _, out_targets = ends(plan.swap_out)
    sources, targets = ends(plan.copies)
    once(in_sources, "a host block to swap in")
    once(in_targets, "a swap-in target")
    # Groups that begin alike may share a block; each takes a copy of its own with it.
    once(
        ((source, host_owners.get(target)) for source, target in plan.swap_out),
        "a device block to swap out for the same group",
    )
    once(out_targets, "a swap-out target")
    once(targets, "a copy-on-write target")
    for others, what in ((sources, "a copy-on-write source"), (in_targets, "a swap-in target")):
        clash = sorted(set(targets) & set(others))
        _demand(not clash, "I15", f"copy-on-write target is {what} too: blocks {clash}")
    for block in targets:
        _demand(
            len(owners.get(block, ())) == 1,
            "I3",
            f"copy-on-write target {block} has {len(owners.get(block, ()))} references, not 1",
        )
    for block in sources if exact else ():
        _demand(
            bool(owners.get(block)),
            "I15",
            f"block {block} is copied, but no one holds it any more: its last holder writes "
            "in place",
        )


def _check_writes(
    plan: StepPlan, owners: dict[int, list[_Owner]], block_size: int, cached: Container[int]
) -> None:
    """I3."""
    writer: dict[int, int] = {}
    for span in plan.spans:
        for position in range(span.start, span.context_len):
            logical, offset = divmod(position, block_size)
            _demand(
                logical < len(span.block_table),
                "I4",
                f"sequence {span.seq_id} has no block for position {position}",
            )
            block = span.block_table[logical]
            slot = block * block_size + offset
            other = writer.setdefault(slot, span.seq_id)
            _demand(
                other == span.seq_id,
                "I3",
                f"slot {slot} (block {block}) is written by sequences {other} and {span.seq_id}",
            )
            _demand(
                block not in cached,
                "I3",
                f"sequence {span.seq_id} writes to slot {slot}, in block {block}, which is cached",
            )
            holders = owners.get(block, [])
            if len(holders) < 2:
                continue
            # A group that is refilled computes a shared block once, by its first holder; the
            # others count it as computed from the start.
            firsts = {id(owner.group): owner for owner in reversed(holders)}
            for _, seq, index in firsts.values():
                _demand(
                    index * block_size + offset >= seq.num_computed,
                    "I3",
                    f"sequence {span.seq_id} overwrites slot {slot}, a computed token of "
                    f"sequence {seq.seq_id}, in block {block} with {len(holders)} references",
                )


# --------------------------------------------------------------------------- over many steps
class InvariantMonitor:
    """Sees every plan and every output of one engine.

    Call :meth:`planned` between schedule and execute, and :meth:`committed` after commit, each
    time with all the groups that the scheduler knows.
    """

    def __init__(self, kv: KVManager, *, exact: bool = True, cached: Container[int] = ()) -> None:
        """
        Args:
            exact, cached: as in :func:`check_plan`; what is cached may change meanwhile.
        """
        self._kv = kv
        self._exact = exact
        self._cached = cached
        self._known: dict[str, set[int]] = {}
        """Request without a terminal output yet -> its sequences, as far as they were seen."""
        self._ended: set[str] = set()

    def planned(self, plan: StepPlan, groups: Seq[SequenceGroup]) -> None:
        """Check I3, I4, I5, I6, I9 and I15."""
        self._remember(groups)
        size, exact, cached = self._kv.block_size, self._exact, self._cached
        check_plan(plan, self._kv, groups, size, exact=exact, cached=cached)
        self._check_admissions(plan, groups)

    def committed(
        self, plan: StepPlan, groups: Seq[SequenceGroup], outputs: Seq[StepResult]
    ) -> None:
        """Check I1, I2, I8, I10 and I11, for a plan whose outputs have just been made."""
        self._remember(groups)
        self._kv.check(groups)
        self._check_progress(plan, groups, outputs)
        if self._exact:
            self._check_fork(plan, groups)
        self._check_terminals(groups, outputs)
        if not groups:
            check_idle(self._kv)

    def ended(self, groups: Seq[SequenceGroup], outputs: Seq[StepResult]) -> None:
        """Check I11, for last outputs that were taken without a step."""
        self._check_terminals(groups, outputs)

    def _remember(self, groups: Seq[SequenceGroup]) -> None:
        for group in groups:
            seen = self._known.setdefault(group.request_id, set())
            seen.update(seq.seq_id for seq in group.all_seqs())

    def _check_admissions(self, plan: StepPlan, groups: Seq[SequenceGroup]) -> None:
        """I9."""
        if not plan.admitted:
            return
        by_id = {group.request_id: group for group in groups}
        admitted = [by_id[name] for name in plan.admitted if name in by_id]
        orders = [group.order for group in admitted]
        _demand(
            orders == sorted(orders), "I9", f"{plan.admitted} were admitted in the orders {orders}"
        )
        for group in groups:
            statuses = {seq.status for seq in group.live}
            _demand(
                Status.SWAPPED not in statuses,
                "I9",
                f"{plan.admitted} were admitted while {group.request_id!r} is swapped out",
            )
            if statuses == {Status.WAITING}:
                _demand(
                    max(orders) < group.order,
                    "I9",
                    f"{plan.admitted} were admitted past {group.request_id!r}, whose order is "
                    f"{group.order}",
                )

    def _check_progress(
        self, plan: StepPlan, groups: Seq[SequenceGroup], outputs: Seq[StepResult]
    ) -> None:
        """I8."""
        _demand(
            plan.num_tokens > 0
            or any(output.finished for output in outputs)
            # Only a preemption that a test forces can leave a step empty.
            or bool(plan.preempted)
            or not groups,
            "I8",
            f"step {plan.step} scheduled no token and ended no request, with {len(groups)} left",
        )

    def _check_fork(self, plan: StepPlan, groups: Seq[SequenceGroup]) -> None:
        """I10: forking allocates nothing."""
        ran = {span.seq_id for span in plan.spans if span.sample}
        size = self._kv.block_size
        for group in groups:
            first = [seq for seq in group.live if seq.num_output_tokens == 1]
            if not first or len(first) < len(group.live) or not ran & {s.seq_id for s in first}:
                continue
            blocks = {block for seq in first for block in self._kv.block_table(seq.seq_id)}
            prompt = first[0].num_prompt_tokens
            _demand(
                len(blocks) == _ceil_div(prompt, size),
                "I10",
                f"the {len(first)} siblings of {group.request_id!r} hold {len(blocks)} blocks "
                f"after a prompt of {prompt} tokens: it should be {_ceil_div(prompt, size)}",
            )

    def _check_terminals(self, groups: Seq[SequenceGroup], outputs: Seq[StepResult]) -> None:
        """I11."""
        alive = {group.request_id for group in groups}
        self._ended -= alive  # an id may be used again
        for output in outputs:
            name = output.request_id
            if not output.finished:
                _demand(name not in self._ended, "I11", f"{name!r} has an output after its last")
                continue
            _demand(name not in self._ended, "I11", f"{name!r} has a second terminal output")
            _demand(name not in alive, "I11", f"{name!r} is still queued after its last output")
            for seq_id in self._known.pop(name, ()):
                table = self._kv.block_table(seq_id)
                _demand(
                    not table, "I11", f"{name!r} ended while its sequence {seq_id} holds {table}"
                )
            self._ended.add(name)
        lost = sorted(self._known.keys() - alive)
        _demand(not lost, "I11", f"{lost} left the engine without a terminal output")


def check_idle(kv: KVManager) -> None:
    """I2 of an engine without requests: every block that is not pinned is free."""
    for pool, free, total in (
        ("device", kv.num_free_gpu_blocks, kv.num_usable_gpu_blocks),
        ("host", kv.num_free_cpu_blocks, kv.num_cpu_blocks),
    ):
        _demand(
            free == total, "I2", f"the engine is idle, but {free} of {total} {pool} blocks are free"
        )
