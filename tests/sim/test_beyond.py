"""What experiments beyond the paper find: the direction of each, in their quick forms, with margins
that hold over seeds."""

import csv
import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from minipaged.cli import main
from minipaged.errors import ConfigError, DoubleFree, OutOfBlocks, RequestError
from minipaged.sim.beyond import (
    baseline,
    blocks,
    bursts,
    long_context,
    prefill,
    prefix_chat,
    tails,
    transfer,
    victims,
)
from minipaged.sim.beyond.experiment import Findings, Lab, Trial
from minipaged.sim.beyond.experiments import EXPERIMENTS, make
from minipaged.sim.beyond.first_fit import FirstFitAllocator
from minipaged.sim.paper.comparison import CSV_HEAD
from minipaged.sim.paper.published import LATENCY_LEVEL
from minipaged.sim.workloads import paper

ORACLE = "Orca (Oracle)"


@pytest.fixture(params=range(5))
def lab(request, exhaustive):
    """One seed in the ordinary run."""
    if request.param and not exhaustive:
        pytest.skip("more seeds with --exhaustive")
    return Lab(quick=True, workers=1, seed=request.param)


def grows(found, quantity, series):
    """The last number of a series over its first."""
    (_, first), *_, (_, last) = found.curve(quantity, series)
    return last / first


# --------------------------------------------------------------------------- each finds something
def test_bursts_hurt_the_tail_of_first_tokens_much_more_than_the_mean(lab):
    found = bursts.measure(lab)
    assert grows(found, bursts.MEAN, bursts.GAMMA) > 1
    tail = grows(found, bursts.TTFT[99], bursts.GAMMA)
    assert tail > 3 * grows(found, bursts.MEAN, bursts.GAMMA)


def test_first_tokens_are_late_where_the_mean_is_fine(lab):
    found = tails.measure(lab)
    for title in found.series(tails.MEAN):
        assert found.curve(tails.MEAN, title)[-1][1] < LATENCY_LEVEL
        assert grows(found, tails.TTFT_TAIL, title) > 1.5 * grows(found, tails.MEAN, title)
        late = found.curve(tails.TTFT_TAIL, title)[-1][1]
        assert late > 3 * found.curve(tails.TTFT_MEDIAN, title)[-1][1]


def test_chunks_shorten_the_long_gaps_and_delay_first_tokens(lab):
    found = prefill.measure(lab)
    gap = {name: found.get(prefill.ITL, name, 99.0) for name in prefill.POLICIES}
    first = {name: found.get(prefill.TTFT, name, 50.0) for name in prefill.POLICIES}
    assert gap["chunked"] < gap["mixed"] / 2
    assert gap["chunked"] < gap["prefill first"] / 2
    assert first["chunked"] > 1.1 * first["mixed"]


def test_large_blocks_are_emptier_and_leave_smaller_batches(lab):
    found = blocks.measure(lab)
    for title in blocks.TITLES.values():
        unused = [value for _, value in found.curve(blocks.UNUSED, title)]
        assert unused == sorted(unused)
        assert unused[0] < 0.5 < unused[1] < unused[2] / 3
        assert found.get(blocks.BATCH, title, 256) < 0.9 * found.get(blocks.BATCH, title, 16)
    swap = [value for _, value in found.curve(blocks.SWAP, blocks.MODEL)]
    assert swap == sorted(swap, reverse=True)


def test_long_prompts_leave_little_of_the_advantage(lab):
    found = long_context.measure(lab)
    gain = dict(found.curve(long_context.GAIN, "Orca (Max)"))
    assert gain[long_context.SHAREGPT] > 1.2 * gain[2048]
    assert all(value > 0.97 for value in gain.values())
    busy = dict(found.curve(long_context.COMPUTE, "vLLM"))
    assert busy[long_context.SHAREGPT] < busy[2048] < busy[16384]


def test_sharing_saves_work_and_first_tokens_come_sooner(lab):
    found = prefix_chat.measure(lab)
    for rate, share in found.curve(prefix_chat.COMPUTED, prefix_chat.WITH):
        assert share < 0.8 * found.get(prefix_chat.COMPUTED, prefix_chat.WITHOUT, rate)
        sooner = found.get(prefix_chat.MEDIAN, prefix_chat.WITH, rate)
        assert sooner < 0.7 * found.get(prefix_chat.MEDIAN, prefix_chat.WITHOUT, rate)


