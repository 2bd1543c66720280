"""The words in which graded tests speak to students."""

import numpy as np
import pytest

from minipaged.course.judge.transcript import Transcript, shown
from minipaged.course.testing import expect, expect_no_error


@pytest.mark.parametrize(
    ("got", "want", "told"),
    [
        (8, 7, "expected 7, got 8"),
        (8.0, 7, "expected 7, got 8.0"),
        (7.0, 7, "expected 7 (an int), got 7.0 (a float)"),
        (1, True, "expected True (a bool), got 1 (an int)"),
        (np.int64(7), 7, "expected 7 (an int), got np.int64(7) (an int64)"),
        ((1, 2), [1, 2], "expected [1, 2], got (1, 2)"),
    ],
)
def test_types_are_told_where_nothing_else_tells_two_values_apart(got, want, told):
    with pytest.raises(AssertionError) as failure:
        expect(got, want, "why")
    assert str(failure.value) == f"why: {told}"


def test_an_error_where_none_is_due_is_told_with_what_was_done():
    with pytest.raises(AssertionError) as failure, expect_no_error("the last block"):
        raise IndexError(3)
    assert str(failure.value) == "the last block: expected no error, got IndexError: 3"
    with pytest.raises(AssertionError) as failure, expect_no_error("the last block"):
        raise AssertionError("its own words")
    assert str(failure.value) == "its own words"
    with expect_no_error("nothing happens"):
        pass


class Thing:
    """As an object of a submission that has no name."""

    def __repr__(self):
        return "Thing"


def test_objects_without_a_name_are_counted_and_not_listed():
    assert shown([Thing(), Thing(), Thing()]) == "[Thing, 3 times]"
    assert shown([Thing()]) == "[Thing]"
    assert shown([Thing(), 3]) == "[Thing, 3]"
    assert shown([0, 0, 0]) == "[0, 0, 0]"
    assert shown([None, None]) == "[None, None]"
    assert shown([[1], [1]]) == "[[1], [1]]"


def test_a_transcript_begins_at_a_scene_and_takes_names():
    transcript = Transcript()
    assert transcript.name_for("BlockTable") == "block_table"
    for i in range(20):
        transcript.called(f"setup({i})")
    transcript.begin("in the state a:[0*] free:{1}")
    assert transcript.name_for("BlockTable") == "block_table"
    transcript.called("block_table = fork(a)")
    transcript.rename("block_table", "b")
    transcript.called("make_writable(b) -> (0, 1)")
    assert str(transcript).splitlines() == [
        "in the state a:[0*] free:{1}",
        "b = fork(a)",
        "make_writable(b) -> (0, 1)",
    ]
