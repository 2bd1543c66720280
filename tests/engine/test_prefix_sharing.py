"""Requests that begin alike, in one engine: what is shared, when, what it costs, and that nobody
can tell from the tokens.

The hash executor stands in for the model, except where a test says so: one block that holds
anything but what it should changes every later token."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from faults import Fault
from harness import BLOCK_SIZE, MAX_MODEL_LEN, Reference, Request, RuleError, TestedEngine
from scenarios import Scenario, family
from trap_rig import Rig, greedy, ids, prompt, reference, tiny_model

from minipaged.config import CacheConfig, ConfigError, SchedulerConfig
from minipaged.course.student_parts import load_parts
from minipaged.errors import InvariantError, OutOfBlocks, RequestError
from minipaged.invariants import check_plan
from minipaged.kvcache.manager import PagedKVManager
from minipaged.llm import LLM
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Status

REFERENCE = Reference()


def make(gpu=32, cpu=0, prefix_caching=True, watermark=0.0, prefix=(), **scheduler):
    scheduler.setdefault("max_model_len", MAX_MODEL_LEN)
    cache = CacheConfig(
        block_size=BLOCK_SIZE,
        num_gpu_blocks=gpu,
        num_cpu_blocks=cpu,
        watermark=watermark,
        prefix_caching=prefix_caching,
    )
    return TestedEngine(SchedulerConfig(**scheduler), cache, prefix=tuple(prefix))


def add(engine, name, tokens, max_tokens=6, **params):
    salt = params.pop("salt", "")
    params = {"temperature": 0.0, "seed": 7, "max_tokens": max_tokens, **params}
    engine.add(Request(name, tuple(tokens), SamplingParams(**params), cache_salt=salt))
    return engine.groups[name]


def serve(engine, name, tokens, max_tokens=6, **params):
    """One request, from its beginning to its end."""
    add(engine, name, tokens, max_tokens, **params)
    return engine.run()[name]


def starts(engine):
    """Sequence -> where it begins to compute, of the prefills of the last step."""
    spans = engine.engine.last_plan.spans
    return {span.seq_id: span.start for span in spans if len(span.token_ids) > 1 or not span.sample}


def table(engine, name):
    (seq_id,) = engine.groups[name].seqs
    return list(engine.engine.kv.block_table(seq_id))


def same_as_alone(engine):
    REFERENCE.compare(engine)


def text(first, length):
    return list(family(first, length))


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


# --------------------------------------------------------------------------- B12
@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8)]
)
def test_b12_a_token_of_the_prompt_is_always_computed(length, cached):
    engine = make()
    first = serve(engine, "a", text(0, length))
    second = serve(engine, "b", text(0, length))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, cached)
    assert ids(first) == ids(second)
    same_as_alone(engine)


def test_b12_it_is_written_to_a_block_of_its_own():
    engine = make()
    serve(engine, "a", text(0, 8), max_tokens=20)
    before = engine.cached()
    add(engine, "b", text(0, 8))
    engine.step()
    found, own = table(engine, "b")
    assert found in before
    # The second block of "a" is in the cache and holds the same, and yet:
    assert own not in before
    engine.run()
    same_as_alone(engine)


@pytest.mark.parametrize("length", [4, 8, 13])
def test_b12_a_model_gives_the_same_logits(llama, length):
    cache = CacheConfig(block_size=4, prefix_caching=True)
    rig = Rig(llama, cache=cache)
    params = greedy(logprobs=5)
    for name in ("a", "b"):
        rig.add(name, prompt(length), params)
        rig.run()
    assert rig.done["b"].num_cached_tokens == (length - 1) // 4 * 4
    alone = reference(llama, prompt(length), params)
    for name in ("a", "b"):
        assert ids(rig.done[name]) == ids(alone)
        for ours, theirs in zip(rig.done[name].outputs[0].logprobs, alone.outputs[0].logprobs):
            assert ours.top == pytest.approx(theirs.top, abs=1e-4)


# --------------------------------------------------------------------------- B15
def test_b15_two_that_come_together_both_compute():
    engine = make()
    add(engine, "a", text(0, 12))
    add(engine, "b", [*text(0, 12), 3])
    engine.step()
    assert list(starts(engine).values()) == [0, 0]
    assert not set(table(engine, "a")) & set(table(engine, "b"))
    engine.run()
    # One copy is kept of what both have computed.
    assert engine.finished["b"].num_cached_tokens == 0
    assert serve(engine, "c", [*text(0, 12), 4]).num_cached_tokens == 12
    same_as_alone(engine)


@pytest.mark.parametrize("end", ["abort", "go on"])
def test_b15_what_a_chunk_has_computed_can_be_found_and_no_more(end):
    engine = make(chunked_prefill=True, max_num_batched_tokens=8, max_num_seqs=4)
    add(engine, "a", text(0, 30))
    engine.step()
    assert engine.groups["a"].prefilling
    if end == "abort":
        engine.abort("a")
    b = add(engine, "b", text(0, 30))
    engine.step()
    # If "a" goes on, its chunks come first, and the last one leaves a budget of 2 tokens.
    assert (b.live[0].status is Status.WAITING) == (end == "go on")
    engine.run()
    assert engine.finished["b"].num_cached_tokens == {"abort": 8, "go on": 24}[end]
    same_as_alone(engine)


def test_b15_a_model_computes_what_an_aborted_request_had_not(llama):
    cache = CacheConfig(block_size=4, prefix_caching=True)
    rig = Rig(llama, cache=cache, chunked_prefill=True, max_num_batched_tokens=8, max_num_seqs=4)
    rig.add("a", prompt(20))
    rig.step()
    rig.engine.abort("a")
    rig.add("b", prompt(20))
    done = rig.run()
    assert done["b"].num_cached_tokens == 8
    assert ids(done["b"]) == ids(reference(llama, prompt(20), greedy()))


def test_b15_a_failed_step_shows_nothing_and_what_was_shown_is_forgotten():
    engine = make()
    serve(engine, "a", text(0, 13))
    assert engine.cached()
    add(engine, "b", text(0, 13))
    engine.fail_next = True
    engine.step()
    assert not engine.cached()
    engine.run()
    assert engine.finished["b"].num_cached_tokens == 0
    assert serve(engine, "c", text(0, 13)).num_cached_tokens == 12
    same_as_alone(engine)


def test_b15_siblings_that_are_computed_again_show_nothing_before_the_end():
    """They count what they share as computed from the start, though the first of them has it to
    compute in several steps."""
    engine = make(
        gpu=16, preemption="recompute", chunked_prefill=True, max_num_batched_tokens=8,
        max_num_seqs=8,
    )  # fmt: skip
    g = add(engine, "g", text(0, 16), max_tokens=8, n=3, temperature=1.0)
    while not g.started:
        engine.step()
    queues = engine.engine.scheduler
    queues.preemption.preempt(g, queues.begin())
    queues.running.remove(g)
    queues.requeue(g)
    engine.engine.kv.forget()
    engine.step()
    assert g.prefilling
    assert len(g.seqs) == 3
    assert not engine.cached()
    engine.run()
    same_as_alone(engine)


# --------------------------------------------------------------------------- what is shared
def test_the_next_turn_of_a_conversation_finds_prompt_and_answer():
    engine = make()
    first = serve(engine, "a", text(0, 10), max_tokens=7)
    (answer,) = ids(first)
    # 17 tokens; the last of the answer was never fed, and belongs to a block that is not full.
    second = serve(engine, "b", [*text(0, 10), *answer, 1, 2, 3])
    assert second.num_cached_tokens == 16
    same_as_alone(engine)


def test_equal_blocks_behind_different_ones_are_not_shared(llama):
    """A model's keys and values depend on all that comes before, unlike those of the hash
    executor, which would not notice."""
    rig = Rig(llama, cache=CacheConfig(block_size=4, prefix_caching=True))
    head, other, tail = prompt(4), prompt(4, seed=1), prompt(9, seed=2)
    wanted = {"a": head + tail, "b": other + prompt(5), "c": other + tail, "d": other + tail}
    for name, tokens in wanted.items():
        rig.add(name, tokens)
        rig.run()
    assert [rig.done[name].num_cached_tokens for name in wanted] == [0, 0, 4, 12]
    for name, tokens in wanted.items():
        assert ids(rig.done[name]) == ids(reference(llama, tokens, greedy())), name


@pytest.mark.parametrize(
    "params",
    [{"n": 3, "temperature": 1.0}, {"n": 1, "best_of": 3, "use_beam_search": True}],
    ids=["siblings", "beams"],
)
def test_siblings_and_beams_fill_the_cache_too(params):
    engine = make()
    out = serve(engine, "g", text(0, 6), max_tokens=9, **params)
    for i, one in enumerate(ids(out)):
        assert serve(engine, f"next{i}", [*text(0, 6), *one, 1]).num_cached_tokens == 12
    same_as_alone(engine)


def test_another_salt_finds_nothing():
    engine = make()
    engine.engine.register_prefix(text(0, 9))
    salts = {"a": "x", "b": "y", "c": "x", "d": "", "e": ""}
    outputs = [serve(engine, name, text(0, 9), salt=salt) for name, salt in salts.items()]
    assert [output.num_cached_tokens for output in outputs] == [0, 0, 8, 0, 8]
    same_as_alone(engine)


def test_log_probabilities_of_the_prompt_are_computed_and_not_found():
    engine = make()
    serve(engine, "a", text(0, 13))
    out = serve(engine, "b", text(0, 13), prompt_logprobs=1)
    assert out.num_cached_tokens == 0
    assert len(out.prompt_logprobs) == 13
    same_as_alone(engine)


def test_nothing_is_shared_unless_it_is_asked_for():
    engine = make(prefix_caching=False)
    assert type(engine.engine.kv) is PagedKVManager
    for name in ("a", "b"):
        assert serve(engine, name, text(0, 13)).num_cached_tokens == 0
    with pytest.raises(ConfigError, match=r"shares no prefixes.*prefix_caching"):
        engine.engine.register_prefix(text(0, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_caching": "always"}, "must be False, True or 'registered', not 'always'"),
        ({"prefix_caching": True, "reservation": "max"}, "reservation 'max' has none to share"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        CacheConfig(**options)


# --------------------------------------------------------------------------- memory
def test_cached_blocks_are_free_until_they_are_needed_and_the_oldest_go_first():
    engine = make(gpu=8)
    kv = engine.engine.kv
    serve(engine, "old", text(0, 9), max_tokens=1)
    serve(engine, "new", text(20, 9), max_tokens=1)
    assert kv.num_free_gpu_blocks == 8
    assert len(engine.cached()) == 4
    # 4 blocks were never used; one of those that are cached is needed.
    serve(engine, "large", text(40, 18), max_tokens=1)
    assert serve(engine, "new again", text(20, 9), max_tokens=1).num_cached_tokens == 8
    assert serve(engine, "old again", text(0, 9), max_tokens=1).num_cached_tokens == 4
    same_as_alone(engine)


@pytest.mark.parametrize(("room", "fits"), [(4, True), (3, False)])
def test_a_hit_on_an_idle_block_costs_a_free_block(room, fits):
    """A prompt of 4 blocks of which 3 are idle in the cache needs 4 free ones."""
    engine = make(gpu=8)
    serve(engine, "a", text(0, 13), max_tokens=1)
    # Not one of the blocks that "a" has left behind is touched by this one: it takes the rest.
    add(engine, "other", text(30, 4 * (8 - room) - 1), max_tokens=9)
    engine.step()
    kv = engine.engine.kv
    assert kv.num_free_gpu_blocks == room
    b = add(engine, "b", text(0, 13))
    assert kv.fits(b) == fits
    assert kv.fits(b, headroom=1) is False
    if not fits:
        free = kv.num_free_gpu_blocks
        with pytest.raises(OutOfBlocks, match=f"4 blocks were asked for.*{free} of 8 are free"):
            kv.allocate(b)
        assert kv.num_free_gpu_blocks == free
    engine.run()
    same_as_alone(engine)


def test_a_hit_on_a_block_that_others_hold_costs_nothing():
    engine = make(gpu=8)
    add(engine, "a", text(0, 13), max_tokens=9)
    engine.step()
    b = add(engine, "b", [*text(0, 13), 1, 2, 3])
    kv = engine.engine.kv
    assert (kv.blocks_needed(b), kv.num_free_gpu_blocks) == (4, 4)
    assert kv.fits(b, headroom=3)
    assert not kv.fits(b, headroom=4)
    engine.step()
    assert table(engine, "b")[:3] == table(engine, "a")[:3]
    engine.run()
    same_as_alone(engine)


def test_tokens_that_are_found_take_no_budget():
    engine = make(max_num_batched_tokens=16, max_num_seqs=4)
    add(engine, "a", text(0, 15), max_tokens=20)
    engine.step()
    add(engine, "b", [*text(0, 13), 1, 2, 3])
    add(engine, "c", [*text(0, 13), 4, 5])
    engine.step()
    # One token of "a", 4 of "b" and 3 of "c": alone they would have been 16 and 15.
    assert engine.engine.last_plan.num_tokens == 8
    engine.run()
    same_as_alone(engine)


# --------------------------------------------------------------------------- preemption
def test_a_preempted_request_finds_its_own_blocks_and_reports_none():
    engine = make(gpu=16)
    a = add(engine, "a", text(0, 13), max_tokens=9)
    for _ in range(4):
        engine.step()
    queues = engine.engine.scheduler
    queues.preemption.preempt(a, queues.begin())
    queues.running.remove(a)
    queues.requeue(a)
    assert queues.tokens_to_compute(a) == 17 - 16
    out = engine.run()["a"]
    # Usage counts what was found of the prompt when the request began.
    assert out.num_cached_tokens == 0
    same_as_alone(engine)


def test_a_group_that_is_swapped_leaves_what_others_hold():
    engine = make(gpu=16, cpu=8, preemption="swap", max_num_seqs=8)
    add(engine, "a", text(0, 13), max_tokens=12)
    engine.step()
    g = add(engine, "g", text(0, 13), max_tokens=8, n=2, temperature=1.0)
    engine.step()
    shared = table(engine, "a")[:3]
    assert {tuple(engine.engine.kv.block_table(s)[:3]) for s in g.seqs} == {tuple(shared)}
    queues = engine.engine.scheduler
    plan = queues.begin()
    queues.preemption.preempt(g, plan)
    assert set(shared) <= {source for source, _ in plan.swap_out}
    assert table(engine, "a")[:3] == shared
    assert set(shared) <= engine.cached()
    # The bytes go where the plan says, as in a step.
    engine.model.execute(plan)
    queues.running.remove(g)
    queues.requeue(g)
    engine.step()
    assert not {b for s in g.seqs for b in engine.engine.kv.block_table(s)} & set(shared)
    engine.run()
    same_as_alone(engine)


def test_groups_that_are_swapped_together_each_take_what_they_share():
    engine = make(gpu=16, cpu=16, preemption="swap")
    a = add(engine, "a", text(0, 13), max_tokens=9)
    engine.step()
    b = add(engine, "b", text(0, 13), max_tokens=9)
    engine.step()
    shared = set(table(engine, "a")) & set(table(engine, "b"))
    assert len(shared) == 3
    queues, kv = engine.engine.scheduler, engine.engine.kv
    plan = queues.begin()
    for group in (a, b):
        queues.preemption.preempt(group, plan)
        queues.running.remove(group)
        queues.requeue(group)
    check_plan(plan, kv, queues.groups, BLOCK_SIZE, cached=kv.cached)
    assert Counter(source for source, _ in plan.swap_out) == Counter([*shared, *shared, 3, 4])
    assert not set(table(engine, "a")) & set(table(engine, "b"))
    engine.model.execute(plan)
    engine.run()
    same_as_alone(engine)


# --------------------------------------------------------------------------- registered prefixes
def test_a_registered_prefix_is_computed_once_and_stays():
    engine = make(gpu=8, prefix_caching="registered", prefix=text(0, 11))
    kv = engine.engine.kv
    assert engine.num_registered_blocks == 2
    assert kv.num_usable_gpu_blocks == 8  # nobody has computed it yet
    first = serve(engine, "a", [*text(0, 11), 5, 6])
    assert (first.num_cached_tokens, kv.num_usable_gpu_blocks) == (0, 6)
    assert kv.num_free_gpu_blocks == 6
    assert len(engine.cached()) == 2  # nothing but the prefix
    serve(engine, "large", text(30, 23), max_tokens=1)
    assert serve(engine, "b", [*text(0, 11), 7]).num_cached_tokens == 8
    assert serve(engine, "large again", text(30, 23), max_tokens=1).num_cached_tokens == 0
    same_as_alone(engine)


def test_a_registered_prefix_outlives_what_is_cached_beside_it():
    engine = make(gpu=8, prefix=text(0, 8))
    serve(engine, "a", [*text(0, 8), 5, 6, 7, 8, 9], max_tokens=1)
    assert len(engine.cached()) == 3
    serve(engine, "large", text(30, 23), max_tokens=1)
    assert serve(engine, "b", [*text(0, 8), 5, 6, 7, 8, 9]).num_cached_tokens == 8
    same_as_alone(engine)


def test_a_prefix_that_is_in_the_cache_already_stays_from_then_on():
    engine = make(gpu=8)
    serve(engine, "a", text(0, 13), max_tokens=1)
    assert engine.engine.register_prefix(text(0, 8)) == 8
    assert engine.engine.kv.num_usable_gpu_blocks == 6
    serve(engine, "large", text(30, 23), max_tokens=1)
    assert serve(engine, "b", text(0, 13), max_tokens=1).num_cached_tokens == 8
    same_as_alone(engine)


def test_a_prefix_is_pinned_once_however_often_it_is_registered():
    engine = make(gpu=8)
    for length in (8, 8, 4, 10):
        assert engine.engine.register_prefix(text(0, length)) == length // 4 * 4
    serve(engine, "a", text(0, 13), max_tokens=1)
    assert engine.engine.kv.num_usable_gpu_blocks == 6
    assert engine.engine.register_prefix(text(0, 12)) == 12
    assert engine.engine.kv.num_usable_gpu_blocks == 5
    assert engine.engine.register_prefix(text(0, 3)) == 0
    engine.engine.kv.check(())


def test_prefixes_that_leave_no_block_are_refused():
    engine = make(gpu=4)
    assert engine.engine.register_prefix(text(0, 8)) == 8
    message = "8 tokens would make 4 blocks of registered prefixes; the whole pool has 4"
    with pytest.raises(RequestError, match=message):
        engine.engine.register_prefix(text(30, 8))
    with pytest.raises(RequestError, match="the prefix has token id 64; the model's ids are 0 to"):
        engine.engine.register_prefix([64])
    assert engine.engine.register_prefix(text(30, 7)) == 4
    serve(engine, "a", text(0, 9), max_tokens=1)
    same_as_alone(engine)


@pytest.mark.parametrize(("head", "reason"), [(0, "length"), (30, "error")])
def test_a_prompt_that_needs_the_pinned_blocks_fits_if_it_begins_with_them(head, reason):
    engine = make(gpu=6, prefix_caching="registered", prefix=text(0, 8))
    serve(engine, "a", text(0, 9), max_tokens=1)
    (output,) = serve(engine, "b", text(head, 24), max_tokens=1).outputs
    assert output.finish_reason == reason
    if reason == "error":
        assert "needs 6 blocks of 4, the whole pool has 4" in output.stop_reason


def test_a_registered_prefix_is_computed_again_after_a_failed_step():
    engine = make(gpu=8, prefix=text(0, 8))
    serve(engine, "a", text(0, 13), max_tokens=1)
    add(engine, "b", text(0, 13))
    engine.fail_next = True
    engine.step()
    assert engine.engine.kv.num_usable_gpu_blocks == 8
    engine.run()
    assert engine.engine.kv.num_usable_gpu_blocks == 6
    same_as_alone(engine)


def test_a_waiting_request_finds_what_has_come_and_loses_what_has_gone():
    """It is looked up in every step in which it waits, and cannot go by what it found before."""
    engine = make(gpu=8, max_num_seqs=1, max_num_batched_tokens=64)
    serve(engine, "old", text(0, 9), max_tokens=1)
    add(engine, "busy", text(20, 9), max_tokens=20, ignore_eos=True)
    b = add(engine, "b", text(0, 13))
    find, found = engine.engine.scheduler.tokens_to_compute, []
    while b.live[0].status is Status.WAITING:
        engine.step()
        found.append(find(b) if b.live[0].status is Status.WAITING else None)
    # The output of "busy" evicts the second block of "old", and then the first.
    assert sorted(set(found[:-1])) == [5, 9]
    assert found[:-1] == sorted(found[:-1])
    engine.run()
    same_as_alone(engine)


# --------------------------------------------------------------------------- others' parts
def test_sharing_asks_of_other_parts_only_what_their_docstrings_promise(lives):
    """Parts that are right and written in another way, as a student's are."""
    folder = Path(__file__).parents[1] / "course" / "different"
    names = ("block_allocator", "block_table", "copy_on_write", "swap", "scheduler", "preemption")
    parts = load_parts(",".join(f"{name}={folder}" for name in names))
    assert parts.BlockAllocator is not Parts.BlockAllocator
    hits = 0
    for scenario in lives[:8]:
        engine = scenario.run(parts=parts)
        REFERENCE.compare(engine)
        hits += engine.events["cache hit"]
    assert hits > 0


