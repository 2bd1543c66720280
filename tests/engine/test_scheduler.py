"""Who runs in a step: the rules of one iteration, each by itself.

A driver stands in for the executor and the sampler: every sampled sequence gets a token, and
forks into its siblings after its prompt.
"""

from __future__ import annotations

import re

import pytest

from minipaged.config import CacheConfig, ConfigError, SchedulerConfig
from minipaged.contracts import Decision, GroupDecision
from minipaged.engine import make_kv_manager
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup, Status


class Driver:
    def __init__(self, gpu=8, cpu=8, watermark=0, block_size=4, reservation="paged", **options):
        options.setdefault("max_num_seqs", 8)
        options.setdefault("max_model_len", 64)
        config = SchedulerConfig(**options)
        cache = CacheConfig(
            block_size=block_size,
            num_gpu_blocks=gpu,
            num_cpu_blocks=cpu,
            reservation=reservation,
        )
        parts = Parts()
        self.kv = make_kv_manager(cache, config, parts)
        self.scheduler = parts.Scheduler(
            config,
            self.kv,
            parts.Admission(config, self.kv, watermark),
            parts.Preemption(self.kv, config.preemption),
        )
        self.groups = {}

    def add(self, name, prompt, n=1, priority=0, max_tokens=None, beam=False):
        params = SamplingParams(n=n, max_tokens=max_tokens, use_beam_search=beam)
        seq = Sequence(self.scheduler.new_seq_id(), range(prompt))
        group = SequenceGroup(name, seq, params, arrival_index=len(self.groups), priority=priority)
        self.groups[name] = group
        self.scheduler.add(group)
        return group

    def plan(self):
        self.last = self.scheduler.schedule()
        return self.last

    def commit(self, ends=()):
        """A token for everyone sampled; the siblings named in ``ends``, such as "a0", end."""
        decisions = []
        for group in self.scheduler.sampled:
            parents = group.live
            if not group.started:
                parents = parents * group.params.width
            limit = group.params.max_tokens
            decisions.append(
                GroupDecision(
                    group,
                    [
                        Decision(
                            parent,
                            token_id=1,
                            logprob=-1.0,
                            index=i if not group.started else parent.index,
                            finish="length"
                            if f"{group.request_id}{parent.index}" in ends
                            or parent.num_output_tokens + 1 == limit
                            else None,
                        )
                        for i, parent in enumerate(parents)
                    ],
                )
            )
        self.scheduler.commit(decisions)
        self.kv.check(self.scheduler.groups)

    def step(self, ends=()):
        plan = self.plan()
        self.commit(ends)
        return plan

    def queues(self):
        return {
            name: [group.request_id for group in getattr(self.scheduler, name)]
            for name in ("running", "waiting", "swapped")
        }

    def spans(self, plan):
        return [(s.seq_id, s.start, len(s.token_ids)) for s in plan.spans]

    def run_dry(self, limit=500):
        for _ in range(limit):
            if not self.scheduler.has_unfinished():
                return
            plan = self.step()
            forced = self.scheduler.config.forced_preemption and plan.preempted
            assert plan.spans or self.scheduler.ended or forced, "a step did nothing"
        raise AssertionError(f"not done after {limit} steps: {self.queues()}")


def idle(driver):
    return (
        driver.kv.num_free_gpu_blocks == driver.kv.num_gpu_blocks
        and driver.kv.num_free_cpu_blocks == driver.kv.num_cpu_blocks
    )


# ----------------------------------------------------------------------------- admission
def test_prompts_and_decodes_share_a_step():
    d = Driver()
    d.add("a", 5)
    assert d.spans(d.step()) == [(0, 0, 5)]
    d.add("b", 3)
    assert d.spans(d.step()) == [(0, 5, 1), (1, 0, 3)]


def test_the_first_that_does_not_fit_stops_the_scan():
    d = Driver(gpu=4)
    for name, prompt in (("a", 8), ("b", 12), ("c", 1)):
        d.add(name, prompt)
    d.step()
    assert d.queues() == {"running": ["a"], "waiting": ["b", "c"], "swapped": []}


def test_the_watermark_is_left_free_unless_nothing_runs():
    d = Driver(gpu=6, watermark=2)
    d.add("a", 20)  # 5 blocks of 6: alone, so the watermark does not count
    d.step()
    assert d.queues()["running"] == ["a"]
    d = Driver(gpu=6, watermark=2)
    d.add("a", 4)
    d.add("b", 12)
    d.add("c", 1)
    d.step()
    assert d.queues()["running"] == ["a", "b"]


