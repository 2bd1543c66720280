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
# # Stage 10: the evaluation
#
# This notebook runs on *your* arrivals, *your* metrics and *your* study of admission, and rebuilds
# figures 2, 12a and 13 of the paper with them. The engine that is measured is built from your parts
# too. Read [lesson 10](../lessons/10-evaluation.md) first. A file that is not finished yet is taken
# from the reference, and the notebook says so.
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
import matplotlib.pyplot as plt
import numpy as np

from minipaged.config import SchedulerConfig
from minipaged.course.student_parts import load_parts
from minipaged.errors import RequestError
from minipaged.sim.lengths import load_lengths
from minipaged.sim.paper.observers import MemoryObserver
from minipaged.sim.paper.published import curve, value
from minipaged.sim.records import RequestRecord
from minipaged.sim.simulate import simulate
from minipaged.sim.systems import SYSTEMS
from minipaged.sim.workloads import Request, Workload

# %% tags=["parameters"]
PARTS = "mine"  # or "ref", "solutions", a folder
SECONDS = 60  # in which requests arrive, in sections 2 and 3; the paper has an hour
LONGER = 150  # the same, in sections 4 to 6
RATE = 3.0  # requests a second, in sections 2 and 3
LEVEL = 0.2  # seconds per token at which rates are read in section 4: 0.1 to 0.4
BURSTINESS = 0.1  # of the bursty arrivals, in sections 1 and 5
SEED = 0

# %%
STUDY = ("arrivals", "metrics", "admission_study")
ENGINE = (
    "buddy",
    "contiguous",
    "block_allocator",
    "block_table",
    "copy_on_write",
    "admission",
    "scheduler",
    "preemption",
    "swap",
)
parts = load_parts(PARTS, only=[*STUDY, *ENGINE])
arrivals, metrics, admission = (parts.module(f"minipaged.sim.{name}") for name in STUDY)
print("\n".join(parts.notes) or "parts: all are the reference's")

# %% [markdown]
# ## 1. When requests come
#
# Two requests a second, three times, and only the burstiness differs. A mark is a request.
#
# **Prediction 1.** In the mean, how many arrivals does each row have in a minute? At a steady beat
# of two a second no second is without an arrival. How many of a hundred are for Poisson arrivals,
# and are there more or fewer with `BURSTINESS` 0.1? Then set `BURSTINESS` to 0.5, and to 4.

# %%
KINDS = {"almost a beat": 100.0, "Poisson": 1.0, "bursty": BURSTINESS}

figure, axes = plt.subplots(figsize=(7, 2), layout="constrained")
coming = {}
for row, (name, burstiness) in enumerate(KINDS.items()):
    times = arrivals.arrival_times(2.0, 2000.0, np.random.default_rng(SEED), burstiness)
    gaps = np.diff(times)
    per_second = np.bincount(np.asarray(times, dtype=int), minlength=2000)
    coming[name] = {
        "a minute": round(len(times) / 2000 * 60, 1),
        "spread of gaps over mean": round(float(gaps.std() / gaps.mean()), 3),
        "seconds without any": round(float((per_second == 0).mean()), 3),
        "most in a second": int(per_second.max()),
    }
    print(f"{name:>14}  " + "   ".join(f"{what} {n}" for what, n in coming[name].items()))
    axes.plot(times[times < 60], [row] * int((times < 60).sum()), "|", ms=14)
axes.set(xlabel="seconds", yticks=range(len(KINDS)), yticklabels=KINDS, ylim=(2.6, -0.6))
plt.show()

# %% [markdown]
# ## 2. The toy
#
# *Your* `study` serves ShareGPT's lengths in the 15,728 slots that OPT-13B has left on an A100 of
# 40 GB, with 45 ms a step, whoever runs.
#
# **Prediction 2.** How many run at a time with `max`? (That one can be computed: 2,048 tokens is
# the longest request.) Oracle knows every length. Of the slots that it holds, what share has a
# token in it? And from which block size on does paging lose what it has won? Then set `RATE` to 1:
# which rows change, and which do not?

# %%
POOL = 15_728
BLOCK_SIZES = (1, 4, 16, 64, 256, 1024)


