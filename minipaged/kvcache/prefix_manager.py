"""A paged block manager whose sequences share what they begin with (paper, sections 4.4 and 6.4).

Two kinds of prefixes are shared. A *registered* one was named beforehand, as a provider names the
system prompts that many requests begin with; once it is computed its blocks stay for good.
*Automatic* caching shares whatever was computed before, as long as its blocks are not needed for
something else.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, cast

from minipaged.errors import DoubleFree, InvariantError, OutOfBlocks, RequestError
from minipaged.kvcache.manager import PagedKVManager

if TYPE_CHECKING:
    from minipaged.kvcache.block_allocator import BlockAllocator
    from minipaged.kvcache.prefix_cache import PrefixCache
    from minipaged.parts import Parts
    from minipaged.sequence import Sequence, SequenceGroup


class CachingPool:
    """A :class:`~minipaged.kvcache.block_allocator.BlockAllocator` that gives up cached blocks
    last.

    For each cached block it keeps one reference of its own in the pool below, which nobody else
    sees: a block of which that is the only one counts as free, and is evicted when it is needed.
    """

    def __init__(self, pool: BlockAllocator, cache: PrefixCache) -> None:
        self._pool = pool
        self._cache = cache
        self.num_blocks = pool.num_blocks
        self.name = pool.name
        self.num_changes = 0
        """How often something else could be found than before."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return self._pool.num_free + self._cache.num_idle

    @property
    def free_blocks(self) -> list[int]:
        """The next to be handed out is the last: idle cached blocks come before all others."""
        return self._cache.idle_blocks[::-1] + self._pool.free_blocks

    def allocate(self) -> int:
        (block,) = self.allocate_many(1)
        return block

    def allocate_many(self, count: int) -> list[int]:
        if count > self.num_free:
            raise OutOfBlocks(
                f"the {self.name} pool is exhausted: {count} blocks were asked for, "
                f"{self.num_free} of {self.num_blocks} are free"
            )
        for _ in range(count - self._pool.num_free):
            self._pool.free(self._cache.evict())
            self.num_changes += 1
        return self._pool.allocate_many(count)

    def share(self, block: int) -> None:
        """Add a reference to a block that is held, or take a cached one that is idle."""
        self._pool.share(block)
        self._cache.acquire(block)

    def free(self, block: int) -> bool:
        if self._cache.is_idle(block):
            raise DoubleFree(f"double free: block {block} of the {self.name} pool is free")
        if self._pool.free(block):
            return True
        if block not in self._cache or self._pool.ref_count(block) > 1:
            return False
        self._cache.release(block)
        return True

    def free_many(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.free(block)

    def ref_count(self, block: int) -> int:
        return self._pool.ref_count(block) - (block in self._cache)

    def show(self, digest: bytes, token_ids: list[int], block: int) -> bool:
        """Let a block that is held be found; False if another one is found by this digest."""
        new = self._cache.insert(digest, token_ids, block)
        if new:
            self._pool.share(block)
            self.num_changes += 1
        return new

    def forget(self) -> None:
        """No block can be found any more; those that are idle go back to the pool."""
        self._pool.free_many(self._cache.clear())
        self.num_changes += 1


class _Chain:
    """What is known of a sequence.

    Attributes:
        digests: of its full blocks.
        num_shown: blocks, from its first one on, that have been shown.
        hits, seen: while it waits, the blocks that it was found in, and the pool's ``num_changes``
            by then.
    """

    __slots__ = ("digests", "hits", "num_shown", "seen")

    def __init__(self, digests: list[bytes], num_shown: int = 0) -> None:
        self.digests = digests
        self.num_shown = num_shown
        self.hits: list[int] = []
        self.seen = -1


class PrefixKVManager(PagedKVManager):
    """Implements :class:`minipaged.contracts.PrefixSharing`.

    A group that was preempted finds its own blocks again, if nobody needed them meanwhile. Not so
    the several sequences of one that is recomputed in its shape: they compute all of it again, in
    blocks of their own.

    Attributes:
        cached: the blocks that can be found.
    """

    shares_prefixes = True

    def __init__(
        self,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        block_size: int,
        parts: Parts,
        *,
        automatic: bool = True,
    ) -> None:
        """
        Args:
            automatic: False: nothing but registered prefixes is shared.
        """
        super().__init__(num_gpu_blocks, num_cpu_blocks, block_size, parts)
        self.cached: PrefixCache = parts.PrefixCache(block_size)
        self._pool = CachingPool(self.gpu, self.cached)
        self.gpu = cast("BlockAllocator", self._pool)
        self._automatic = automatic
        self._chains: dict[int, _Chain] = {}
        #: digest of each block of a registered prefix -> the block, once it is computed: pinned
        self._registered: dict[bytes, int | None] = {}
        #: blocks from the beginning of a sequence that somebody may look for
        self._most_shared = sys.maxsize if automatic else 0

    @property
    def num_usable_gpu_blocks(self) -> int:
        return self.num_gpu_blocks - len(self._pinned())

    def _pinned(self) -> list[int]:
        """Blocks of registered prefixes: each has a reference that no sequence accounts for."""
        return [block for block in self._registered.values() if block is not None]

    # -- admission ---------------------------------------------------------------------------
    def cached_tokens(self, group: SequenceGroup) -> int:
        return len(self._hits(group)) * self.block_size

    def _hits(self, group: SequenceGroup) -> list[int]:
        """The cached blocks that a waiting group begins with."""
        # Log-probabilities of the prompt need the logits at every token of it.
        wants_logits = group.params.prompt_logprobs is not None and not group.started
        if group.shape is not None or wants_logits:
            return []
        seq = self._only(group)
        chain = self._chain(group, seq)
        if chain.seen != self._pool.num_changes:
            chain.hits = self.cached.match(seq.token_ids, chain.digests)
            chain.seen = self._pool.num_changes
        return chain.hits

    def _chain(self, group: SequenceGroup, seq: Sequence) -> _Chain:
        """What is known of a sequence, with the digests of all its tokens that may be shared."""
        chain = self._chains.get(seq.seq_id)
        if chain is None:
            chain = self._chains[seq.seq_id] = _Chain([])
        known, size = chain.digests, self.block_size
        limit = min(len(seq.token_ids) // size, self._most_shared)
        if len(known) < limit:
            tokens = seq.token_ids if self._automatic else seq.token_ids[: limit * size]
            chain.digests = self.cached.digests(tokens, group.cache_salt, known)
        return chain

    def fits(self, group: SequenceGroup, headroom: int = 0) -> bool:
        hits = self._hits(group)
        if not super().fits(group, headroom - len(hits)):
            return False
        # A hit on a block that others hold is for nothing; an idle one is free until it is taken.
        held = sum(not self.cached.is_idle(block) for block in hits)
        return super().fits(group, headroom - held)

    def fits_ever(self, group: SequenceGroup) -> bool:
        pinned = len(set(self._pinned()).intersection(self._hits(group)))
        return self.blocks_needed(group) - pinned <= self.num_usable_gpu_blocks

    def allocate(self, group: SequenceGroup) -> None:
        hits = self._hits(group)
        if not hits:
            super().allocate(group)
            return
        if not self.fits(group):
            raise OutOfBlocks(
                f"the GPU pool is exhausted: {self.blocks_needed(group)} blocks were asked for, of "
                f"which {len(hits)} are cached, {self.gpu.num_free} of {self.num_gpu_blocks} are "
                "free"
            )
        seq = self._only(group)
        table = self.parts.BlockTable(self.gpu, self.block_size)
        # Before anything is allocated, which could evict them.
        for block in hits:
            self.gpu.share(block)
        table.blocks += hits
        table.num_tokens = len(hits) * self.block_size
        table.append(seq.num_tokens - table.num_tokens)
        self.tables[seq.seq_id] = table
        self._chain(group, seq).num_shown = len(hits)

    # -- growth ------------------------------------------------------------------------------
    def publish(self, groups: Iterable[SequenceGroup]) -> None:
        size, most, chains = self.block_size, self._most_shared, self._chains
        for group in groups:
            if group.prefilling and len(group.seqs) > 1:
                # Siblings count a shared block as computed before its first holder has done it.
                continue
            for seq_id, seq in group.seqs.items():
                chain = chains.get(seq_id)
                shown = chain.num_shown if chain is not None else 0
                if shown < most and shown < seq.num_computed // size:
                    self._show(group, seq)

    def _show(self, group: SequenceGroup, seq: Sequence) -> None:
        """Let the blocks of a sequence be found that are full and computed."""
        chain = self._chain(group, seq)
        size, blocks = self.block_size, self.block_table(seq.seq_id)
        full = min(seq.num_computed // size, self._most_shared)
        for i in range(chain.num_shown, full):
            digest = chain.digests[i]
            if not self._automatic and digest not in self._registered:
                continue
            new = self._pool.show(digest, seq.token_ids[i * size : (i + 1) * size], blocks[i])
            if new and digest in self._registered:
                self._pin(digest, blocks[i])
        chain.num_shown = full

    def fork(self, parent: Sequence, child: Sequence) -> None:
        super().fork(parent, child)
        chain = self._chains.get(parent.seq_id)
        if chain is not None:
            self._chains[child.seq_id] = _Chain(chain.digests, chain.num_shown)

    def free(self, seq: Sequence) -> None:
        self._chains.pop(seq.seq_id, None)
        super().free(seq)

    def forget(self) -> None:
        for digest, block in self._registered.items():
            if block is not None:
                self.gpu.free(block)
                self._registered[digest] = None
        self._pool.forget()

    # -- registered prefixes -----------------------------------------------------------------
    def register(self, token_ids: Seq[int]) -> int:
        digests = self.cached.digests(token_ids)
        blocks = len(self._registered.keys() | digests)
        if blocks >= self.num_gpu_blocks:
            raise RequestError(
                f"a prefix of {len(token_ids)} tokens would make {blocks} blocks of registered "
                f"prefixes; the whole pool has {self.num_gpu_blocks}, and at least one of them "
                "must be left"
            )
        for digest in digests:
            if digest not in self._registered:
                self._registered[digest] = None
                block = self.cached.block_of(digest)
                if block is not None:
                    self._pin(digest, block)
        self._most_shared = max(self._most_shared, len(digests))
        return len(digests) * self.block_size

    def _pin(self, digest: bytes, block: int) -> None:
        self.gpu.share(block)
        self._registered[digest] = block

    # -- looking -----------------------------------------------------------------------------
    def check(self, groups: Seq[SequenceGroup]) -> None:
        super().check(groups)
        for block in range(self.num_gpu_blocks):
            unheld = block in self.cached and self.gpu.ref_count(block) == 0
            if self.cached.is_idle(block) != unheld:
                raise InvariantError(
                    "I2",
                    f"GPU block {block} is {'' if unheld else 'not '}cached without a reference, "
                    f"and {'not ' if unheld else ''}in the line of idle blocks",
                )

    def _held(self, pool: BlockAllocator) -> Counter[int]:
        held = super()._held(pool)
        if pool is self.gpu:
            held.update(self._pinned())
        return held
