"""Stage 8, traffic: the answer is the engine's own, and here is why it is so.

Read ``minipaged/kernels/traffic.py`` beside this.

**Why the bytes are counted at all.** A decode takes as long as its bytes take, so a kernel that
moves twice what it must takes twice as long, however clever it is otherwise. The bytes can be
counted without a GPU; and how wide they are loaded stands in the machine code.

**Why "must" is a lower bound.** What two programs read is counted once, as if a cache held it. A
kernel can do no better; how near it comes is a ratio, *must / does*.

**Why a prefill is counted by tiles.** There the same keys are read by tile after tile, and it is
the choice of the tile that says how often. With ``tile_rows=None`` it is a lower bound like the
others.

**Why an empty context moves something.** Its length has to be read to be known, and its row of the
output is written: zero. Its query is not needed.

Usual mistakes
--------------

* Query heads where it is KV heads: that is version 0's number.
* Entries of the table rounded down. A block with one token has an entry.
* Empty parts counted in the workspace. They leave their logarithm, and no result.
* In a prefill the last tile counted as if it were full: its last query is the chunk's last.

Cost
----

Nothing: it is arithmetic on shapes. For one step of OPT-13B with 32 sequences of 1,000 tokens it
says 0.66 GB a layer and 26 GB in all, which at 1,555 GB/s is 17 ms: as long as the weights take.
"""

from minipaged.kernels.traffic import (
    AttentionShape,
    Traffic,
    block_copy_traffic,
    cache_write_traffic,
    decode_intensity,
    decode_traffic,
    floor_seconds,
    prefill_traffic,
    split_traffic,
)

__all__ = [
    "AttentionShape",
    "Traffic",
    "block_copy_traffic",
    "cache_write_traffic",
    "decode_intensity",
    "decode_traffic",
    "floor_seconds",
    "prefill_traffic",
    "split_traffic",
]
