"""Known traps, in memory and scheduling (B01 to B18, B34): a whole engine on a tiny random model
against the same engine undisturbed. The table of all of them is ``tests/traps.md``."""

import math
from collections import Counter
from itertools import combinations, cycle

import pytest
from trap_rig import BLOCK_SIZE, Pieces, Rig, greedy, ids, prompt, reasons, reference, tiny_model

from minipaged.config import CacheConfig
from minipaged.sampling_params import SamplingParams


@pytest.fixture(scope="module", params=["opt", "llama"])
def model(request):
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


@pytest.fixture(scope="module")
def opt():
    return tiny_model("opt")


def siblings(n=3, **options) -> SamplingParams:
    options.setdefault("max_tokens", 10)
    return SamplingParams(n=n, seed=7, **options)


# ----------------------------------------------------------------------------- B01
@pytest.mark.parametrize(("length", "n"), [(4, 3), (5, 2), (6, 3), (7, 5), (8, 2), (9, 3)])
def test_b01_siblings_replace_the_block_that_they_share(model, length, n):
    """Each sibling but the last holder gets a copy in place of the partly filled block; full
    blocks stay shared, and on a block boundary nothing is copied."""
    rig = Rig(model, gpu=40)
    rig.add("g", prompt(length), siblings(n))
    rig.step()
    shared = rig.tables("g")
    assert shared == [shared[0]] * n
    rig.step()
    tables, full = rig.tables("g"), length // BLOCK_SIZE
    assert [len(table) for table in tables] == [full + 1] * n
    assert all(table[:full] == shared[0][:full] for table in tables)
    assert len({table[full] for table in tables}) == n
    assert rig.gpu_used() == full + n
    partial = length % BLOCK_SIZE != 0
    assert rig.happened["copies"] == (n - 1) * partial
    assert not partial or shared[0][full] == tables[n - 1][full], "the last holder copies nothing"
    assert ids(rig.run()["g"]) == ids(reference(model, prompt(length), siblings(n)))


# ----------------------------------------------------------------------------- B02
#: prompt length, steps before the swap, and what the tables then are: unique blocks, and blocks
#: that the next token of the three needs
SHARED = [
    pytest.param(6, 1, 2, 2, id="one shared partial tail"),
    pytest.param(8, 1, 2, 3, id="a shared full tail"),
    pytest.param(5, 2, 4, 0, id="private partial tails"),
    pytest.param(7, 2, 4, 3, id="private full tails"),
    pytest.param(13, 1, 4, 2, id="three shared full blocks and a partial tail"),
    pytest.param(11, 3, 8, 0, id="two shared full blocks and tails of two blocks"),
]


@pytest.mark.parametrize("spare", [-1, 0, 1])
@pytest.mark.parametrize(("length", "steps", "unique", "need"), SHARED)
def test_b02_a_group_that_shares_blocks_goes_out_and_comes_back(
    llama, length, steps, unique, need, spare
):
    """Beside a request that opens its third block in the step in which the group may come back,
    in a pool that is one block short of what the group and its next token need, or has it."""
    other = prompt(2 * BLOCK_SIZE - steps)
    undisturbed = Rig(llama)
    rig = Rig(llama, gpu=3 + unique + need + spare, cpu=unique)
    for one in (undisturbed, rig):
        one.add("other", other, greedy(max_tokens=8))
        one.add("g", prompt(length), siblings(max_tokens=steps + 2))
    for _ in range(steps):
        undisturbed.step()
        rig.step()
    before, tables = rig.cached("g"), rig.tables("g")
    assert len(set().union(*tables)) == unique
    copies = undisturbed.happened["copies"]
    undisturbed.step()
    copies = undisturbed.happened["copies"] - copies

    rig.preempt_next("g")
    rig.step()
    assert rig.happened["swap_out"] == rig.cpu_used() == unique
    assert rig.gpu_used() == len(rig.tables("other")[0]) == 2
    for kept, now in zip(before, rig.cached("g")):
        assert kept.equal(now)

    rig.step()
    assert len(rig.tables("other")[0]) == 3
    assert (rig.happened["swap_in"] == unique) == (spare >= 0)
    if spare >= 0:
        assert rig.cpu_used() == 0
        # A shared tail that is written to is no longer shared; the rest is as it was.
        assert _common(rig.tables("g")) == [c - (copies > 0) for c in _common(tables)]
        for kept, now in zip(before, rig.cached("g")):
            assert kept.equal(now[:, :, : kept.shape[2]])
        assert len(rig.engine.last_plan.copies) == copies
    else:
        assert rig.cpu_used() == unique
    assert ids(rig.run()["g"]) == ids(undisturbed.run()["g"])
    assert ids(rig.done["other"]) == ids(undisturbed.done["other"])


