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
# # Stage 06: preemption
#
# This notebook runs on *your* `Preemption`, `move` and `unique_blocks`, and on your arithmetic of
# what a preemption costs. Read [lesson 06](../lessons/06-preemption.md) first. A file that is not
# finished yet is taken from the reference, and the notebook says so.
#
# Six times you will be asked for a prediction. Write it down before you run the cell, then change
# the value that the cell names and predict again. All cells together take less than a minute.

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
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from IPython.display import display

from minipaged import LLM, SamplingParams
from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.contracts import StepPlan
from minipaged.course.student_parts import load_parts
from minipaged.engine import Engine
from minipaged.executor.hash_executor import HashExecutor
from minipaged.kvcache.manager import PagedKVManager
from minipaged.models.catalog import CATALOG
from minipaged.sampling.decide import TorchSampling
from minipaged.sequence import Sequence, SequenceGroup, Status
from minipaged.viz.state import PoolState
from minipaged.viz.svg import SvgPicture

# %% tags=["parameters"]
PARTS = "mine"  # or "ref", "solutions", a folder
BLOCK_SIZE = 4
SIBLINGS = 3  # samples of one prompt: 2 to 4
NUM_BLOCKS = 40  # of the small pool of section 2
TOKENS = 256  # of the sequence of section 5
SEED = 0

# %%
parts = load_parts(PARTS)
arithmetic = load_parts(PARTS, only=["transfer_cost"])
costs = arithmetic.module("minipaged.scheduling.transfer_cost")
print("\n".join(parts.notes + arithmetic.notes) or "parts: all are the reference's")
torch.set_num_threads(1)  # for a model as small as ours, more of them wait for each other

# %% [markdown]
# ## 1. Out and in again
#
# One group, on a device and a host that can be read: in place of keys and values a slot holds a
# word. The samples share their prompt and part after it, as in stage 04.

# %%
PROMPT = ["Four", "score", "and", "seven", "years", "ago", "our"]
ENDS = [
    ["fathers", "brought"],
    ["mothers", "built"],
    ["brothers", "sang"],
    ["sisters", "wrote"],
][:SIBLINGS]

kv = PagedKVManager(num_gpu_blocks=20, num_cpu_blocks=20, block_size=BLOCK_SIZE, parts=parts)
device = [["…"] * BLOCK_SIZE for _ in range(kv.num_gpu_blocks)]
host = [["…"] * BLOCK_SIZE for _ in range(kv.num_cpu_blocks)]


def copy(pairs, source, target):
    """What the executor does with the pairs of a plan."""
    for block, content in [(new, list(source[old])) for old, new in pairs]:
        target[block] = content


