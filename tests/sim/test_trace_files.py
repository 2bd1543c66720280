"""Trace files: each format is read as it is, and what is wrong in one is named."""

import json
import pickle
from pathlib import Path

import pytest

from minipaged.errors import ConfigError, RequestError
from minipaged.sim.traces import FORMATS, TraceFormatError, read_trace

SHARED = Path(__file__).parents[2].parent / "shared" / "traces"

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.4799600,110,27
2023-11-16 18:18:03.9799600,34,12
"""
VIDUR = """arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens
2.5,100,20,120
4.0,30,5,35
"""
LENGTHS = "num_prefill_tokens,num_decode_tokens\n3772,54\n2015,156\n3858,133\n"
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.0,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
MOONCAKE = "\n".join(
    json.dumps(dict(zip(("timestamp", "input_length", "output_length", "hash_ids"), row)))
    for row in (
        (0, 1100, 5, [0, 1, 2]),
        (500, 1024, 6, [0, 1]),
        (3000, 1300, 7, [0, 1, 9]),
        (3000, 4, 8, [12]),
    )
)
SHAREGPT = json.dumps(
    [
        {
            "id": "a",
            "conversations": [
                {"from": "human", "value": "how are you today"},
                {"from": "gpt", "value": "fine"},
                {"from": "human", "value": "and later"},
                {"from": "gpt", "value": "fine too"},
            ],
        },
        {"id": "b", "conversations": [{"from": "human", "value": "anybody there"}]},
        {
            "id": "c",
            "conversations": [
                {"from": "gpt", "value": "as I said"},
                {"from": "user", "value": "go on"},
                {"from": "gpt", "value": "on and on we go"},
            ],
        },
        {
            "id": "d",
            "conversations": [
                {"from": "human", "value": ""},
                {"from": "gpt", "value": "yes"},
            ],
        },
    ],
    indent=1,
)
ALPACA = json.dumps(
    [
        {"instruction": "name three colors", "input": "", "output": "red green blue"},
        {"instruction": "sort them", "input": "c b a", "output": "a b c"},
    ]
)
TEXTS = {
    "azure": AZURE,
    "mooncake": MOONCAKE,
    "vidur": VIDUR,
    "burstgpt": BURSTGPT,
    "sharegpt": SHAREGPT,
    "alpaca": ALPACA,
}
LENGTHS_OF = {
    "azure": [(4808, 10), (110, 27), (34, 12)],
    "mooncake": [(1100, 5), (1024, 6), (1300, 7), (4, 8)],
    "vidur": [(100, 20), (30, 5)],
    "burstgpt": [(472, 18), (417, 276)],
    "sharegpt": [(4, 1), (2, 5)],
    "alpaca": [(3, 3), (5, 3)],
}
TIMES_OF = {
    "azure": [0, 0.5, 60],
    "mooncake": [0, 0.5, 3, 3],
    "vidur": [0, 1.5],
    "burstgpt": [0, 113],
}


class Words:
    """A tokenizer with a token a word."""

    def encode(self, text):
        return list(range(len(text.split())))


@pytest.fixture
def write(tmp_path):
    def _write(text, name="trace"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def lengths(workload):
    return [(request.prompt_len, request.output_len) for request in workload.requests]


def times(workload):
    return [request.arrival_time for request in workload.requests]


# --------------------------------------------------------------------------- what is read
def test_every_format_is_tried_here():
    assert set(TEXTS) == set(FORMATS)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("named", [True, False])
def test_a_file_is_read_as_what_it_is(write, format, named):
    rate = None if format in TIMES_OF else 1.0
    given = format if named else "auto"
    workload = read_trace(write(TEXTS[format], "day.1"), given, Words(), rate=rate)
    assert workload.name == "day"
    assert lengths(workload) == LENGTHS_OF[format]
    if format in TIMES_OF:
        assert times(workload) == pytest.approx(TIMES_OF[format])
    assert workload.max_model_len == max(p + o for p, o in LENGTHS_OF[format])


@pytest.mark.parametrize("format", FORMATS)
def test_how_lines_end_is_no_matter(write, format):
    text = TEXTS[format].rstrip("\n").replace("\n", "\r\n")
    marked = b"\xef\xbb\xbf" + text.encode() + b"\r\n\r\n"
    for version in (marked, text):
        assert lengths(read_trace(write(version), tokenizer=Words(), rate=1)) == LENGTHS_OF[format]


def test_mooncakes_hashes_are_the_content_of_prompts(write):
    workload = read_trace(write(MOONCAKE))
    assert [request.content for request in workload.requests] == [
        ((0, 512), (1, 512), (2, 76)),
        ((0, 512), (1, 512)),
        ((0, 512), (1, 512), (9, 276)),
        ((12, 4),),
    ]
    assert workload.own_ids.start == 13
    own = '{"timestamp": 0, "input_length": 600, "output_length": 1}'
    assert read_trace(write(own)).requests[0].content == ()


def test_failed_requests_are_left_out_and_counted(write):
    workload = read_trace(write(BURSTGPT))
    assert workload.notes == ("1 of 3 requests left out: the request failed (no response tokens)",)


def test_conversations_without_an_answer_are_left_out_and_counted(write):
    workload = read_trace(write(SHAREGPT), tokenizer=Words(), rate=1)
    assert workload.notes == (
        "1 of 4 requests left out: the conversation has no question that is answered",
        "1 of 4 requests left out: the question or the answer is empty",
    )


def test_times_may_have_a_zone_and_stand_in_any_order(write):
    text = (
        "GeneratedTokens,TIMESTAMP,ContextTokens\n"
        "1,2024-05-10 00:00:01.5+00:00,10\n"
        "2,2024-05-10 01:00:00.5+01:00,20\n"
    )
    workload = read_trace(write(text))
    assert lengths(workload) == [(20, 2), (10, 1)]
    assert times(workload) == [0, 1]


# --------------------------------------------------------------------------- options
def test_a_limit_leaves_the_rest_unread(write):
    path = write(AZURE + "nonsense\n")
    assert lengths(read_trace(path, limit=2)) == LENGTHS_OF["azure"][:2]
    with pytest.raises(TraceFormatError):
        read_trace(path)


def test_longer_requests_are_left_out_and_counted(write):
    workload = read_trace(write(MOONCAKE), max_model_len=1105)
    assert lengths(workload) == [(1100, 5), (1024, 6), (4, 8)]
    assert workload.max_model_len == 1105
    assert workload.notes == (
        "1 of 4 requests left out: more than 1105 tokens, prompt and output together",
    )


def test_longer_requests_can_be_cut(write):
    workload = read_trace(write(MOONCAKE), max_model_len=1029, too_long="clip")
    assert lengths(workload) == [(1024, 5), (1023, 6), (1022, 7), (4, 8)]
    assert [request.content for request in workload.requests] == [
        ((0, 512), (1, 512)),
        ((0, 512), (1, 511)),
        ((0, 512), (1, 510)),
        ((12, 4),),
    ]
    assert workload.notes == ("3 of 4 requests cut to 1029 tokens",)
    assert lengths(read_trace(write(MOONCAKE), max_model_len=4, too_long="clip"))[0] == (1, 3)


def test_time_can_be_compressed(write):
    assert times(read_trace(write(AZURE), rate_scale=10)) == pytest.approx([0, 0.05, 6])


def test_times_can_be_drawn_instead(write):
    path = write(AZURE + "2023-11-16 18:18:03.9799600,34,12\n" * 4000)
    workload = read_trace(path, rate=5, seed=3)
    assert lengths(workload)[:3] == LENGTHS_OF["azure"]
    assert workload.request_rate == pytest.approx(5, rel=0.05)
    assert times(workload) == times(read_trace(path, rate=5, seed=3))
    assert times(workload) != times(read_trace(path, rate=5, seed=4))
    assert times(workload) != times(read_trace(path, rate=5, seed=3, burstiness=0.5))


# --------------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(
    ("text", "line", "field", "value"),
    [
        (AZURE.replace("110", "11o"), 3, "ContextTokens", "'11o'"),
        (AZURE.replace(",27", ",-27"), 3, "GeneratedTokens", "'-27'"),
        (AZURE.replace(",27", ",0"), 3, "GeneratedTokens", "'0'"),
        (AZURE.replace("18:18", "25:18"), 4, "TIMESTAMP", "'2023-11-16 25:18:03.9799600'"),
        (AZURE.replace(",27", ""), 3, "line", "'2023-11-16 18:17:04.4799600,110'"),
        (AZURE.replace("4808", '"48'), 2, "line", "end of data.*CSV"),
        (VIDUR.replace("4.0", "nan"), 3, "arrived_at", "'nan'"),
        (VIDUR.replace("4.0", ""), 3, "arrived_at", "''"),
        (VIDUR.replace("30,", "3.5,"), 3, "num_prefill_tokens", "'3.5'"),
        (LENGTHS.replace("2015", "0"), 3, "num_prefill_tokens", "'0'"),
        (BURSTGPT.replace("276", ""), 4, "Response tokens", "''"),
        (BURSTGPT.replace("417", "none"), 4, "Request tokens", "'none'"),
        (MOONCAKE.replace("1024", '"x"'), 2, "input_length", "'x'"),
        (MOONCAKE.replace("1024", "true"), 2, "input_length", "True"),
        (MOONCAKE.replace("500", "null"), 2, "timestamp", "None"),
        (MOONCAKE.replace("500", "NaN"), 2, "timestamp", "nan"),
        (MOONCAKE.replace("500", "1" + "0" * 400), 2, "timestamp", "1000"),
        (MOONCAKE.replace(": 6", ": 6.5"), 2, "output_length", r"6\.5"),
        (MOONCAKE.replace("[0, 1]", "[0]"), 2, "hash_ids", r"\[0\].*1024 tokens, not 1"),
        (MOONCAKE.replace("[0, 1]", "[0, -1]"), 2, "hash_ids", "-1"),
        (MOONCAKE.replace("[0, 1]", "7"), 2, "hash_ids", "7"),
        (MOONCAKE.replace("[0, 1]}", "[0, 1]"), 2, "line", '\'{"timestamp": 500'),
        (SHAREGPT.replace('"fine"', "7"), 2, "value", "7"),
        (SHAREGPT.replace('"conversations"', '"turns"', 1), 2, "conversations", "None"),
        (ALPACA.replace('"red green blue"', "null"), 1, "output", "None"),
        (ALPACA.replace("}, {", "},\n {").replace('"c b a"', "[1]"), 2, "input", r"\[1\]"),
        (ALPACA.replace("}, {", "}\n {"), 2, "text", "instruction.*','"),
        (ALPACA[:-1], 1, "text", "''.*','"),
        (ALPACA.replace("}, {", "},\n oops, {"), 2, "text", "'oops"),
        (ALPACA.replace("}, {", "},\n 17, {"), 2, "entry", "17"),
        ("[]\n", 1, "format", r"'\[\]'.*azure, mooncake"),
        ("", 1, "format", "''.*azure, mooncake"),
        ("a,b,c\n1,2,3\n", 1, "format", "'a,b,c'"),
        (AZURE.encode() + b"2023-\xff\n", 5, "text", r"b'\\xff'.*UTF-8"),
        (LENGTHS.encode() + b"10,10\n" * 9000 + b"\xff,1\n", 9005, "text", r"b'\\xff'"),
    ],
)
def test_a_wrong_line_is_named(write, text, line, field, value):
    path = write(text)
    with pytest.raises(TraceFormatError, match=f":{line}: {field} is .*(?:{value})") as caught:
        read_trace(path, tokenizer=Words(), rate=1)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert (caught.value.line, caught.value.field) == (line, field)
    assert len(str(caught.value)) < 250 + len(str(path))


@pytest.mark.parametrize("format", ["azure", "burstgpt", "vidur"])
def test_a_column_that_is_missing_is_named(write, format):
    with pytest.raises(TraceFormatError, match=r":1: header is 'a,b': expected .*okens"):
        read_trace(write("a,b\n1,2\n"), format)


def test_the_error_comes_out_of_a_worker_whole():
    error = TraceFormatError(Path("f.csv"), 3, "rate", "x", "a number")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "f.csv:3: rate is 'x': expected a number"
    assert again.line == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limit": 0}, "limit .*not 0"),
        ({"max_model_len": 1}, "max_model_len .*not 1"),
        ({"rate": -1}, "rate .*not -1"),
        ({"rate_scale": 0}, "rate_scale .*not 0"),
        ({"rate": 2, "burstiness": 0}, "burstiness .*not 0"),
        ({"rate": 2, "rate_scale": 3}, "rate 2 .*rate_scale 3"),
        ({"format": "csv"}, "format must be auto, azure.*not 'csv'"),
        ({"too_long": "keep"}, "too_long .*not 'keep'"),
    ],
)
def test_an_option_out_of_its_range_is_named(write, given, message):
    with pytest.raises(ConfigError, match=message):
        read_trace(write(AZURE), **given)


def test_what_a_format_lacks_must_be_given(write):
    with pytest.raises(ConfigError, match=r"no arrival times: give a rate"):
        read_trace(write(LENGTHS))
    with pytest.raises(ConfigError, match="a tokenizer is needed"):
        read_trace(write(ALPACA), rate=1)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the trace .*none\.csv: No such file"):
        read_trace(tmp_path / "none.csv")


def test_a_trace_of_which_nothing_is_left_is_named(write):
    with pytest.raises(RequestError, match=r"no request to run; 4 of 4 requests left out"):
        read_trace(write(MOONCAKE), max_model_len=3)
    with pytest.raises(RequestError, match="it is empty"):
        read_trace(write(AZURE.splitlines()[0]))


# --------------------------------------------------------------------------- real traces
@pytest.mark.parametrize(
    ("name", "count", "prompt", "output", "rate"),
    [
        ("azure2023_conv.csv", 19_366, 1155, 211, 5.53),
        ("azure2023_code.csv", 8_819, 2048, 27.9, 2.57),
        ("mooncake_conversation.jsonl", 12_031, 12_035, 343, 3.4),
        ("arxiv_summarization_lengths.csv", 28_257, 2588, 291, None),
        ("sharegpt_first_turn_lengths.csv", 5_498, 164, 467, None),
    ],
)
def test_published_traces_have_their_published_means(name, count, prompt, output, rate):
    if not (SHARED / name).is_file():
        pytest.skip(f"{name} is not there")
    workload = read_trace(SHARED / name, rate=None if rate else 2.0)
    assert workload.num_requests == count
    assert workload.notes == ()
    assert workload.mean_prompt_len == pytest.approx(prompt, rel=0.01)
    assert workload.mean_output_len == pytest.approx(output, rel=0.01)
    assert workload.request_rate == pytest.approx(rate or 2.0, rel=0.02)


def test_mooncakes_blocks_are_shared_as_published():
    """An endless cache would have 36.6 % of the blocks."""
    path = SHARED / "mooncake_conversation.jsonl"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there")
    seen, hits, blocks = set(), 0, 0
    for request in read_trace(path).requests:
        ids = [content_id for content_id, _ in request.content]
        hits += sum(content_id in seen for content_id in ids)
        blocks += len(ids)
        seen.update(ids)
    assert hits / blocks == pytest.approx(0.366, abs=0.01)