def _common(tables):
    """For each two of the tables, how many entries they have in common."""
    return [sum(a == b for a, b in zip(x, y)) for x, y in combinations(tables, 2)]


def test_b02_swapped_and_recomputed_groups_crowd_a_small_pool(model):
    """Many lives at once: whatever was shared, moved or computed again, nothing shows."""
    for mode in ("auto", "swap", "recompute"):
        rig = Rig(
            model, gpu=14, cpu=9, preemption=mode, forced_preemption=0.3,
            forced_preemption_seed=5, max_num_seqs=8,
        )  # fmt: skip
        wanted = {f"r{i}": (prompt(3 + 2 * i, i), siblings(1 + i % 3)) for i in range(5)}
        for name, (tokens, params) in wanted.items():
            rig.add(name, tokens, params)
        done = rig.run()
        assert rig.happened["preempted"] >= 3
        assert (rig.happened["swap_in"] > 0) == (mode != "recompute")
        for name, (tokens, params) in wanted.items():
            assert ids(done[name]) == ids(reference(model, tokens, params)), (mode, name)


# ----------------------------------------------------------------------------- B05
@pytest.mark.parametrize(
    "options", [{}, {"chunked_prefill": True}, {"prefill_first": True}, {"batching": "request"},
                {"max_num_seqs": 4, "max_num_batched_tokens": 8}, {"watermark": 0.3}]
)  # fmt: skip
def test_b05_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody(llama, options):
    rig = Rig(llama, gpu=8, **options)
    rig.add("never", prompt(33), siblings(1 + len(options)))
    rig.add("fine", prompt(5), greedy())
    for _ in range(2):
        rig.step()
    (refused,) = rig.done["never"].outputs
    assert refused.finish_reason == "error"
    assert "33 prompt tokens needs 9 blocks of 4, the whole pool has 8" in refused.stop_reason
    assert refused.token_ids == []
    assert ids(rig.run()["fine"]) == ids(reference(llama, prompt(5), greedy()))


@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle"])
def test_b05_a_region_larger_than_the_pool_is_refused(llama, reservation):
    rig = Rig(llama, gpu=8, cache=CacheConfig(block_size=BLOCK_SIZE, reservation=reservation))
    rig.add("never", prompt(33), greedy(max_tokens=20))
    fine = prompt(5), greedy(max_tokens=3)
    rig.add("fine", *fine)
    for _ in range(2):
        rig.step()
    assert reasons(rig.done["never"]) == ["error"]
    assert "the whole pool has 8" in rig.done["never"].outputs[0].stop_reason
    done = rig.run()
    if reservation == "max":  # where every region is as long as the model's longest request
        assert reasons(done["fine"]) == ["error"]
    else:
        assert ids(done["fine"]) == ids(reference(llama, *fine))


def test_b05_a_prompt_that_just_fits_runs_though_watermark_and_budget_say_no(llama):
    """They are for the good of others, and there are none."""
    rig = Rig(llama, gpu=8, watermark=0.5, max_num_seqs=4, max_num_batched_tokens=8)
    rig.add("all", prompt(32), greedy())
    rig.add("next", prompt(5), greedy())
    (output,) = rig.run()["all"].outputs
    assert output.finish_reason == "length"
    assert "the pool of 8 blocks of 4 tokens has no room" in output.stop_reason
    assert output.token_ids == ids(reference(llama, prompt(32), greedy()))[0][:1]
    assert ids(rig.done["next"]) == ids(reference(llama, prompt(5), greedy()))


