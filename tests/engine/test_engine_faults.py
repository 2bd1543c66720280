"""The checks are checked: each seeded fault of the engine is noticed, and in the way it should."""

from __future__ import annotations

import pytest
from faults import FAULTS, Fault
from harness import Reference, RuleError
from scenarios import Scenario

from minipaged.errors import InvariantError

NUM_SCENARIOS = 60


@pytest.fixture(scope="module")
def lives() -> tuple[Reference, list[Scenario]]:
    """Scenarios, and what their requests give in an engine without a fault."""
    reference = Reference()
    scenarios = [Scenario.seeded(seed) for seed in range(NUM_SCENARIOS)]
    for text in (False, True):
        requests = [r for s in scenarios if s.text == text for r in s.requests]
        reference.prepare(requests, text)
    return reference, scenarios


def killer(reference: Reference, scenario: Scenario) -> str | None:
    """How a life shows that something is wrong; None if it does not."""
    try:
        reference.compare(scenario.run())
    except InvariantError as error:
        return error.number
    except RuleError as error:
        return error.rule
    except Exception as error:
        return type(error).__name__
    return None


def test_the_engine_itself_survives(lives):
    reference, scenarios = lives
    assert [killer(reference, scenario) for scenario in scenarios[:20]] == [None] * 20


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_noticed(lives, fault: Fault):
    reference, scenarios = lives
    with fault.planted():
        found = next(filter(None, (killer(reference, scenario) for scenario in scenarios)), None)
    assert found in fault.killers, f"{fault.name} ({fault.belief}) showed as {found}"


def test_a_planted_fault_leaves_nothing_behind(lives):
    reference, scenarios = lives
    with FAULTS[0].planted():
        pass
    assert killer(reference, scenarios[0]) is None


def test_a_fault_whose_text_is_gone_fails_loudly():
    stale = Fault("stale", "kvcache.swap", "no such text", "", "", ())
    with pytest.raises(LookupError, match="bring the fault up to date"), stale.planted():
        pass


def test_there_are_enough_faults_and_each_is_said_in_words():
    assert len(FAULTS) >= 20
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(len(fault.belief) > 20 and fault.killers for fault in FAULTS)
