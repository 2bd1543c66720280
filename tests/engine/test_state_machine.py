"""The engine's state machine: whatever happens, in whatever order, every invariant holds at
every step, and every request gives what it gives alone (I7, I12)."""

from __future__ import annotations

from collections import Counter

import pytest
from harness import Reference, TestedEngine
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scenarios import Scenario, draw_cache, draw_request, draw_scheduler, draw_sharing

NUM_SCENARIOS = 80
"""Enough for each event below to happen several times."""
NUM_ALIKE = 30

EVENTS = [
    # preemption
    "swap out",
    "swap in",
    "swap of a sequence",
    "swap of a group",
    "swap of beams",
    "swap-out of shared blocks",
    "recompute of a sequence",
    "recompute of a group",
    "recompute of beams",
    "recompute of generated tokens",
    "readmission of a sequence",
    "readmission of a group",
    "group recompute of shared blocks",
    "group recompute for want of swap space",
    "preempted for an earlier group",
    "preemption after a sibling finished",
    "chunked prefill preempted midway",
    "refill preempted midway",
    "refill that continues",
    "chunk that continues",
    # sharing
    "copy-on-write",
    "copy-on-write right after swap-in",
    "copy-on-write into a block swapped out in this step",
    "last holder writes in place",
    "beam fork with more than two references",
    "copy at a contiguous fork",
    # batching
    "overtaking by priority",
    "prefill and decode in one step",
    "tokens past the budget, alone",
    "failed step",
    # aborts, in each state
    "abort waiting",
    "abort waiting after a preemption",
    "abort prefilling",
    "abort running",
    "abort swapped",
    "abort of a finished request",
    "abort of an unknown request",
    "abort twice",
    # ends
    "give-up: sibling, the rest goes on",
    "give-up: sibling, the last one",
    "give-up: beams, the last one",
    "stop: NoneType",
    "stop: int",
    "stop: str",
    "length: end",
    "abort: end",
    "error: end",
]

EVENTS_ALIKE = [
    "cache hit",
    "cache hit on an idle block",
    "cache hit beside its holder",
    "cache hit on a registered block",
    "cache hit after a preemption",
    "cache hit of all that may be found",
    "eviction",
    "swap-out of a cached block",
    "copy-on-write",
    "recompute of a group",
    "chunk that continues",
    "failed step",
]


class HypothesisDraw:
    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def pick(self, options):
        return self._data.draw(st.sampled_from(options))


class EngineMachine(RuleBasedStateMachine):
    """Add, step and abort at will; the configuration forces preemptions now and then."""

    reference = Reference()

    @initialize(data=st.data(), text=st.booleans(), alike=st.booleans())
    def build(self, data, text, alike):
        draw = HypothesisDraw(data)
        scheduler, cache, prefix = draw_scheduler(draw), draw_cache(draw), ()
        if alike and cache.reservation == "paged":
            cache, prefix = draw_sharing(draw, cache)
        self.engine = TestedEngine(scheduler, cache, text=text, prefix=prefix)
        self.alike = alike

    @precondition(lambda self: len(self.engine.requests) < 6)
    @rule(data=st.data())
    def add(self, data):
        name = f"r{len(self.engine.requests)}"
        draw = HypothesisDraw(data)
        self.engine.add(draw_request(draw, name, self.engine.text, alike=self.alike))

    @rule(count=st.integers(1, 4))
    def step(self, count):
        for _ in range(count):
            self.engine.step()

    @rule(data=st.data())
    def abort(self, data):
        self.engine.abort(data.draw(st.sampled_from([*self.engine.requests, "nobody"])))

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.run()
            self.reference.compare(self.engine)


def test_state_machine_found_by_hypothesis():
    # Derandomized: the same examples each time, here and elsewhere.
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=60,
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )


def live(scenarios: list[Scenario]) -> Counter[str]:
    """What happened in these lives, each of which is compared with undisturbed runs."""
    events: Counter[str] = Counter()
    reference = Reference()
    for text in (False, True):
        reference.prepare([r for s in scenarios if s.text == text for r in s.requests], text)
    for scenario in scenarios:
        try:
            reference.compare(scenario.run(events))
        except Exception as error:
            error.add_note(f"in Scenario.seeded({scenario.seed}, {scenario.alike})")
            raise
    return events


@pytest.fixture(scope="module")
def lived() -> Counter[str]:
    return live([Scenario.seeded(seed) for seed in range(NUM_SCENARIOS)])


@pytest.fixture(scope="module")
def lived_alike(exhaustive) -> Counter[str]:
    """Many lives more, in which prompts begin alike."""
    number = NUM_SCENARIOS if exhaustive else NUM_ALIKE
    return live([Scenario.seeded(seed, alike=True) for seed in range(number)])


@pytest.mark.parametrize("event", EVENTS)
def test_event_happens_in_the_seeded_lives(lived, event):
    assert lived[event] > 0, f"{event!r} never happened in {NUM_SCENARIOS} lives"


@pytest.mark.parametrize("event", EVENTS_ALIKE)
def test_event_happens_where_prompts_begin_alike(lived_alike, event):
    assert lived_alike[event] > 0, f"{event!r} never happened"
