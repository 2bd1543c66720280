# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Stage 07: the paged attention kernel
#
# This notebook runs *your* kernels, in Triton's interpreter, on a CPU. Read
# [lesson 07](../lessons/07-kernel.md) first. A kernel that you have not written yet is the
# reference's, and the notebook says so.
#
# Each load and store of a kernel is noted here, before it happens. So you see which addresses a
# program touches. Seven times you will be asked for a prediction. Write it down before you run the
# cell, then change the value that the cell names and predict again.

# %% tags=["colab", "remove-cell"]
# On Colab this cell installs minipaged. Elsewhere it does nothing: `make setup` has done it.
import sys

REPOSITORY = ""  # on Colab: what you give to `git clone`, or a folder that has the repository

if "google.colab" in sys.modules:
    import subprocess
    import tomllib
    from pathlib import Path

    if not REPOSITORY:
        raise ValueError("set REPOSITORY in this cell to the address of the minipaged repository")
    folder = Path(REPOSITORY)
    if not folder.is_dir():
        folder = Path("/content/minipaged")
        if not folder.is_dir():
            subprocess.run(["git", "clone", "--quiet", REPOSITORY, str(folder)], check=True)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    # pip leaves alone what is in range: Colab's torch stays. Jupyter is Colab's own.
    needed = [line for line in project["dependencies"] if not line.startswith("jupyter")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *needed], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(folder)], check=True)
    sys.path.insert(0, str(folder))

# %%
import os

# Before Triton is imported: a process interprets kernels for good, or compiles them for good.
os.environ["TRITON_INTERPRET"] = "1"

import math
from collections import Counter
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
import triton
import triton.language as tl
from IPython.display import display
from matplotlib.patches import Rectangle

from minipaged import LLM, SamplingParams
from minipaged.audit.memory_trace import trace_memory
from minipaged.config import CacheConfig
from minipaged.course.student_parts import load_parts
from minipaged.kernels.traffic import AttentionShape, cache_write_traffic, decode_traffic
from minipaged.viz.palette import color_of

# %% tags=["parameters"]
PARTS = "mine"  # or "ref", "solutions", a folder
BLOCK_SIZE = 4
LENGTHS = [14, 5, 9]  # tokens in the cache, of each sequence
NUM_KV_HEADS = 2  # of 4 query heads: 1, 2 or 4
SEED = 0

# %%
KERNELS = ("cache_write", "block_copy", "paged_decode_v0")

parts = load_parts(PARTS, only=KERNELS)
cache_write, copy_blocks_in_pool = parts.cache_write, parts.copy_blocks_in_pool
paged_decode_v0 = parts.paged_decode_v0

NUM_HEADS, HEAD_DIM = 4, 12
random = torch.Generator().manual_seed(SEED)
print("\n".join(parts.notes) or "parts: all are the reference's")

# %% [markdown]
# ## 1. What one program touches
#
# A kernel that doubles the rows of a view. The columns past the view belong to someone else.


