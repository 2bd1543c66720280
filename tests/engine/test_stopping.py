"""Stop strings in text that arrives in pieces (trap B24)."""

from __future__ import annotations

import random
import time

import pytest

from minipaged.sampling.stopping import StopMatch, StopMatcher
from minipaged.sampling.text_stream import TextStream
from minipaged.sampling_params import SamplingParams


def run(stops, pieces, include=False, search_from=0):
    """Feed the pieces; returns (text shown, the stop found, the pieces shown)."""
    matcher = StopMatcher(stops, include)
    shown = []
    for i, piece in enumerate(pieces):
        shown.append(matcher.push(piece, i >= search_from))
        if matcher.match:
            break
    else:
        shown.append(matcher.flush())
    return "".join(shown), matcher.match and matcher.match.stop, shown


def slow(stops, text):
    """The stop that is complete first, the longest of those: (where it starts, which)."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return end - len(stop), stop
    return len(text), None


def test_a_stop_string_need_not_align_with_tokens():
    text, stop, shown = run(["STOP"], ["ab", "cST", "OPde"])
    assert (text, stop) == ("abc", "STOP")
    assert shown == ["ab", "c", ""]
    assert run(["STOP"], ["ab", "cST", "OPde"], include=True)[:2] == ("abcSTOP", "STOP")


def test_a_beginning_that_fails_is_released_in_full():
    assert run(["STOP"], ["ab", "cST", "ay"]) == ("abcSTay", None, ["ab", "c", "STay", ""])
    assert run(["STOP"], ["ab", "cST"]) == ("abcST", None, ["ab", "c", "ST"])


@pytest.mark.parametrize(
    ("stops", "text", "shown", "stop"),
    [
        (["END", "STOP"], "a STOP b END", "a ", "STOP"),
        (["STOP", "END"], "a END b STOP", "a ", "END"),
        (["bc", "abcd"], "xabcd", "xa", "bc"),  # complete first
        (["bc", "abc"], "xabc", "x", "abc"),  # complete at the same character: the longest
        (["aab"], "aaab", "a", "aab"),  # overlaps its own beginning
        (["abab"], "abaabab", "aba", "abab"),
        (["\n\n"], "one\n\ntwo", "one", "\n\n"),
        (["x"], "abc", "abc", None),
        ([], "abc", "abc", None),
    ],
)
def test_which_stop_string_wins_does_not_depend_on_the_pieces(stops, text, shown, stop):
    for size in (1, 2, 3, len(text)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert run(stops, pieces)[:2] == (shown, stop)


def test_random_texts_equal_a_slow_search():
    dice = random.Random(4)
    matches = 0
    for _ in range(3000):
        stops = ["".join(dice.choices("ab", k=dice.randint(1, 5))) + dice.choice("ab c")
                 for _ in range(dice.randint(1, 3))]  # fmt: skip
        text = "".join(dice.choices("ab c", weights=[4, 4, 1, 1], k=dice.randint(0, 30)))
        pieces, rest = [], text
        while rest:
            size = dice.randint(0, 4)
            pieces, rest = [*pieces, rest[:size]], rest[size:]
        start, stop = slow(stops, text)
        include = dice.random() < 0.5
        expected = text[:start] + (stop if stop and include else "")
        got, found, _ = run(stops, pieces, include)
        assert (got, found) == (expected, stop)
        # nothing shown may have to be taken back, whatever comes next
        matcher, seen = StopMatcher(stops), ""
        for piece in pieces:
            seen += matcher.push(piece)
            assert text.startswith(seen)
            assert len(seen) <= start
        matches += stop is not None
    assert 500 < matches < 2900


def test_text_is_held_back_no_longer_than_needed():
    matcher = StopMatcher(["abcX", "cde"])
    assert [matcher.push(c) for c in "zabcdz"] == ["z", "", "", "", "ab", "cdz"]


def test_before_min_tokens_a_stop_string_is_ordinary_text():
    assert run(["ab"], ["xab", "yab"], search_from=1)[:2] == ("xaby", "ab")
    # one that begins before and ends after still counts
    assert run(["ab"], ["xa", "by"], search_from=1)[:2] == ("x", "ab")
    assert run(["aba"], ["aba", "ba"], search_from=1)[:2] == ("ab", "aba")


def test_a_clone_has_a_future_of_its_own():
    matcher = StopMatcher(["STOP"])
    matcher.push("aST")
    copy = matcher.clone()
    assert matcher.push("OP") == ""
    assert matcher.match == StopMatch("STOP")
    assert copy.match is None
    assert copy.push("ay") == "STay"


def test_the_cost_of_a_character_does_not_grow_with_the_stop_string():
    def seconds(length):
        matcher = StopMatcher(["a" * length + "b"])
        start = time.perf_counter()
        for _ in range(4000):
            matcher.push("aaaa")
        return time.perf_counter() - start

    short = min(seconds(20) for _ in range(3))
    assert min(seconds(2000) for _ in range(3)) < 12 * short


# --------------------------------------------------------------------------- in a text stream
class Pieces:
    """A tokenizer whose tokens are given strings; the last one is the end of sequence."""

    def __init__(self, *pieces):
        self.pieces = [*pieces, "</s>"]
        self.vocab_size = len(self.pieces)
        self.eos_token_ids = (len(pieces),)

    def encode(self, text):
        raise NotImplementedError

    def decode(self, token_ids, skip_special_tokens=True):
        hidden = self.eos_token_ids if skip_special_tokens else ()
        return "".join(self.pieces[t] for t in token_ids if t not in hidden)


def stream(pieces, tokens, finish=None, **options):
    """Push the tokens, the last with ``finish``; returns (text, stop, deltas)."""
    text = TextStream(Pieces(*pieces), [], SamplingParams(**options))
    deltas, match = [], None
    for i, token in enumerate(tokens):
        match = text.push(token, finish if i == len(tokens) - 1 else None)
        deltas.append(text.delta())
        if match:
            break
    text.finish("stop")
    deltas.append(text.delta())
    text.finish("stop")
    assert text.text == "".join(deltas)
    assert text.delta() == ""
    return text.text, match and match.stop, deltas


def test_a_stream_cuts_before_or_behind_the_stop_string():
    pieces = ("ab", "cST", "OPde", "ay")
    assert stream(pieces, [0, 1, 2], stop="STOP") == ("abc", "STOP", ["ab", "c", "", ""])
    assert stream(pieces, [0, 1, 2], stop="STOP", include_stop_str_in_output=True)[:2] == (
        "abcSTOP", "STOP",
    )  # fmt: skip
    assert stream(pieces, [0, 1, 3], stop="STOP")[0] == "abcSTay"


def test_what_is_held_back_is_released_at_the_end():
    pieces = ("ab", "cST")
    assert stream(pieces, [0, 1], "length", stop="STOP") == ("abcST", None, ["ab", "c", "ST"])
    assert stream(pieces, [0, 1, 2], "stop", stop="STOP")[0] == "abcST"


def test_the_end_of_sequence_token_has_no_text():
    for options in ({}, {"skip_special_tokens": False}, {"include_stop_str_in_output": True}):
        assert stream(("a", "b"), [0, 1, 2], "stop", **options)[0] == "ab"
    assert stream(("a", "b"), [0, 2, 1], "length", skip_special_tokens=False, ignore_eos=True)[
        0
    ] == "a</s>b"  # fmt: skip


def test_the_text_of_a_stop_id_is_shown_only_if_asked_for():
    assert stream(("a", "b"), [0, 1], "stop", stop_token_ids=(1,))[0] == "a"
    assert stream(("a", "b"), [0, 1], "stop", stop_token_ids=(1,),
                  include_stop_str_in_output=True)[0] == "ab"  # fmt: skip
    # it ends the sequence by itself, even where its text is a stop string
    assert stream(("a", "b"), [0, 1], "stop", stop_token_ids=(1,), stop="b",
                  include_stop_str_in_output=True)[:2] == ("ab", None)  # fmt: skip


def test_a_stream_looks_for_stop_strings_from_min_tokens_on():
    pieces = ("x", "END", "y")
    assert stream(pieces, [1, 0, 1, 2], stop="END", min_tokens=2)[:2] == ("ENDx", "END")
    assert stream(pieces, [0, 1, 2], stop="END", min_tokens=2)[:2] == ("x", "END")
    assert stream(pieces, [0, 1, 2], stop="END", min_tokens=3)[:2] == ("xENDy", None)


def test_forks_of_a_stream_go_their_own_ways():
    one = TextStream(Pieces("ab", "cST", "OPde", "ay"), [], SamplingParams(stop="STOP"))
    one.push(0)
    assert one.delta() == "ab"
    one.push(1)
    two = one.clone()
    assert one.push(2) == StopMatch("STOP")
    assert two.push(3) is None
    assert (one.text, one.delta()) == ("abc", "c")
    assert (two.text, two.delta()) == ("abcSTay", "cSTay")


def test_a_token_that_is_none_adds_nothing():
    text = TextStream(Pieces("ab"), [], SamplingParams())
    text.push(0)
    assert text.push(-1, "error") is None
    text.finish("error")
    assert text.text == "ab"
