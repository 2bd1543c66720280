"""Task 1.3: what a group asks for at its admission, and whether it is there."""

from __future__ import annotations

from contiguous_oracle import power_of_two_from

from minipaged.course.testing import expect

SYSTEMS = ("max", "pow2", "oracle")


def managers(parts, lab, num_blocks, block_size, max_model_len):
    """One for each of the three systems, each with a pool of its own."""
    chunk = power_of_two_from(-(-max_model_len // block_size))
    for system in SYSTEMS:
        pool = parts.BuddyAllocator(num_blocks, chunk)
        kv = parts.ContiguousKVManager(pool, block_size, max_model_len, system)
        what = f"{num_blocks} blocks of {block_size}, reserved by {system}, at most {max_model_len}"
        made = {"contiguous_kvmanager": kv, "buddy_allocator": pool}
        lab.scene(f"an empty pool of {what} tokens each", **made)
        yield system, kv


def hold_single_blocks(kv, free):
    """Hold every block of an empty pool by itself, but for some."""
    for start in sorted(kv.allocator.allocate(1) for _ in range(kv.num_gpu_blocks)):
        if start in free:
            kv.allocator.free(start)


def asked(system, prompt, output, max_model_len):
    estimate = {"max": max_model_len, "pow2": power_of_two_from(output), "oracle": output}
    return min(prompt + estimate[system], max_model_len)


def test_each_system_asks_by_its_own_rule(parts, lab, rng):
    limit = int(rng.integers(1500, 2500))
    power = 1 << int(rng.integers(3, 8))
    for system, kv in managers(parts, lab, 64, 16, limit):
        for output in (1, 2, power - 1, power, power + 1, int(rng.integers(130, 500))):
            prompt = int(rng.integers(1, 600))
            group = lab.sequence_group(prompt=prompt, max_tokens=output)
            why = f"{system}: slots for a prompt of {prompt} with max_tokens {output}"
            expect(kv.requested_tokens(group), asked(system, prompt, output, limit), why)
        prompt, output = int(rng.integers(1, 600)), int(rng.integers(3, 200))
        group = lab.sequence_group(prompt=prompt, max_tokens=300, expected_output_len=output)
        why = f"{system}: slots for a prompt of {prompt} with {output} tokens expected, 300 allowed"
        expect(kv.requested_tokens(group), asked(system, prompt, output, limit), why)


def test_nobody_asks_for_more_than_the_model_allows(parts, lab, rng):
    limit = int(rng.integers(70, 120))
    for system, kv in managers(parts, lab, 64, 4, limit):
        for prompt, output in (
            (limit - 33, 32),
            (limit - 33, 33),
            (limit - 20, int(rng.integers(21, 60))),
            (int(rng.integers(1, 20)), 10**9),
        ):
            group = lab.sequence_group(prompt=prompt, max_tokens=output)
            why = f"{system}: slots for a prompt of {prompt}, {output} more, in a model of {limit}"
            expect(kv.requested_tokens(group), asked(system, prompt, output, limit), why)


def test_blocks_needed_is_a_region_for_each_sequence(parts, lab, rng):
    for block_size in (16, int(rng.integers(3, 9)), 1):
        limit = 8 * block_size + int(rng.integers(1, block_size + 1))
        for system, kv in managers(parts, lab, 64, block_size, limit):
            for n in (1, int(rng.integers(2, 5))):
                full = int(rng.integers(1, 5)) * block_size
                for prompt, output in ((full - 1, 1), (full, 1), (1, int(rng.integers(1, limit)))):
                    if prompt < 1:
                        continue
                    group = lab.sequence_group(prompt=prompt, max_tokens=output, n=n)
                    slots = asked(system, prompt, output, limit)
                    region = power_of_two_from(-(-slots // block_size))
                    why = f"{system}: blocks of {block_size} for {n} times {slots} tokens"
                    expect(kv.blocks_needed(group), n * region, why)
        # Two of three are left, of samples that ended: no more will come.
        group = lab.sequence_group(prompt=2, computed=[2, 2], n=3, max_tokens=limit)
        region = power_of_two_from(-(-limit // block_size))
        why = f"{system}: blocks of {block_size} for the 2 of 3 sequences that are left"
        expect(kv.blocks_needed(group), 2 * region, why)


def test_fits_wants_all_the_regions_at_once(parts, lab, rng):
    block_size = int(rng.integers(2, 9))
    regions = int(rng.integers(3, 6))
    for system, kv in managers(parts, lab, regions * 8, block_size, 8 * block_size):
        prompt = 4 * block_size + int(rng.integers(1, block_size))  # a region of 8 blocks

        def fits(n, prompt=prompt, kv=kv, **headroom):
            return kv.fits(lab.sequence_group(prompt=prompt, max_tokens=1, n=n), **headroom)

        what = f"{system}: {regions} regions of 8 blocks are free. Do"
        for n in (1, regions, regions + 1):
            expect(fits(n), n <= regions, f"{what} {n} fit?")
        expect(fits(regions, headroom=99), True, f"{what} {regions} fit with headroom 99?")
        kv.allocator.allocate(1)
        what = f"{system}: {regions * 8 - 1} blocks and {regions - 1} regions of 8 are free. Do"
        for n in (regions - 1, regions):
            expect(fits(n), n < regions, f"{what} {n} fit?")
        kv.allocate(lab.sequence_group(prompt=prompt, max_tokens=1, n=regions - 1))
        expect(fits(1), False, f"{system}: 7 blocks and no region of 8 are free. Does one fit?")


def test_scattered_blocks_are_no_room(parts, lab, rng):
    block_size, roots = int(rng.integers(2, 9)), int(rng.integers(3, 5))
    for system, kv in managers(parts, lab, roots * 8, block_size, 8 * block_size):
        group = lab.sequence_group(prompt=8 * block_size - 1, max_tokens=1)
        what = f"{system}: all of {roots * 8} blocks are free. Is there a region of 8?"
        expect(kv.fits(group), True, what)
        hold_single_blocks(kv, free=range(int(rng.integers(2)), roots * 8, 2))
        what = f"{system}: every second of {roots * 8} blocks is free. Is there a region of 8?"
        expect(kv.fits(group), False, what)


def test_one_long_region_is_no_room_for_two(parts, lab, rng):
    block_size, roots = int(rng.integers(2, 9)), int(rng.integers(3, 5))
    for system, kv in managers(parts, lab, roots * 8, block_size, 8 * block_size):
        root = 8 * int(rng.integers(roots))
        free = {*range(root, root + 8), *range(0, roots * 8, 2)}
        hold_single_blocks(kv, free)
        what = f"{system}: one region of 8 is free, and of the other blocks every second"
        for n in (1, 2):
            group = lab.sequence_group(prompt=8 * block_size - 1, max_tokens=1, n=n)
            expect(kv.fits(group), n == 1, f"{what}, {len(free)} in all. Do {n} regions of 8 fit?")


# --------------------------------------------------------------------------- robustness
def test_never_is_not_later(parts, lab, rng):
    block_size = int(rng.integers(2, 9))
    regions = int(rng.integers(2, 5))
    for system, kv in managers(parts, lab, regions * 8 + 7, block_size, 8 * block_size):
        one, all_, more = (
            lab.sequence_group(prompt=7 * block_size, max_tokens=block_size, n=n)
            for n in (1, regions, regions + 1)
        )
        kv.allocate(all_)
        what = f"{system}: all {regions} regions of a pool are held."
        expect(kv.fits(one), False, f"{what} Does one more fit now?")
        expect(kv.fits_ever(one), True, f"{what} Does one fit ever?")
        expect(kv.fits_ever(all_), True, f"{what} Do {regions} fit ever?")
        expect(kv.fits_ever(more), False, f"{what} Do {regions + 1} fit ever?")
    pool = parts.BuddyAllocator(64, 4)
    kv = parts.ContiguousKVManager(pool, block_size, 8 * block_size, "max")
    why = "a region of 8 blocks in an empty pool of 64 with max_chunk 4: does it fit ever?"
    expect(kv.fits_ever(one), False, why)


def test_without_a_length_the_model_length_is_asked_for(parts, lab, rng):
    limit = int(rng.integers(50, 200))
    for system, kv in managers(parts, lab, 64, 4, limit):
        prompt, output = int(rng.integers(1, 10)), int(rng.integers(1, 9))
        group = lab.sequence_group(prompt=prompt, max_tokens=None)
        why = f"{system}: slots for a prompt of {prompt}, max_tokens None, in a model of {limit}"
        expect(kv.requested_tokens(group), limit, why)
        group = lab.sequence_group(prompt=prompt, max_tokens=None, expected_output_len=output)
        why = f"{system}: slots for a prompt of {prompt} with {output} expected, max_tokens None"
        expect(kv.requested_tokens(group), asked(system, prompt, output, limit), why)
