"""Finding the beginning of a sequence in blocks that were computed for another one (paper, section
4.4, "shared prefix"; later engines call it automatic prefix caching).

Keys and values of a token depend on all tokens before it. So a block stands for another one only
if it holds the same tokens *and* everything before it is the same, and that is what a block is
found by: a digest of its tokens and of the digest before it, which goes on like a chain::

    tokens   [3 1 4 1] [5 9 2 6] [5 3 ...        B = 4
    digests      d0  ->    d1                    d1 = digest of (d0, 5 9 2 6)

Only full blocks have a digest: they are never written again, so anybody may share them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import NamedTuple

from minipaged.errors import OutOfBlocks


class PrefixCache:
    """Which full, computed blocks can be found by what they hold, and which of them go first.

    It knows the numbers of blocks and nothing of pools: whoever owns the pool keeps a block out of
    the free list as long as it is in here, and says who is *idle*. A cached block is idle while no
    sequence holds it. Idle blocks wait in a line, and :meth:`evict` takes the one that has been
    idle longest: least recently used goes first.

    Attributes:
        block_size: tokens a block.

    Example (``B = 4``)::

        cache = PrefixCache(block_size=4)
        first = [3, 1, 4, 1, 5, 9]                # one full block, and two tokens
        (d0,) = cache.digests(first)
        cache.insert(d0, [3, 1, 4, 1], block=7)   # True: computed, and held by a sequence
        later = [3, 1, 4, 1, 2]
        cache.match(later, cache.digests(later))  # [7]
        cache.release(7)                          # the sequence is over
        cache.evict()                             # 7; nobody finds it any more
    """

    def __init__(self, block_size: int) -> None:
        """An empty cache."""
        self.block_size = block_size
        self._entries: dict[bytes, _Entry] = {}
        self._digest_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Blocks that can be found."""
        return len(self._digest_of)

    def __contains__(self, block: object) -> bool:
        """Can this block be found?"""
        return block in self._digest_of

    # -- finding -----------------------------------------------------------------------------
    def digests(self, token_ids: Seq[int], salt: str = "", known: Seq[bytes] = ()) -> list[bytes]:
        """The digest of every full block of a sequence, in order.

        Digest ``i`` is a cryptographic one of the salt and of tokens ``0`` to ``(i + 1) * B - 1``:
        two sequences have equal digests for as many blocks as they are equal, and no more, so that
        nobody can make up a text that is taken for another.

        Args:
            salt: sequences with different salts have no digest in common: whoever must not learn
                what others have asked for (an answer that comes fast tells) has a salt of their
                own.
            known: the first of the digests, where they were made before: they are taken as they
                are, and only what comes behind is computed.

        Example (``B = 4``): 11 tokens have two digests, 3 tokens have none.
        """
        size = self.block_size
        found = list(known)
        begin, end = len(found) * size, len(token_ids) // size * size
        if begin >= end:
            return found
        parent = found[-1] if found else hashlib.sha256(salt.encode()).digest()
        words = array("q", token_ids[begin:end])
        data, width = memoryview(words).cast("B"), words.itemsize * size
        for at in range(0, len(data), width):
            parent = hashlib.sha256(parent + data[at : at + width]).digest()
            found.append(parent)
        return found

    def match(self, token_ids: Seq[int], digests: Seq[bytes]) -> list[int]:
        """The blocks that hold the beginning of a sequence, from its first block on, as far as it
        can be found; changes nothing.

        The last token is never found: its logits are wanted, so it has to be computed, and it is
        written to a block that nobody else holds. So there are at most ``(P - 1) // B`` blocks for
        ``P`` tokens. A block counts only if its tokens are those of the sequence, whatever the
        digest says, and if all before it count.

        Args:
            token_ids: a list of at least one token.
            digests: of its full blocks, as :meth:`digests` gives them.

        Example (``B = 4``): of 8 tokens at most one block is found, of 9 tokens two.
        """
        size = self.block_size
        blocks: list[int] = []
        for i, digest in enumerate(digests[: (len(token_ids) - 1) // size]):
            entry = self._entries.get(digest)
            if entry is None or entry.token_ids != token_ids[i * size : (i + 1) * size]:
                break
            blocks.append(entry.block)
        return blocks

    def block_of(self, digest: bytes) -> int | None:
        """The block that is found by a digest; None if there is none."""
        entry = self._entries.get(digest)
        return entry.block if entry is not None else None

    # -- filling -----------------------------------------------------------------------------
    def insert(self, digest: bytes, token_ids: list[int], block: int) -> bool:
        """Let a block be found from now on. It is full, its keys and values are computed, and a
        sequence holds it: it is not idle.

        Where a block is found by this digest already, that one stays, and nothing changes: two
        sequences have computed the same at the same time, and one copy is enough.

        Args:
            token_ids: the block's own, ``B`` of them.

        Returns:
            Is the block new here?
        """
        if digest in self._entries:
            return False
        self._entries[digest] = _Entry(block, token_ids)
        self._digest_of[block] = digest
        return True

    # -- leaving -----------------------------------------------------------------------------
    @property
    def num_idle(self) -> int:
        """Cached blocks that no sequence holds."""
        return len(self._idle)

    @property
    def idle_blocks(self) -> list[int]:
        """The idle blocks; the next to be evicted comes first. A copy."""
        return list(self._idle)

    def is_idle(self, block: int) -> bool:
        """Is this a cached block that no sequence holds?"""
        return block in self._idle

    def release(self, block: int) -> None:
        """No sequence holds this cached block any more: it is idle, the last in the line."""
        self._idle[block] = None

    def acquire(self, block: int) -> None:
        """A sequence holds this cached block: it is not idle, if it was."""
        self._idle.pop(block, None)

    def evict(self) -> int:
        """Give up the block that has been idle longest: it is in the cache no more.

        Returns:
            The block, for other tokens.

        Raises:
            OutOfBlocks: no block is idle; the message says how many are cached.
        """
        if not self._idle:
            raise OutOfBlocks(f"none of the {len(self)} cached blocks is idle: all are held")
        block, _ = self._idle.popitem(last=False)
        del self._entries[self._digest_of.pop(block)]
        return block

    def clear(self) -> list[int]:
        """Forget everything.

        Returns:
            The blocks that could be found, idle or not.
        """
        blocks = list(self._digest_of)
        self._entries.clear()
        self._digest_of.clear()
        self._idle.clear()
        return blocks


class _Entry(NamedTuple):
    block: int
    token_ids: list[int]
