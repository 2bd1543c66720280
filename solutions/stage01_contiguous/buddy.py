"""Stage 1, the buddy allocator: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/buddy.py`` beside this: three things are kept. The free chunks of each
length, sorted; the length of each held region; the number of free blocks.

**Why lengths are powers of two.** A chunk of 8 can be halved three times, and each half has exactly
one partner. So the question "with whom may this chunk merge?" has one answer, which needs no list
of neighbors. The price is rounding: a request for 5 blocks takes 8.

**Why XOR finds the buddy.** Chunks of length s start at multiples of s, counted from their root
chunk. Two buddies make a chunk of 2s, which starts at a multiple of 2s. So one of them starts at
such a multiple and the other s further: in binary their first blocks differ in the bit s, and in no
other. ``start ^ s`` turns that bit over, ``start & ~s`` is the one of the two that is lower.

**Why that works in a pool of any size.** Root chunks are laid out longest first, so that each of
them starts at a multiple of its own length too. Behind ``start ^ s`` of a whole root chunk there
is either nothing, or a chunk of another length: no free chunk of length s starts there. Only
between two root chunks of ``max_chunk`` blocks would it find a partner, so merging stops at that
length.

**Why the lowest address.** Any rule would do for correctness. A fixed one makes runs repeatable,
and the low end fills first, which leaves the high end whole for longer.

**Why merging is done at once.** "No two free buddies side by side" holds after every call. An
allocator that merges only when it has run out must search then, in the very moment when somebody
waits.

Usual mistakes
--------------

* To merge with any free neighbor of the same length. Blocks 4 to 7 and 8 to 11 touch, but a chunk
  that starts at 4 and has 8 blocks is none that a split could have made: its buddy is nowhere.
* To merge once. The chunk that two buddies make has a buddy itself.
* To look at the number of free blocks. Half of the pool can be free, one block here and one there,
  and no region of two is to be had.
* To halve and keep the longer list's order by luck. ``pop(0)`` is the lowest only if the list is
  sorted.

Cost
----

With chunks of up to 2^k blocks, allocate splits at most k times, and free merges at most k times;
k is 7 with the defaults. A sorted Python list adds a shift of its entries at each insertion. One
allocate and one free in a half full pool take 2 to 3 µs with 983 blocks. With 61,392, they take
about 10: the lists are longer. Linux, whose page allocator is a buddy system, keeps linked lists,
and notes in the first page of a free chunk how long it is: O(k) in all.

Memory is what it costs in earnest. With the lengths of ShareGPT, and with the output's length known
exactly, 36.6 % of the pool is lost to rounding and scattering ("external and others" of Orca Oracle
in the paper's figure 2).
"""

from minipaged.kvcache.buddy import BuddyAllocator, next_power_of_two

__all__ = ["BuddyAllocator", "next_power_of_two"]