def test_the_least_computed_victim_loses_the_least(lab):
    found = victims.measure(lab)
    again = {name: found.get(victims.AGAIN, name) for name in victims.CHOICES}
    assert 0 < again["least computed"] < 0.7 * again["largest"]
    assert found.get(victims.COUNT, "least computed") > found.get(victims.COUNT, "largest")


def test_one_assumption_moves_the_verdict(lab, exhaustive):
    if not exhaustive:
        pytest.skip("a search with --exhaustive; the next test shows what it rests on")
    found = baseline.measure(lab)
    assert (
        1 < found.get(baseline.RATIO, baseline.EXACT) < found.get(baseline.RATIO, baseline.ORACLE)
    )


def test_a_baseline_without_rounding_has_larger_batches_and_one_that_overestimates_smaller():
    batch = {}
    for name in (baseline.ORACLE, baseline.EXACT, "lengths known times 1.2"):
        workload = partial(baseline.arriving, 4.0, 40.0, 0)
        batch[name] = replace(baseline.TRIALS[name], workload=workload).run()["mean_batch"]
    assert batch[baseline.EXACT] > 1.15 * batch[baseline.ORACLE]
    assert batch["lengths known times 1.2"] < batch[baseline.ORACLE]


# --------------------------------------------------------------------------- swap or recompute
@pytest.fixture(scope="module")
def transfers():
    return transfer.measure(Lab())


def test_grouped_heads_make_swapping_win(transfers):
    cases = transfers.series(transfer.BY_BLOCK)
    at_16 = [transfers.get(transfer.BY_BLOCK, name, 16) for name in cases]
    assert at_16[0] < 1 < at_16[1]
    assert at_16 == sorted(at_16)
    for _, ratio in transfers.curve(transfer.BY_CARD, cases[-1]):
        assert ratio > 1


def test_the_crossover_link_is_where_the_ratio_is_one():
    from minipaged.capacity import find_gpu, find_model
    from minipaged.scheduling.machines import machine_of

    model = find_model(transfer.MODEL)
    for card in transfer.LINES:
        link = transfer.crossover_link(model, card, 16)
        machine = machine_of(find_gpu(card), link * 1e9)
        assert transfer.ratio(model, machine, 16) == pytest.approx(1)
    assert transfer.crossover_link(model, "h100-80gb", 1) == float("inf")


def test_each_machine_has_a_crossover_in_order_of_its_flops(transfers):
    links = [transfers.get(transfer.CROSSOVER, transfer.CARDS[card]) for card in transfer.LINES]
    assert links == sorted(links)
    assert any("13 GB/s (A100)" in line for line in transfer.conclude(transfers))


# --------------------------------------------------------------------------- parts
def test_the_last_victim_is_the_reference():
    trial = Trial(partial(paper, "sharegpt", 2.5, 60.0, 1))
    chosen = replace(trial, exchange=partial(victims.with_victim, victims.last))
    numbers = trial.run()
    assert numbers["preemption_count"] > 0
    assert chosen.run() == numbers


def test_first_fit_takes_the_first_chunk_and_joins_neighbors():
    pool = FirstFitAllocator(10)
    assert [pool.allocate(size) for size in (3, 2, 4)] == [0, 3, 5]
    pool.free(3)
    assert pool.free_chunks() == [(3, 2), (9, 1)]
    assert (pool.available(2), pool.capacity(3), pool.free_blocks) == (1, 3, 3)
    with pytest.raises(OutOfBlocks, match="3 of 10 blocks are free"):
        pool.allocate(3)
    pool.free(5)
    assert pool.free_chunks() == [(3, 7)]
    assert pool.allocate(2) == 3
    pool.free(0)
    pool.free(3)
    assert pool.free_chunks() == [(0, 10)]
    with pytest.raises(DoubleFree, match="block 3"):
        pool.free(3)