@pytest.mark.parametrize("chunked", [False, True])
def test_the_token_budget(chunked):
    d = Driver(gpu=16, max_num_batched_tokens=10, chunked_prefill=chunked)
    d.add("a", 6)
    d.add("b", 6)
    d.add("c", 25)
    first, second = d.step(), d.step()
    if chunked:
        assert d.spans(first) == [(0, 0, 6), (1, 0, 4)]
        assert d.spans(second) == [(0, 6, 1), (1, 4, 2), (2, 0, 7)]
        assert d.spans(d.step()) == [(0, 7, 1), (1, 6, 1), (2, 7, 8)]
        assert not d.last.spans[2].sample
    else:
        assert d.spans(first) == [(0, 0, 6)]
        assert d.spans(second) == [(0, 6, 1), (1, 0, 6)]


def test_a_prompt_longer_than_the_budget_runs_alone():
    d = Driver(gpu=16, max_num_batched_tokens=10)
    d.add("a", 25)
    assert d.spans(d.step()) == [(0, 0, 25)]


def test_places_are_kept_for_siblings_to_come():
    d = Driver(gpu=16, max_num_seqs=4)
    d.add("a", 2, n=3)
    d.add("b", 2, n=2)
    d.add("c", 2)
    d.step()
    assert d.queues()["running"] == ["a"]
    d.step(ends={"a0", "a1"})
    d.step()
    assert d.queues()["running"] == ["a", "b", "c"]


def test_the_authors_count_finished_siblings_too():
    d = Driver(gpu=16, max_num_seqs=4, count_max_seqs=True)
    d.add("a", 2, n=3)
    d.add("b", 2, n=2)
    d.step()
    d.step(ends={"a0", "a1"})
    d.step()
    assert d.queues()["running"] == ["a"]


@pytest.mark.parametrize(
    ("prompt", "n", "says"),
    [
        (33, 1, "33 prompt tokens needs 9 blocks of 4, the whole pool has 8"),
        (64, 1, "prompt has 64 tokens .* the limit is 64"),
        (2, 9, "asks for 9 sequences, the engine runs at most 8"),
    ],
)
def test_b05_what_can_never_run_is_refused_at_once_and_blocks_nobody(prompt, n, says):
    d = Driver()
    never = d.add("never", prompt, n=n)
    d.add("fine", 5)
    d.step()
    assert d.scheduler.ended == [never]
    (seq,) = never.finished_seqs
    assert seq.finish_reason == "error"
    assert re.search(says, seq.stop_reason)
    assert d.queues()["running"] == ["fine"]


# ----------------------------------------------------------------------------- preemption
def test_the_last_in_order_is_the_victim_and_comes_back_first():
    d = Driver(gpu=4)
    for name in "abc":
        d.add(name, 4)
    d.add("d", 4)
    d.step()
    assert d.queues()["running"] == ["a", "b", "c", "d"]
    plan = d.step()
    assert [p.request_id for p in plan.preempted] == ["d", "c"]
    assert d.queues() == {"running": ["a", "b"], "waiting": ["c", "d"], "swapped": []}
    assert d.groups["c"].live[0].num_computed == 0


def test_a_group_with_slots_is_never_a_victim_in_the_same_step():
    d = Driver(gpu=5)
    d.add("a", 4)
    d.add("b", 7)
    d.add("c", 3)
    d.step()
    for _ in range(12):
        plan = d.step()
        scheduled = {s.seq_id for s in plan.spans}
        for p in plan.preempted:
            assert not scheduled & d.groups[p.request_id].seqs.keys()


def test_b18_priority_decides_who_is_the_victim():
    d = Driver(gpu=6)
    low = d.add("low", 4, priority=5)
    for name in "bcd":
        d.add(name, 4)
    d.step()
    assert d.queues()["running"] == ["b", "c", "d", "low"]
    plan = d.step()
    assert [p.request_id for p in plan.preempted] == ["low"]
    assert low.seqs.keys().isdisjoint(s.seq_id for s in plan.spans)
    assert len(plan.spans) == plan.num_tokens == 3


def test_one_sequence_is_recomputed_with_what_it_generated():
    d = Driver(gpu=4)
    d.add("a", 7)
    d.add("b", 6)
    d.step()
    d.step()
    d.step()
    assert d.queues()["waiting"] == ["b"]
    tokens = d.groups["b"].live[0].num_tokens
    d.step(ends={"a0"})
    assert d.spans(d.step()) == [(1, 0, tokens)]


