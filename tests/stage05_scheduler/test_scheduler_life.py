"""Admission, iteration and commit together, over many steps in a pool that is too small."""

from __future__ import annotations

from plan_oracle import World


def branches(rng, group):
    """What a beam search may say: as many beams as it has, from any of them."""
    indices = [stream.index for stream in group.streams]
    if not group.started:
        return [(0, index, 60 + index) for index in range(group.n)]
    return [
        (indices[int(rng.integers(len(indices)))], index, 60 + index) for index in range(group.n)
    ]


def live(world, rng, steps, arrivals, ending):
    """Requests come at random, and sequences end at random."""
    model = world.model
    for step in range(steps):
        if rng.random() < arrivals or step == 0:
            beam = bool(rng.random() < 0.2)
            n = int(rng.integers(2, 4)) if beam else int(rng.choice([1, 1, 1, 2, 3]))
            prompt = int(rng.choice([1, 3, 4, 5, 8, 9, 13, 30, 70]))
            world.add(prompt, n, beam=beam, priority=int(rng.choice([0, 0, 0, 1])))
        world.plan(asked=True)
        decisions = world.decisions(token=int(rng.integers(10, 90)))
        for name, rows in decisions.items():
            group = model.groups[name]
            if group.beam:
                rows[:] = branches(rng, group)
            rows[:] = [(*row, "stop") if rng.random() < ending else row for row in rows]
        world.commit(decisions)


def test_a_long_life_goes_by_the_rules(parts, lab, rng):
    for rules in (
        {"blocks": 12, "watermark": 1, "max_num_seqs": 5, "max_num_batched_tokens": 24},
        {"blocks": 9, "max_num_seqs": 5, "max_num_batched_tokens": 16, "chunked_prefill": True},
        {"blocks": 14, "watermark": 2, "count_max_seqs": True, "prefill_first": True},
        {"blocks": 10, "watermark": 1, "batching": "request"},
    ):
        world = World(lab, parts.Scheduler, parts.Admission, **rules)
        live(world, rng, steps=45, arrivals=0.6, ending=0.12)
