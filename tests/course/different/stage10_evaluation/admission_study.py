"""No objects: lists of numbers, and what is held is added up anew whenever it is asked for."""

from __future__ import annotations

import math
from itertools import pairwise

from minipaged.errors import ConfigError, RequestError
from minipaged.sim.admission_study import Study
from minipaged.sim.records import RequestRecord

__all__ = ["POLICIES", "Study", "slots_reserved", "study"]

POLICIES = ("max", "pow2", "oracle", "paged")


def slots_reserved(policy, prompt_len, output_len, *, block_size=16, max_model_len=2048):
    if policy not in POLICIES or block_size <= 0 or max_model_len <= 0:
        raise ConfigError(f"{policy}, {block_size}, {max_model_len}")
    if prompt_len < 1 or output_len < 1 or prompt_len + output_len > max_model_len:
        raise RequestError(f"{prompt_len} + {output_len} tokens")
    return {
        "max": max_model_len,
        "pow2": min(max_model_len, prompt_len + 2 ** math.ceil(math.log2(output_len))),
        "oracle": prompt_len + output_len,
        "paged": block_size * (prompt_len // block_size + 1),
    }[policy]


def study(requests, pool_slots, policy, *, block_size=16, max_model_len=2048, step_seconds=0.05):
    if pool_slots <= 0 or step_seconds <= 0 or block_size <= 0 or policy not in POLICIES:
        raise ConfigError(f"{pool_slots}, {step_seconds}, {block_size}, {policy}")
    sizes = {"block_size": block_size, "max_model_len": max_model_len}
    for one, other in pairwise(requests):
        if other[0] < one[0]:
            raise RequestError(f"arrival {other[0]} behind {one[0]}")
    records = [RequestRecord(at, [], None, prompt, out) for at, prompt, out in requests]
    for record in records:
        need = slots_reserved(policy, record.prompt_len, record.output_len, **sizes)
        if policy == "paged":
            need = block_size * math.ceil((record.prompt_len + record.output_len) / block_size)
        if need > pool_slots:
            record.error = f"{need} > {pool_slots}"
    held, admitted = {}, {}  # request -> slots, in the order of admission; -> time
    steps = tokens = slots = running = 0
    now = 0.0
    # All requests are served in the order of their arrival, so the queue needs no list.
    while any(not r.error and r.finish_time is None for r in records):
        left = False
        for number in list(held) if policy == "paged" else []:
            size = records[number].prompt_len + len(records[number].token_times)
            while number in held and size + 1 > held[number]:
                if sum(held.values()) + block_size <= pool_slots:
                    held[number] += block_size
                else:
                    last = list(held)[-1]
                    del held[last]
                    records[last].num_preemptions += 1
                    left = True
        for number, record in enumerate(records):
            if left or record.arrival_time > now:
                break
            if record.error or record.finish_time is not None or number in held:
                continue
            made = len(record.token_times)
            lengths = record.prompt_len + made, record.output_len - made
            need = slots_reserved(policy, *lengths, **sizes)
            if sum(held.values()) + need > pool_slots:
                break
            held[number] = need
            admitted.setdefault(number, now)
        now += step_seconds
        for number in list(held):
            record = records[number]
            record.token_times.append(now)
            tokens += record.prompt_len + len(record.token_times)
            slots += held[number]
            running += 1
        steps += bool(held)
        for number in list(held):
            if len(records[number].token_times) == records[number].output_len:
                records[number].finish_time = now
                del held[number]
    if not steps:
        return Study(records, math.nan, math.nan, math.nan)
    waits = [when - records[number].arrival_time for number, when in admitted.items()]
    return Study(records, running / steps, tokens / slots, sum(waits) / len(waits))