def draw(rate, seconds, burstiness=1.0):
    """Arrivals, and the lengths of the requests: a burst has the same requests as a beat."""
    times = arrivals.arrival_times(rate, seconds, np.random.default_rng(SEED), burstiness)
    return times, load_lengths("sharegpt").sample(len(times), np.random.default_rng(SEED + 1))


times, lengths = draw(RATE, SECONDS)
trace = [(float(at), prompt, output) for at, (prompt, output) in zip(times, lengths)]
toy = {}
for policy, block_size in [(p, 16) for p in ("max", "pow2", "oracle")] + [
    ("paged", size) for size in BLOCK_SIZES
]:
    study = admission.study(trace, POOL, policy, block_size=block_size, step_seconds=0.045)
    name = policy if policy != "paged" else f"paged {block_size}"
    latency = np.mean(metrics.pooled(study.records, "normalized_latency"))
    toy[name] = {
        "batch": round(study.mean_batch, 2),
        "token share": round(study.token_share, 3),
        "wait (s)": round(study.mean_wait, 2),
        "s/token": round(float(latency), 3),
        "preemptions": sum(record.num_preemptions for record in study.records),
    }


def table(rows):
    columns = list(next(iter(rows.values())))
    print(" " * 12 + "".join(f"{column:>15}" for column in columns))
    for name, row in rows.items():
        cells = ("-" if row[column] is None else row[column] for column in columns)
        print(f"{name:12}" + "".join(f"{cell:>15}" for cell in cells))


print(f"{len(trace)} requests in {SECONDS} s")
table(toy)

figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
axes.plot(BLOCK_SIZES, [toy[f"paged {size}"]["token share"] for size in BLOCK_SIZES], "o-")
for policy, style in (("max", ":"), ("pow2", "--"), ("oracle", "-.")):
    axes.axhline(toy[policy]["token share"], ls=style, color="0.4", label=policy)
axes.set(xscale="log", xlabel="block size", ylabel="token share", ylim=(0, 1.03))
axes.set_xticks(BLOCK_SIZES, BLOCK_SIZES)
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# A block is a small reservation. With 1,024 it is a large one, and as wasteful as a large one is.
#
# ## 3. The engine: figures 2 and 13
#
# The toy does not know where a request lies, nor how long a step takes. Now the real scheduler and
# the real managers run, for the four systems, under the same arrivals. Only the model is pretended:
# a step takes what a cost model says of it. Memory and batch are measured while a request waits.
# (The paper has 2 requests a second for an hour, and takes the batch over all of it. In a minute
# nobody would have to wait with that, and most of the run would be its beginning and its end.)
#
# **Prediction 3.** Which part of the memory of Orca (Max) belongs to nobody, and never will?
# (Derive it from 15,728 and 2,048.) Orca (Oracle) wastes nothing on wrong guesses. In the figure
# two colors are left to it: which? Then set `RATE` to 1 for a system that can bear it.

# %%
CLASSES = {  # ours, the paper's name, a color
    "token_states": ("token_states", "C2"),
    "reserved": ("reservation", "C1"),
    "internal": ("internal_frag", "C3"),
    "external": ("external_frag_other", "0.8"),
}
FOUR = ("orca-max", "orca-pow2", "orca-oracle", "vllm")


def workload(times, lengths):
    return Workload(
        "ShareGPT", tuple(Request(float(at), *pair) for at, pair in zip(times, lengths))
    )


