"""A hidden check of stage 2: state that belongs to the class is everybody's."""

from minipaged.course.testing import expect


def test_two_pools_share_nothing(parts, rng):
    sizes = [int(n) for n in rng.integers(4, 12, size=2)]
    first, second = (parts.BlockAllocator(n, name) for n, name in zip(sizes, ("GPU", "CPU")))
    held = first.allocate_many(int(rng.integers(2, sizes[0])))
    first.share(held[0])
    expect(second.num_free, sizes[1], f"num_free of a second pool of {sizes[1]}, never used")
    expect(second.ref_count(0), 0, "ref_count(0) in a pool that was never used")
    second.free_many(second.allocate_many(sizes[1]))
    expect(first.num_free, sizes[0] - len(held), "num_free of the first pool, after the second's")
    expect(first.ref_count(held[0]), 2, f"ref_count({held[0]}) in the first pool, shared once")
