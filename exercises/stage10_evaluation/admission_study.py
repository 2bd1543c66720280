"""The paper's question in a toy of one page (section 3): of the requests that arrive, how many can
a KV cache hold at a time, if each reserves its room at admission, and how many if it takes a block
when it needs one?

The toy has no model and no clock but a count of steps. It knows how many slots the cache has, and
who holds how many of them. It does not know *where* they are: a reservation fits whenever enough
slots are free, side by side or not. Real contiguous systems do worse, by what stage 1 calls
external fragmentation; what is lost here is lost to reservations alone.

Stage 10, the evaluation::

    read    lessons/10-evaluation.md
    write   10.4  Admission  10 points
    also    robustness 10 points
    check   minipaged grade 10
    stuck   minipaged hint 10.4
    use it  minipaged sim --parts mine
    next    minipaged grade: how far you are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    raise NotImplementedError("stage 10, task 10.4: see lessons/10-evaluation.md")


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
    raise NotImplementedError("stage 10, task 10.4: see lessons/10-evaluation.md")