# --------------------------------------------------------------------------- from text
def test_stories_that_begin_alike_are_the_same_with_and_without():
    begin = "Once upon a time there was a little dog named Max. One day"
    prompts = [begin + end for end in (" he saw a bird.", " his mom said", " it was raining")]
    params = SamplingParams(temperature=0.0, max_tokens=12)
    outputs = {}
    for sharing in (False, True, "registered"):
        cache = CacheConfig(
            block_size=4, num_gpu_blocks=64, num_cpu_blocks=0, prefix_caching=sharing
        )
        llm = LLM("opt-stories", device="cpu", cache=cache, check=True)
        if sharing == "registered":
            kept = llm.register_prefix(begin)
            assert 0 < kept == len(llm.tokenize(begin)) // 4 * 4
        outputs[sharing] = [llm.generate(p, params, progress=False)[0] for p in prompts]
        if sharing == "registered":
            assert llm.engine.kv.num_usable_gpu_blocks == 64 - kept // 4
    for sharing in (True, "registered"):
        assert [ids(o) for o in outputs[sharing]] == [ids(o) for o in outputs[False]]
        assert all(o.num_cached_tokens >= kept for o in outputs[sharing][1:])
    assert not any(o.num_cached_tokens for o in outputs[False])


# --------------------------------------------------------------------------- seeded faults
CACHE, MANAGER, QUEUES = "kvcache.prefix_cache", "kvcache.prefix_manager", "scheduling.queues"

