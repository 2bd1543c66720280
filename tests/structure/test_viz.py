"""One state of the pool, as text and as pictures."""

from __future__ import annotations

import dataclasses
import io
import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from minipaged.kvcache.accounting import MemoryClasses
from minipaged.kvcache.manager import PagedKVManager
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup, Status
from minipaged.viz import palette, plot, svg, terminal
from minipaged.viz.state import Pool, PoolState, format_state, parse_state

NOTATION = "seq0:[7 2 5*] seq1:[7 2 9*] free:{0 1} refs{7:2 2:2}"


def state_of(block_size=4, **changes) -> PoolState:
    gpu = Pool(
        num_blocks=10,
        tables={"seq0": [7, 2, 5], "seq1": [7, 2, 9]},
        num_tokens={"seq0": 9, "seq1": 11},
        free=[1, 0],
        ref_counts={7: 2, 2: 2, 5: 1, 9: 1},
    )
    return PoolState(block_size, dataclasses.replace(gpu, **changes))


# --------------------------------------------------------------------------- the notation
def test_the_notation_is_that_of_the_course():
    assert format_state(state_of()) == NOTATION


def test_a_full_last_block_has_no_mark():
    assert format_state(state_of(num_tokens={"seq0": 12, "seq1": 11})).startswith("seq0:[7 2 5] ")


def test_reserved_blocks_without_a_token_are_marked():
    text = format_state(
        PoolState(4, Pool(4, {"a": [0, 1, 2, 3]}, {"a": 5}, [], dict.fromkeys(range(4), 1)))
    )
    assert text == "a:[0 1* 2_ 3_] free:{}"
    assert format_state(parse_state(text)) == text


def test_long_runs_of_free_blocks_are_short():
    state = PoolState(4, Pool(40, {"a": [9]}, {"a": 4}, [*range(9), *range(10, 40)], {9: 1}))
    assert format_state(state) == "a:[9] free:{0..8 10..39}"
    state = PoolState(4, Pool(8, {}, {}, list(range(8)), {}))
    assert format_state(state) == "free:{0 1 2 3 4 5 6 7}"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"ref_counts": {7: 2, 2: 1, 5: 1, 9: 1}}, "refs{7:2}"),
        ({"ref_counts": {7: 2, 2: 2, 9: 1}}, "refs{7:2 2:2 5:0}"),
        ({"ref_counts": {7: 2, 2: 2, 5: 1, 9: 1, 3: 1}}, "refs{7:2 2:2 3:1}"),
        ({"free": [0, 1, 1]}, "free:{0 1 1} refs{7:2 2:2}"),
    ],
    ids=["lost reference", "held without reference", "leaked block", "freed twice"],
)
def test_what_is_wrong_with_a_pool_shows(changes, shown):
    text = format_state(state_of(**changes))
    assert text.endswith(shown)
    assert text != NOTATION
    assert format_state(parse_state(text)) == text


def test_the_host_pool_follows_when_something_is_in_it():
    gpu = Pool(3, {}, {}, [0, 1, 2], {})
    empty = Pool(2, {}, {}, [0, 1], {})
    assert format_state(PoolState(4, gpu, empty)) == "free:{0 1 2}"
    cpu = Pool(4, {"seq0": [1, 2]}, {"seq0": 5}, [0, 3], {1: 1, 2: 1})
    text = "free:{0 1 2} | cpu seq0:[1 2*] free:{0 3}"
    assert format_state(PoolState(4, gpu, cpu)) == text
    assert format_state(parse_state(text)) == text


@st.composite
def pools(draw) -> Pool:
    """Any right state of a pool with blocks of two tokens."""
    order = draw(st.permutations(range(draw(st.integers(1, 24)))))
    tables: dict[str, list[int]] = {}
    tokens: dict[str, int] = {}
    prefix: list[int] = []
    left = list(order)
    for i in range(draw(st.integers(0, 4))):
        shared = prefix[: draw(st.integers(0, len(prefix)))]
        own = [left.pop() for _ in range(min(len(left), draw(st.integers(0, 4))))]
        if not shared + own:
            continue
        tables[f"seq{i}"] = prefix = shared + own
        full = 2 * len(prefix)
        tokens[f"seq{i}"] = full - draw(st.integers(0, 1)) if own else full
    held = [block for blocks in tables.values() for block in blocks]
    highest = max([*left, *held]) + 1
    return Pool(highest, tables, tokens, sorted(left), {b: held.count(b) for b in sorted({*held})})