def test_b05_an_output_that_outgrows_the_pool_ends_and_says_why(model):
    rig = Rig(model, gpu=5)
    rig.add("grows", prompt(9), greedy(max_tokens=None))
    rig.add("next", prompt(5), greedy(max_tokens=6))
    (output,) = rig.run()["grows"].outputs
    assert output.finish_reason == "length"
    assert "pool of 5 blocks" in output.stop_reason
    # 20 slots: the token sampled last needs none.
    assert len(output.token_ids) == 20 + 1 - 9
    expected = ids(reference(model, prompt(9), greedy(max_tokens=None)))[0]
    assert output.token_ids == expected[: len(output.token_ids)]
    assert ids(rig.done["next"]) == ids(reference(model, prompt(5), greedy(max_tokens=6)))


# ----------------------------------------------------------------------------- B06
REFUSED = {
    "pool": (33, {}),
    "model length": (64, {}),
    "sequence limit": (3, {"n": 9, "temperature": 1.0}),
}


@pytest.mark.parametrize("company", [False, True])
@pytest.mark.parametrize("why", [["pool"], ["model length"], ["sequence limit"], [*REFUSED] * 2])
def test_b06_a_refused_request_is_returned_exactly_once(llama, why, company):
    rig = Rig(llama, gpu=8, max_num_seqs=8)
    for i, name in enumerate(why):
        length, options = REFUSED[name]
        rig.add(f"never {i}", prompt(length), SamplingParams(**options))
    if company:
        rig.add("fine", prompt(5), greedy(max_tokens=4))
    terminal = Counter()
    for _ in range(3):
        terminal.update(output.request_id for output in rig.step() if output.finished)
    assert terminal == {f"never {i}": 1 for i in range(len(why))}
    assert rig.engine.has_unfinished() == company
    rig.run()
    assert rig.engine.step() == [], "a step of an idle engine gives nothing"


# ----------------------------------------------------------------------------- B07
@pytest.mark.parametrize("mode", ["auto", "swap", "recompute"])
def test_b07_without_swap_space_single_sequences_are_recomputed(model, mode):
    rig = Rig(model, gpu=9, cpu=0, preemption=mode)
    for i in range(4):
        rig.add(f"r{i}", prompt(4 + i, i), greedy())
    done = rig.run()
    assert rig.happened["preempted"] > 1
    assert rig.happened["swap_out"] == 0
    for i in range(4):
        assert ids(done[f"r{i}"]) == ids(reference(model, prompt(4 + i, i), greedy()))


@pytest.mark.parametrize(("mode", "cpu"), [("auto", 0), ("auto", 1), ("swap", 3)])
def test_b07_with_too_little_swap_space_a_group_is_recomputed_in_its_shape(llama, mode, cpu):
    rig = Rig(llama, gpu=13, cpu=cpu, preemption=mode)
    for i in range(2):
        rig.add(f"g{i}", prompt(6 + i, i), siblings())
    done = rig.run()
    assert rig.happened["preempted"] > 0
    assert rig.happened["swap_out"] == 0
    for i in range(2):
        assert ids(done[f"g{i}"]) == ids(reference(llama, prompt(6 + i, i), siblings()))
    rig.add("after", prompt(5), siblings(2))
    assert ids(rig.run()["after"]) == ids(reference(llama, prompt(5), siblings(2)))


def test_b07_a_group_too_large_for_the_pool_loses_its_youngest_and_no_one_else(llama):
    """n = 12 in a pool that holds five tails: the engine lives, and each output is what it would
    have been, as far as it came."""
    rig = Rig(llama, gpu=10, cpu=2)
    rig.add("wide", prompt(6), siblings(12))
    rig.add("other", prompt(5), greedy())
    done = rig.run()
    expected = reference(llama, prompt(6), siblings(12))
    for one, whole in zip(done["wide"].outputs, expected.outputs, strict=True):
        assert one.finish_reason == "length"
        assert one.token_ids == whole.token_ids[: len(one.token_ids)]
        assert (len(one.token_ids) == 10) == (one.stop_reason is None)
    assert len(done["wide"].outputs[0].token_ids) == 10
    assert ids(done["other"]) == ids(reference(llama, prompt(5), greedy()))