def feed(seq, word):
    """The sequence feeds a word; its table has a slot for it."""
    table, place = kv.block_table(seq.seq_id), seq.num_computed
    device[table[place // BLOCK_SIZE]][place % BLOCK_SIZE] = word
    seq.num_computed += 1


def read(seq, memory):
    """What a memory holds for a sequence, in the order of its tokens."""
    table, places = kv.block_table(seq.seq_id), range(seq.num_computed)
    return " ".join(memory[table[p // BLOCK_SIZE]][p % BLOCK_SIZE] for p in places)


first = Sequence(0, range(len(PROMPT)))
group = SequenceGroup("speech", first, SamplingParams(n=SIBLINGS))
kv.allocate(group)
for word in PROMPT:
    feed(first, word)
for i in range(1, SIBLINGS):
    group.seqs[i] = first.fork(i, i)
    kv.fork(first, group.seqs[i])
for step in range(2):
    copy(kv.append([group]), device, device)
    for seq in group.live:
        seq.status = Status.RUNNING
        seq.token_ids.append(100 + step)
        feed(seq, ENDS[seq.index][step])
for seq in group.live:
    seq.token_ids.append(200)  # sampled, and not fed yet
before = [read(seq, device) for seq in group.live]
SvgPicture(PoolState.of(kv, [group]), f"{SIBLINGS} samples on the device")

# %% [markdown]
# **Prediction 1.** The group is preempted. Count the entries of the tables in the picture, and the
# blocks. How many pairs will the plan have? Take away the last word of `PROMPT`, or the last three,
# run the cell above again, and predict anew.

# %%
preemption = parts.Preemption(kv, "swap")
entries = sum(len(kv.block_table(seq.seq_id)) for seq in group.live)
plan = StepPlan()
preemption.preempt(group, plan)
out = [list(pair) for pair in plan.swap_out]
on_host = str(PoolState.of(kv, [group]))
print(f"{entries} entries in the tables, {len(out)} pairs: {out}")
print(on_host)
SvgPicture(PoolState.of(kv, [group]), "The group is out")

# %% [markdown]
# Now the executor copies, other requests use the device, and the group comes back. Where does each
# block land, and is every word there?

# %%
copy(plan.swap_out, device, host)
device = [["gone"] * BLOCK_SIZE for _ in device]
plan = StepPlan()
back = preemption.resume(group, plan, headroom=0)
copy(plan.swap_in, host, device)
after = [read(seq, device) for seq in group.live]
print(f"back: {back}, by {plan.swap_in}")
for sentence, was in zip(after, before):
    print(f"{sentence}   ({'as before' if sentence == was else 'it was: ' + was})")
SvgPicture(PoolState.of(kv, [group]), "The group is back")

# %% [markdown]
# ## 2. Too many for the pool
#
# Now the engine itself: your parts, the scheduler, and ten requests, some with several samples.
# The "model" is a hash of the cache: it writes (token, position) into each slot, and its next token
# depends on everything that a sequence's block table leads to. So a single wrong block changes
# every token after it, and nothing is ever rounded.
#
# All ten run in a large pool first, where nobody is preempted. Then in one of `NUM_BLOCKS` blocks,
# in each mode. (The pool must be large enough for each request alone, or it ends early.)
#
# **Prediction 2.** In which mode are the most tokens computed? In which does `auto` differ from
# `swap`? And which mode takes the most steps? Then change `NUM_BLOCKS` above: from which size on is
# nobody preempted?

# %%
MODES = ("recompute", "swap", "auto")
VOCABULARY = 64
draw = random.Random(SEED)
REQUESTS = [
    (
        [draw.randrange(VOCABULARY) for _ in range(draw.randint(4, 14))],
        SamplingParams(
            n=SIBLINGS if i % 3 == 1 else 1,
            temperature=0.8,
            seed=i,
            max_tokens=draw.randint(12, 36),
            ignore_eos=True,
        ),
    )
    for i in range(10)
]


def hash_engine(num_blocks, mode, num_host_blocks=200):
    cache = CacheConfig(
        block_size=BLOCK_SIZE,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=num_host_blocks,
    )
    return Engine(
        SchedulerConfig(preemption=mode, max_model_len=512),
        cache,
        HashExecutor(num_blocks, num_host_blocks, BLOCK_SIZE, VOCABULARY),
        TorchSampling(512, vocab_size=VOCABULARY),
        parts=parts,
        vocab_size=VOCABULARY,
    )


def serve(engine, requests):
    """The tokens of each request, what each step did, and the state after it."""
    for i, (prompt, wish) in enumerate(requests):
        engine.add_request(str(i), prompt, wish)
    tokens, steps, frames = {}, [], []
    while engine.has_unfinished():
        for output in engine.step():
            tokens[output.request_id] = [list(c.token_ids) for c in output.outputs]
        plan, kv = engine.last_plan, engine.kv
        steps.append(
            {
                "computed": plan.num_tokens,
                "moved": len(plan.swap_out) + len(plan.swap_in),
                "preempted": [victim.mode for victim in plan.preempted],
                "device": kv.num_gpu_blocks - kv.num_free_gpu_blocks,
                "host": kv.num_cpu_blocks - kv.num_free_cpu_blocks,
            }
        )
        frames.append(PoolState.of(kv, engine.scheduler.groups))
    return tokens, steps, frames


def summary(tokens, steps):
    victims = [mode for step in steps for mode in step["preempted"]]
    return {
        "same_tokens": tokens == undisturbed,
        "steps": len(steps),
        "swapped": victims.count("swap"),
        "recomputed": victims.count("recompute"),
        "computed": sum(step["computed"] for step in steps),
        "moved": sum(step["moved"] for step in steps),
    }


undisturbed, calm_steps, _ = serve(hash_engine(400, "auto"), REQUESTS)
runs = {mode: serve(hash_engine(NUM_BLOCKS, mode), REQUESTS) for mode in MODES}
pressure = {"large pool": summary(undisturbed, calm_steps)}
pressure |= {mode: summary(tokens, steps) for mode, (tokens, steps, _) in runs.items()}
alone = max(
    len(prompt) // BLOCK_SIZE
    + wish.n * -(-(len(prompt) % BLOCK_SIZE + wish.max_tokens) // BLOCK_SIZE)
    for prompt, wish in REQUESTS
)
print(f"at most {max(step['device'] for step in calm_steps)} blocks where there is room")
print(f"the largest request alone may need {alone}")
print("            same tokens  steps  swapped  recomputed  tokens computed  blocks moved")
for name, found in pressure.items():
    same, *counts = found.values()
    columns = "  ".join(f"{n:{width}}" for n, width in zip(counts, (5, 7, 10, 15, 12)))
    print(f"{name:>10}  {same!s:>11}  {columns}")

# %%
figure, rows = plt.subplots(len(MODES), 1, figsize=(7, 5), sharex=True, layout="constrained")
for axes, (mode, (_, steps, _)) in zip(rows, runs.items()):
    numbers = range(len(steps))
    axes.step(numbers, [step["device"] for step in steps], where="post", label="device")
    axes.step(numbers, [step["host"] for step in steps], where="post", ls="--", label="host")
    for number, step in enumerate(steps):
        for how in step["preempted"]:
            axes.plot(number, NUM_BLOCKS, "v" if how == "swap" else "x", color="0.3", clip_on=False)
    axes.set(ylabel="blocks in use", title=mode, ylim=(0, None))
    axes.grid(alpha=0.3)
rows[0].legend(frameon=False, loc="upper right")
rows[-1].set(xlabel="step   (triangle: a group was swapped out; cross: one will be recomputed)")
plt.show()

# %% [markdown]
# Nobody's tokens change, and the work that recomputing adds is a prefill here and there. `auto`
# swaps what has several samples and recomputes the rest. What all three modes lose is time: fewer
# requests run side by side.
#
# What a swap-out looks like in the engine: the first step in `auto` after which a group is on the
# host. Hatched blocks are shared, on either side.

# %%
frames = runs["auto"][2]
full = next((f for f in frames if f.cpu and f.cpu.tables), frames[-1])
SvgPicture(full, "A group has been swapped out", columns=32)

# %% [markdown]
# ## 3. The same with a model that tells stories
#
# `opt-stories` has real keys and values, and your pairs move them. What a user sees must not depend
# on the pool.
#
# **Prediction 3.** After the three modes comes a swap that forgets the bytes: your tables and your
# counts, and no pairs in the plan. Will the run fail? Which texts change, and from where on? Take
# another `SEED`, or larger `STORY_BLOCKS`, and predict again.

# %%
STORY_BLOCKS = 88 // BLOCK_SIZE
STORIES = ["Once upon a time, there was a little", "One day, a girl named Lily", "The bear was sad"]


def tell(parts, mode, num_blocks):
    """The texts of all samples, and the ways in which groups were preempted."""
    cache = CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=num_blocks, num_cpu_blocks=200)
    llm = LLM("opt-stories", parts=parts, cache=cache, scheduler=SchedulerConfig(preemption=mode))
    for layer in (*llm.engine.executor.pool.k_cache, *llm.engine.executor.pool.v_cache):
        layer.zero_()  # the same start for each run
    hows = []

    def watch(engine):
        hows.extend(victim.mode for victim in engine.last_plan.preempted)

    wish = SamplingParams(n=2, temperature=0.8, seed=SEED, max_tokens=24, ignore_eos=True)
    outputs = llm.generate(STORIES, wish, progress=False, on_step=watch)
    return [completion.text for output in outputs for completion in output.outputs], hows


def forgetful(tables, target):
    """Moves tables, and tells nobody what to copy."""
    parts.move(tables, target)
    return []


calm_texts, _ = tell(parts, "auto", 400)
stories = {}
for name, mode, chosen in (
    *((mode, mode, parts) for mode in MODES),
    ("forgetful", "swap", replace(parts, move=forgetful)),
):
    texts, hows = tell(chosen, mode, STORY_BLOCKS)
    changed = [i for i, (text, was) in enumerate(zip(texts, calm_texts)) if text != was]
    stories[name] = {"preempted": hows, "changed": changed}
    print(f"{name:>9}: preempted {len(hows)} times; texts that changed: {changed}")
    for i in changed:
        print(f"    was: {' '.join(calm_texts[i].split())}\n    now: {' '.join(texts[i].split())}")

# %% [markdown]
# The forgetful swap does not fail. It tells another story.

# %% [markdown]
# ## 4. How much host memory?
#
# Section 4.5 of the paper says that the blocks on the host never exceed the blocks of the device,
# so that swap space is bounded by the GPU memory that the KV cache has.
#
# **Prediction 4.** Requests of the same length grow side by side in a pool of `SMALL` blocks, in
# mode `swap`. When the pool is full, one of k goes out: it has about `SMALL / k` blocks. The others
# take its place and grow, until the next has to go. How many blocks are on the host at most, for 2,
# 3, 4, 5, 6 requests? Is the paper right?

# %%
SMALL = 24

peaks = {}
longest = SMALL * BLOCK_SIZE  # of a sequence that has the pool for itself
for count in range(2, 7):
    wish = SamplingParams(max_tokens=longest - BLOCK_SIZE, ignore_eos=True, seed=SEED)
    same = [([7] * BLOCK_SIZE, wish)] * count
    _, steps, _ = serve(hash_engine(SMALL, "swap"), same)
    peaks[count] = max(step["host"] for step in steps)
    harmonic = sum(SMALL / k for k in range(2, count + 1))
    print(
        f"{count} requests: at most {peaks[count]} blocks on the host ({harmonic:.1f} by the sum)"
    )

figure, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
axes.bar(list(peaks), list(peaks.values()), color="0.6")
axes.axhline(SMALL, color="C3", ls="--", label="blocks of the device: the paper's bound")
axes.set(xlabel="requests", ylabel="blocks on the host", title="The most that swapping took")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# With k requests the sum is N/k + … + N/3 + N/2, which is more than N from four requests on. The
# bound would hold if whoever runs never grew. That is a good reason for `choose` to ask the host:
# where there is no room, the group is recomputed, and nothing else happens.

# %% [markdown]
# ## 5. Which is cheaper?
#
# Figure 19a of the paper, read off its vector graphic: milliseconds to swap out, to swap in, and to
# recompute, by block size. The lines are your functions, with a machine that was fitted on the
# points at 16 and 256. All other points are a test of the model.
#
# **Prediction 5.** Where do "swap both ways" and "recompute" cross? Now let `TOKENS` be 512, and
# then 64: the curves move. Does the crossover? (The points stay: they are of one sequence.)

# %%
FIGURE_19A = {  # the paper, figure 19a: OPT-13B in float16 on an A100-40GB
    1: (55.47, 81.97, 36.32),
    2: (35.64, 53.63, 37.48),
    4: (25.90, 35.14, 36.93),
    8: (21.05, 26.05, 38.81),
    16: (18.54, 21.61, 38.62),
    32: (17.28, 19.28, 39.02),
    64: (16.67, 18.24, 38.25),
    128: (16.30, 17.57, 38.40),
    256: (16.11, 17.30, 39.12),
}
ITEM = 2  # bytes of a number in float16
SIZES = list(FIGURE_19A)
machine = costs.A100_2023


def swap_ms(model, tokens, block_size, machine=machine):
    """Milliseconds (out, in)."""
    blocks = -(-tokens // block_size)
    ways = machine.swap_out, machine.swap_in
    return [1e3 * costs.swap_seconds(model, ITEM, blocks, block_size, way) for way in ways]


def recompute_ms(model, tokens, machine=machine):
    return 1e3 * costs.recompute_seconds(model, ITEM, tokens, machine)


opt = CATALOG["opt-13b"]
curves = {size: [*swap_ms(opt, TOKENS, size), recompute_ms(opt, TOKENS)] for size in SIZES}
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for i, (name, color) in enumerate((("swap out", "C0"), ("swap in", "C1"), ("recompute", "C2"))):
    axes.plot(SIZES, [curves[size][i] for size in SIZES], color=color, label=name)
    axes.plot(SIZES, [FIGURE_19A[size][i] for size in SIZES], "s", ms=4, color=color)
axes.plot(SIZES, [sum(curves[size][:2]) for size in SIZES], "k--", label="swap both ways")
axes.plot(SIZES, [sum(FIGURE_19A[size][:2]) for size in SIZES], "ks", ms=4)
axes.set(xscale="log", xticks=SIZES, xticklabels=SIZES, xlabel="block size (tokens)", ylabel="ms")
axes.set(title=f"OPT-13B, {TOKENS} tokens: lines ours, squares the paper's (figure 19a)", ylim=0)
axes.minorticks_off()
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

crossover = costs.crossover_block_size(opt, ITEM, TOKENS, machine)
print(f"swapping is the cheaper from blocks of {crossover} on")
print("recompute as a share of swap both ways, in the paper's own points:")
shares = {size: 100 * again / (out + back) for size, (out, back, again) in FIGURE_19A.items()}
print("  ".join(f"{size}: {share:.0f} %" for size, share in shares.items()))

# %% [markdown]
# "Recomputation overhead is never higher than 20% of swapping's latency", says section 7.3. Its own
# points go from 26 % to 117 %. What they do support: it is never more than 20 % *above* swapping.
#
# ## 6. What moves the crossover
#
# That sentence is about one model on one machine. Four things can change: the link, the card, the
# width of the model, and the number of its KV heads.
#
# **Prediction 6.** For each of these, say before you look: which of the two ways gets cheaper, and
# where does the crossover go? The first picture takes links of 6 to 100 GB/s, the second models
# from 125M to 175B, each as if it fitted on the card, the third OPT-13B with fewer KV heads. Then
# double `FLOPS` (a faster card), and predict all three again.

# %%
FLOPS = machine.flops_per_s

fast = replace(machine, flops_per_s=FLOPS)
never = 512  # where the pictures show that no block size up to 256 will do


def cross(model, machine):
    """The smallest block size with which swapping is the cheaper; None if there is none."""
    return costs.crossover_block_size(model, ITEM, TOKENS, machine)


def with_link(bytes_per_s):
    ways = {
        way: replace(getattr(fast, way), bytes_per_s=bytes_per_s) for way in ("swap_out", "swap_in")
    }
    return replace(fast, **ways)


links = [6e9, 8e9, 10e9, 12.5e9, 16e9, 25e9, 50e9, 100e9]
by_link = {f"{link / 1e9:g}": cross(opt, with_link(link)) for link in links}
family = [model for name, model in CATALOG.items() if name.startswith("opt-")]
by_model = {
    model.name: [
        model.hidden_size,
        recompute_ms(model, TOKENS, fast) / sum(swap_ms(model, TOKENS, 256, fast)),
        recompute_ms(model, TOKENS, fast) / sum(swap_ms(model, TOKENS, 16, fast)),
    ]
    for model in family
}
by_kv_heads = {
    heads: cross(replace(opt, num_kv_heads=heads), fast) for heads in (40, 20, 10, 8, 5, 1)
}

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for axes, found in ((left, by_link), (right, by_kv_heads)):
    axes.plot([str(key) for key in found], [size or never for size in found.values()], "o-")
    axes.axhline(never, color="0.7", ls=":")
    axes.set(yscale="log", yticks=SIZES, yticklabels=SIZES, ylim=(0.7, 1.4 * never))
    axes.set(ylabel="crossover (block size; dotted: never)")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
left.set(xlabel="link (GB/s)", title="OPT-13B")
right.set(xlabel="KV heads, of 40", title="OPT-13B with GQA")
widths, large, usual = zip(*by_model.values())
middle.plot(widths, large, "o-", label="blocks of 256")
middle.plot(widths, usual, "s--", label="blocks of 16")
flat = (fast.swap_out.bytes_per_s + fast.swap_in.bytes_per_s) / 2
middle.plot(widths, [3 * h * flat / FLOPS for h in widths], color="0.6", label="3 h W / F")
middle.axhline(1, color="0.7", ls=":")
middle.set(xscale="log", yscale="log", xlabel="hidden size h", ylabel="recompute / swap")
middle.set(title="The OPT family (above 1: swap)")
middle.legend(frameon=False)
middle.grid(alpha=0.3)
plt.show()
print("crossover by link, GB/s:", by_link)
print("crossover by KV heads:", by_kv_heads)
for name, (width, *ratios) in by_model.items():
    print(f"{name:>9}, h = {width:5}: recompute / swap", *(f"{ratio:.2f}" for ratio in ratios))

# %% [markdown]
# A wide model has more FLOPs for each byte that it keeps: the larger the model, the more is to be
# said for swapping. (The two smallest are held up by the launch of their layers, and lie above the
# line.) Fewer KV heads make the bytes fewer, and hardly the FLOPs. But a transfer costs what it
# costs, however short it is: with one KV head in place of 40, blocks of 1 are still hopeless. To
# bring the pieces together before they go over the link would be the way out of that.

# %%
RESULTS = {
    "pairs_out": out,
    "on_host": on_host,
    "back": back,
    "words": after,
    "pressure": pressure,
    "stories": stories,
    "peaks": {str(count): peak for count, peak in peaks.items()},
    "figure_19a": {str(size): [round(ms, 2) for ms in found] for size, found in curves.items()},
    "crossover": crossover,
    "by_link": by_link,
    "by_model": {name: [round(value, 3) for value in found] for name, found in by_model.items()},
    "by_kv_heads": {str(heads): size for heads, size in by_kv_heads.items()},
}
display(RESULTS)
