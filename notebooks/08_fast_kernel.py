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
# # Stage 08: fast kernels
#
# This notebook runs *your* kernels, in Triton's interpreter, on a CPU, and compiles one of them for
# an A100 that need not be there. Read [lesson 08](../lessons/08-fast-kernel.md) first. What you
# have not written yet is the reference's, and the notebook says so.
#
# An interpreter's time says nothing. So what is looked at is *what* each program reads, how many
# programs there are, and what the machine code says. Nine times you will be asked for a prediction.
# Write it down before you run the cell, then change the value that the cell names and predict
# again.

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

import inspect
import math
import sys
from collections import Counter
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from IPython.display import display
from matplotlib.patches import Rectangle

from minipaged import LLM, SamplingParams
from minipaged.audit.compiler import Ptx
from minipaged.audit.memory_trace import trace_memory
from minipaged.audit.report import audit_ptx
from minipaged.audit.toolchain import ptx_version
from minipaged.config import CacheConfig
from minipaged.course.judge.compiling import compile_apart
from minipaged.course.student_parts import load_parts
from minipaged.kernels.paged_decode_v0 import paged_decode_v0
from minipaged.viz.palette import color_of

# %% tags=["parameters"]
PARTS = "mine"  # or "ref", "solutions", a folder
BLOCK_SIZE = 5
LENGTHS = [77, 9, 40]  # tokens in the cache, of each sequence
NUM_KV_HEADS = 4  # of 4 query heads: 1, 2 or 4
SEED = 0

# %%
KERNELS = ("paged_decode_v1", "paged_decode_v2", "paged_prefill", "traffic")

parts = load_parts(PARTS, only=KERNELS)
version_1, version_2, prefill, traffic = (
    parts.module(f"minipaged.kernels.{name}") for name in KERNELS
)

NUM_HEADS, HEAD_DIM, NUM_SMS = 4, 128, 108
GPU_BYTES_PER_S = 1555e9  # of an A100-40GB
random = torch.Generator().manual_seed(SEED)
print("\n".join(parts.notes) or "parts: all are the reference's")

# %% [markdown]
# ## 1. The floor
#
# A decode step cannot be faster than its bytes come: the weights once, and the keys and values of
# all contexts. Your `decode_traffic` says how many these are.
#
# **Prediction 1.** OPT-13B in float16 has 25.7 GB of weights, and 819,200 bytes of keys and values
# a token. At how many tokens in the cache do attention and weights take equally long? Then a model
# with 32 query heads over 8 KV heads (`HEADS`), whose weights and layers may be the same.

# %%
HEADS = (40, 40)

shape = traffic.AttentionShape(*HEADS, 128, 16, 2)
weights_ms = 1e3 * 25.7e9 / GPU_BYTES_PER_S
tokens = [1024 * n for n in range(1, 129)]
attention_ms = [
    40 * 1e3 * traffic.floor_seconds(traffic.decode_traffic([n], shape), GPU_BYTES_PER_S)
    for n in tokens
]
crossing = next((n for n, ms in zip(tokens, attention_ms) if ms >= weights_ms), None)
print(f"weights {weights_ms:.1f} ms; attention takes as long from {crossing} tokens on")
print(f"operations a byte: {traffic.decode_intensity([4096], shape):.2f}; an A100 could do 200")

figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
axes.plot(tokens, attention_ms, label="keys and values")
axes.axhline(weights_ms, ls="--", color="0.5", label="weights")
axes.set(xlabel="tokens in the cache, of all sequences", ylabel="ms a step, at least")
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 2. Tiles of several blocks
#
# A pool, and the blocks of each sequence scattered in it. What holds no token is NaN.


