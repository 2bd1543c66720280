"""Random lives of an engine: a configuration, requests, and when they come and are aborted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from harness import BLOCK_SIZE, MAX_MODEL_LEN, Request, TestedEngine

from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.parts import Parts
from minipaged.sampling_params import SamplingParams

NUM_REQUESTS = 8
LIFE_AFTER = 20
"""Steps after the last request has come in which some may still be aborted."""
STATES = ("swapped", "prefilling", "waiting after a preemption")

T = TypeVar("T")


class Draw(Protocol):
    """Where choices come from: a seeded generator, or hypothesis."""

    def integer(self, low: int, high: int) -> int: ...
    def pick(self, options: Seq[T]) -> T: ...


class SeededDraw:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, options: Seq[T]) -> T:
        return self._random.choice(options)


def draw_cache(draw: Draw) -> CacheConfig:
    if not draw.integer(0, 9):
        # A contiguous baseline: room for four sequences of the greatest length.
        return CacheConfig(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=draw.integer(64, 90),
            num_cpu_blocks=0,
            reservation=draw.pick(["max", "pow2", "oracle"]),
        )
    return CacheConfig(
        block_size=BLOCK_SIZE,
        num_gpu_blocks=draw.integer(4, 16),
        num_cpu_blocks=draw.pick([0, 1, 6, 32, 32, 32]),
        watermark=draw.pick([0.0, 0.0, 0.15]),
    )


def draw_scheduler(draw: Draw) -> SchedulerConfig:
    style = draw.pick(
        [
            {},
            {},
            {"prefill_first": True},
            {"chunked_prefill": True},
            {"chunked_prefill": True},
            {"batching": "request"},
            {"demand_free_block_per_seq": True, "count_max_seqs": True},
        ]
    )
    # Small budgets make chunks, and refills that take several steps.
    budgets = [8, 12] if "chunked_prefill" in style else [8, 16, 32, 256]
    max_num_seqs = draw.pick([4, 6, 8, 16])
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, draw.pick(budgets)),
        max_model_len=MAX_MODEL_LEN,
        preemption=draw.pick(["auto", "auto", "swap", "swap", "recompute", "recompute"]),
        forced_preemption=draw.pick([0.0, 0.0, 0.1, 0.35]),
        forced_preemption_seed=draw.integer(0, 99),
        **style,
    )


LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 18, 23, 30, 70)
"""Of prompts; the last is impossible."""


def draw_request(
    draw: Draw, name: str, text: bool, longest: int = LENGTHS[-1], alike: bool = False
) -> Request:
    """
    Args:
        alike: its prompt is of one of two families.
    """
    length = draw.pick([length for length in LENGTHS if length <= longest])
    first = draw.integer(0, 60)
    prompt = tuple((first + 7 * i * i) % 61 for i in range(length))
    if alike:
        prompt = family(first % 2, length)
    return Request(name, prompt, _draw_params(draw, text), draw.pick([0, 0, 0, 1, 2]))


def family(first: int, length: int) -> tuple[int, ...]:
    """The prompts of a family begin alike. Those of different ones differ in their first block,
    and in nothing else."""
    return tuple((first * (i < BLOCK_SIZE) + 7 * i * i) % 61 for i in range(length))


def draw_sharing(draw: Draw, cache: CacheConfig) -> tuple[CacheConfig, tuple[int, ...]]:
    """How a paged pool shares prefixes, and the one that is registered, if any."""
    sharing = draw.pick([True, True, "registered"])
    prefix = (
        family(0, draw.pick([4, 8, 9])) if sharing == "registered" or not draw.integer(0, 2) else ()
    )
    return replace(cache, prefix_caching=sharing), prefix


def _draw_params(draw: Draw, text: bool) -> SamplingParams:
    max_tokens = draw.pick([1, 2, 4, 5, 8, 9, 12, 16, 20, 40, None])
    options = {
        "seed": draw.integer(0, 1000),
        "max_tokens": max_tokens,
        "stop_token_ids": draw.pick([(), (), (5, 6, 7)]),
        "ignore_eos": draw.pick([False, True]),
        "logprobs": draw.pick([None, None, 0, 2]),
        "prompt_logprobs": draw.pick([None, None, None, 1]),
        "min_tokens": draw.pick([0, 0, 3]) if (max_tokens or 3) >= 3 else 0,
    }
    kind = draw.pick(["greedy", "sample", "sample", "siblings", "siblings", "best_of", "beams"])
    if kind == "beams":
        width = draw.integer(2, 4)
        return SamplingParams(
            use_beam_search=True,
            n=draw.integer(1, width),
            best_of=width,
            length_penalty=draw.pick([0.0, 1.0, 2.0]),
            early_stopping=draw.pick([True, False, "never"]),
            **options,
        )
    if kind == "siblings":
        options["n"] = draw.integer(2, 4)
    if kind == "best_of":
        options["n"], options["best_of"] = draw.integer(1, 2), draw.integer(3, 4)
    return SamplingParams(
        temperature=0.0 if kind == "greedy" else draw.pick([0.7, 1.0]),
        top_k=draw.pick([0, 0, 10]),
        top_p=draw.pick([1.0, 1.0, 0.9]),
        frequency_penalty=draw.pick([0.0, 0.0, 1.0]),
        repetition_penalty=draw.pick([1.0, 1.0, 1.3]),
        stop=draw.pick([(), (), ("ab", "hg"), ("cde",)]) if text else (),
        **options,
    )


@dataclass(frozen=True)
class Scenario:
    """What happens before each step, by its number, until all requests have come."""

    seed: int
    scheduler: SchedulerConfig
    cache: CacheConfig
    text: bool
    adds: tuple[tuple[Request, ...], ...]
    aborts: tuple[tuple[str, ...], ...]
    victims: tuple[str, ...]
    """States: in each one request is aborted, as soon as there is one."""
    failures: frozenset[int]
    """Steps that fail on the device."""
    alike: bool = False
    """Do prompts begin alike, and share what they begin with?"""
    prefix: tuple[int, ...] = ()
    """A registered prefix."""

    @classmethod
    def seeded(cls, seed: int, alike: bool = False) -> Scenario:
        draw = SeededDraw(seed)
        text = draw.pick([False, True])
        scheduler, cache = draw_scheduler(draw), draw_cache(draw)
        longest = draw.pick([7, LENGTHS[-1]])
        adds: list[tuple[Request, ...]] = []
        aborts: list[tuple[str, ...]] = []
        names: list[str] = []
        while len(names) < NUM_REQUESTS:
            new = [f"r{len(names) + i}" for i in range(draw.pick([0, 1, 2]))]
            some = [draw_request(draw, name, text, longest, alike) for name in new]
            adds.append(tuple(some))
            names += new
            out = () if draw.integer(0, 6) else (draw.pick([*names, "nobody"]),)
            aborts.append(out * draw.pick([1, 1, 2]))
        states = tuple(state for state in STATES if not draw.integer(0, 3))
        failures: frozenset[int] = frozenset()
        if cache.reservation == "paged" and not draw.integer(0, 3):
            failures = frozenset(draw.integer(1, 30) for _ in range(3))
        prefix: tuple[int, ...] = ()
        if alike and cache.reservation == "paged":
            cache, prefix = draw_sharing(draw, cache)
        return cls(
            seed, scheduler, cache, text, tuple(adds), tuple(aborts), states, failures,
            alike, prefix,
        )  # fmt: skip

    @property
    def requests(self) -> list[Request]:
        return [request for requests in self.adds for request in requests]

    def run(self, events: Counter[str] | None = None, parts: Parts | None = None) -> TestedEngine:
        """Live through it on a checked engine, to the end."""
        engine = TestedEngine(
            self.scheduler, self.cache, text=self.text, events=events, prefix=self.prefix,
            parts=parts,
        )  # fmt: skip
        states = list(self.victims)
        for step in range(len(self.adds) + LIFE_AFTER):
            for request in self.adds[step] if step < len(self.adds) else ():
                engine.add(request)
            for name in self.aborts[step] if step < len(self.aborts) else ():
                engine.abort(name)
            states = [state for state in states if not engine.abort_any(state)]
            engine.fail_next = step in self.failures
            engine.step()
        engine.run()
        return engine
