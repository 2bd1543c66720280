"""Task 6.4: what both ways cost, and where one overtakes the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minipaged.course.testing import expect

# Figure 19a of the paper, read off the vector graphic of its PDF: milliseconds for blocks of
# 1, 2, 4, …, 256 tokens; OPT-13B in float16 on an A100-40GB.
BLOCK_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
SWAP_IN = [81.97, 53.63, 35.14, 26.05, 21.61, 19.28, 18.24, 17.57, 17.30]
SWAP_OUT = [55.47, 35.64, 25.90, 21.05, 18.54, 17.28, 16.67, 16.30, 16.11]
RECOMPUTE = [36.32, 37.48, 36.93, 38.81, 38.62, 39.02, 38.25, 38.40, 39.12]


@dataclass
class Shape:
    """A model, and its numbers worked out one by one."""

    layers: int
    heads: int
    kv_heads: int
    width: int
    """Of a head."""
    hidden: int
    inner: int
    gated: bool
    """Has the MLP three matrices?"""

    @classmethod
    def draw(cls, rng, group=None):
        kv_heads, width = int(rng.integers(1, 9)), 8 * int(rng.integers(4, 17))
        heads = kv_heads * (group or int(rng.integers(2, 9)))
        hidden = 64 * int(rng.integers(4, 40))
        inner = 64 * int(rng.integers(8, 99))
        gated = bool(rng.integers(2))
        return cls(int(rng.integers(2, 41)), heads, kv_heads, width, hidden, inner, gated)

    def config(self, lab):
        return lab.model_config(
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.width,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            architecture="llama" if self.gated else "opt",
        )

    @property
    def weights(self):
        rows = self.heads + self.kv_heads + self.kv_heads + self.heads  # q, k, v, output
        mlp = self.inner * (3 if self.gated else 2)
        return self.layers * self.hidden * (rows * self.width + mlp)

    def transfers(self, blocks):
        return sum(blocks for layer in range(self.layers) for kind in "kv")

    def bytes(self, item, blocks, block_size):
        return self.transfers(blocks) * block_size * self.kv_heads * self.width * item

    def one_way(self, item, blocks, block_size, link):
        speed, each = link
        return self.bytes(item, blocks, block_size) / speed + self.transfers(blocks) * each

    def flops(self, tokens):
        seen = sum(range(1, tokens + 1))  # keys that all tokens look at, in one head
        return 2 * self.weights * tokens + self.layers * self.heads * seen * 2 * 2 * self.width

    def prefill(self, item, tokens, speeds):
        flops, memory, launch = speeds
        times = self.flops(tokens) / flops, self.weights * item / memory, self.layers * launch
        return sorted(times)[-1]

    def told(self):
        return (
            f"{self.layers} layers of {self.heads} heads and {self.kv_heads} KV heads of "
            f"{self.width}, hidden {self.hidden}, MLP {3 if self.gated else 2} x {self.inner}"
        )


@dataclass
class Computer:
    """A machine as plain numbers: FLOP/s, bytes/s of its memory, seconds a layer; and the links as
    bytes/s, seconds a transfer."""

    speeds: tuple
    out: tuple
    back: tuple

    @classmethod
    def draw(cls, rng, shape, item, tokens, at_256=0.6, at_1=5.0):
        """Swapping takes so many times as long as a prefill over so many tokens, in blocks of 256
        and in blocks of 1."""
        flops, both = float(rng.uniform(1e13, 5e14)), float(rng.uniform(0.2, 0.8))
        speeds = flops, 1e15, 1e-9
        time = shape.prefill(item, tokens, speeds)
        total = shape.bytes(item, 1, tokens)
        per_transfer = time * (at_1 - at_256) / shape.transfers(tokens)
        share = float(rng.uniform(0.2, 0.8))
        return cls(
            speeds,
            (total / (time * at_256 * both), per_transfer * share),
            (total / (time * at_256 * (1 - both)), per_transfer * (1 - share)),
        )

    def made(self, parts):
        links = [parts.Link(*link) for link in (self.out, self.back)]
        return parts.Machine(*self.speeds, *links)

    def both_ways(self, shape, item, tokens, block_size):
        blocks = math.ceil(tokens / block_size)
        return sum(shape.one_way(item, blocks, block_size, link) for link in (self.out, self.back))

    def ratio(self, shape, item, tokens, block_size):
        """Swap over recompute."""
        both = self.both_ways(shape, item, tokens, block_size)
        return both / shape.prefill(item, tokens, self.speeds)

    def told(self):
        flops, memory, launch = self.speeds
        links = " and ".join(
            f"{b / 1e9:.3g} GB/s + {s * 1e6:.3g} us" for b, s in (self.out, self.back)
        )
        return (
            f"{flops / 1e12:.4g} TFLOP/s, {memory / 1e9:.4g} GB/s, {launch * 1e6:.3g} us a layer; "
            f"{links}"
        )


def expect_number(got, want, why, within=1e-9):
    """A time, up to rounding, or up to a fraction."""
    number = isinstance(got, int | float) and not isinstance(got, bool)
    if not (number and math.isclose(got, want, rel_tol=within)):
        room = f" within {within:.0%}" if within > 1e-3 else ""
        got = f"{got:.6g}" if number else repr(got)
        raise AssertionError(f"{why}: expected {want:.6g}{room}, got {got}")


def test_whole_blocks_of_all_kv_heads_travel(parts, lab, rng):
    for group in (1, 4, int(rng.integers(2, 9))):
        shape = Shape.draw(rng, group)
        model = shape.config(lab)
        for blocks, block_size, item in (
            (1, 16, 2),
            (int(rng.integers(2, 30)), int(rng.integers(1, 65)), 4),
            (int(rng.integers(2, 30)), 1, 1),
            (0, 16, 2),
        ):
            why = f"{blocks} blocks of {block_size}, {item} bytes a number, {shape.told()}"
            got = parts.swap_bytes(model, item, blocks, block_size)
            expect(got, shape.bytes(item, blocks, block_size), f"swap_bytes(): {why}")
            got = parts.swap_transfers(model, blocks)
            expect(got, shape.transfers(blocks), f"swap_transfers(): {why}")


def test_small_blocks_do_not_fill_the_link(parts, lab, rng):
    for _ in range(3):
        shape = Shape.draw(rng)
        model, item = shape.config(lab), int(rng.choice([1, 2, 4]))
        link = float(rng.uniform(1e9, 60e9)), float(rng.uniform(1e-6, 9e-6))
        tokens = 64 * int(rng.integers(1, 9))
        for block_size in (1, 16, 64):
            blocks = tokens // block_size
            got = parts.swap_seconds(model, item, blocks, block_size, parts.Link(*link))
            why = (
                f"swap_seconds(): {blocks} blocks of {block_size}, {item} bytes a number, over "
                f"{link[0] / 1e9:.3g} GB/s + {link[1] * 1e6:.3g} us, {shape.told()}"
            )
            expect_number(got, shape.one_way(item, blocks, block_size, link), why)


def test_a_prefill_takes_as_long_as_its_slowest_part(parts, lab, rng):
    for group in (1, int(rng.integers(2, 9))):
        shape = Shape.draw(rng, group)
        model, item = shape.config(lab), int(rng.choice([1, 2, 4]))
        for tokens in (1, int(rng.integers(2, 300)), int(rng.integers(3000, 30000))):
            got = parts.recompute_flops(model, tokens)
            expect(got, shape.flops(tokens), f"recompute_flops(): {tokens} tokens, {shape.told()}")
        tokens = int(rng.integers(20, 300))
        flops, memory = shape.flops(tokens), shape.weights * item
        for slowest in range(3):
            times = [float(time) for time in rng.uniform(1e-3, 5e-3, 3)]
            times[slowest] *= 7
            speeds = flops / times[0], memory / times[1], times[2] / shape.layers
            machine = Computer(speeds, (1e9, 1e-6), (1e9, 1e-6))
            got = parts.recompute_seconds(model, item, tokens, machine.made(parts))
            why = f"recompute_seconds(): {tokens} tokens, {item} bytes a weight, {shape.told()}"
            want = shape.prefill(item, tokens, speeds)
            expect_number(got, want, f"{why}, {machine.told()}")


def test_the_cheaper_one_is_found_over_both_ways(parts, lab, rng):
    item = 2
    for at_256 in (0.7, 0.9, 1.2, 1.5):
        shape = Shape.draw(rng)
        tokens = 256 * int(rng.integers(1, 4))
        # Either way alone is the cheaper; and blocks of 100 are not filled.
        computer = Computer.draw(rng, shape, item, tokens, at_256, at_256 * 1.01)
        for block_size in (16, 100, 250):
            check_cheaper(parts, lab, shape, item, tokens, block_size, computer)
    shape = Shape(2, 4, 4, 32, 128, 256, False)
    second = shape.bytes(item, 4, 16)
    tie = Computer((1e15, 1e15, 1.0), (float(second), 0.0), (float(second), 0.0))
    got = parts.cheaper(shape.config(lab), item, 64, 16, tie.made(parts))
    expect(got, "recompute", "cheaper(): 2 s for swapping both ways, 2 s for recomputing")


def check_cheaper(parts, lab, shape, item, tokens, block_size, computer):
    ratio = computer.ratio(shape, item, tokens, block_size)
    if abs(ratio - 1) < 1e-6:
        return
    got = parts.cheaper(shape.config(lab), item, tokens, block_size, computer.made(parts))
    swap = computer.both_ways(shape, item, tokens, block_size)
    prefill = shape.prefill(item, tokens, computer.speeds)
    why = (
        f"cheaper(): {tokens} tokens in blocks of {block_size}: {1e3 * swap:.4g} ms for swapping "
        f"out and in, {1e3 * prefill:.4g} ms for recomputing"
    )
    expect(got, "swap" if ratio < 1 else "recompute", f"{why}; {shape.told()}")


def test_the_crossovers_are_the_first_of_their_kind(parts, lab, rng):
    item = 2
    for at_1 in (2.0, 12.0, 0.9, float(rng.uniform(1.5, 40)), 38.0):
        shape = Shape.draw(rng)
        tokens = 256 * int(rng.integers(1, 4))
        computer = Computer.draw(rng, shape, item, tokens, 0.8, at_1)
        model, machine = shape.config(lab), computer.made(parts)
        ratios = {size: computer.ratio(shape, item, tokens, size) for size in BLOCK_SIZES}
        if any(abs(ratio - 1) < 1e-6 for ratio in ratios.values()):
            continue
        first = next(size for size in BLOCK_SIZES if ratios[size] < 1)
        why = f"crossover_block_size(): {tokens} tokens, swap over recompute is " + ", ".join(
            f"{ratio:.3g} at {size}" for size, ratio in ratios.items()
        )
        expect(parts.crossover_block_size(model, item, tokens, machine), first, why)
        for largest, want in ((first, first), (2 * first - 1, first), (first - 1, None)):
            got = parts.crossover_block_size(model, item, tokens, machine, largest)
            expect(got, want, f"{why}; up to blocks of {largest}")
    for block_size in (16, int(rng.integers(2, 30))):
        check_crossover_tokens(parts, lab, rng, item, block_size, int(rng.integers(40, 90)))
    check_crossover_tokens(parts, lab, rng, item, 16, 0)


def check_crossover_tokens(parts, lab, rng, item, block_size, at):
    """A prefill takes its time however short it is: up to some length swapping is the cheaper.

    Args:
        at: so many tokens, about; 0 for a card that computes one sooner than its block is swapped.
    """
    shape = Shape.draw(rng)
    computer = Computer.draw(rng, shape, item, 256, 3.0, 3.5)
    if at:
        floor = computer.both_ways(shape, item, at, block_size) * float(rng.uniform(0.9, 1.1))
        flops, _, launch = computer.speeds
        computer.speeds = flops, shape.weights * item / floor, launch
    ratios = [computer.ratio(shape, item, tokens, block_size) for tokens in range(1, 200)]
    if any(abs(ratio - 1) < 1e-6 for ratio in ratios):
        return
    first = next(tokens for tokens, ratio in enumerate(ratios, 1) if ratio > 1)
    model, machine = shape.config(lab), computer.made(parts)
    blocks = -(-first // block_size)
    why = (
        f"crossover_tokens(): swapping {blocks - 1} blocks of {block_size} is the cheaper, and "
        f"recomputing {first} tokens is cheaper than to swap {blocks} blocks"
    )
    cases = [(199, first), (first, first), (first - 1, None)]
    if first == 1:
        cases.pop()
        why = f"crossover_tokens(): to recompute 1 token is cheaper than to swap {block_size} slots"
    for most, want in cases:
        got = parts.crossover_tokens(model, item, block_size, machine, most)
        expect(got, want, f"{why}; up to {most} tokens")


def test_figure_19a_comes_out(parts, lab, rng):
    """Fitted on blocks of 16 and of 256: two numbers for each way, and the speed of a prefill."""
    tokens = 256
    model = lab.model_config(
        num_layers=40, num_heads=40, num_kv_heads=40, head_dim=128, architecture="opt"
    )
    machine = parts.Machine(
        167.5e12, 1555e9, 50e-6, parts.Link(13.15e9, 2.03e-6), parts.Link(12.33e9, 3.59e-6)
    )
    ways = (("in", SWAP_IN, machine.swap_in, 0.01), ("out", SWAP_OUT, machine.swap_out, 0.04))
    prefill = 1e3 * parts.recompute_seconds(model, 2, tokens, machine)
    for i in rng.permutation(len(BLOCK_SIZES)):
        block_size = BLOCK_SIZES[i]
        why = f"figure 19a, blocks of {block_size}, milliseconds"
        for name, curve, link, within in ways:
            got = 1e3 * parts.swap_seconds(model, 2, tokens // block_size, block_size, link)
            # The curve bends at blocks of one token: the cost of a transfer is not all fixed.
            expect_number(got, curve[i], f"{why} to swap {name}", within if i else 0.12)
        expect_number(prefill, RECOMPUTE[i], f"{why} to recompute", 0.07)
        swap = SWAP_IN[i] + SWAP_OUT[i]
        want = "swap" if swap < RECOMPUTE[i] else "recompute"
        expect(parts.cheaper(model, 2, tokens, block_size, machine), want, f"{why}: the cheaper")
    got = parts.crossover_block_size(model, 2, tokens, machine)
    expect(got, 32, "figure 19a: the first block size at which swapping is the cheaper")