# ----------------------------------------------------------------------------- B08
@pytest.mark.parametrize(("mode", "survivor"), [("auto", 2), ("swap", 1), ("recompute", 0)])
def test_b08_finished_siblings_take_no_part_in_what_happens_to_the_third(model, mode, survivor):
    tokens = prompt(6)
    free = ids(reference(model, tokens, siblings()))
    stops = []
    for i in {0, 1, 2} - {survivor}:
        stops.append(next(t for t in free[i][1:6] if t not in free[survivor]))
    params = siblings(stop_token_ids=stops)
    rig = Rig(model, gpu=9, cpu=6, preemption=mode)
    rig.add("first", prompt(9), greedy(max_tokens=14))
    group = rig.add("g", tokens, params)
    ended = {}
    while "g" not in rig.done:
        if len(group.seqs) == 1 and group.num_preemptions < 2 and group in rig.scheduler.running:
            rig.preempt_next("g")
        rig.step()
        for seq in group.finished_seqs:
            assert not rig.kv.block_table(seq.seq_id)
            assert ended.setdefault(seq.seq_id, seq.token_ids[:]) == seq.token_ids
    output = rig.run()["g"]
    assert output.metrics.num_preemptions >= 2
    assert sorted(reasons(output)) == ["length", "stop", "stop"]
    assert output.outputs[survivor].finish_reason == "length"
    assert ids(output) == ids(reference(model, tokens, params))


# ----------------------------------------------------------------------------- B10
PENALTIES = {
    "none": {},
    "frequency": {"frequency_penalty": 1.0},
    "presence": {"presence_penalty": 1.5},
    "repetition": {"repetition_penalty": 1.7},
}
CHUNKED = {"chunked_prefill": True, "max_num_seqs": 4, "max_num_batched_tokens": 6}


@pytest.mark.parametrize(
    ("penalty", "mode", "options"),
    [
        ("none", "recompute", {}),
        ("none", "swap", CHUNKED),
        ("frequency", "recompute", {}),
        ("frequency", "swap", {}),
        ("presence", "recompute", CHUNKED),
        ("repetition", "swap", {}),
    ],
)
def test_b10_preemption_neither_loses_nor_doubles_a_token(opt, penalty, mode, options):
    params = greedy(logprobs=2, prompt_logprobs=1, **PENALTIES[penalty])
    rig = Rig(opt, gpu=14, cpu=10, preemption=mode, tokenizer=Pieces(), **options)
    for i in range(3):
        rig.add(f"r{i}", prompt(5 + 2 * i, i), params)
    turn = cycle(rig.groups.values())
    while rig.engine.has_unfinished():
        group = next(turn)
        if group in rig.scheduler.running and group.num_preemptions < 3:
            rig.preempt_next(group.request_id)
        rig.step()
    for i in range(3):
        output = rig.done[f"r{i}"]
        assert output.metrics.num_preemptions >= 2
        (one,), (whole,) = output.outputs, reference(opt, prompt(5 + 2 * i, i), params).outputs
        assert one.token_ids == whole.token_ids
        assert len(one.token_ids) == len(one.logprobs) == 12
        assert [entry.token_id for entry in one.logprobs] == one.token_ids
        for entry, expected in zip(one.logprobs, whole.logprobs):
            assert entry.top.keys() == expected.top.keys()
            assert entry.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert len(output.prompt_logprobs) == 5 + 2 * i
        streamed = "".join(rig.deltas[f"r{i}", 0])
        assert streamed == one.text == "".join(f"<{token}>" for token in whole.token_ids)
    rig.run()


def test_b10_penalties_change_what_is_generated(opt):
    """Otherwise the test above would say nothing about them."""
    outputs = [ids(reference(opt, prompt(5), greedy(**penalty))) for penalty in PENALTIES.values()]
    assert all(output != outputs[0] for output in outputs[1:])


