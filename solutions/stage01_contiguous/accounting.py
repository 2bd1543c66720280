"""Stage 1, four memory classes: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kvcache/accounting.py`` beside this.

**Why borders.** The slots of a sequence are a line. From left to right: shared, used, to be used,
asked for, held. Once these are five numbers of which none is below the one before, every class is a
difference of two neighbors, no slot is left out, and none is counted twice. The alternative, an
``if`` for each case (has it outgrown its guess? is it paged? is it shared?), has more cases than
anyone can keep in mind.

**Why external is what remains.** Free slots, and what the allocator added by rounding, have in
common that no request asked for them. They are what the pool has beyond the sum of the rest. So
the four always add up to the pool, and a sum that is larger than the pool can be told at once.

**Why rounding is external.** Internal fragmentation is what a request asked for and will not use:
the fault of the guess. What the allocator adds is the allocator's fault, whatever was asked. The
paper draws the line there, and with Oracle one sees why: its guess is exact, its internal
fragmentation is 0.0 %, and 36.6 % of the memory is lost all the same.

**Why num_computed.** The last sampled token of a running sequence has no key and no value yet. With
a batch of 40 the difference is 40 slots in a pool of thousands, so nobody would see it in a chart.
It is the same difference that makes attention read one token too many.

**Why the meter has weights.** A step with 2 sequences takes less time than one with 40. A mean over
steps says what the average step saw; a mean over time says what the memory was used for.

Usual mistakes
--------------

* ``reserved = final - tokens`` without a cap: a paged sequence "reserves" slots that it does not
  hold, and one that has outgrown its guess reserves a negative number.
* ``internal = slots - final``: that takes in the allocator's rounding.
* To forget regions in which no sequence is yet. They are held, and nobody else can have them.
* To count shared blocks for each holder. The token states then exceed the pool, as soon as there
  are enough samples of one prompt.
* To divide by the number of steps.

Cost
----

O(sequences) for the classes; O(entries of all tables) for ``sequence_memory`` in a paged manager,
because of the shared blocks. It is done for figures, not in the serving loop.
"""

from minipaged.kvcache.accounting import (
    MemoryClasses,
    MemoryMeter,
    SequenceMemory,
    memory_classes,
    sequence_memory,
)

__all__ = [
    "MemoryClasses",
    "MemoryMeter",
    "SequenceMemory",
    "memory_classes",
    "sequence_memory",
]
