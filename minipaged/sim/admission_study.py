"""The paper's question in a toy of one page (section 3): of the requests that arrive, how many can
a KV cache hold at a time, if each reserves its room at admission, and how many if it takes a block
when it needs one?

The toy has no model and no clock but a count of steps. It knows how many slots the cache has, and
who holds how many of them. It does not know *where* they are: a reservation fits whenever enough
slots are free, side by side or not. Real contiguous systems do worse, by what stage 1 calls
external fragmentation; what is lost here is lost to reservations alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from minipaged.errors import ConfigError, RequestError
from minipaged.sim.records import RequestRecord

Policy = Literal["max", "pow2", "oracle", "paged"]
POLICIES = ("max", "pow2", "oracle", "paged")


@dataclass(frozen=True)
class Study:
    """What came of it.

    Attributes:
        records: of all requests, in their order. A token's time is the end of its step; the last
            one's is the end of the request.
        mean_batch: requests that run, in the mean over all steps in which one does.
        token_share: of the slots that are held, the share with a token in them: both counted in
            each step, when its tokens are there, and added up over all steps.
        mean_wait: seconds from a request's arrival to the beginning of the step in which it is
            admitted for the first time, in the mean over all that were served.

    The three means are ``nan`` if nothing was served.
    """

    records: list[RequestRecord]
    mean_batch: float
    token_share: float
    mean_wait: float


def slots_reserved(
    policy: Policy,
    prompt_len: int,
    output_len: int,
    *,
    block_size: int = 16,
    max_model_len: int = 2048,
) -> int:
    """Slots that a request takes when it is admitted.

    ========== =============================================================================
    ``max``    as many as the longest request that the model allows
    ``pow2``   the prompt, and the output's length rounded up to a power of two; but never
               more than ``max``
    ``oracle`` the prompt and the output
    ``paged``  whole blocks, as few as hold the prompt and the first token of the output
    ========== =============================================================================

    Only ``paged`` has blocks, and only it takes more later.

    Args:
        prompt_len: tokens that are there at admission.
        output_len: tokens that will be made. ``oracle`` is told it, ``pow2`` its rounded value.

    Raises:
        ConfigError: there is no such policy, or block_size or max_model_len is not positive; the
            message names the value.
        RequestError: prompt or output has no token, or they are longer than ``max_model_len``
            together; the message names the lengths.

    Example: 100 tokens of prompt and 33 of output reserve 2048 (``max``), 164, 133 and, in blocks
    of 16, 112 slots.
    """
    _check_settings(policy, block_size=block_size, max_model_len=max_model_len)
    if min(prompt_len, output_len) < 1 or prompt_len + output_len > max_model_len:
        raise RequestError(
            f"a request of {prompt_len} + {output_len} tokens: there must be one of each, and "
            f"{max_model_len} at most"
        )
    if policy == "max":
        return max_model_len
    if policy == "pow2":
        return min(prompt_len + (1 << (output_len - 1).bit_length()), max_model_len)
    if policy == "oracle":
        return prompt_len + output_len
    return _whole_blocks(prompt_len + 1, block_size)


def study(
    requests: Sequence[tuple[float, int, int]],
    pool_slots: int,
    policy: Policy,
    *,
    block_size: int = 16,
    max_model_len: int = 2048,
    step_seconds: float = 0.05,
) -> Study:
    """Serve requests in a cache of ``pool_slots`` slots, until all are done.

    Step k, of k = 0, 1, 2, …, lasts from ``k * step_seconds`` to ``(k + 1) * step_seconds``. In
    each of them, in this order:

    1. Who has arrived by the step's beginning, or just then, joins the end of the queue.
    2. ``paged`` only: those that run, first admitted first, take a block each if they have no
       slot left for the token that this step makes. When no block is free, the one that was
       admitted last is *preempted*, which may be the very one that asks: it gives back all its
       slots, and goes to the head of the queue. That is repeated until there is a block, or the
       one that asks has left.
    3. If nobody was preempted in this step: the head of the queue is admitted if the slots that
       it reserves are free, and then the next one, up to the first for which they are not.
       Nobody overtakes.
    4. All that run make one token, and now hold a token in one slot more. A request makes its
       first one in the step in which it is admitted. With its last one it ends, and its slots
       are free for the next step.

    A preempted request keeps the tokens that it has made; what it has lost is its cache. When it
    is admitted again, these count as a part of its prompt: all is computed once more, in that
    step, and the step makes its next token. Its record counts how often that happened.

    A request that would not fit into an empty cache never joins the queue: one whose reservation
    is larger than the pool, or, if ``paged``, whose last token would need more blocks than there
    are. Its record has an ``error`` with both numbers of slots, and no token.

    Args:
        requests: (arrival in seconds, tokens of the prompt, tokens of the output), in the order
            of their arrival.
        pool_slots: of the cache. Blocks are whole: slots that are too few for one are of no use.
        policy, block_size, max_model_len: as :func:`slots_reserved` takes them.
        step_seconds: what a step takes, however many run.

    Raises:
        ConfigError: as :func:`slots_reserved`, or pool_slots or step_seconds is not positive; the
            message names the value.
        RequestError: as :func:`slots_reserved`, or a request stands before one that arrives
            sooner; the message names its arrival.

    Example: a pool of 8 slots, steps of 1 s, and two requests at 0 s with 2 tokens of prompt and 3
    of output. ``oracle`` reserves 5 slots: they run one after the other and end at 3 and 6 s, the
    second waits 3 s, the mean batch is 1, and of 30 slots held 24 have a token. ``paged`` with
    blocks of 2 admits both with 2 blocks; in step 2 both need a third, and none is left. The second
    is preempted, keeps its two tokens, and makes its last one in step 3: it ends at 4 s.
    """
    _check_settings(policy, pool_slots=pool_slots, step_seconds=step_seconds, block_size=block_size)
    cache = _Cache(pool_slots, policy, block_size, max_model_len)
    coming = deque(cache.jobs(requests))
    records = [job.record for job in coming]
    coming = deque(job for job in coming if not job.record.error)
    batches: list[int] = []
    tokens = held = step = 0
    while coming or cache.queue or cache.running:
        now = step * step_seconds
        while coming and coming[0].record.arrival_time <= now:
            cache.queue.append(coming.popleft())
        if not cache.grow():
            cache.admit(now)
        step += 1
        if cache.running:
            cache.make_tokens(step * step_seconds)
            batches.append(len(cache.running))
            tokens += sum(job.tokens for job in cache.running)
            held += sum(job.slots for job in cache.running)
            cache.end_those_that_are_done()
    return Study(
        records,
        sum(batches) / len(batches) if batches else math.nan,
        tokens / held if held else math.nan,
        sum(cache.waits) / len(cache.waits) if batches else math.nan,
    )


@dataclass(eq=False, slots=True)
class _Job:
    """A request on its way.

    Attributes:
        tokens: of its prompt, and made so far.
        slots: that it holds.
    """

    record: RequestRecord
    tokens: int
    slots: int = 0


@dataclass
class _Cache:
    """A pool of slots, those who hold some, and those who wait for them."""

    free: int
    policy: Policy
    block_size: int
    max_model_len: int
    queue: deque[_Job] = field(default_factory=deque)
    running: list[_Job] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def jobs(self, requests: Sequence[tuple[float, int, int]]) -> list[_Job]:
        """All requests; those that never fit have an error. Nobody holds anything yet."""
        jobs = []
        latest = -math.inf
        for arrival, prompt_len, output_len in requests:
            if arrival < latest:
                raise RequestError(
                    f"the request that arrives at {arrival:g} s stands behind one of {latest:g} s"
                )
            latest = arrival
            record = RequestRecord(arrival, [], None, prompt_len, output_len)
            most = self.reserve(prompt_len, output_len)
            if self.policy == "paged":
                most = _whole_blocks(prompt_len + output_len, self.block_size)
            if most > self.free:
                record.error = f"it needs {most} slots, and the cache has {self.free}"
            jobs.append(_Job(record, prompt_len))
        return jobs

    def reserve(self, prompt_len: int, output_len: int) -> int:
        return slots_reserved(
            self.policy,
            prompt_len,
            output_len,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
        )

    def grow(self) -> bool:
        """A slot for the next token of each; was somebody preempted for it?"""
        preempted, index = False, 0
        while self.policy == "paged" and index < len(self.running):
            job = self.running[index]
            if job.tokens < job.slots:
                index += 1
            elif self.free >= self.block_size:
                self.free -= self.block_size
                job.slots += self.block_size
            else:
                victim = self.running.pop()
                victim.record.num_preemptions += 1
                self.release(victim)
                self.queue.appendleft(victim)
                preempted = True
        return preempted

    def admit(self, now: float) -> None:
        while self.queue:
            job = self.queue[0]
            made = len(job.record.token_times)
            slots = self.reserve(job.tokens, job.record.output_len - made)
            if slots > self.free:
                return
            self.free -= slots
            job.slots = slots
            self.running.append(self.queue.popleft())
            if not made:
                self.waits.append(now - job.record.arrival_time)

    def make_tokens(self, end: float) -> None:
        for job in self.running:
            job.tokens += 1
            job.record.token_times.append(end)

    def end_those_that_are_done(self) -> None:
        for job in self.running:
            record = job.record
            if len(record.token_times) == record.output_len:
                record.finish_time = record.token_times[-1]
                self.release(job)
        self.running = [job for job in self.running if job.record.finish_time is None]

    def release(self, job: _Job) -> None:
        self.free += job.slots
        job.slots = 0


def _whole_blocks(tokens: int, block_size: int) -> int:
    """Slots of the blocks that hold them."""
    return -(-tokens // block_size) * block_size


def _check_settings(policy: str, **sizes: float) -> None:
    if policy not in POLICIES:
        raise ConfigError(f"there is no policy {policy!r}: there are {', '.join(POLICIES)}")
    for name, size in sizes.items():
        if not size > 0:
            raise ConfigError(f"{name} must be positive, not {size}")