memory, batches = {}, {}
for system in FOUR:
    meter = MemoryObserver()
    run = simulate(workload(times, lengths), system, parts=parts, observers=[meter])
    memory[system] = {name: round(share, 1) for name, share in meter.shares().items()}
    batches[system] = round(meter.mean_batch, 2)
    print(f"{SYSTEMS[system].title:14} {run.num_steps:6,} steps  {memory[system]}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for place, system in enumerate(FOUR):
    title = SYSTEMS[system].title
    for shift, shares, alpha in (
        (
            -0.2,
            {k: value("fig2", f"pct_of_kv_memory:{v[0]}", title) for k, v in CLASSES.items()},
            0.5,
        ),
        (0.2, memory[system], 1.0),
    ):
        bottom = 0.0
        for name, (_, color) in CLASSES.items():
            share = shares.get(name, 0.0)
            label = name.replace("_", " ") if alpha == 1 and not place else None
            left.bar(place + shift, share, 0.36, bottom, color=color, alpha=alpha, label=label)
            bottom += share
    right.bar(place - 0.2, value("fig13a", "avg_batched", title), 0.36, color="C0", alpha=0.5)
    right.bar(place + 0.2, batches[system], 0.36, color="C0")
names = [SYSTEMS[system].title.replace(" ", "\n") for system in FOUR]
for axes in (left, right):
    axes.set_xticks(range(len(FOUR)), names, fontsize=8)
left.set(title="Figure 2 (pale: the paper)", ylabel="% of the KV cache")
left.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
right.set(title="Figure 13a (pale: the paper)", ylabel="requests in a batch")
plt.show()

# %% [markdown]
# How much of a bar is the system, and how much the short trace? Another `SEED` says it.
#
# ## 4. Figure 12a
#
# Each system at three rates. Of the same requests the first come, as many as the rate asks for, and
# *your* `rescale` stretches their gaps. *Your* `sustained_rate` reads the rate at `LEVEL`, of our
# points and of the paper's.
#
# **Prediction 4.** From Oracle to paging the batch grew by a factor, in the figure above. Will the
# rate grow by the same, by more, or by less? Then set `LEVEL` to 0.4: by how much does each rate
# move? And if the trace were longer, `LONGER = 300`, would the knees move left or right?

# %%
RATES = {
    "orca-max": (0.45, 0.6, 0.85),
    "orca-pow2": (0.7, 0.95, 1.3),
    "orca-oracle": (0.9, 1.25, 1.7),
    "vllm": (1.6, 2.2, 3.0),
}
TOP = max(rate for rates in RATES.values() for rate in rates)
many_times, many_lengths = draw(TOP, LONGER)


def at_rate(rate):
    """The requests of a run at a rate, and their arrivals."""
    count = max(1, round(rate * LONGER))
    return arrivals.rescale(many_times[:count], rate), many_lengths[:count]


def read(points, level):
    try:
        return round(float(metrics.sustained_rate(points, level)), 3)
    except RequestError as error:
        print(error)
        return None


curves, last_run = {}, {}
for system, rates in RATES.items():
    points = []
    for rate in rates:
        run = simulate(workload(*at_rate(rate)), system, parts=parts)
        latencies = metrics.pooled(run.records, "normalized_latency")
        points.append((rate, round(float(np.mean(latencies)), 4)))
    curves[system], last_run[system] = points, run
sustained = {
    system: {
        "ours": read(points, LEVEL),
        "paper": read(curve("12a", SYSTEMS[system].title), LEVEL),
    }
    for system, points in curves.items()
}
print(f"requests a second at {LEVEL} s/token")
table(sustained)
for system in FOUR[:3]:
    ratios = {
        who: best / rate
        for who, best in sustained["vllm"].items()
        if best and (rate := sustained[system][who])
    }
    told = ", ".join(f"{who} {ratio:.2f}" for who, ratio in ratios.items())
    print(f"vLLM over {SYSTEMS[system].title}: {told}")

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for color, (system, points) in zip(("C3", "C1", "C2", "C0"), curves.items()):
    title = SYSTEMS[system].title
    axes.plot(*zip(*curve("12a", title, clipped=False)), ".", color=color, alpha=0.5)
    axes.plot(*zip(*points), "o-", color=color, mfc="white", label=title)
axes.axhline(LEVEL, color="0.4", lw=1, ls=":")
axes.set(ylim=(0, 1), xlim=(0, None), xlabel="requests a second", ylabel="s/token")
axes.legend(frameon=False, title="dots: the paper")
plt.show()

# %% [markdown]
# Our knees lie further right than the paper's: a short trace ends before its queue has become long.
# In an hour the same overload makes a queue that is twenty times as long. What a short trace can
# show is the order of the systems, and about their ratios. `minipaged paper fig12` takes the hour.
#
# ## 5. What the mean does not say
#
# Paged memory, 1.6 requests a second, well below the knee: steady arrivals and bursty ones, and
# with prompts in steps of their own (`prefill_first`).
#
# **Prediction 5.** Which of the three has the worst first token, in the mean and in one case of a
# hundred? Which has the worst gap between two tokens? And is the 99th percentile of all gaps larger
# or smaller than that of the requests' mean gaps (`tpot`)? Then set `BURSTINESS` to 0.03.

# %%
CASES = {
    "Poisson": (1.0, {}),
    "bursty": (BURSTINESS, {}),
    "prefill first": (1.0, {"prefill_first": True}),
}
OBJECTIVE = {"ttft": 500, "tpot": 60}  # milliseconds

tails, pools = {}, {}
for name, (burstiness, settings) in CASES.items():
    scheduler = SchedulerConfig.paper_2023(**settings)
    run = simulate(workload(*draw(1.6, LONGER, burstiness)), scheduler=scheduler, parts=parts)
    found = metrics.summarize(run.records, run.duration, slo=OBJECTIVE)
    pools[name] = np.array(metrics.pooled(run.records, "itl"))
    tails[name] = {
        "s/token": round(found["normalized_latency_s_per_token"], 4),
        "mean TTFT": round(found["mean_ttft_ms"]),
        "p99 TTFT": round(found["p99_ttft_ms"]),
        "p99 gap": round(1e3 * metrics.percentile(pools[name], 99), 1),
        "p99 TPOT": round(found["p99_tpot_ms"], 1),
        "kept, %": round(100 * found["request_goodput"] / found["request_throughput"], 1),
    }
table(tails)

figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
for style, (name, gaps) in zip(("-", "--", ":"), pools.items()):
    gaps = np.sort(gaps)
    axes.step(1e3 * gaps, 1 - np.arange(len(gaps)) / len(gaps), style, label=name)
axes.set(xscale="log", yscale="log", xlabel="gap between two tokens, ms", ylabel="share above it")
axes.axhline(0.01, color="0.5", lw=1)
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# And the word TPOT: of one request, in three tools. The definitions are in the lesson.
#
# **Prediction 6.** A request waits 2 s for its first token, and then gets one every 40 ms. What is
# the time per output token for GuideLLM when there are 5 tokens, and when there are 500? Change
# `TOKENS`.

# %%
TOKENS = (2, 5, 50, 500)

tpots = {}
for count in TOKENS:
    at = [12.0 + 0.04 * i for i in range(count)]
    one = RequestRecord(10.0, at, at[-1], prompt_len=100, output_len=count)
    tpots[f"{count} tokens"] = {
        "vLLM's TPOT": round(1e3 * metrics.tpot(one), 1),
        "GuideLLM's": round(1e3 * metrics.e2el(one) / count, 1),
        "AIPerf's ITL": round(1e3 * float(np.mean(metrics.inter_token_latencies(one))), 1),
    }
table(tpots)

# %% [markdown]
# ## 6. How to look good
#
# Paged memory at the highest rate of section 4, which is too much for it. Suppose that somebody
# stops the run early, and takes the mean over the requests that have finished by then. The line is
# what they would report.

# %%
records = last_run["vllm"].records
overload = RATES["vllm"][-1]
everybody = float(np.mean(metrics.pooled(records, "normalized_latency")))
stops = np.linspace(0.1 * LONGER, last_run["vllm"].duration, 25)
reported = [
    float(np.mean([metrics.normalized_latency(r) for r in records if r.finish_time <= stop]))
    for stop in stops
]
cut = [
    RequestRecord(
        record.arrival_time,
        [at for at in record.token_times if at <= LONGER / 2],
        record.finish_time if record.finish_time <= LONGER / 2 else None,
        record.prompt_len,
        record.output_len,
    )
    for record in records
    if record.arrival_time <= LONGER / 2
]
try:
    metrics.served(cut)
    refused = ""
except RequestError as error:
    refused = str(error)
print(f"your `served` says of the run that was stopped at {LONGER / 2:g} s: {refused or 'nothing'}")

figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
axes.plot(stops, reported, "o-", ms=3, label="those that have finished")
axes.axhline(everybody, color="0.4", ls="--", label="everybody")
axes.axvline(LONGER, color="0.7", lw=1, label="the last has come")
axes.set(
    xlabel="stopped after (s)",
    ylabel="s/token",
    title=f"{overload:g} requests a second, overloaded",
)
axes.legend(frameon=False, loc="lower right")
plt.show()

# %%
RESULTS = {
    "arrivals": coming,
    "toy": toy,
    "figure 2": memory,
    "figure 13": batches,
    "figure 12a": {system: [list(point) for point in points] for system, points in curves.items()},
    "sustained": sustained,
    "tails": tails,
    "tpot": tpots,
    "stopped early": [round(reported[0], 4), round(everybody, 4), refused],
}