@settings(max_examples=150, deadline=None)
@given(gpu=pools(), cpu=pools())
def test_text_and_state_are_the_same_thing(gpu, cpu):
    state = PoolState(2, gpu, cpu if cpu.tables else None)
    assert parse_state(format_state(state)) == state


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seq0:[7 2", "'seq0:[7 2'"),
        ("seq0:[7 x] free:{}", "'x' in the table of seq0"),
        ("seq0:[7* 2] free:{}", "'2' in the table of seq0 follows"),
        ("seq0:[7]", "no free:"),
        ("free:{0 -1}", "'-1'"),
        ("free:{} refs{7}", "'7' in refs"),
        ("seq0:[1] seq0:[2] free:{}", "seq0 has two tables"),
        ("free:{} | host free:{}", "'cpu'"),
    ],
)
def test_text_that_is_no_state_is_refused_with_the_place(text, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_state(text)


# --------------------------------------------------------------------------- from an engine
def paged_groups(num_gpu_blocks=8, num_cpu_blocks=6):
    """Two siblings that share a block and a half, in blocks of four."""
    kv = PagedKVManager(num_gpu_blocks, num_cpu_blocks, 4, Parts())
    seq = Sequence(0, range(6))
    group = SequenceGroup("r", seq, SamplingParams(n=2, temperature=1.0))
    kv.allocate(group)
    child = seq.fork(1, 1)
    group.seqs[1] = child
    kv.fork(seq, child)
    return kv, group


def test_the_state_of_a_manager():
    kv, group = paged_groups()
    shared = "seq0:[0 1*] seq1:[0 1*] free:{2 3 4 5 6 7} refs{0:2 1:2}"
    assert str(PoolState.of(kv, [group])) == shared
    for seq in group.live:
        seq.token_ids.append(9)
    # The new tokens have no slot yet.
    assert PoolState.of(kv, [group]).gpu.num_tokens == {"seq0": 6, "seq1": 6}
    kv.append([group])
    state = PoolState.of(kv, [group])
    assert str(state) == "seq0:[0 2*] seq1:[0 1*] free:{3 4 5 6 7} refs{0:2}"
    assert state.gpu.num_tokens == {"seq0": 7, "seq1": 7}


def test_the_state_of_a_swapped_group():
    kv, group = paged_groups()
    kv.swap_out(group)
    for seq in group.live:
        seq.status = Status.SWAPPED
    state = PoolState.of(kv, [group], name=lambda seq: f"{group.request_id}.{seq.index}")
    assert str(state).endswith("| cpu r.0:[0 1*] r.1:[0 1*] free:{2 3 4 5} refs{0:2 1:2}")
    assert state.gpu.num_used == 0
    assert state.cpu is not None
    assert state.cpu.num_used == 2
    assert state.cpu.shared == [0, 1]


def test_a_state_is_a_copy():
    kv, group = paged_groups()
    state = PoolState.of(kv, [group])
    before = str(state)
    kv.append([group])
    assert str(state) == before


def test_a_manager_without_allocators_is_read_through_its_tables():
    seq = SimpleNamespace(seq_id=3, num_tokens=5, status=Status.RUNNING)
    kv = SimpleNamespace(
        block_size=4, num_gpu_blocks=5, num_cpu_blocks=0, block_table=lambda seq_id: [1, 2, 3]
    )
    state = PoolState.of(kv, [SimpleNamespace(live=[seq])])
    assert str(state) == "seq3:[1 2* 3_] free:{0 4}"
    assert state.cpu is None


# --------------------------------------------------------------------------- in a terminal
def printed(what, width=80, terminal_=False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal_, color_system=None)
    console.print(what)
    return console.file.getvalue()


def test_the_grid_says_without_color_who_holds_what():
    grid = terminal.pool_grid(state_of(), state_of().gpu, columns=5).plain
    assert grid.split("\n") == ["· · a‡■ ■ ", "a▂■ a‡■ b▆"]


def test_how_full_a_block_is_shows_in_its_height():
    for tokens, shade in [(1, "▁"), (8, "▄"), (15, "█"), (16, "█")]:
        state = PoolState(16, Pool(1, {"seq0": [0]}, {"seq0": tokens}, [], {0: 1}))
        assert terminal.pool_grid(state, state.gpu).plain == f"a{shade}"


def test_the_picture_fits_into_narrow_and_wide_terminals():
    status = terminal.Status(3, ["r" * 30] * 20, [], ["r1"], {"tokens/s": "99"})
    state = PoolState(4, Pool(200, {}, {}, list(range(200)), {}), state_of().gpu)
    for width in (40, 80, 200):
        out = printed(terminal.render(state, status, width), width)
        assert max(map(len, out.splitlines())) <= width
        assert out.count("·") >= 200
        assert "CPU pool: 8/10 blocks, 2 shared" in out


def test_plain_lines_where_there_is_no_terminal():
    out = io.StringIO()
    view = terminal.PoolView(Console(file=out, width=60), plain_every=10)
    with view:
        for step in range(1, 12):
            running = ["a"] if step < 5 else ["a", "b"]
            view.show(state_of(), terminal.Status(step, running, ["c"], gauges={"batch": "2"}))
        view.note("preempted c (swap)")
    lines = out.getvalue().splitlines()
    assert lines == [
        "step 1: 1 running, 1 waiting, 0 swapped, GPU 8/10 blocks (2 shared), batch 2",
        "step 5: 2 running, 1 waiting, 0 swapped, GPU 8/10 blocks (2 shared), batch 2",
        "step 10: 2 running, 1 waiting, 0 swapped, GPU 8/10 blocks (2 shared), batch 2",
        "preempted c (swap)",
    ]


def test_a_live_picture_ends_with_the_last_state():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    with terminal.PoolView(console, frames_per_second=0.001) as view:
        view.show(state_of(), terminal.Status(1))
        assert not view.due
        view.show(state_of(tables={}, free=list(range(10)), ref_counts={}), terminal.Status(2))
        assert "8/10" in out.getvalue()
        assert "0/10" not in out.getvalue()
    assert "GPU pool: 0/10 blocks, 0 shared" in out.getvalue()


# --------------------------------------------------------------------------- as pictures
SVG = "{http://www.w3.org/2000/svg}"


def test_an_svg_says_in_text_what_it_shows():
    root = ET.fromstring(svg.to_svg(state_of(), title="a < b & c"))
    assert root.get("role") == "img"
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert (title.text, desc.text) == ("a < b & c", NOTATION)
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"


def test_shared_blocks_are_hatched_and_all_blocks_numbered():
    root = ET.fromstring(svg.to_svg(state_of(), tables=False))
    cells = {}
    for group in root.iter(f"{SVG}g"):
        cells[group.find(f"{SVG}text").text] = [r.get("fill") for r in group.iter(f"{SVG}rect")]
    assert sorted(map(int, cells)) == list(range(10))
    hatched = {block for block, fills in cells.items() if any("url(#" in f for f in fills)}
    assert hatched == {"2", "7"}
    (pattern,) = root.iter(f"{SVG}pattern")
    assert all(f"url(#{pattern.get('id')})" in cells[block] for block in hatched)
    assert cells["0"] == ["none"]


def test_the_fill_of_a_block_is_as_wide_as_its_tokens():
    state = PoolState(4, Pool(1, {"seq0": [0]}, {"seq0": 3}, [], {0: 1}))
    widths = [
        float(rect.get("width"))
        for rect in ET.fromstring(svg.to_svg(state, tables=False)).iter(f"{SVG}rect")
        if rect.get("opacity") == "0.5"
    ]
    assert widths == [svg.CELL * 3 / 4]


def test_tokens_can_be_read_in_the_tips():
    state = dataclasses.replace(state_of(), token_text={"seq1": list("abcdefgh<jk")})
    tips = [t.text for t in ET.fromstring(svg.to_svg(state)).iter(f"{SVG}title")]
    assert "block 9: seq1, logical block 2, 3 of 4: '<jk'" in tips


def test_two_pictures_in_one_page_do_not_share_ids():
    texts = svg.to_svg(state_of()), svg.to_svg(state_of(free=[0]))
    ids = [{e.get("id") for e in ET.fromstring(t).iter() if e.get("id")} for t in texts]
    assert not ids[0] & ids[1]


def test_an_empty_and_a_large_pool_can_be_drawn():
    blocks = list(range(300))
    large = Pool(300, {"seq0": blocks}, {"seq0": 4790}, [], dict.fromkeys(blocks, 1))
    for state in (PoolState(16, Pool(1)), PoolState(16, large)):
        root = ET.fromstring(svg.to_svg(state))
        *_, width, height = map(float, root.get("viewBox").split())
        for rect in root.iter(f"{SVG}rect"):
            if rect.get("x"):
                assert float(rect.get("x")) + float(rect.get("width")) <= width
                assert float(rect.get("y")) + float(rect.get("height")) <= height


def test_a_notebook_shows_the_picture():
    shown = svg.SvgPicture(state_of())
    assert shown._repr_html_() == svg.to_svg(state_of())
    assert repr(shown) == NOTATION


def test_figures_of_the_pool_and_of_the_four_classes(tmp_path):
    figure = plot.plot_pool(state_of(), columns=5)
    figure.savefig(tmp_path / "pool.png")
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert texts == {str(block) for block in range(10)}
    assert "8 of 10 blocks used, 2 shared" in figure.axes[0].get_title(loc="left")

    figure = plot.plot_memory(
        {"Max": MemoryClasses(20, 30, 40, 110), "Paged": MemoryClasses(196, 0, 4, 0)}
    )
    figure.savefig(tmp_path / "memory.png")
    heights = [[bar.get_height() for bar in bars] for bars in figure.axes[0].containers]
    assert heights == [[10, 98], [15, 0], [20, 2], [55, 0]]
    with pytest.raises(ValueError, match="'none' add up to 0"):
        plot.plot_memory({"none": MemoryClasses(0, 0, 0, 0)})


def test_a_sequence_keeps_its_color_and_letter():
    assert palette.color_of("seq3") == palette.color_of("request-3")
    looks = {(palette.color_of(f"seq{i}"), palette.letter_of(f"seq{i}")) for i in range(100)}
    assert len(looks) == 100


def test_a_name_that_is_a_letter_is_shown_by_it():
    assert [palette.letter_of(name) for name in ("A", "B2", "p")] == ["A", "B", "p"]
