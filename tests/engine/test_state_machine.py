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
from scenarios import Scenario, draw_cache, draw_request, draw_scheduler

NUM_SCENARIOS = 80
"""Enough for each event below to happen several times."""

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

    @initialize(data=st.data(), text=st.booleans())
    def build(self, data, text):
        draw = HypothesisDraw(data)
        self.engine = TestedEngine(draw_scheduler(draw), draw_cache(draw), text=text)

    @precondition(lambda self: len(self.engine.requests) < 6)
    @rule(data=st.data())
    def add(self, data):
        name = f"r{len(self.engine.requests)}"
        self.engine.add(draw_request(HypothesisDraw(data), name, self.engine.text))

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


@pytest.fixture(scope="module")
def lived() -> Counter[str]:
    """What happened in many seeded lives, each of which is compared with undisturbed runs."""
    events: Counter[str] = Counter()
    reference = Reference()
    scenarios = [Scenario.seeded(seed) for seed in range(NUM_SCENARIOS)]
    for text in (False, True):
        reference.prepare([r for s in scenarios if s.text == text for r in s.requests], text)
    for scenario in scenarios:
        try:
            reference.compare(scenario.run(events))
        except Exception as error:
            error.add_note(f"in Scenario.seeded({scenario.seed})")
            raise
    return events


@pytest.mark.parametrize("event", EVENTS)
def test_event_happens_in_the_seeded_lives(lived, event):
    assert lived[event] > 0, f"{event!r} never happened in {NUM_SCENARIOS} lives"
