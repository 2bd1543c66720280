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
# # Stage 02: the block allocator
#
# This notebook runs on *your* allocator. Read [lesson 02](../lessons/02-block-allocator.md) first.
# As long as a task is not written, the reference stands in, and the notebook says so.
#
# Four times you will be asked for a prediction. Write it down before you run the cell. Then change
# the value that the cell names, predict again, and run again.

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
import random
import time

import matplotlib.pyplot as plt
from IPython.display import display

from minipaged import LLM, SamplingParams
from minipaged.config import CacheConfig
from minipaged.course.student_parts import load_parts
from minipaged.course.testing import state_of
from minipaged.viz.state import Pool, PoolState
from minipaged.viz.svg import SvgPicture

# %% tags=["parameters"]
PARTS = "mine"  # or "ref", "solutions", a folder
NUM_BLOCKS = 24  # of the pool in sections 1 to 3: 12 or more
BLOCK_SIZE = 4  # tokens
SIBLINGS = 3  # samples of one prompt: 2 to 4
SEED = 0

# %%
parts = load_parts(PARTS)
print("\n".join(parts.notes) or "parts: all are the reference's")


def picture(pool, title, **tables):
    """The pool as it says that it is; `tables` are block numbers by sequence, all blocks full."""
    counts = {block: pool.ref_count(block) for block in range(pool.num_blocks)}
    held = {block: count for block, count in counts.items() if count}
    tokens = {name: len(blocks) * BLOCK_SIZE for name, blocks in tables.items()}
    inside = Pool(pool.num_blocks, tables, tokens, pool.free_blocks, held)
    return SvgPicture(PoolState(BLOCK_SIZE, inside), title)


# %% [markdown]
# ## 1. A stack of free blocks
#
# Two sequences take three blocks each. The allocator knows nothing of them: we keep their blocks
# here, and it keeps count.

# %%
pool = parts.BlockAllocator(NUM_BLOCKS)
seq0, seq1 = pool.allocate_many(3), pool.allocate_many(3)
picture(pool, "Two sequences of three blocks", seq0=seq0, seq1=seq1)

# %% [markdown]
# **Prediction 1.** `seq0` ends, and its blocks are freed in the order in `FREED`. Then a new
# sequence takes four. Which four, in which order? Write them down and run. Then reverse `FREED`
# and predict again: which order would *you* choose, if a sequence's first block were to be the
# first one handed out?

# %%
FREED = [0, 1, 2]  # places in seq0

pool.free_many([seq0[i] for i in FREED])
seq2 = pool.allocate_many(4)
print("seq2 has", seq2)
picture(pool, "After seq0 ended and seq2 came", seq1=seq1, seq2=seq2)

# %% [markdown]
# ## 2. Sharing: blocks are not references
#
# A prompt fills four blocks. Its `SIBLINGS` samples share them, and each takes two blocks of its
# own for its answer. When a sample ends, it gives up all that it holds.
#
# **Prediction 2.** How many blocks are used when all samples run, and what is the sum of the
# counts? After which sample's end do the prompt's blocks come back? Then set `SIBLINGS` in the
# parameters' cell to 2 or 4, predict, and run both cells.

# %%
pool = parts.BlockAllocator(NUM_BLOCKS)
prompt = pool.allocate_many(4)
for _ in range(SIBLINGS - 1):
    for block in prompt:
        pool.share(block)
samples = {f"seq{i}": prompt + pool.allocate_many(2) for i in range(SIBLINGS)}


def used_and_references(pool):
    counts = [pool.ref_count(block) for block in range(pool.num_blocks)]
    return pool.num_blocks - pool.num_free, sum(counts)


sharing = [used_and_references(pool)]
display(picture(pool, f"{SIBLINGS} samples of one prompt", **samples))
for name in list(samples):
    pool.free_many(reversed(samples.pop(name)))
    sharing.append(used_and_references(pool))
    display(picture(pool, f"{name} has ended", **samples))
print("(blocks used, references):", sharing)

# %% [markdown]
# ## 3. A long life
#
# Four hundred random calls, all allowed. After each of them invariant I2 is checked from outside:
# a block is in the free list once with a count of 0, or not in it with a count of at least 1.
#
# **Prediction 3.** `SHARE` is how often a held block is shared rather than a new one taken. With
# `SHARE = 0` the two curves are one. Where do they part when you set it to 0.3, and to 0.8? Which
# of the two can go above the dotted line?

