"""Each invariant accepts a right plan, and a wrong one is refused by its number."""

from dataclasses import dataclass, field, replace

import pytest

from minipaged.contracts import Preempted, Span, StepPlan
from minipaged.errors import InvariantError
from minipaged.invariants import InvariantMonitor, check_idle, check_plan
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup, Status

B = 4


@dataclass
class Tables:
    """The looking side of a block manager."""

    tables: dict[int, list[int]] = field(default_factory=dict)
    block_size: int = B
    num_gpu_blocks: int = 16
    num_cpu_blocks: int = 8
    num_usable_gpu_blocks: int = 16
    num_free_gpu_blocks: int = 16
    num_free_cpu_blocks: int = 8
    checked: int = 0

    def block_table(self, seq_id):
        return self.tables.get(seq_id, [])

    def check(self, groups):
        self.checked += 1


@dataclass
class Output:
    request_id: str
    finished: bool = False


class Rig:
    """Groups, their tables and a plan, which a test then spoils."""

    def __init__(self):
        self.kv = Tables()
        self.groups: list[SequenceGroup] = []
        self.plan = StepPlan(step=7)

    def group(self, name, tables, tokens=6, outputs=0, status=Status.RUNNING, **changes):
        base = 10 * len(self.groups)
        seqs = []
        for i, table in enumerate(tables):
            seq = Sequence(base + i, [1] * (tokens - outputs), i)
            seq.token_ids += [2] * outputs
            seq.num_computed = tokens - 1 if outputs else 0
            seq.status = status
            self.kv.tables[seq.seq_id] = list(table)
            seqs.append(seq)
        params = SamplingParams(n=max(1, len(seqs)))
        group = SequenceGroup(name, seqs[0], params, arrival_index=len(self.groups), **changes)
        group.seqs = {seq.seq_id: seq for seq in seqs}
        self.groups.append(group)
        return group

    def schedule(self, group, sample=True):
        for seq in group.live:
            tokens = seq.token_ids[seq.num_computed :]
            table = self.kv.block_table(seq.seq_id)
            self.plan.spans.append(Span(seq.seq_id, seq.num_computed, tokens, table, sample))

    def spoil(self, i, **fields):
        self.plan.spans[i] = replace(self.plan.spans[i], **fields)

    def check(self, exact=True):
        check_plan(self.plan, self.kv, self.groups, B, exact=exact)


@pytest.fixture
def rig():
    """A prompt of six tokens, three siblings that feed their second token, a swapped group and a
    waiting one.

    Of the siblings the first two have copied their last block, and the third writes in place.
    """
    rig = Rig()
    rig.prompt = rig.group("prompt", [[0, 1]])
    rig.siblings = rig.group("siblings", [[2, 3], [2, 4], [2, 5]], tokens=7, outputs=2)
    rig.swapped = rig.group("swapped", [[0, 1]], outputs=1, status=Status.SWAPPED)
    rig.waiting = rig.group("waiting", [[]], status=Status.WAITING)
    rig.schedule(rig.prompt)
    rig.schedule(rig.siblings)
    rig.plan.copies = [(5, 3), (5, 4)]
    return rig


def refused(number, rig, exact=True):
    with pytest.raises(InvariantError) as info:
        rig.check(exact=exact)
    assert info.value.number == number
    assert str(info.value).startswith(f"{number}: ")


def test_a_right_plan_is_accepted(rig):
    rig.check()


def test_i3_two_sequences_write_one_slot(rig):
    rig.kv.tables[11][1] = rig.kv.tables[10][1]
    rig.plan.copies = []
    refused("I3", rig)


def test_i3_a_shared_block_loses_a_computed_token(rig):
    # A full block of the siblings becomes the prompt's too: the prompt overwrites it.
    rig.kv.tables[0][0] = 2
    refused("I3", rig)


def test_i3_a_copy_goes_to_a_block_that_others_see(rig):
    rig.kv.tables[11][1] = 6
    rig.kv.tables[12][0] = 3
    refused("I3", rig)


def test_i3_a_copy_goes_to_a_block_that_no_one_holds(rig):
    rig.plan.copies = [(5, 3), (5, 4), (5, 9)]
    refused("I3", rig)


