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
# # Stage 00: sizing the KV cache
#
# This notebook runs on *your* arithmetic. Read [lesson 00](../lessons/00-sizing.md) first. As long
# as a task is not written, the reference stands in, and the notebook says so.
#
# Five times you will be asked for a prediction. Write it down before you run the cell. Then change
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
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

from minipaged import LLM, SamplingParams
from minipaged.capacity import ACTIVATION_BYTES
from minipaged.config import CacheConfig
from minipaged.course.student_parts import load_parts
from minipaged.errors import ConfigError
from minipaged.hardware import GPUS
from minipaged.models.catalog import CATALOG, parameter_count
from minipaged.plan import render_table1, table1
from minipaged.sim.lengths import load_lengths

# %% tags=["parameters"]
PARTS = "mine"  # or "ref", "solutions", a folder
MODEL = "opt-13b"  # of sections 1 and 2: opt-125m to opt-175b, llama-7b to llama-65b
GPU = "a100-40gb"  # of section 2: see minipaged/hardware.py
BLOCK_SIZE = 16  # tokens, in sections 4 and 5
WATERMARK = 0.01  # of the pool, in section 6: from 0 to below 1
SEED = 0

# %%
parts = load_parts(PARTS, only=["sizing"])
sizing = parts.module("minipaged.kvcache.sizing")
print("\n".join(parts.notes) or "parts: all are the reference's")
FLOAT16 = 2  # bytes

# %% [markdown]
# ## 1. A token, on one rank
#
# Your `kv_bytes_per_token` on the shape of `MODEL`, and on the same shape with fewer KV heads. A
# point is missing where your `kv_heads_per_rank` refuses to spread the heads.
#
# **Prediction 1.** With as many KV heads as query heads, twice the ranks is half the bytes. How do
# the lines of 8 KV heads and of 1 go on, and where do they stop falling? Then set `NUMBER_BYTES`
# to 4 (float32): what happens to the three lines?

# %%
NUMBER_BYTES = FLOAT16

model = CATALOG[MODEL]
per_token = {}
for kv_heads in (model.num_heads, 8, 1):
    if model.num_heads % kv_heads:
        continue
    shape = replace(model, num_kv_heads=kv_heads)
    for ranks in range(1, model.num_heads + 1):
        try:
            token = sizing.kv_bytes_per_token(shape, NUMBER_BYTES, ranks)
        except ConfigError:
            continue
        per_token.setdefault(kv_heads, {})[ranks] = token
    print(f"KV heads {kv_heads:>2}:", {n: f"{b:,} B" for n, b in per_token[kv_heads].items()})

figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
for (kv_heads, line), marker in zip(per_token.items(), "osd"):
    kib = [size / 1024 for size in line.values()]
    axes.plot(list(line), kib, marker=marker, label=f"KV heads: {kv_heads}")
axes.set(xlabel="ranks", ylabel="KiB", title=f"A token of {MODEL} on one rank")
axes.set(xscale="log", yscale="log")
axes.set_xticks(list(line), [str(ranks) for ranks in line], minor=False)
axes.set_xticks([], minor=True)
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 2. Who has the memory: figure 1, left
#
# **Prediction 2.** The paper draws 65 % for the weights and 30 % for the cache (13B on 40 GB). Will
# yours be the same, with the bytes that the card shows to a program in place of the label's 40 GB?
# Then set `GPU` to `"a100-80gb"` in the parameters' cell: how many times as many sequences fit on
# twice the memory?

# %%
card = GPUS[GPU].memory_bytes
weights = FLOAT16 * parameter_count(model)
budget = sizing.kv_budget_bytes(card, 0.95, weights, ACTIVATION_BYTES)
token = sizing.kv_bytes_per_token(model, FLOAT16)
block = sizing.kv_bytes_per_block(model, FLOAT16, BLOCK_SIZE)
blocks = sizing.blocks_that_fit(budget, block)
shares = {"weights": weights, "KV cache": max(0, budget)}
shares["all else"] = card - sum(shares.values())
shares = {name: round(100 * size / card, 1) for name, size in shares.items()}
fit = {
    "slots": sizing.slots_that_fit(budget, token),
    "blocks": blocks,
    "kept free by a watermark of 1 %": sizing.watermark_blocks(blocks, 0.01),
    "sequences of 2,048": sizing.sequences_that_fit(blocks, 2048, BLOCK_SIZE),
    "sequences of 300": sizing.sequences_that_fit(blocks, 300, BLOCK_SIZE),
}
print(fit)