# %%
SHARE = 0.3
CALLS = 400

dice = random.Random(SEED)
pool = parts.BlockAllocator(NUM_BLOCKS)
references = []  # a block number for each reference that somebody holds
life = []
for _ in range(CALLS):
    if references and (dice.random() < 0.48 or not pool.num_free):
        block = references.pop(dice.randrange(len(references)))
        pool.free(block)
    elif references and dice.random() < SHARE:
        block = dice.choice(references)
        pool.share(block)
        references.append(block)
    else:
        references.append(pool.allocate())
    free = pool.free_blocks
    for block in range(NUM_BLOCKS):
        if free.count(block) != (pool.ref_count(block) == 0):
            raise RuntimeError(f"I2 does not hold for block {block}: {state_of(pool)}")
    life.append(used_and_references(pool))
last_state = state_of(pool)
print(last_state)

figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
axes.step(range(CALLS), [count for _, count in life], where="post", label="references")
axes.step(range(CALLS), [used for used, _ in life], where="post", label="blocks used")
axes.axhline(NUM_BLOCKS, ls=":", color="0.4")
axes.set(xlabel="call", title=f"A pool of {NUM_BLOCKS} blocks")
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 4. What a call costs
#
# **Prediction 4.** A pool is half full, and we time one `allocate` and one `free`. From 1,000 to
# 100,000 blocks, does the time stay, grow a little, or grow a hundredfold? Add a size to `SIZES`
# and predict its point. (A *search* for a free block would show here. So would a `list.insert` or
# a `pop` at the wrong end.)

# %%
SIZES = [100, 1_000, 10_000, 100_000]


def microseconds(size, calls=2_000, rounds=5):
    pool = parts.BlockAllocator(size)
    pool.allocate_many(size // 2)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            pool.free(pool.allocate())
        best = min(best, time.perf_counter() - start)
    return best / calls * 1e6


costs = {size: microseconds(size) for size in SIZES}
print({size: f"{cost:.2f} µs" for size, cost in costs.items()})
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
axes.plot(list(costs), list(costs.values()), "o-")
axes.set(xlabel="blocks in the pool", ylabel="µs", xscale="log", title="One allocate and one free")
axes.set_ylim(0, 2 * max(costs.values()))
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 5. Your allocator serves
#
# Three prompts, each sampled `SIBLINGS` times, with `opt-stories`, a model that is in the
# repository. Every block number in these pictures comes from your free list. Hatched blocks are
# shared. Watch a prompt's last block: it is shared until one of the samples writes to it and takes
# a copy, which is stage 04.

# %%
PROMPTS = ["Once upon a time, there was a", "The little bear was", "One day, a girl named Lily"]

llm = LLM(
    "opt-stories",
    parts=parts,
    cache=CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=512 // BLOCK_SIZE, num_cpu_blocks=0),
)
frames = []


def watch(engine):
    frames.append(PoolState.of(engine.kv, engine.scheduler.groups))


outputs = llm.generate(
    PROMPTS,
    SamplingParams(n=SIBLINGS, temperature=0.8, seed=SEED, max_tokens=32),
    progress=False,
    on_step=watch,
)
for prompt, output in zip(PROMPTS, outputs):
    for completion in output.outputs:
        print(f"{prompt}|{' '.join(completion.text.split())}")
    print()
for step in (0, 1, len(frames) // 2):
    display(SvgPicture(frames[step], f"After step {step}", columns=32))

# %%
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
steps = range(len(frames))
references = [sum(frame.gpu.ref_counts.values()) for frame in frames]
used = [frame.gpu.num_used for frame in frames]
axes.step(steps, references, where="post", label="references")
axes.step(steps, used, where="post", label="blocks used")
axes.set(xlabel="step", title="The engine's pool while the stories are told")
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

kv = llm.engine.kv
print(f"{kv.num_free_gpu_blocks} of {kv.num_gpu_blocks} blocks are free at the end")

# %%
RESULTS = {
    "seq2": seq2,
    "sharing": sharing,
    "last_state": last_state,
    "blocks_used": used,
    "references": references,
    "tables": {name: list(blocks) for name, blocks in frames[len(frames) // 2].gpu.tables.items()},
    "all_free": kv.num_free_gpu_blocks == kv.num_gpu_blocks,
    "texts": [completion.text for output in outputs for completion in output.outputs],
}
display(RESULTS)