def test_several_sequences_are_swapped_and_share_afterwards_as_before():
    d = Driver(gpu=8, cpu=8)
    d.add("a", 8)
    d.add("g", 10, n=3)
    d.step()
    d.step()
    before = [list(d.kv.block_table(s)) for s in d.groups["g"].seqs]
    for _ in range(5):
        plan = d.step()
        if plan.preempted:
            break
    assert [(p.request_id, p.mode) for p in plan.preempted] == [("g", "swap")]
    assert len(plan.swap_out) == len({b for row in before for b in row})
    assert not plan.swap_in
    assert not plan.admitted
    plan = d.step(ends={"a0"})
    while not plan.resumed:
        plan = d.step()
    assert len(plan.swap_in) == 5
    rows = [d.kv.block_table(s) for s in d.groups["g"].seqs]
    assert rows[0][:2] == rows[1][:2] == rows[2][:2]
    assert len({row[2] for row in rows}) == 3
    assert idle_after(d)


def idle_after(d):
    for name in list(d.groups):
        d.scheduler.abort(name)
    return idle(d)


def test_none_is_admitted_while_one_is_swapped():
    d = Driver(gpu=4, preemption="swap")
    d.add("a", 8)
    d.add("b", 7)
    d.step()
    d.step()
    assert d.queues()["swapped"] == ["b"]
    d.add("c", 1)
    d.step()
    assert d.queues() == {"running": ["a"], "waiting": ["c"], "swapped": ["b"]}


def test_b07_without_swap_space_a_group_is_recomputed_in_its_shape():
    d = Driver(gpu=8, cpu=1)
    d.add("a", 8)
    group = d.add("g", 10, n=3)
    d.step()
    d.step()
    while not d.step().preempted:
        pass
    assert d.queues()["waiting"] == ["g"]
    tokens = [s.num_tokens for s in group.live]
    d.step(ends={"a0"})
    plan = d.step()
    # The shared prompt is computed once, by the first; the others compute what is theirs.
    assert [(start, count) for _, start, count in d.spans(plan)] == [
        (0, tokens[0] - 1),
        (8, tokens[1] - 1 - 8),
        (8, tokens[2] - 1 - 8),
    ]
    assert not any(s.sample for s in plan.spans)
    assert [s.num_tokens for s in group.live] == tokens
    plan = d.step()
    assert [s.sample for s in plan.spans] == [True] * 3
    assert all(s.num_tokens == t + 1 for s, t in zip(group.live, tokens))
    assert idle_after(d)


def test_b08_finished_siblings_hold_nothing_when_the_group_is_recomputed():
    d = Driver(gpu=7, cpu=0)
    d.add("a", 8)
    group = d.add("g", 6, n=3)
    d.step()
    d.step(ends={"g0", "g2"})
    assert len(group.seqs) == 1
    while not d.step().preempted:
        pass
    assert d.queues() == {"running": ["a"], "waiting": ["g"], "swapped": []}
    d.step(ends={"a0"})
    plan = d.step()
    assert d.spans(plan) == [(group.live[0].seq_id, 0, group.live[0].num_computed)]
    for seq in group.finished_seqs:
        assert d.kv.block_table(seq.seq_id) == []
    assert len(list(group.all_seqs())) == 3


def test_alone_and_still_too_big_ends_the_youngest_sibling_first():
    d = Driver(gpu=4, cpu=4)
    group = d.add("g", 6, n=3)
    reasons = []
    for _ in range(40):
        d.step()
        reasons = [(s.index, s.finish_reason) for s in group.finished_seqs]
        if group.finished:
            break
    assert reasons == [(2, "length"), (1, "length"), (0, "length")]
    assert "the pool of 4 blocks of 4 tokens" in group.finished_seqs[0].stop_reason
    lengths = [s.num_tokens for s in group.finished_seqs]
    assert lengths[0] <= lengths[1] <= lengths[2] == 17
    assert d.scheduler.ended == [group]
    assert idle(d)


def test_the_authors_demand_a_free_block_for_each_sequence():
    d = Driver(gpu=4, demand_free_block_per_seq=True)
    d.add("a", 5)
    d.add("b", 5)
    d.step()
    plan = d.step()  # nobody opens a block, and still
    assert [p.request_id for p in plan.preempted] == ["b"]