figure, axes = plt.subplots(figsize=(7, 1.8), layout="constrained")
bars = {"paper, 13B on 40 GB": (65, 30, 5), f"{MODEL}, {GPU}": tuple(shares.values())}
left = np.zeros(2)
for number, (name, hatch) in enumerate(zip(shares, ("", "//", ".."))):
    widths = [max(0, row[number]) for row in bars.values()]
    axes.barh(list(bars), widths, left=left, label=name, hatch=hatch, edgecolor="white")
    for y, width in enumerate(widths):
        if width > 4:
            axes.text(left[y] + width / 2, y, f"{width:g} %", ha="center", va="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
    left += widths
axes.set(xlabel="% of the card's memory", xlim=(0, 100))
axes.invert_yaxis()
figure.legend(loc="outside upper center", ncols=3, frameon=False)
plt.show()

# %% [markdown]
# ## 3. Table 1
#
# Three servers, from one card to eight, with one reserve of 1.67 GiB a card for all of them. Every
# number in the column *ours* went through your functions.

# %%
rows = table1(sizing)
print(render_table1(rows))

# %% [markdown]
# ## 4. A batch grows
#
# Three sequences start together; each bar below is the slots of one step. The dark part are tokens,
# the hatched one is what your paging adds, and the line is a reservation of `LONGEST` each.
#
# **Prediction 3.** Where does the line step down? With `BLOCK_SIZE = 16`, how high can the hatched
# part be at most, with three sequences? Set `BLOCK_SIZE` to 1 and to 64 in the parameters' cell:
# when does it disappear, and when does it pass the line?

# %%
LONGEST = 96
PROMPTS, OUTPUTS = [30, 5, 17], [40, 24, 60]

growth = sizing.kv_growth(PROMPTS, OUTPUTS, 1, BLOCK_SIZE, LONGEST)
steps = [at.step for at in growth]
needed = [at.needed_bytes for at in growth]
paged = [at.paged_bytes for at in growth]
reserved = [at.reserved_bytes for at in growth]
more = [whole - own for whole, own in zip(paged, needed)]
print(f"over all steps: tokens {sum(needed)}, paged {sum(paged)}, reserved {sum(reserved)}")

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.bar(steps, needed, width=1, label="tokens")
axes.bar(steps, more, width=1, bottom=needed, hatch="////", color="w", edgecolor="C1",
         linewidth=0, label=f"blocks of {BLOCK_SIZE}")  # fmt: skip
axes.step(steps, reserved, where="mid", color="0.3", label=f"reserved: {LONGEST} each")
axes.set(xlabel="step", ylabel="slots", title="Three sequences")
axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, -0.42))
plt.show()

# %% [markdown]
# ## 5. How many at a time: figure 1, right
#
# OPT-13B on one A100-40GB again. We draw requests of ShareGPT's lengths (figure 11 of the paper)
# and let your `kv_growth` live them. What paging takes for one *running* sequence is its bytes over
# all steps, divided by the sequences that are there.
#
# **Prediction 4.** Existing systems fill the card at 8 requests. Where do you cross the line with
# paging? And as the throughput grows with the batch, but not in proportion: how many times the
# throughput do you expect? Then set `DATASET` to `"alpaca"`, whose requests are five times shorter.

# %%
DATASET = "sharegpt"

#: The paper's figure 1, right, read off its curves: GB of memory, and tokens a second, by batch.
EXISTING = {1: 28, 2: 30, 4: 33, 6: 36, 8: 39}
VLLM = {5.83: 28, 11.71: 30, 17.63: 32, 23.8: 34, 29.85: 36, 35.81: 38, 38.35: 39}
THROUGHPUT = {
    4: 147, 8: 267, 12: 379, 16: 483, 20: 577, 24: 659, 28: 741, 32: 811, 36: 882, 40: 922,
}  # fmt: skip
GB, WEIGHTS_GB, FULL_GB = 1e9, 26, 39