def test_i3_allows_a_refill_to_write_a_block_shared_before_it_is_computed():
    rig = Rig()
    group = rig.group("refilled", [[0, 1], [0, 2]], tokens=9, outputs=1)
    first, second = group.live
    # The second counts the shared block as computed, and begins behind it.
    first.num_computed, second.num_computed = 0, 4
    rig.plan.spans = [
        Span(first.seq_id, 0, first.token_ids[:8], rig.kv.tables[first.seq_id], sample=False),
        Span(second.seq_id, 4, second.token_ids[4:8], rig.kv.tables[second.seq_id], sample=False),
    ]
    rig.check()
    # Once it is computed, it is computed.
    first.num_computed = 4
    refused("I3", rig)


def test_i4_one_block_too_many_or_too_few(rig):
    rig.kv.tables[10].append(9)
    refused("I4", rig)
    rig.check(exact=False)
    del rig.kv.tables[10][1:]
    refused("I4", rig, exact=False)


def test_i4_the_span_has_an_old_table(rig):
    rig.spoil(1, block_table=[2, 5])
    refused("I4", rig)


def test_i4_a_sequence_that_does_not_live_or_tokens_that_it_does_not_have(rig):
    rig.spoil(0, token_ids=[1] * 7)
    refused("I4", rig)
    rig.spoil(0, token_ids=[])
    refused("I4", rig)
    rig.spoil(0, seq_id=99)
    refused("I4", rig)


def test_i5_both_directions(rig):
    rig.plan.swap_in = [(0, 0)]
    rig.check()
    rig.plan.swap_out = [(9, 2)]
    refused("I5", rig)


def test_i6_a_group_with_two_statuses(rig):
    rig.siblings.live[1].status = Status.WAITING
    refused("I6", rig)


def test_i6_a_sibling_is_left_out(rig):
    del rig.plan.spans[2]
    refused("I6", rig)


def test_i6_a_finished_sibling_holds_blocks(rig):
    done = Sequence(99, [1])
    done.status = Status.FINISHED
    rig.siblings.finished_seqs.append(done)
    rig.check()
    rig.kv.tables[99] = [9]
    refused("I6", rig)


def test_i6_a_preempted_group_is_still_scheduled_or_still_runs(rig):
    rig.plan.preempted = [Preempted("swapped", "swap")]
    rig.check()
    rig.plan.preempted = [Preempted("swapped", "recompute")]
    refused("I6", rig)
    rig.plan.preempted = [Preempted("siblings", "swap")]
    refused("I6", rig)


def test_i6_a_waiting_group_holds_blocks(rig):
    rig.kv.tables[rig.waiting.live[0].seq_id] = [9]
    refused("I6", rig)


@pytest.mark.parametrize(
    ("operations", "number"),
    [
        ({"copies": [(5, 3), (5, 3)]}, "I15"),
        ({"copies": [(5, 3), (3, 4)]}, "I15"),
        ({"copies": [(5, 3)], "swap_in": [(0, 3)]}, "I15"),
        ({"swap_in": [(0, 8), (1, 8)]}, "I15"),
        ({"swap_in": [(0, 8), (0, 9)]}, "I15"),
        ({"swap_out": [(8, 0), (8, 1)]}, "I15"),
        ({"swap_out": [(8, 0), (9, 0)]}, "I15"),
    ],
)
def test_i15_block_operations_that_collide(rig, operations, number):
    for name, pairs in operations.items():
        setattr(rig.plan, name, pairs)
    refused(number, rig)


def test_i15_a_copy_may_go_to_a_block_swapped_out_in_the_same_step(rig):
    rig.plan.swap_out = [(3, 0)]
    rig.check()


def test_i15_two_groups_may_take_a_shared_block_with_them(rig):
    other = rig.group("other", [[2, 3]], outputs=1, status=Status.SWAPPED)
    rig.plan.swap_out = [(8, 0), (9, 1), (8, 2), (7, 3)]
    rig.check()
    rig.kv.tables[other.live[0].seq_id] = [3, 1]
    rig.kv.tables[rig.swapped.live[0].seq_id] = [0, 2]
    refused("I15", rig)


def test_i15_the_last_holder_does_not_copy(rig):
    rig.plan.copies = [(5, 3), (9, 4)]
    refused("I15", rig)
    rig.check(exact=False)


# ------------------------------------------------------------------------------ the monitor
def planned(rig, **changes):
    monitor = InvariantMonitor(rig.kv)
    for name, value in changes.items():
        setattr(rig.plan, name, value)
    monitor.planned(rig.plan, rig.groups)