# %%
@triton.jit
def double_rows_kernel(x, out, row_stride, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < COLUMNS
    tile = tl.load(x + row * row_stride + column, mask=inside, other=0.0)
    tl.store(out + row * COLUMNS + column, 2 * tile, mask=inside)


# %% [markdown]
# **Prediction 1.** Four programs, one for each row of `whole[:, :COLUMNS]`. Which elements of
# memory does program 2 load, as offsets from the first? How many lanes of its tile are masked?
# Then set `COLUMNS = 8`: nothing is masked. And with 9? (Look at `WIDTH`.)

# %%
COLUMNS = 5

whole = torch.arange(4 * 10.0).view(4, 10)
view, doubled = whole[:, :COLUMNS], torch.zeros(4, COLUMNS)
width = triton.next_power_of_2(COLUMNS)
with trace_memory() as trace:
    double_rows_kernel[(4,)](view, doubled, view.stride(0), COLUMNS=COLUMNS, WIDTH=width)
loads = {program.index[0]: program.offsets("x", "load").tolist() for program in trace.programs}
for program, offsets in loads.items():
    print(f"program {program} loads {offsets}; {width - len(offsets)} of {width} lanes are masked")
print("right:", torch.equal(doubled, 2 * view))

# %% [markdown]
# ## 2. Cache write: from a step's rows to slots
#
# Some sequences in a used pool. All of their tokens are fed in one step, with some padding. Both
# caches are NaN before. The picture shows, for each slot, which program stored its key.


# %%
def block_tables(lengths, num_blocks):
    """A table a sequence, of blocks in no order, and int32 rows for a kernel: entries past the
    context are blocks of others."""
    order = torch.randperm(num_blocks, generator=random).tolist()
    tables = [[order.pop() for _ in range(-(-length // BLOCK_SIZE))] for length in lengths]
    width = max(len(table) for table in tables) + 1
    rows = torch.randint(num_blocks, (len(tables), width), generator=random, dtype=torch.int32)
    for row, table in zip(rows, tables):
        row[: len(table)] = torch.tensor(table)
    return tables, rows


def slots_of(table, length):
    return [table[t // BLOCK_SIZE] * BLOCK_SIZE + t % BLOCK_SIZE for t in range(length)]


def draw_pool(num_blocks, marks, title):
    """Every slot of the pool; `marks`: (block, slot) -> (label, name that gives the color)."""
    columns = max(1, 32 // BLOCK_SIZE)
    rows = -(-num_blocks // columns)
    size = (0.3 * columns * (BLOCK_SIZE + 1), 0.55 * rows + 0.5)
    _, axes = plt.subplots(figsize=size, layout="constrained")
    for block in range(num_blocks):
        y, left = divmod(block, columns)
        left *= BLOCK_SIZE + 1
        axes.text(left, 1.6 * y - 0.12, f"block {block}", fontsize=6, alpha=0.7)
        for slot in range(BLOCK_SIZE):
            label, name = marks.get((block, slot), ("", None))
            color = color_of(name) if name else "none"
            corner = (left + slot, 1.6 * y)
            axes.add_patch(Rectangle(corner, 0.95, 1, fc=color, ec="0.6", lw=0.7, alpha=0.6))
            axes.text(
                corner[0] + 0.47, corner[1] + 0.55, label, ha="center", va="center", fontsize=6
            )
    axes.set_xlim(-0.2, columns * (BLOCK_SIZE + 1))
    axes.set_ylim(1.6 * rows, -0.7)
    axes.set_title(title, loc="left", fontsize=9)
    axes.axis("off")
    plt.show()


NUM_BLOCKS = sum(-(-length // BLOCK_SIZE) for length in LENGTHS) + 5
tables, table_rows = block_tables(LENGTHS, NUM_BLOCKS)
slots = [slots_of(table, length) for table, length in zip(tables, LENGTHS)]
print("tables:", tables)

# %% [markdown]
# **Prediction 2.** The batch has one row for each token, and `PADDING` rows of slot −1. How many
# programs are launched, and how many of them store anything? How many bytes of keys are stored?
# (The heads of a token have 12 float32 each, and a tile holds them all.) Then change `PADDING`.

# %%
PADDING = 4

mapping = torch.tensor([slot for own in slots for slot in own] + [-1] * PADDING)
shuffled = torch.randperm(len(mapping), generator=random)  # padding may stand anywhere
k, v = torch.randn(2, len(mapping), NUM_KV_HEADS, HEAD_DIM, generator=random)
k_cache = torch.full((NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM), torch.nan)
v_cache = k_cache.clone()
with trace_memory() as trace:
    cache_write(k[shuffled], v[shuffled], k_cache, v_cache, mapping[shuffled])

stored_by = {}
for program in trace.programs:
    for place in program.slots("k_cache", "store"):
        stored_by[place] = program.index[0]
owner = {divmod(s, BLOCK_SIZE): f"seq{i}" for i, own in enumerate(slots) for s in own}
written = trace.stored["k_cache"], trace.stored["v_cache"]
must = cache_write_traffic(
    mapping.tolist(), AttentionShape(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, 4)
)
live = mapping >= 0
at = mapping[live]
in_place = torch.equal(k_cache[at // BLOCK_SIZE, :, at % BLOCK_SIZE], k[live])
untouched = int(k_cache.isnan().sum()) == k_cache.numel() - k[live].numel()
print(f"{len(trace.programs)} programs, {len(set(stored_by.values()))} of them store")
print(f"stored: {written[0]} B of keys, {written[1]} B of values")
print(f"loaded and stored: {trace.total_bytes} B; no kernel can do with less than {must.total} B")
print("every key in its slot:", in_place, " all else as it was:", untouched)
draw_pool(
    NUM_BLOCKS,
    {place: (program, owner.get(place, "?")) for place, program in stored_by.items()},
    "The program that stored each key; the color is the sequence",
)

# %% [markdown]
# ## 3. Block copy: one launch for all layers
#
# **Prediction 3.** `PAIRS` are copied in a pool of `LAYERS` layers, keys and values. How many
# programs is that, if a block's piece fits into one tile? Which planes does each touch? Then
# think of 40 layers and 5 pairs, and of 400 launches in their place.

# %%
LAYERS = 3
PAIRS = [(1, 4), (1, 0), (5, 2)]

pool = torch.randn(LAYERS, 2, 6, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, generator=random)
expected = pool.clone()
for source, target in PAIRS:
    expected[:, :, target] = expected[:, :, source]
with trace_memory() as trace:
    copy_blocks_in_pool(pool, torch.tensor(PAIRS))
copies = [program.index for program in trace.programs]
copied_bytes = trace.stored.total()
print(f"{len(copies)} programs; {copied_bytes} B stored, {trace.loaded.total()} B loaded")
print("(pair, plane, part) of each:", *copies)
copied = torch.equal(pool, expected)
print("as it should be:", copied)

# %% [markdown]
# ## 4. A softmax that sees one block at a time
#
# The state is three numbers (for `d = 1`). After each block they are the answer for what has been
# seen so far. First by hand, in base 2, and then by your kernel.
#
# **Prediction 4.** There is a score and a value for each position, and two positions to a block, so
# the last block is half full. Fill in the table on paper. Then let the positions come in the other
# order (`[::-1]`, values too): which of the rows change, and does the last one? And then make one
# score 200, anywhere.

# %%
SCORES = [0, 0, 2, 2, 1]
VALUES = [4, 12, 3, 5, 6]

SLOTS = 2  # of a block


def in_blocks(numbers):
    """The numbers of each block: positions fill one block after the other."""
    return [numbers[first : first + SLOTS] for first in range(0, len(numbers), SLOTS)]


def states(scores, values):
    """(m, l, acc) after each block, and what the earlier sums were multiplied by."""
    m, total, acc = -math.inf, 0.0, 0.0
    for block_scores, block_values in zip(in_blocks(scores), in_blocks(values)):
        largest = max(m, *block_scores)
        mend = 2.0 ** (m - largest)
        weights = [2.0 ** (s - largest) for s in block_scores]
        total = total * mend + sum(weights)
        acc = acc * mend + sum(w * v for w, v in zip(weights, block_values))
        m = largest
        yield m, total, acc, mend


history = list(states(SCORES, VALUES))
print("block      m   mended by        l      acc   acc / l")
for i, (m, total, acc, mend) in enumerate(history):
    print(f"{i:5}  {m:5}  {mend:10.4g}  {total:7.4g}  {acc:7.4g}  {acc / total:8.4g}")

# %%
small_k = torch.full((len(history), 1, SLOTS, 1), torch.nan)
small_v = small_k.clone()
small_k.view(-1)[: len(SCORES)] = torch.tensor(SCORES, dtype=torch.float32)
small_v.view(-1)[: len(VALUES)] = torch.tensor(VALUES, dtype=torch.float32)
contexts = range(1, len(SCORES) + 1)
by_kernel = [
    paged_decode_v0(
        torch.ones(1, 1, 1),
        small_k,
        small_v,
        torch.arange(len(history), dtype=torch.int32)[None],
        torch.tensor([seen], dtype=torch.int32),
        math.log(2),  # e^(s ln 2) = 2^s
    ).item()
    for seen in contexts
]
print("your kernel, for contexts of 1, 2, …:", [round(x, 4) for x in by_kernel])
plain = [2.0**score for score in SCORES]
by_definition = [
    sum(w * v for w, v in zip(plain[:seen], VALUES)) / sum(plain[:seen]) for seen in contexts
]
print("by the definition:                   ", [round(x, 4) for x in by_definition])

figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
axes.plot(contexts, by_definition, "o", ms=8, mfc="none", label="definition")
axes.plot(contexts, by_kernel, "x", label="your kernel")
axes.set(xlabel="context (tokens)", ylabel="output", xticks=list(contexts))
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 5. Decode: what one program reads
#
# One query a sequence, over the caches that *your* cache write filled. What holds no token is NaN
# still, and the table rows have an entry too many. Attention from the definition, in float64, is
# the oracle.


# %%
def dense_attention(q, tables):
    """`q: [S, H, d]`; gathers, in float64."""
    out = []
    for query, table, length in zip(q.double(), tables, LENGTHS):
        index = torch.tensor(slots_of(table, length))
        keys, values = (
            cache[index // BLOCK_SIZE, :, index % BLOCK_SIZE]
            .double()
            .repeat_interleave(NUM_HEADS // NUM_KV_HEADS, dim=1)
            for cache in (k_cache, v_cache)
        )  # [L, H, d]
        weights = torch.einsum("hd,lhd->hl", query, keys).mul(HEAD_DIM**-0.5).softmax(-1)
        out.append(torch.einsum("hl,lhd->hd", weights, values))
    return torch.stack(out)


q = torch.randn(len(LENGTHS), NUM_HEADS, HEAD_DIM, generator=random)
lens = torch.tensor(LENGTHS, dtype=torch.int32)
with trace_memory() as trace:
    out = paged_decode_v0(q, k_cache, v_cache, table_rows, lens, HEAD_DIM**-0.5)
dense = dense_attention(q, tables)
error = float((out - dense).abs().max() / dense.abs().max())
print(f"largest difference from dense attention: {error:.1e} (must be below 1e-05)")

# %% [markdown]
# **Prediction 5.** Which slots does the program `(SEQUENCE, HEAD)` load keys from, and in which
# order? Which KV head? Then a `LENGTHS` (in the parameters' cell) in which one context fills its
# last block exactly.

# %%
SEQUENCE, HEAD = 0, 3

program = next(p for p in trace.programs if p.index[:2] == (SEQUENCE, HEAD))
steps = [
    access.offsets
    for access in program.accesses
    if access.tensor == "k_cache" and access.kind == "load"
]
marks, heads = {}, set()
for step, offsets in enumerate(steps):
    for offset in offsets.tolist():
        block, inside = divmod(offset, k_cache.stride(0))
        head, inside = divmod(inside, k_cache.stride(1))
        marks[block, inside // k_cache.stride(2)] = (step, f"seq{SEQUENCE}")
        heads.add(head)
print(f"program {program.index} reads KV heads {sorted(heads)}, {len(marks)} slots")
draw_pool(NUM_BLOCKS, marks, f"Keys that program ({SEQUENCE}, {HEAD}) loads, and in which step")

# %% [markdown]
# How many bytes is that over all programs? A key must come from memory once for all the query
# heads that share it. Version 0 has a program for each query head.

# %%
moved = {}
for kv_heads in (1, 2, 4):
    shape = AttentionShape(NUM_HEADS, kv_heads, HEAD_DIM, BLOCK_SIZE, 4)
    caches = torch.zeros(2, NUM_BLOCKS, kv_heads, BLOCK_SIZE, HEAD_DIM)
    with trace_memory() as counted:
        paged_decode_v0(q, *caches, table_rows, lens, HEAD_DIM**-0.5)
    moved[kv_heads] = (decode_traffic(LENGTHS, shape).total, counted.total_bytes)
    print(
        f"{kv_heads} KV heads: must move {moved[kv_heads][0]} B, does move {moved[kv_heads][1]} B"
    )

figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
places = range(len(moved))
axes.bar([x - 0.2 for x in places], [must for must, _ in moved.values()], 0.4, label="must")
axes.bar([x + 0.2 for x in places], [does for _, does in moved.values()], 0.4, label="does")
axes.set(xlabel=f"KV heads of {NUM_HEADS} query heads", ylabel="bytes")
axes.set_xticks(list(places), [str(kv_heads) for kv_heads in moved])
axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## 6. What is in the tail
#
# The same decode, five times. Each time all slots that hold no token of these sequences are
# filled with something else. A kernel that loads values past the context, and relies on their
# weight of 0, shows itself with inf and NaN. One that masks its loads and forgets the scores is
# wrong with all five alike: an empty slot is a token of score 0.

# %%
used = torch.zeros(NUM_BLOCKS, BLOCK_SIZE, dtype=torch.bool)
used.view(-1)[at] = True
poisoned = {}
for poison in (0.0, 1.0, 1e30, math.inf, math.nan):
    caches = [cache.masked_fill(~used[:, None, :, None], poison) for cache in (k_cache, v_cache)]
    answer = paged_decode_v0(q, *caches, table_rows, lens, HEAD_DIM**-0.5)
    poisoned[str(poison)] = bool((answer - dense).abs().max() < 1e-5)
    print(f"{poison:5}: {'the same answer' if poisoned[str(poison)] else 'ANOTHER ANSWER'}")

# %% [markdown]
# ## 7. Where 32 bits end
#
# A kernel computes the offset of a block, `block * stride`, once as int32 and once as int64.
#
# **Prediction 6.** A block of OPT-13B is 40 × 16 × 128 elements of a layer. Which is the first
# that begins at a wrong offset, and where? Is the block before it safe to its end? And for
# LLaMA-3-8B, with 8 KV heads (set `KV_HEADS`)?


# %%
@triton.jit
def offsets_kernel(blocks, narrow, wide, stride, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    block = tl.load(blocks + lane)
    tl.store(narrow + lane, block * stride)
    tl.store(wide + lane, block.to(tl.int64) * stride)


# %%
KV_HEADS = 40

stride = KV_HEADS * 16 * 128
last = 2**31 // stride
blocks = torch.arange(last - 1, last + 3, dtype=torch.int32)
narrow, wide = torch.empty(2, 4, dtype=torch.int64)
offsets_kernel[(1,)](blocks, narrow, wide, stride, COUNT=4)
print("block      int32 offset   int64 offset")
for row in zip(blocks.tolist(), narrow.tolist(), wide.tolist()):
    print("{:6}  {:15,}  {:13,}".format(*row))
first_wrong = next(b for b, n, w in zip(blocks.tolist(), narrow.tolist(), wide.tolist()) if n != w)
print(f"the first block that begins at a wrong offset: {first_wrong}")

# %% [markdown]
# ## 8. A story from your kernels
#
# The engine tells a few words of a story, once with PyTorch's attention and once with kernels:
# your cache write and your decode, and the reference's prefill, which is stage 08. While it does,
# every program is counted.
#
# **Prediction 7.** `opt-stories` has 4 layers, 4 heads and as many KV heads. One sequence decodes
# `WORDS` tokens. How many programs of `paged_decode_v0_kernel` run? (The first token comes from
# the prefill.)

# %%
WORDS = 6
PROMPT = "Once upon a time"


def decode(*args):
    """Your decode. An engine that is given the reference's version 0 decodes with the faster
    version 2 all the same. A function of this notebook is nobody's version 0, so it is used."""
    return paged_decode_v0(*args)


own = replace(parts, paged_decode_v0=decode)
stories = {}
for attention in ("reference", "triton"):
    pool_size = CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=64, num_cpu_blocks=0)
    llm = LLM("opt-stories", parts=own, attention=attention, cache=pool_size)
    wish = SamplingParams(temperature=0, max_tokens=WORDS, ignore_eos=True)
    with trace_memory() as trace:
        (output,) = llm.generate([PROMPT], wish, progress=False)
    stories[attention] = output.outputs[0].text
    print(f"{attention:9}: {PROMPT}|{stories[attention]}")
programs = Counter(program.kernel for program in trace.programs)
for kernel, count in sorted(programs.items()):
    print(f"{count:6} programs of {kernel}")

# %%
RESULTS = {
    "loads": [loads[i] for i in sorted(loads)],
    "stored_by": sorted([*place, program] for place, program in stored_by.items()),
    "written": written,
    "in_place": in_place and untouched,
    "copies": copied,
    "copied_bytes": copied_bytes,
    "states": [[round(x, 6) for x in row[:3]] for row in history],
    "by_kernel": [round(x, 4) for x in by_kernel],
    "decode_equals_dense": error < 1e-5,
    "slots_read": sorted(marks),
    "heads_read": sorted(heads),
    "bytes": moved,
    "tail_does_not_show": poisoned,
    "first_wrong_offset": first_wrong,
    "same_story": stories["triton"] == stories["reference"],
    "programs": dict(programs),
}
display(RESULTS)