# ----------------------------------------------------------------------------- B17
@pytest.mark.parametrize("length", [17, 18, 20])
def test_b17_a_model_length_that_is_no_multiple_of_the_block_size(model, length):
    rig = Rig(model, gpu=15, max_model_len=length)
    wishes = {"long": (9, None), "short": (3, 5), "middle": (6, 8)}
    for name, (tokens, most) in wishes.items():
        rig.add(name, prompt(tokens), greedy(max_tokens=most))
    done = rig.run()
    # The last token is never fed, so its slot is never needed.
    assert rig.longest_table == math.ceil((length - 1) / BLOCK_SIZE)
    assert len(done["long"].outputs[0].token_ids) == length - 9
    for name, (tokens, most) in wishes.items():
        expected = reference(model, prompt(tokens), greedy(max_tokens=most), max_model_len=length)
        assert ids(done[name]) == ids(expected)
        assert reasons(done[name]) == ["length"]


# ----------------------------------------------------------------------------- B18
@pytest.mark.parametrize(("mode", "needy"), [("swap", 0), ("swap", 2), ("recompute", 1)])
def test_b18_the_victim_is_nowhere_in_the_step(llama, mode, needy):
    """The first to come has the lowest priority, and so is last in the order: it goes when one
    of the others opens a block, and all of those are served in that step."""
    lengths = [6, 6, 6]
    lengths[needy] = 8
    rig = Rig(llama, gpu=2 * 4, cpu=4, preemption=mode)
    low = rig.add("low", prompt(6), greedy(), priority=9)
    for i, length in enumerate(lengths):
        rig.add(f"r{i}", prompt(length, i), greedy(), priority=i)
    rig.step()
    assert rig.gpu_used() == 8
    assert rig.scheduler.running[-1] is low
    mine = set(rig.tables("low")[0])
    rig.step()
    plan = rig.engine.last_plan
    assert [p.request_id for p in plan.preempted] == ["low"]
    scheduled = [span.seq_id for span in plan.spans]
    assert scheduled == [g.live[0].seq_id for n, g in rig.groups.items() if n != "low"]
    assert plan.num_tokens == 3
    assert not plan.copies
    assert not plan.swap_in
    assert {source for source, _ in plan.swap_out} == (mine if mode == "swap" else set())
    done = rig.run()
    for name, length in [("low", 6), *((f"r{i}", n) for i, n in enumerate(lengths))]:
        seed = 0 if name == "low" else int(name[1])
        assert ids(done[name]) == ids(reference(llama, prompt(length, seed), greedy()))


# ----------------------------------------------------------------------------- B34
@pytest.mark.parametrize("stale", [math.nan, math.inf])
def test_b34_what_is_in_the_pool_beyond_a_context_does_not_show(model, stale):
    """All blocks are spoiled before use, and again when they come free; one batch holds contexts
    around the block size, and one request whose own last block has room for three more."""
    contexts = [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 5 * BLOCK_SIZE + 3]
    params = greedy(max_tokens=6, logprobs=1)
    rig = Rig(model, gpu=22, cpu=8, stale=stale, forced_preemption=0.3)
    for length in contexts:
        rig.add(f"r{length}", prompt(length), params)
    rig.add("g", prompt(7), siblings(max_tokens=6))
    done = rig.run()
    for length in contexts:
        (expected,) = reference(model, prompt(length), params, stale=0.0).outputs
        (one,) = done[f"r{length}"].outputs
        assert one.token_ids == expected.token_ids
        for got, want in zip(one.logprobs, expected.logprobs):
            assert got.logprob == pytest.approx(want.logprob, abs=1e-4)
    expected = reference(model, prompt(7), siblings(max_tokens=6), stale=0.0)
    assert ids(done["g"]) == ids(expected)
    assert rig.happened["preempted"] > 0


def test_b34_padding_does_not_write_to_block_0(llama):
    """Every batch is padded to a multiple of eight tokens; block 0 belongs to someone else."""
    rig = Rig(llama, gpu=6)
    rig.add("first", prompt(5), greedy())
    rig.add("second", prompt(6, 1), greedy())
    rig.step()
    while rig.engine.has_unfinished():
        holder = next((n for n in rig.groups if any(0 in t for t in rig.tables(n))), None)
        before = rig.cached(holder) if holder else []
        rig.step()
        if holder and rig.tables(holder):
            for kept, now in zip(before, rig.cached(holder)):
                assert kept.equal(now[:, :, : kept.shape[2]])
    done = rig.run()
    assert ids(done["second"]) == ids(reference(llama, prompt(6, 1), greedy()))