FAULTS = [
    Fault(
        "a_block_is_shown_when_it_is_allocated",
        MANAGER,
        "            super().allocate(group)\n            return\n",
        "            super().allocate(group)\n"
        "            seq = self._only(group)\n"
        "            seq.num_computed = seq.num_tokens\n"
        "            self._show(group, seq)\n"
        "            return\n",
        "It will be computed in this very step.",
        ("I3",),
    ),
    Fault(
        "a_chunk_shows_the_whole_prompt",
        MANAGER,
        "full = min(seq.num_computed // size, self._most_shared)",
        "full = min(seq.num_tokens // size, self._most_shared)",
        "Once it runs, its blocks are there.",
        ("I3", "I7"),
    ),
    Fault(
        "siblings_show_what_the_first_has_to_compute",
        MANAGER,
        "            if group.prefilling and len(group.seqs) > 1:\n",
        "            if group.prefilling and not group.seqs:\n",
        "What num_computed counts is computed.",
        ("I3",),
    ),
    Fault(
        "the_whole_prompt_is_found",
        CACHE,
        "(len(token_ids) - 1) // size",
        "len(token_ids) // size",
        "What is cached need not be computed.",
        ("I8", "Stuck"),
    ),
    Fault(
        "an_idle_hit_costs_nothing",
        MANAGER,
        "sum(not self.cached.is_idle(block) for block in hits)",
        "len(hits)",
        "What is there need not be allocated.",
        ("OutOfBlocks", "watermark", "I4"),
    ),
    Fault(
        "hits_are_taken_after_the_rest",
        MANAGER,
        "        for block in hits:\n"
        "            self.gpu.share(block)\n"
        "        table.blocks += hits\n"
        "        table.num_tokens = len(hits) * self.block_size\n"
        "        table.append(seq.num_tokens - table.num_tokens)\n",
        "        table.blocks += hits\n"
        "        table.num_tokens = len(hits) * self.block_size\n"
        "        table.append(seq.num_tokens - table.num_tokens)\n"
        "        for block in hits:\n"
        "            self.gpu.share(block)\n",
        "The order of two allocations does not matter.",
        ("I1", "I3", "I7", "OutOfBlocks"),
    ),
    Fault(
        "an_evicted_block_can_still_be_found",
        CACHE,
        "        del self._entries[self._digest_of.pop(block)]\n",
        "        self._digest_of.pop(block)\n",
        "It is overwritten soon enough.",
        ("DoubleFree", "I1", "I3", "I7"),
    ),
    Fault(
        "a_block_that_is_taken_again_stays_in_the_line",
        CACHE,
        "        self._idle.pop(block, None)\n",
        "        self._idle.get(block, None)\n",
        "Where it stands in the line is a matter of speed.",
        ("DoubleFree", "I1", "I2", "I7"),
    ),
    Fault(
        "the_cache_survives_a_failed_step",
        QUEUES,
        "            self.prefixes.forget()\n",
        "            pass\n",
        "Full blocks are never written.",
        ("I7",),
    ),
    Fault(
        "log_probabilities_of_the_prompt_are_skipped",
        MANAGER,
        "        if group.shape is not None or wants_logits:\n",
        "        if group.shape is not None:\n",
        "Logits are wanted at the end.",
        ("I7",),
    ),
    Fault(
        "what_was_found_once_stays_found",
        MANAGER,
        "            self._pool.free(self._cache.evict())\n            self.num_changes += 1\n",
        "            self._pool.free(self._cache.evict())\n",
        "A request that waits is looked up when something new is cached.",
        ("DoubleFree", "I1", "I3", "I7"),
    ),
    Fault(
        "a_pin_is_a_note",
        MANAGER,
        "        self.gpu.share(block)\n        self._registered[digest] = block\n",
        "        self._registered[digest] = block\n",
        "The table of registered prefixes keeps them.",
        ("I1", "DoubleFree"),
    ),
    Fault(
        "pinned_blocks_count_as_usable",
        MANAGER,
        "        return self.num_gpu_blocks - len(self._pinned())\n",
        "        return self.num_gpu_blocks\n",
        "They are blocks of the pool as all others.",
        ("I2",),
    ),
    Fault(
        "a_group_is_found_by_part_of_its_tokens",
        MANAGER,
        "        if group.shape is not None or wants_logits:\n            return []\n"
        "        seq = self._only(group)\n",
        "        if wants_logits:\n            return []\n        seq = group.live[0]\n",
        "Siblings begin alike.",
        ("I1", "I4", "I7", "OutOfBlocks", "ValueError"),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def lives() -> list[Scenario]:
    scenarios = [Scenario.seeded(seed, alike=True) for seed in range(40)]
    for text in (False, True):
        REFERENCE.prepare([r for s in scenarios if s.text == text for r in s.requests], text)
    return scenarios


def killer(scenario: Scenario) -> str | None:
    """How a life goes wrong; None if it does not."""
    try:
        REFERENCE.compare(scenario.run())
    except InvariantError as error:
        return error.number
    except RuleError as error:
        return error.rule
    except Exception as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_of_sharing_is_noticed(lives, fault: Fault):
    with fault.planted():
        found = next(filter(None, map(killer, lives)), None)
    assert found in fault.killers, f"{fault.name} ({fault.belief}) showed as {found}"