# ----------------------------------------------------------------------------- batching
def test_prefill_first_keeps_prompts_and_decodes_apart():
    d = Driver(prefill_first=True)
    d.add("a", 5)
    d.step()
    d.add("b", 3)
    assert d.spans(d.step()) == [(1, 0, 3)]
    assert d.spans(d.step()) == [(0, 5, 1), (1, 3, 1)]


def test_request_level_batching_waits_for_the_whole_batch():
    d = Driver(batching="request")
    d.add("a", 3, max_tokens=3)
    d.add("b", 3, max_tokens=6)
    d.step()
    d.add("c", 3, max_tokens=2)
    for _ in range(5):
        assert "c" in d.queues()["waiting"]
        d.step()
    d.step()
    assert d.queues()["running"] == ["c"]


def test_contiguous_reservation_never_preempts():
    d = Driver(gpu=16, reservation="max", max_model_len=16)
    for name in "abcdef":
        d.add(name, 3, max_tokens=13)
    d.step()
    assert d.queues()["running"] == list("abcd")
    d.run_dry()
    assert all(g.num_preemptions == 0 for g in d.groups.values())
    assert idle(d)


# ----------------------------------------------------------------------------- ends
@pytest.mark.parametrize("state", ["waiting", "prefilling", "running", "swapped"])
def test_b19_abort_frees_everything_at_once_in_every_state(state):
    d = Driver(gpu=5, preemption="swap", chunked_prefill=True, max_num_batched_tokens=8)
    d.add("a", 4)
    target = d.add("x", 12 if state == "prefilling" else 4, n=2)
    if state != "waiting":
        d.step()
    if state in ("running", "swapped"):
        d.step()
        while state == "swapped" and not d.scheduler.swapped:
            d.step()
    assert target in (d.scheduler.groups)
    assert (state == "prefilling") == target.prefilling
    assert d.scheduler.abort("x")
    assert not d.scheduler.abort("x")
    assert not d.scheduler.abort("unknown")
    assert d.scheduler.ended == [target]
    assert {s.finish_reason for s in target.finished_seqs} == {"abort"}
    d.kv.check(d.scheduler.groups)
    assert d.kv.num_free_cpu_blocks == 8
    assert d.scheduler.abort("a")
    assert idle(d)


def test_a_beam_that_nobody_continues_is_dropped_and_one_that_branches_forks():
    d = Driver()
    group = d.add("g", 6, n=2, beam=True)
    d.step()
    d.plan()
    loser, winner = group.live
    d.scheduler.commit(
        [GroupDecision(group, [Decision(winner, 5, -1.0, 0), Decision(winner, 6, -2.0, 1)])]
    )
    assert loser.status is Status.FINISHED
    assert not group.finished_seqs
    assert [s.token_ids[-1] for s in group.live] == [5, 6]
    assert winner.seq_id in group.seqs
    tables = [d.kv.block_table(s) for s in group.seqs]
    assert tables[0] == tables[1]
    d.kv.check(d.scheduler.groups)


def test_a_continuation_that_ends_leaves_the_parent_to_the_one_that_lives():
    d = Driver()
    group = d.add("g", 6, n=2, beam=True)
    d.step()
    d.plan()
    first, second = group.live
    d.scheduler.commit(
        [
            GroupDecision(
                group,
                [
                    Decision(first, 2, -1.0, 0, finish="stop"),
                    Decision(first, 5, -1.0, 0),
                    Decision(second, 6, -2.0, 1),
                ],
            )
        ]
    )
    assert first.seq_id in group.seqs
    assert [s.token_ids[-1] for s in group.finished_seqs] == [2]
    assert d.kv.block_table(group.finished_seqs[0].seq_id) == []
    d.kv.check(d.scheduler.groups)


def test_under_pressure_everything_ends_and_nothing_is_left():
    for mode in ("auto", "swap", "recompute"):
        d = Driver(gpu=12, cpu=6, preemption=mode, forced_preemption=0.2)
        for i in range(12):
            d.add(str(i), 1 + i % 7, n=1 + i % 3, priority=i % 2, max_tokens=10)
        d.run_dry()
        assert idle(d)
        assert sum(g.num_preemptions for g in d.groups.values()) > 5
        for group in d.groups.values():
            assert [s.num_output_tokens for s in group.finished_seqs] == [10] * group.params.n


def test_a_budget_below_the_sequence_limit_is_refused():
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(4\) .* max_num_seqs \(8\)"):
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=4)
