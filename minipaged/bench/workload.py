"""The requests of the throughput benchmark: real text, mixed lengths, the same for every engine."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minipaged.sim.workloads import Request, Workload

if TYPE_CHECKING:
    from minipaged.contracts import Tokenizer

OUTPUT_LENGTHS = (8, 16, 32, 64, 96)
PROMPT_LENGTHS = (16, 95)

_TEXT = """
The harbor was quiet in the morning. Two boats came in with the tide, and the men on the pier
caught the ropes and tied them to the iron rings. A girl with a basket counted the fish as they
were lifted out, and wrote the number on a slate. Above the town the bells of the old church
rang seven times. In the bakery on the corner the first loaves were already on the shelf, and
the smell of bread went through the narrow streets as far as the market place. There the
farmers had set up their tables: apples in wooden boxes, onions on strings, cheese under a wet
cloth, and honey in jars that shone in the sun. An old teacher walked from table to table and
asked the same questions every week: where the pears came from, how the bees had done, and
whether it would rain. Nobody knew about the rain. The wind had turned in the night, and the
clouds over the hills were long and thin. A boy who wanted to be a sailor said that it would
stay dry, because the gulls were sitting on the water. A woman who had been a sailor laughed,
and said that gulls sit where they like. At noon the sky was gray and the first drops fell on
the stones. The farmers pulled sheets over their tables, the children ran under the arches of
the town hall, and the teacher opened his umbrella and went on asking questions. Later, when
the sun was back, the market place looked as if somebody had washed it, and a rainbow stood
over the harbor with one foot on the sea and the other on the roof of the bakery.
"""


@dataclass(frozen=True)
class Job:
    """One request: so many prompt tokens, and exactly so many output tokens."""

    prompt_token_ids: list[int]
    output_len: int


def make_workload(tokenizer: Tokenizer, num_requests: int, seed: int = 0) -> list[Job]:
    """Prompts cut from real text at random places, and output lengths at random.

    Greedy decoding on real text keeps the two likeliest tokens apart nearly always, so that
    engines whose sums differ in the last bit can be held to the same token ids.
    """
    dice = random.Random(seed)
    ids = tokenizer.encode(" ".join(_TEXT.split()))
    jobs = []
    for _ in range(num_requests):
        length = dice.randint(*PROMPT_LENGTHS)
        start = dice.randrange(len(ids) - length)
        jobs.append(Job(ids[start : start + length], dice.choice(OUTPUT_LENGTHS)))
    return jobs


def as_load(
    jobs: list[Job], rate: float = math.inf, burstiness: float = 1.0, seed: int = 0
) -> Workload:
    """The same requests with arrival times, for :func:`minipaged.bench.load.serve_load`.

    Args:
        rate: requests a second, on average; infinite: all at once.
        burstiness: shape of the gamma distribution of the times between arrivals.
    """
    requests = tuple(Request(0.0, len(job.prompt_token_ids), job.output_len) for job in jobs)
    longest = max(request.total_len for request in requests)
    if math.isinf(rate):
        return Workload("mixed lengths at once", requests, longest)
    name = f"mixed lengths at {rate:g} req/s"
    return Workload(name, requests, longest).redrawn(rate, seed, burstiness)