def test_first_fit_never_gives_a_block_twice():
    dice, pool, held = random.Random(0), FirstFitAllocator(40), {}
    for _ in range(600):
        size = dice.randint(1, 9)
        if pool.available(size) and dice.random() < 0.6:
            held[pool.allocate(size)] = size
        elif held:
            pool.free(start := dice.choice(list(held)))
            del held[start]
        regions = sorted([*held.items(), *pool.free_chunks()])
        assert pool.regions() == sorted(held.items())
        assert [start for start, _ in regions] == [
            sum(length for _, length in regions[:at]) for at in range(len(regions))
        ]
        free = pool.free_chunks()
        assert all(a + n < b for (a, n), (b, _) in pairwise(free)), "neighbors are joined"


# --------------------------------------------------------------------------- traces
@pytest.fixture
def trace(tmp_path):
    """Forty requests in pairs, at a rate of 4 a second."""
    path = tmp_path / "pairs.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for at in range(40):
        second, half = divmod(at // 2, 2)
        lines.append(f"2023-11-16 18:00:{second:02d}.{5 * half}000000,100,10")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_times_of_a_trace_are_stretched_to_the_rate(trace):
    times = bursts.trace_times(trace, 1000)
    assert len(times) == 40
    assert times[0] == times[1] == 0
    assert (len(times) - 1) / times[-1] == pytest.approx(bursts.RATE)
    gaps = [after - before for before, after in zip(times[1::2], times[2::2])]
    assert gaps == pytest.approx([gaps[0]] * len(gaps))


def test_a_trace_is_a_series_beside_gamma(trace):
    found = bursts.measure(Lab(quick=True, workers=1, trace=trace))
    assert found.series(bursts.MEAN) == [bursts.GAMMA, "times of pairs.csv"]
    ((cv, _),) = found.curve(bursts.MEAN, "times of pairs.csv")
    assert cv == pytest.approx(1, abs=0.05)  # of gaps half of which are 0


def test_drift_is_seen_in_arrivals_a_minute_and_not_in_gaps():
    steady = [float(second) for second in range(600)]
    drifting = [60 * minute + at / 2 for minute in range(0, 10, 2) for at in range(120)]
    assert bursts.dispersion(steady) == 0
    assert bursts.dispersion(drifting) == pytest.approx(60, rel=0.1)
    assert bursts.dispersion(steady[:61]) is None


def test_a_trace_that_comes_all_at_once_is_refused(tmp_path):
    path = tmp_path / "once.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:00:00.0000000,9,9\n" * 3,
        encoding="utf-8",
    )
    with pytest.raises(RequestError, match="3 arrivals, all at one time"):
        bursts.trace_times(path, 10)


# --------------------------------------------------------------------------- framework, command
def test_findings_are_looked_up_by_name():
    found = Findings()
    found.add("seconds", "b", 2.0, 4)
    found.add("seconds", "b", 1.0, 2)
    found.add("seconds", "a", 3.0)
    assert found.curve("seconds", "b") == [(2, 1.0), (4, 2.0)]
    assert found.series("seconds") == ["b", "a"]
    assert [row.ours for row in found.rows("none")] == [2.0, 1.0, 3.0]
    with pytest.raises(ConfigError, match=r"no 'seconds' of 'a' at 2"):
        found.get("seconds", "a", 2)


def test_processes_find_what_one_finds():
    trials = [Trial(partial(paper, "alpaca", 4.0, 5.0, seed)) for seed in (0, 1)]
    alone = Lab(workers=1).run(trials)
    assert Lab(workers=2).run(trials) == alone
    assert alone[0] != alone[1]


def test_every_experiment_has_a_question():
    assert len(EXPERIMENTS) == 9
    assert all(experiment.question.endswith("?") for experiment in EXPERIMENTS.values())


def test_an_experiment_leaves_a_picture_and_a_file(tmp_path):
    lines = make("prefill", Lab(quick=True, workers=1), tmp_path / "new")
    assert (tmp_path / "new/prefill.png").stat().st_size > 20_000
    rows = list(csv.reader((tmp_path / "new/prefill.csv").open(encoding="utf-8")))
    assert tuple(rows[0]) == CSV_HEAD
    assert len(rows) == 1 + 3 * (2 * 4 + 1)
    assert sum(line.startswith("* ") for line in lines) == 3


def test_the_command_knows_beyond(tmp_path, capsys):
    assert main(["paper", "beyond", "transfer", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "13 GB/s (A100)" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["transfer.csv", "transfer.png"]
