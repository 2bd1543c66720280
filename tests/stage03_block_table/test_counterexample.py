"""The trace that the student found, on which a table with the famous off-by-one goes wrong."""


def test_counterexample(counterexample):
    assert not counterexample.message, counterexample.message
