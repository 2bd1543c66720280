"""Task 3.3: into the paged cache, and out of it again."""

import numpy as np
from dense_oracle import blocks_for, expect_array, put

from minipaged.course.testing import expect


def write(parts, lab, rng, slots, *, num_blocks, kv_heads, block_size, dtype=np.float32):
    """Write random tokens into random caches, and compare every slot of both."""
    shape = (num_blocks, kv_heads, block_size, 4)
    rows = [rng.standard_normal((len(slots), kv_heads, 4)).astype(np.float32) for _ in "kv"]
    before = [rng.standard_normal(shape).astype(dtype) for _ in "kv"]
    caches = [lab.tensor(cache) for cache in before]
    parts.write_kv(*(lab.tensor(x) for x in rows), *caches, lab.tensor(np.array(slots)))
    for name, row, want, cache in zip(("key", "value"), rows, before, caches):
        put(want, slots, row)
        got = lab.read(cache)
        what = f"tokens at slots {slots}, {kv_heads} heads, blocks of {block_size}"
        expect(got.dtype.name, want.dtype.name, f"{what}: the type of the {name} cache")
        expect_array(got, want, f"{what}: the {name} cache, [block, head, place, i]")


def test_write_puts_each_token_into_its_slot(parts, lab, rng):
    for kv_heads, block_size, dtype in (
        (1, 4, np.float32),
        (3, 4, np.float32),
        (2, int(rng.integers(2, 7)), np.float32),
        (2, 1, np.float32),
        (2, 4, np.float16),
    ):
        num_slots = 5 * block_size
        slots = rng.permutation(num_slots)[: num_slots // 2].tolist()
        sizes = {"num_blocks": 5, "kv_heads": kv_heads, "block_size": block_size}
        write(parts, lab, rng, slots, dtype=dtype, **sizes)


def test_padding_is_written_nowhere(parts, lab, rng):
    for block_size in (4, int(rng.integers(2, 7))):
        sizes = {"num_blocks": 4, "kv_heads": 2, "block_size": block_size}
        some = np.sort(rng.permutation(4 * block_size - 1)[:5]).tolist()  # the last slot is free
        write(parts, lab, rng, [*some, -1, -1, -1], **sizes)
        write(parts, lab, rng, [some[0], -1, *some[1:], -1], **sizes)
        write(parts, lab, rng, [-1] * 8, **sizes)


def test_gather_returns_the_tokens_in_order(parts, lab, rng):
    for kv_heads, block_size in ((1, 4), (3, 4), (2, int(rng.integers(2, 7))), (2, 1)):
        lengths = (1, block_size, 2 * block_size + 1, 3 * block_size, 4 * block_size - 1)
        for length in lengths:
            count = blocks_for(length, block_size)
            order = rng.permutation(9).tolist()
            table = order[:count] + order[:2]  # what stands further on does not matter
            dense = rng.standard_normal((length, kv_heads, 4)).astype(np.float16)
            cache = np.full((9, kv_heads, block_size, 4), 99.0, np.float16)
            put(cache, [table[t // block_size] * block_size + t % block_size
                        for t in range(length)], dense)  # fmt: skip
            held = lab.tensor(cache)
            out = parts.gather_kv(held, lab.tensor(np.array(table, np.int32)), length)
            what = f"{length} tokens through {table}, {kv_heads} heads, blocks of {block_size}"
            expect(lab.read(out).dtype.name, "float16", f"{what}: the type")
            expect_array(lab.read(out), dense, f"{what}: [token, head, i]")

            row = lab.tensor(np.zeros((1, kv_heads, 4), np.float16))
            first = lab.tensor(np.array([table[0] * block_size]))
            parts.write_kv(row, row, held, held, first)
            expect_array(lab.read(out), dense, f"{what}: a copy, which a later write leaves alone")