def test_the_monitor_checks_the_plan_too(rig):
    del rig.plan.spans[2]
    with pytest.raises(InvariantError, match="I6"):
        planned(rig)


def test_i9_no_admission_while_a_group_is_swapped(rig):
    with pytest.raises(InvariantError, match="I9"):
        planned(rig, admitted=["prompt"])
    rig.groups.remove(rig.swapped)
    planned(rig, admitted=["prompt"])


def test_i9_no_admission_past_a_group_that_comes_first(rig):
    rig.groups.remove(rig.swapped)
    rig.waiting.priority = -1
    with pytest.raises(InvariantError, match="I9"):
        planned(rig, admitted=["prompt"])


def test_i9_admissions_follow_the_order(rig):
    rig.groups.remove(rig.swapped)
    planned(rig, admitted=["prompt", "siblings"])
    with pytest.raises(InvariantError, match="I9"):
        planned(rig, admitted=["siblings", "prompt"])


def committed(rig, *outputs):
    InvariantMonitor(rig.kv).committed(rig.plan, rig.groups, outputs)


def test_i1_and_i2_are_asked_of_the_manager(rig):
    committed(rig)
    assert rig.kv.checked == 1


def test_i8_a_step_that_neither_schedules_nor_ends_anything(rig):
    rig.plan.spans = []
    with pytest.raises(InvariantError, match="I8"):
        committed(rig)
    committed(rig, Output("gone", finished=True))
    rig.plan.preempted = [Preempted("waiting", "recompute")]
    committed(rig)
    rig.plan.preempted = []
    rig.groups.clear()
    committed(rig)


def test_i10_forking_takes_no_block(rig):
    group = rig.group("forked", [[8, 9], [8, 9]], tokens=7, outputs=1)
    rig.plan.spans = [Span(group.live[0].seq_id, 0, [1] * 6, [8, 9])]
    committed(rig)
    rig.kv.tables[group.live[1].seq_id] = [8, 10]
    with pytest.raises(InvariantError, match="I10"):
        committed(rig)


def test_i11_exactly_one_terminal_output_after_the_blocks_are_back(rig):
    rig.groups.remove(rig.swapped)
    monitor = InvariantMonitor(rig.kv)
    monitor.committed(rig.plan, rig.groups, [Output("siblings"), Output("prompt")])
    with pytest.raises(InvariantError, match=r"I11.*still queued"):
        monitor.committed(rig.plan, rig.groups, [Output("prompt", True)])
    rig.groups.remove(rig.prompt)
    with pytest.raises(InvariantError, match=r"I11.*holds"):
        monitor.committed(rig.plan, rig.groups, [Output("prompt", True)])


def test_i11_second_terminal_output_and_output_after_the_last(rig):
    monitor = InvariantMonitor(rig.kv)
    monitor.committed(rig.plan, rig.groups, [])
    rig.groups.remove(rig.waiting)
    monitor.committed(rig.plan, rig.groups, [Output("waiting", True)])
    with pytest.raises(InvariantError, match=r"I11.*second"):
        monitor.committed(rig.plan, rig.groups, [Output("waiting", True)])
    with pytest.raises(InvariantError, match=r"I11.*after its last"):
        monitor.committed(rig.plan, rig.groups, [Output("waiting")])
    # The id may be used again.
    rig.groups.append(rig.waiting)
    monitor.committed(rig.plan, rig.groups, [Output("waiting")])


def test_i11_a_request_that_vanishes(rig):
    monitor = InvariantMonitor(rig.kv)
    monitor.committed(rig.plan, rig.groups, [])
    rig.groups.remove(rig.waiting)
    with pytest.raises(InvariantError, match=r"I11.*waiting.*without a terminal"):
        monitor.committed(rig.plan, rig.groups, [])


def test_i2_an_idle_engine_has_all_its_blocks(rig):
    check_idle(rig.kv)
    rig.kv.num_free_cpu_blocks -= 1
    with pytest.raises(InvariantError, match=r"I2.*host"):
        check_idle(rig.kv)
    rig.kv.num_free_gpu_blocks -= 1
    with pytest.raises(InvariantError, match=r"I2.*device"):
        check_idle(rig.kv)
    rig.groups.clear()
    with pytest.raises(InvariantError, match="I2"):
        committed(rig)