opt = CATALOG["opt-13b"]
token = sizing.kv_bytes_per_token(opt, FLOAT16)
requests = load_lengths(DATASET).sample(1_000, np.random.default_rng(SEED))
life = sizing.kv_growth(
    [prompt for prompt, _ in requests],
    [output for _, output in requests],
    token,
    BLOCK_SIZE,
    opt.max_model_len,
)
one_reserved = opt.max_model_len * token
running = sum(at.reserved_bytes for at in life) / one_reserved
one_paged = sum(at.paged_bytes for at in life) / running
room = (FULL_GB - WEIGHTS_GB) * GB
batches = {"reserved": room / one_reserved, "paged": room / one_paged}


def tokens_a_second(batch):
    return float(np.interp(batch, list(THROUGHPUT), list(THROUGHPUT.values())))


for system, batch in batches.items():
    print(f"{system:>8}: {batch:5.1f} at a time, {tokens_a_second(batch):4.0f} tokens/s")
print(f"a running sequence takes {one_paged / token:.0f} slots in blocks, {one_paged / GB:.2f} GB")

figure, (above, below) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, layout="constrained")
at = np.linspace(0, 40, 81)
for name, one, points, of, marker, style in (
    ("reserved", one_reserved, EXISTING, "existing systems", "s", "--"),
    ("paged", one_paged, VLLM, "vLLM", "o", "-"),
):
    memory = WEIGHTS_GB + at * one / GB
    (line,) = above.plot(at[memory <= 40], memory[memory <= 40], style, label=f"yours, {name}")
    above.plot(list(points), list(points.values()), marker, color=line.get_color(), mfc="none",
               label=f"paper, {of}")  # fmt: skip
    below.axvline(batches[name], ls=style, color=line.get_color(), label=f"full, {name}")
above.axhline(FULL_GB, ls=":", color="0.4")
above.set(ylabel="GB", title="Memory and throughput by the requests at a time")
below.plot(list(THROUGHPUT), list(THROUGHPUT.values()), "^-", color="0.3", label="paper")
below.set(xlabel="requests at a time", ylabel="tokens/s", xlim=(0, 42), ylim=(0, 1000))
for axes in (above, below):
    axes.legend(frameon=False, fontsize="small")
    axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# The paper does not say with which requests it drew this figure; its vLLM line is 0.34 GB or 414
# slots a request. The points in the lower picture are published measurements: no arithmetic on
# bytes gives them. What you computed is *where* on this curve a system has to stop.
#
# ## 6. Your watermark in the engine
#
# Twelve stories from `opt-stories`, a model that is in the repository, in a pool of 48 blocks of
# four tokens. The engine asks *your* `watermark_blocks` how many blocks it has to leave free when
# it admits a request.
#
# **Prediction 5.** With `WATERMARK = 0.5` in the parameters' cell: do more or fewer stories run at
# a time in the first step? And how many preemptions are there, compared to 0.01?

# %%
STORIES = ["Once upon a time, there was a", "The little bear was", "One day, a girl named Lily"]

llm = LLM(
    "opt-stories",
    parts=parts,
    cache=CacheConfig(block_size=4, num_gpu_blocks=48, num_cpu_blocks=0, watermark=WATERMARK),
)
at_a_time, free, preempted = [], [], []


def watch(engine):
    at_a_time.append(len(engine.scheduler.running))
    free.append(engine.kv.num_free_gpu_blocks)
    preempted.append(len(engine.last_plan.preempted))


outputs = llm.generate(
    STORIES * 4,
    SamplingParams(temperature=0.8, seed=SEED, max_tokens=32),
    progress=False,
    on_step=watch,
)
print(outputs[0].prompt, "|", " ".join(outputs[0].outputs[0].text.split()))
print(f"{at_a_time[0]} stories in the first step; {sum(preempted)} preempted; {len(free)} steps")

figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
axes.step(range(len(free)), free, where="post", label="free blocks")
axes.step(range(len(at_a_time)), at_a_time, where="post", ls="--", label="stories at a time")
axes.axhline(sizing.watermark_blocks(48, WATERMARK), ls=":", color="0.4", label="watermark")
axes.set(xlabel="step", title="A pool of 48 blocks")
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

# %%
RESULTS = {
    "per_token": per_token,
    "shares": shares,
    "fit": fit,
    "table1": [(row.kv_gib, row.kslots, row.kslots_of_paper_kv) for row in rows],
    "growth": [needed, paged, reserved],
    "batches": batches,
    "at_a_time": at_a_time,
    "free": free,
}
display(RESULTS)
