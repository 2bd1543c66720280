"""Contiguous reservation behind the KVManager contract."""

import random

import pytest
from harness import BLOCK_SIZE, HUGE_POOL, MAX_MODEL_LEN, Request, TestedEngine

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.errors import InvariantError, OutOfBlocks
from minipaged.kvcache.buddy import BuddyAllocator
from minipaged.kvcache.contiguous import ContiguousKVManager, Reservation
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import Sequence, SequenceGroup, Status


def manager(reservation="oracle", num_blocks=64, block_size=4, max_model_len=64):
    max_chunk = 1 << (-(-max_model_len // block_size) - 1).bit_length()
    return ContiguousKVManager(
        BuddyAllocator(num_blocks, max_chunk), block_size, max_model_len, reservation
    )


def group(seq_id=0, prompt=6, output=10, n=1, beam=False, expected=None):
    params = SamplingParams(n=n, max_tokens=output, use_beam_search=beam)
    seq = Sequence(seq_id, range(prompt))
    return SequenceGroup(f"r{seq_id}", seq, params, expected_output_len=expected)


def compute(grp):
    """Book that all tokens so far are in the cache, as a step does."""
    for seq in grp.live:
        seq.num_computed = seq.num_tokens
        seq.status = Status.RUNNING


def fork(kv, grp, parent, seq_id):
    child = parent.fork(seq_id, index=len(grp.seqs))
    grp.seqs[seq_id] = child
    kv.fork(parent, child)
    return child


def end(kv, grp, seq):
    kv.free(seq)
    seq.status = Status.FINISHED
    del grp.seqs[seq.seq_id]


# -- how much is reserved
@pytest.mark.parametrize(
    ("reservation", "prompt", "output", "tokens", "blocks"),
    [
        ("max", 6, 10, 64, 16),
        ("oracle", 6, 10, 16, 4),
        ("oracle", 6, 11, 17, 8),
        ("pow2", 6, 10, 22, 8),
        ("pow2", 6, 16, 22, 8),
        ("pow2", 6, 1, 7, 2),
        ("pow2", 6, 33, 64, 16),
        ("oracle", 60, 10, 64, 16),
    ],
)
def test_reservation_by_policy(reservation, prompt, output, tokens, blocks):
    kv = manager(reservation)
    grp = group(prompt=prompt, output=output)
    assert kv.requested_tokens(grp) == tokens
    assert kv.blocks_needed(grp) == blocks
    kv.allocate(grp)
    assert kv.block_table(0) == list(range(blocks))
    assert kv.num_free_gpu_blocks == 64 - blocks
    assert kv.reservation(grp) == Reservation(tokens, 4 * blocks, 0)
    kv.check([grp])


def test_true_length_comes_before_max_tokens():
    assert manager("oracle").requested_tokens(group(output=50, expected=3)) == 9
    assert manager("pow2").requested_tokens(group(output=50, expected=3)) == 10
    assert manager("oracle").requested_tokens(group(output=None)) == 64


def test_the_papers_13b_pool_runs_exactly_seven_requests_of_max():
    kv = ContiguousKVManager(BuddyAllocator(983), 16, 2048, "max")
    groups = [group(i, prompt=5, output=5) for i in range(8)]
    for grp in groups[:7]:
        assert kv.fits(grp, headroom=9)
        kv.allocate(grp)
    assert not kv.fits(groups[7])
    assert kv.num_free_gpu_blocks == 983 - 7 * 128
    with pytest.raises(OutOfBlocks, match="'r7' needs 1 free regions of 128 blocks"):
        kv.allocate(groups[7])
    kv.check(groups)
    end(kv, groups[3], groups[3].live[0])
    kv.allocate(groups[7])
    assert kv.block_table(7) == list(range(3 * 128, 4 * 128))


def test_all_siblings_are_reserved_up_front_or_none():
    kv = manager(num_blocks=16)
    assert not kv.fits(group(output=10, n=5))
    assert not kv.fits_ever(group(output=10, n=5))
    kv.allocate(group(9, output=10))
    four = group(output=10, n=4)
    assert kv.fits_ever(four)
    assert not kv.fits(four)
    with pytest.raises(OutOfBlocks, match="4 free regions of 4 blocks each, 3 are there"):
        kv.allocate(four)
    assert kv.num_free_gpu_blocks == 12
    assert kv.block_table(0) == []


def test_fits_knows_that_scattered_blocks_are_no_region():
    kv = manager(num_blocks=8, max_model_len=32)
    small = [group(i, prompt=4, output=4) for i in range(4)]
    for grp in small:
        kv.allocate(grp)
    for grp in (small[0], small[2]):
        end(kv, grp, grp.live[0])
    assert kv.num_free_gpu_blocks == 4
    large = group(9, prompt=6, output=10)
    assert kv.blocks_needed(large) == 4
    assert not kv.fits(large)
    assert kv.fits_ever(large)


def test_a_pool_smaller_than_a_region_never_fits():
    kv = manager("max", num_blocks=15)
    assert not kv.fits_ever(group())
    assert manager("max", num_blocks=16).fits_ever(group())


# -- growth
def test_nothing_grows_until_the_region_is_full():
    kv = manager()
    grp = group(prompt=6, output=10)
    kv.allocate(grp)
    table = kv.block_table(0)
    for _ in range(10):
        compute(grp)
        grp.live[0].token_ids.append(1)
        assert kv.can_append(grp)
        assert kv.append([grp]) == []
        assert kv.block_table(0) is table
    assert len(table) * 4 >= grp.live[0].num_tokens == 16


def test_a_sequence_that_was_told_too_short_a_length_cannot_go_on():
    kv = manager()
    grp = group(prompt=6, output=50, expected=10)
    kv.allocate(grp)
    grp.live[0].token_ids += [1] * 10
    assert kv.can_append(grp)
    grp.live[0].token_ids.append(1)
    assert not kv.can_append(grp)
    with pytest.raises(OutOfBlocks, match=r"'r0' has outgrown the 16 tokens"):
        kv.append([grp])
    assert not kv.preemptible


# -- forks
def test_fork_copies_every_block_that_holds_a_computed_token():
    kv = manager()
    grp = group(prompt=6, output=10, n=3)
    kv.allocate(grp)
    assert kv.num_free_gpu_blocks == 64 - 3 * 4
    assert kv.take_copies() == []
    compute(grp)
    parent = grp.live[0]
    for seq_id in (1, 2):
        fork(kv, grp, parent, seq_id)
    tables = [kv.block_table(i) for i in range(3)]
    assert len({block for table in tables for block in table}) == 12
    # 6 tokens are 2 blocks of 4.
    assert sorted(kv.take_copies()) == sorted(
        (tables[0][i], tables[child][i]) for child in (1, 2) for i in (0, 1)
    )
    assert kv.take_copies() == []
    kv.check([grp])
    with pytest.raises(OutOfBlocks, match="reserved 3 regions, none is left"):
        kv.fork(parent, parent.fork(3, 3))


def test_copies_to_a_child_that_ended_are_not_made():
    kv = manager()
    grp = group(prompt=6, output=10, n=3)
    kv.allocate(grp)
    compute(grp)
    first, second = (fork(kv, grp, grp.live[0], i) for i in (1, 2))
    target = kv.block_table(second.seq_id)[:2]
    end(kv, grp, first)
    assert [copy[1] for copy in kv.take_copies()] == target


def test_a_finished_sibling_gives_its_region_back_at_once():
    kv = manager()
    grp = group(prompt=6, output=10, n=3)
    kv.allocate(grp)
    compute(grp)
    for i in (1, 2):
        fork(kv, grp, grp.live[0], i)
    for i, free in ((1, 56), (0, 60), (2, 64)):
        end(kv, grp, grp.seqs[i])
        assert kv.num_free_gpu_blocks == free
        assert kv.block_table(i) == []
        kv.check([grp])


def test_regions_of_siblings_that_never_forked_go_back_with_the_group():
    kv = manager()
    grp = group(prompt=6, output=10, n=3)
    kv.allocate(grp)
    assert kv.reservation(grp).spare_regions == 2
    end(kv, grp, grp.live[0])
    assert kv.num_free_gpu_blocks == 64
    assert kv.reservation(grp) == Reservation(0, 0, 0)


def test_a_beam_that_lost_leaves_its_region_to_a_fork():
    kv = manager()
    grp = group(prompt=6, output=10, n=2, beam=True)
    kv.allocate(grp)
    compute(grp)
    fork(kv, grp, grp.live[0], 1)
    kv.take_copies()
    compute(grp)
    lost = kv.block_table(0)
    end(kv, grp, grp.seqs[0])
    assert kv.num_free_gpu_blocks == 64 - 2 * 4
    kv.check([grp])
    fork(kv, grp, grp.seqs[1], 2)
    assert kv.block_table(2) == lost
    assert kv.take_copies() == [(kv.block_table(1)[i], lost[i]) for i in (0, 1)]
    for seq in grp.live:
        end(kv, grp, seq)
    assert kv.num_free_gpu_blocks == 64
    kv.check([])


def test_a_fork_never_writes_what_another_fork_has_yet_to_read():
    kv = manager()
    grp = group(prompt=6, output=10, n=3, beam=True)
    kv.allocate(grp)
    compute(grp)
    first = fork(kv, grp, grp.live[0], 1)
    source = kv.block_table(0)
    end(kv, grp, grp.seqs[0])
    grandchild = fork(kv, grp, first, 2)
    assert kv.block_table(grandchild.seq_id) != source
    with pytest.raises(OutOfBlocks):
        kv.fork(first, first.fork(3, 3))
    copies = kv.take_copies()
    # The child's blocks are not filled yet: its child reads what it is going to hold.
    assert {src for src, _ in copies} == set(source[:2])
    assert len({dst for _, dst in copies}) == len(copies) == 4
    # Now that they are on their way, its region may be written.
    fork(kv, grp, first, 3)
    assert kv.block_table(3) == source


def test_free_of_a_sequence_that_holds_nothing_does_nothing():
    kv = manager()
    grp = group()
    kv.free(grp.live[0])
    kv.allocate(grp)
    kv.free(grp.live[0])
    kv.free(grp.live[0])
    assert kv.num_free_gpu_blocks == 64


# -- preemption
def test_release_and_allocate_again():
    kv = manager()
    grp = group(prompt=6, output=10, n=2)
    kv.allocate(grp)
    compute(grp)
    fork(kv, grp, grp.live[0], 1)
    grp.started = True
    kv.release(grp)
    assert kv.num_free_gpu_blocks == 64
    assert kv.take_copies() == []
    assert sorted(grp.shape) == [0, 1]
    assert not set(grp.shape[0]) & set(grp.shape[1])
    assert kv.blocks_needed(grp) == 8
    kv.allocate(grp)
    assert grp.shape is None
    assert not set(kv.block_table(0)) & set(kv.block_table(1))
    kv.check([grp])


def test_there_is_no_swap():
    kv = manager()
    grp = group()
    kv.allocate(grp)
    assert (kv.num_cpu_blocks, kv.num_free_cpu_blocks) == (0, 0)
    assert not kv.can_swap_out(grp)
    assert not kv.can_swap_in(grp)
    for move in (kv.swap_out, kv.swap_in):
        with pytest.raises(OutOfBlocks, match="host pool"):
            move(grp)


def test_unknown_policy_is_named():
    with pytest.raises(ValueError, match="'best'"):
        manager("best")


# -- check
def test_check_finds_what_is_wrong():
    kv = manager()
    grp = group()
    kv.allocate(grp)
    kv.check([grp])
    with pytest.raises(InvariantError, match="I1: sequence 0 has ended"):
        kv.check([])
    kv.block_table(0)[1] = 7
    with pytest.raises(InvariantError, match=r"I1: table .* not a run"):
        kv.check([grp])
    kv.block_table(0)[1] = 1
    kv.allocator.allocate(1)
    with pytest.raises(InvariantError, match="I1: groups hold"):
        kv.check([grp])


@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle"])
@pytest.mark.parametrize("seed", range(3))
def test_a_random_run_keeps_the_invariants_and_the_contents(reservation, seed):
    """Drives the manager as the scheduler does, with a pool of (sequence history) per slot."""
    rng = random.Random(seed)
    kv = manager(reservation, num_blocks=75, block_size=4, max_model_len=40)
    pool = {}
    groups = []
    next_id = 0
    forks = 0
    for _ in range(250):
        if rng.random() < 0.5:
            beam = rng.random() < 0.4
            grp = group(
                next_id,
                prompt=rng.randint(1, 20),
                output=rng.randint(1, 20),
                n=rng.randint(2, 3) if beam else rng.randint(1, 3),
                beam=beam,
            )
            grp.live[0].token_ids = [rng.random() for _ in grp.live[0].token_ids]
            if kv.fits(grp):
                next_id += 1
                kv.allocate(grp)
                groups.append(grp)
        for source, target in kv.take_copies():
            for i in range(4):
                pool[target, i] = pool.get((source, i))
        for grp in groups:
            assert kv.can_append(grp)
            assert kv.append([grp]) == []
            for seq in grp.live:
                table = kv.block_table(seq.seq_id)
                for t in range(seq.num_computed, seq.num_tokens):
                    pool[table[t // 4], t % 4] = seq.token_ids[t]
                seq.num_computed = seq.num_tokens
                stored = [pool[table[t // 4], t % 4] for t in range(seq.num_tokens)]
                assert stored == seq.token_ids
        for grp in groups:
            first = not grp.started
            grp.started = True
            if grp.params.use_beam_search and len(grp.seqs) > 1 and rng.random() < 0.5:
                end(kv, grp, rng.choice(grp.live))
            room = grp.params.width - len(grp.seqs)
            for _ in range(room if first or grp.params.use_beam_search else 0):
                fork(kv, grp, rng.choice(grp.live), next_id)
                next_id += 1
                forks += 1
            for seq in grp.live:
                seq.token_ids.append(rng.random())
                if seq.num_output_tokens == grp.params.max_tokens or rng.random() < 0.05:
                    end(kv, grp, seq)
        groups = [grp for grp in groups if not grp.finished]
        kv.check(groups)
    assert forks > 30
    for grp in groups:
        for seq in grp.live:
            end(kv, grp, seq)
    kv.check([])
    assert kv.num_free_gpu_blocks == 75


# -- in the engine
def serve(requests, cache):
    engine = TestedEngine(SchedulerConfig(max_model_len=MAX_MODEL_LEN), cache)
    most = 0
    for request in requests:
        engine.add(request)
    while engine.engine.has_unfinished():
        engine.step()
        most = max(most, len(engine.engine.scheduler.running))
    engine.check_idle()
    outputs = {
        name: [(completion.token_ids, completion.finish_reason) for completion in output.outputs]
        for name, output in engine.finished.items()
    }
    return outputs, most, engine


@pytest.mark.parametrize(("reservation", "batched"), [("max", 4), ("pow2", 16), ("oracle", 16)])
def test_engine_with_reservations_gives_the_tokens_of_the_paged_one(reservation, batched):
    rng = random.Random(3)
    requests = [
        Request(
            f"{i}",
            tuple(rng.randrange(60) for _ in range(rng.randint(1, 9))),
            SamplingParams(n=rng.randint(1, 3), max_tokens=rng.randint(1, 20), seed=i),
        )
        for i in range(20)
    ]
    expected, _, _ = serve(requests, HUGE_POOL)
    cache = CacheConfig(
        block_size=BLOCK_SIZE, num_gpu_blocks=79, num_cpu_blocks=0, reservation=reservation
    )
    outputs, most, engine = serve(requests, cache)
    assert outputs == expected
    assert engine.events["recompute of a sequence"] == engine.events["swap out"] == 0
    assert most <= batched