# %%
def slots_of(table, length):
    return [(table[t // BLOCK_SIZE], t % BLOCK_SIZE) for t in range(length)]


def scattered(lengths, kv_heads):
    """Tables, and caches `[blocks, kv_heads, BLOCK_SIZE, HEAD_DIM]` of random keys and values."""
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    blocks = torch.randperm(sum(counts) + 3, generator=random).tolist()
    tables = [[blocks.pop() for _ in range(count)] for count in counts]
    k_cache = torch.full((sum(counts) + 3, kv_heads, BLOCK_SIZE, HEAD_DIM), torch.nan)
    v_cache = k_cache.clone()
    for table, length in zip(tables, lengths):
        for block, slot in slots_of(table, length):
            k_cache[block, :, slot], v_cache[block, :, slot] = torch.randn(
                2, kv_heads, HEAD_DIM, generator=random
            )
    return tables, k_cache, v_cache


def rows_of(tables):
    """As tensors, one row a sequence; the entries past a table's end name a block of nobody."""
    rows = torch.zeros(len(tables), max(map(len, tables)) + 1, dtype=torch.int32)
    for row, table in zip(rows, tables):
        row[: len(table)] = torch.tensor(table)
    return rows


def attention(query, table, seen, k_cache, v_cache):
    """By the definition, in float64: one query `[H, d]` over the first `seen` positions."""
    block, slot = torch.tensor(slots_of(table, seen)).T
    group = len(query) // k_cache.shape[1]
    keys, values = (
        cache[block, :, slot].double().repeat_interleave(group, dim=1)
        for cache in (k_cache, v_cache)
    )  # [L, H, d]
    weights = torch.einsum("hd,lhd->hl", query.double(), keys).mul(HEAD_DIM**-0.5).softmax(-1)
    return torch.einsum("hl,lhd->hd", weights, values)


def is_right(out, want):
    return bool((out - want).abs().max() / want.abs().max() < 1e-5)


def places(access, cache):
    """`(block, slot)` of each position that a load reads, in order."""
    found = {}
    for offset in access.offsets.tolist():
        block, inside = divmod(offset, cache.stride(0))
        found[block, inside % cache.stride(1) // cache.stride(2)] = True
    return list(found)


def draw_pool(num_blocks, marks, title):
    """Every slot of the pool; `marks`: (block, slot) -> (label, name that gives the color)."""
    columns = max(1, 36 // (BLOCK_SIZE + 1))
    rows = -(-num_blocks // columns)
    size = (0.26 * columns * (BLOCK_SIZE + 1), 0.5 * rows + 0.5)
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


tables, k_cache, v_cache = scattered(LENGTHS, NUM_KV_HEADS)
table_rows = rows_of(tables)
lens = torch.tensor(LENGTHS, dtype=torch.int32)
q = torch.randn(len(LENGTHS), NUM_HEADS, HEAD_DIM, generator=random)
want = torch.stack([attention(*given, k_cache, v_cache) for given in zip(q, tables, LENGTHS)])
scale = HEAD_DIM**-0.5
print(f"{sum(map(len, tables))} blocks of {BLOCK_SIZE} hold {sum(LENGTHS)} tokens")

# %% [markdown]
# **Prediction 2.** A tile of float32 has 16 positions where each query head has keys of its own,
# and 32 where heads share. How many steps does the program of `SEQUENCE` take, and how many did
# version 0? In which place of which entry of the table does its step 1 begin? Then change
# `BLOCK_SIZE`, in the parameters' cell: which of your answers change?

# %%
SEQUENCE = 0

with trace_memory() as trace:
    out = version_1.paged_decode_v1(q, k_cache, v_cache, table_rows, lens, scale)
program = next(p for p in trace.programs if p.index[:2] == (SEQUENCE, 0))
loads = [a for a in program.accesses if a.kind == "load"]
steps = [places(a, k_cache) for a in loads if a.tensor == "k_cache"]
tiles_are_right = is_right(out, want)
print("as by the definition:", tiles_are_right)
print(f"{program.kernel}: {len(steps)} steps, of {[len(step) for step in steps]} positions")
print(f"version 0: {len(tables[SEQUENCE])} steps. The order of the loads in step 1:")
order = [a.tensor for a in loads]
starts = [i for i, tensor in enumerate(order) if tensor == "block_tables"]
print(order[starts[1] : starts[2]] if len(starts) > 2 else order)
draw_pool(
    len(k_cache),
    {place: (i, f"seq{i}") for i, step in enumerate(steps) for place in step},
    f"Keys of KV head 0 that program ({SEQUENCE}, 0) loads, and in which step",
)

# %% [markdown]
# ## 3. Query heads that share their keys
#
# **Prediction 3.** Four query heads, over 4, 2 and 1 KV heads. By which factor does version 0 load
# too many bytes of keys and values, and by which your version 1? (Of all sequences but the first,
# to save time.) And what would version 1 do if its program looped over the query heads, and loaded
# for each?

# %%
shared = {}
for kv_heads in (4, 2, 1):
    caches = k_cache[:, :1].expand(-1, kv_heads, -1, -1).contiguous()
    loaded = []
    for decode in (paged_decode_v0, version_1.paged_decode_v1):
        with trace_memory() as trace:
            decode(q[1:], caches, caches, table_rows[1:], lens[1:], scale)
        loaded.append(trace.loaded["k_cache"] + trace.loaded["v_cache"])
    once = 2 * 4 * HEAD_DIM * kv_heads * sum(LENGTHS[1:])
    shared[kv_heads] = [n / once for n in loaded]
    print(f"{kv_heads} KV heads: each key {shared[kv_heads]} times, by version 0 and by yours")

figure, axes = plt.subplots(figsize=(5.5, 2.4), layout="constrained")
for i, name in enumerate(("version 0", "version 1")):
    heights = [times[i] for times in shared.values()]
    axes.bar([x + 0.4 * i - 0.2 for x in range(len(shared))], heights, 0.4, label=name)
axes.set(xlabel="KV heads of 4 query heads", ylabel="loads of a key")
axes.set_xticks(range(len(shared)), [str(kv_heads) for kv_heads in shared])
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## 4. A context in parts
#
# First on paper. Each part has seen some positions: scores in base 2, and values.
#
# **Prediction 4.** Work `o` and `lse` out for each part, and the result. Then add 300 to all
# scores: which of your numbers change? And what does the mean of the parts give?

# %%
PARTS_SEEN = [([1, 1], [4, 8]), ([0, 0, 0, 0], [1, 2, 3, 6]), ([], []), ([4], [12])]

partial = torch.full((len(PARTS_SEEN),), torch.nan)
lse = torch.full((len(PARTS_SEEN),), -torch.inf)
for i, (scores, values) in enumerate(PARTS_SEEN):
    if scores:
        m = max(scores)
        weights = [2.0 ** (s - m) for s in scores]
        partial[i] = sum(w * v for w, v in zip(weights, values)) / sum(weights)
        lse[i] = m + math.log2(sum(weights))
print("part    o        lse")
for i, row in enumerate(zip(partial.tolist(), lse.tolist())):
    print("{:4}  {:7.3f}  {:7.3f}".format(i, *row))

merged = torch.empty(1, 1, 1)
version_2.paged_decode_v2_reduce_kernel[(1, 1)](
    merged, partial, lse, 1, 1, len(lse), HEAD_DIM=1, DIMS=16,
    SPLITS=2 ** math.ceil(math.log2(len(lse))),
)  # fmt: skip
all_scores = torch.tensor([s for scores, _ in PARTS_SEEN for s in scores]).double()
all_values = torch.tensor([v for _, values in PARTS_SEEN for v in values]).double()
whole = float(((all_scores * math.log(2)).softmax(0) * all_values).sum())
print(f"your reduction: {merged.item():.4f}; by the definition, without parts: {whole:.4f}")

# %% [markdown]
# Then on the pool. **Prediction 5.** With `NUM_SPLITS` parts, which positions does part 1 of
# `SEQUENCE` read? Which parts of the other sequences have nothing to do? Then 7 parts.

# %%
NUM_SPLITS = 3

with trace_memory() as trace:
    out = version_2.paged_decode_v2(
        q, k_cache, v_cache, table_rows, lens, scale, max(LENGTHS), None, NUM_SPLITS
    )
parts_are_right = is_right(out, want)
decoders = [p for p in trace.programs if p.kernel == "paged_decode_v2_kernel"]
positions_of_parts = {
    f"{p.index[0]}.{p.index[2]}": len(p.slots("k_cache")) for p in decoders if p.index[1] == 0
}
print("as by the definition:", parts_are_right)
print("positions that each part reads, by sequence.part:", positions_of_parts)
print("programs:", dict(Counter(p.kernel for p in trace.programs)))
workspace = trace.stored["partial"] + trace.stored["lse"]
print(f"workspace: {workspace} B are stored")
draw_pool(
    len(k_cache),
    {
        place: (p.index[2], f"seq{p.index[2]}")
        for p in decoders
        if p.index[:2] == (SEQUENCE, 0)
        for place in p.slots("k_cache")
    },
    f"Keys of sequence {SEQUENCE}, KV head 0, and the part that loads them",
)

# %% [markdown]
# When is it worth while? An A100 has 108 multiprocessors, and 8 programs on each are wanted.
#
# **Prediction 6.** Contexts of `CONTEXT` tokens, tiles of 64. From how many sequences on is there
# nothing to split, with 8 KV heads and with 40? How many programs run for a single sequence? Then a
# `CONTEXT` of 300.

# %%
CONTEXT = 8192

batches = range(1, 129)
programs = {
    kv_heads: [
        n * kv_heads * version_2.choose_num_splits(CONTEXT, n, kv_heads, NUM_SMS, 64)
        for n in batches
    ]
    for kv_heads in (8, 40)
}
figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
for kv_heads, counts in programs.items():
    axes.plot(batches, counts, label=f"{kv_heads} KV heads, in parts")
    color = axes.lines[-1].get_color()
    axes.plot(batches, [n * kv_heads for n in batches], ls=":", color=color, label="whole")
axes.axhline(8 * NUM_SMS, lw=0.8, color="0.5")
axes.set(xlabel="sequences", ylabel="programs", xscale="log", yscale="log")
axes.legend(frameon=False, fontsize=8)
plt.show()
grouped = traffic.AttentionShape(32, 8, 128, 16, 2)
splits = version_2.choose_num_splits(CONTEXT, 1, 8, NUM_SMS, 64)
without = traffic.decode_traffic([CONTEXT], grouped).total
more = traffic.split_traffic([CONTEXT], splits, 64, grouped).total
print(f"one sequence, 8 KV heads: {splits} parts; {without:,} B must move without them,")
print(f"and {more:,} B for the workspace: {more / without:.1%} more")

# %% [markdown]
# ## 5. Prefill
#
# The last tokens of each context are a chunk. A program takes a tile of rows: 32 in float32, each a
# query and a head. A line of the picture is a row; dark is what it sees, and the frame what its
# program loads.
#
# **Prediction 7.** `CHUNKS` of the three sequences. How many programs load anything for KV head 0,
# and how many keys do they load in all? What is loaded and not seen? Then make the first chunk 77
# long, which is the whole prompt.

# %%
CHUNKS = [50, 9, 1]

starts = torch.tensor([2, *CHUNKS]).cumsum(0).int()  # two rows of decodes stand before them
tokens_in = int(starts[-1]) + 3  # and three of padding behind
prompts = torch.randn(tokens_in, NUM_HEADS, HEAD_DIM, generator=random)
filled = torch.full_like(prompts, 7.0)
with trace_memory() as trace:
    prefill.paged_prefill(
        prompts, k_cache, v_cache, table_rows, starts, lens, scale, max(CHUNKS), filled
    )
want_filled = torch.full_like(prompts, 7.0).double()
for s, (table, length, chunk) in enumerate(zip(tables, LENGTHS, CHUNKS)):
    for i in range(chunk):
        token = int(starts[s]) + i
        seen = length - chunk + i + 1
        want_filled[token] = attention(prompts[token], table, seen, k_cache, v_cache)
prompts_are_right = is_right(filled, want_filled)
print("as by the definition, and rows of nobody as they were:", prompts_are_right)

group = NUM_HEADS // NUM_KV_HEADS
tiles = []  # sequence, first row, rows, keys loaded
for p in trace.programs:
    row_heads = p.offsets("out", "store") // HEAD_DIM
    if p.index[1] == 0 and len(row_heads):
        owner = sorted({divmod(int(r), NUM_HEADS) for r in row_heads})
        first, head = owner[0]
        s = int((starts <= first).sum()) - 1
        row = (first - int(starts[s])) * group + head
        tiles.append((s, row, len(owner), len(p.slots("k_cache"))))
tiles.sort()
for s, row, rows, keys in tiles:
    print(f"sequence {s}, rows {row} to {row + rows - 1}: {keys} keys")

figure, every = plt.subplots(1, len(CHUNKS), figsize=(8, 3), layout="constrained", squeeze=False)
for s, (axes, length, chunk) in enumerate(zip(every[0], LENGTHS, CHUNKS)):
    picture = [
        [key <= length - chunk + row // group for key in range(length)]
        for row in range(chunk * group)
    ]
    axes.imshow(picture, cmap="Blues", aspect="auto", vmin=0, vmax=1.6, interpolation="nearest")
    for _, row, rows, keys in (tile for tile in tiles if tile[0] == s):
        corner = (-0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, keys, rows, fill=False, ec="tab:red", lw=1.2))
    axes.set(xlabel="key", title=f"seq{s}")
    axes.yaxis.get_major_locator().set_params(integer=True)
every[0][0].set_ylabel("row")
plt.show()

# %% [markdown]
# ## 6. Must, and does
#
# Your `traffic.py` against your kernels, in float32: all that they load and store, lane by lane.

# %%
own_shape = traffic.AttentionShape(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, 4)
tile = 16 if group == 1 else 32
floor = traffic.decode_traffic(LENGTHS, own_shape)
runs = {
    "version 1": (floor, lambda: version_1.paged_decode_v1(q, *given)),
    f"version 2, {NUM_SPLITS} parts": (
        floor + traffic.split_traffic(LENGTHS, NUM_SPLITS, tile, own_shape),
        lambda: version_2.paged_decode_v2(q, *given, max(LENGTHS), None, NUM_SPLITS),
    ),
    "prefill": (
        traffic.prefill_traffic(CHUNKS, LENGTHS, own_shape, 32),
        lambda: prefill.paged_prefill(prompts, *given[:3], starts, *given[3:], max(CHUNKS), filled),
    ),
}
given = (k_cache, v_cache, table_rows, lens, scale)
moved = {}
for name, (must, call) in runs.items():
    with trace_memory() as trace:
        call()
    moved[name] = (must.total, trace.total_bytes)
    share = must.total / trace.total_bytes
    print(f"{name:20} must move {must.total:9,} B, moves {trace.total_bytes:9,} B: {share:.1%}")

# %% [markdown]
# ## 7. What the compiler makes of it
#
# Your version 1, compiled for an A100 in the shapes of OPT-13B and float16. There need not be a
# card: this is the machine code. Task 8.5 asks it for no spills, 16 warps, 24,576 bytes in flight,
# and all of K and V at 128 bit. Here you can look as soon as 8.1 is written.
#
# **Prediction 8.** The second line has another `block_size` or `head_dim` (`OTHER`). What changes:
# registers, spills, the width of the loads, the bytes in flight? Try blocks of 1, then heads of
# 100, of 80 and of 256.

# %%
OTHER = {"block_size": 1}


def audit_version_1(block_size=16, head_dim=128):
    """The machine code of version 1, which is compiled in a process that does not interpret."""
    function = version_1.paged_decode_v1
    home = sys.modules[function.__module__]
    cache = ["float16", [1024, 40, block_size, head_dim]]
    arguments = {
        "q": ["float16", [8, 40, head_dim]],
        "k_cache": cache,
        "v_cache": cache,
        "block_tables": ["int32", [8, 2048 // block_size]],
        "context_lens": ["int32", [8]],
        "scale": head_dim**-0.5,
    }
    source = inspect.getsource(home)
    (made,) = compile_apart(
        "audited",
        home.__file__,
        source,
        function.__name__,
        arguments,
        "sm_80",
        ptx_version("sm_80"),
    )
    return audit_ptx(Ptx(**made), source, "sm_80")


machine_code = {}
print("                    regs  spills  warps  bytes in flight  K and V at 128 bit")
for name, sizes in {"OPT-13B": {}, str(OTHER): OTHER}.items():
    report = audit_version_1(**sizes)
    spills = report.spill_stores + report.spill_loads
    machine_code[name] = (report.registers, spills, report.kv_bytes_in_flight)
    print(
        f"{name:18}  {report.registers:4}  {spills:6}  {report.occupancy.warps:5}  "
        f"{report.kv_bytes_in_flight:15,}  {report.kv_wide_share:18.0%}"
    )

# %% [markdown]
# ## 8. A story from your kernels
#
# The engine tells a few words of a story with PyTorch's attention, and once with kernels: your
# prefill and your version 2. While it does, every program is counted.
#
# **Prediction 9.** `opt-stories` has 4 layers and 4 heads. How many programs of the prefill kernel
# run for `PROMPT`, how many of `paged_decode_v2_kernel` for `WORDS` words, and why is there no
# reduction among them? (The first word comes from the prefill.)

# %%
WORDS = 6
PROMPT = "Once upon a time"


def decode(*args):
    """An engine decodes with the version that is not its own; this one is this notebook's."""
    return version_2.paged_decode_v2(*args)


own = replace(parts, paged_decode_v2=decode, paged_prefill=prefill.paged_prefill)
stories = {}
for backend in ("reference", "triton"):
    pool_size = CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=64, num_cpu_blocks=0)
    llm = LLM("opt-stories", parts=own, attention=backend, cache=pool_size)
    wish = SamplingParams(temperature=0, max_tokens=WORDS, ignore_eos=True)
    with trace_memory() as trace:
        (output,) = llm.generate([PROMPT], wish, progress=False)
    stories[backend] = output.outputs[0].text
    print(f"{backend:9}: {PROMPT}|{stories[backend]}")
counted = Counter(program.kernel for program in trace.programs)
for kernel, count in sorted(counted.items()):
    print(f"{count:6} programs of {kernel}")

# %%
RESULTS = {
    "crossing": crossing,
    "tiles_are_right": tiles_are_right,
    "steps": [len(step) for step in steps],
    "slots_read": sorted(place for step in steps for place in step),
    "loads_of_a_key": shared,
    "merged": round(merged.item(), 4),
    "parts_are_right": parts_are_right,
    "positions_of_parts": positions_of_parts,
    "workspace": workspace,
    "programs_of_one": {kv_heads: counts[0] for kv_heads, counts in programs.items()},
    "splits_cost": [without, more],
    "prompts_are_right": prompts_are_right,
    "tiles": tiles,
    "bytes": moved,
    "machine_code": machine_code,
    "same_story": stories["triton"] == stories["reference"],
    "programs": dict(counted),
}
display(RESULTS)
