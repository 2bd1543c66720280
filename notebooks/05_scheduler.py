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
# # Stage 05: the scheduler
#
# This notebook runs on *your* `Admission` and `Scheduler`. Read
# [lesson 05](../lessons/05-scheduler.md) first. A file of which a task is not written yet is taken
# from the reference, and the notebook says so. It takes half a minute.
#
# Six times you will be asked for a prediction. Write it down before you run the cell, then change
# the value that the cell names and predict again.

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
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from minipaged import LLM, SamplingParams
from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.contracts import Batch, Decision, GroupDecision, StepLogits
from minipaged.course.student_parts import load_parts
from minipaged.engine import Engine, make_kv_manager
from minipaged.executor.hash_executor import HashExecutor
from minipaged.parts import reference_attention
from minipaged.sampling.decide import TorchSampling
from minipaged.sequence import Sequence, SequenceGroup
from minipaged.sim.lengths import load_lengths
from minipaged.viz.state import PoolState
from minipaged.viz.svg import SvgPicture

# %% tags=["parameters"]
PARTS = "mine"  # or "ref", "solutions", a folder
NUM_BLOCKS = 8  # of the small pool in section 2: 8 or more
PLACES = 4  # stories at a time, in section 3
RATE = 1.0  # requests a second, in section 4
SEED = 0

# %%
parts = load_parts(PARTS)
print("\n".join(parts.notes) or "parts: all are the reference's")

# %% [markdown]
# ## 1. A map of your admission
#
# One request asks, a pool of 64 blocks of 16 answers. To the right its prompt gets longer, upwards
# more blocks are free. The color is what your `decide` says.
#
# **Prediction 1.** The step that is asked about holds 40 tokens of 12 sequences, 600 tokens are the
# budget, and 6 blocks are the watermark. Sketch the map. Then set `BATCH = Batch(0, 0)`: an empty
# step. Which of the borders move, which regions vanish, and which stays as it is? And what does
# `Batch(40, 256)` do, when 256 places are all that there are?

# %%
BATCH = Batch(num_tokens=40, num_seqs=12)
POOL, BUDGET, WATERMARK, LONGEST = 64, 600, 6, 900
ANSWERS = ["ok", "later: memory", "later: token budget", "later: sequence limit", "never"]


def a_request(tokens):
    return SequenceGroup(f"{tokens} tokens", Sequence(0, [0] * tokens), SamplingParams())


config = SchedulerConfig(max_num_batched_tokens=BUDGET, max_model_len=LONGEST)
asking = range(10, 1100, 10)
grid = []
for free in range(POOL + 1):
    kv = make_kv_manager(CacheConfig(num_gpu_blocks=POOL, num_cpu_blocks=0), config, parts)
    if free < POOL:
        kv.allocate(a_request(16 * (POOL - free)))
    admission = parts.Admission(config, kv, WATERMARK)
    row = []
    for tokens in asking:
        answer = admission.decide(a_request(tokens), tokens, BATCH)
        waits = f": {answer.reason}" if answer.verdict.value == "later" else ""
        row.append(ANSWERS.index(answer.verdict.value + waits))
    grid.append(row)
answers = {ANSWERS[i]: int(count) for i, count in enumerate(np.bincount(np.ravel(grid))) if count}
refusals = [admission.refusal(a_request(tokens)) for tokens in (LONGEST, 1050)]
print(answers, *refusals, sep="\n")

figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
colors = ["#59a14f", "#4e79a7", "#f2c14e", "#9c755f", "#e15759"]
area = (asking[0], asking[-1], 0, POOL)
axes.imshow(
    grid, cmap=ListedColormap(colors), vmin=0, vmax=4, origin="lower", aspect="auto", extent=area
)
axes.set(xlabel="tokens of the prompt", ylabel="free blocks", title="May it come?")
axes.legend(
    handles=[Patch(color=color, label=name) for color, name in zip(colors, ANSWERS)],
    loc="center left",
    bbox_to_anchor=(1, 0.5),
    frameon=False,
)
plt.show()

# %% [markdown]
# ## 2. Step by step
#
# Five requests, `NUM_BLOCKS` blocks of 4, and one line a step. `p` is a step in which a prompt is
# computed, `d` one in which a token is; `x` is a preemption, a dot is a step of waiting. (Who gives
# its blocks back is the reference's choice, the last of those that *your* `run` offers. Stage 6 is
# about that.) The watermark is one block. The model is a hash of what the cache holds: quick, and
# very sensitive to a wrong block.
#
# **Prediction 2.** With 8 blocks, all requests are there from the start and each wants 12 tokens.
# Who is admitted in step 0? Who is preempted first, and does it come back before `e` starts? Then
# predict the same for `NUM_BLOCKS = 9`.

# %%
SMALL_PROMPTS = {"a": 6, "b": 9, "c": 7, "d": 2, "e": 5}


def life(num_blocks):
    """A line of marks for each request, the state after each step, and the tokens."""
    cache = CacheConfig(block_size=4, num_gpu_blocks=num_blocks, num_cpu_blocks=0, watermark=0.125)
    engine = Engine(
        SchedulerConfig(max_model_len=64),
        cache,
        HashExecutor(num_blocks, 0, 4),
        TorchSampling(64, vocab_size=64),
        parts=parts,
        clock=lambda: 0.0,
    )
    for name, prompt in SMALL_PROMPTS.items():
        wish = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        engine.add_request(name, list(range(prompt)), wish)
    lines = dict.fromkeys(SMALL_PROMPTS, "")
    groups = list(engine.scheduler.groups)
    name_of = {group.live[0].seq_id: group.request_id for group in groups}
    frames, tokens = [], {}
    while engine.has_unfinished():
        unfinished = {group.request_id for group in engine.scheduler.groups}
        outputs = engine.step()
        plan = engine.last_plan
        marks = {name_of[span.seq_id]: "pd"[len(span.token_ids) == 1] for span in plan.spans}
        marks |= {victim.request_id: "x" for victim in plan.preempted}
        for name in lines:
            lines[name] += marks.get(name, "." if name in unfinished else " ")
        frames.append(
            PoolState.of(engine.kv, engine.scheduler.groups, name=lambda s: name_of[s.seq_id])
        )
        tokens |= {output.request_id: output.outputs[0].token_ids for output in outputs}
    return lines, frames, tokens


lines, frames, tokens = life(NUM_BLOCKS)
for name, line in lines.items():
    print(name, line)
roomy_lines, _, roomy_tokens = life(64)
print(f"{len(frames)} steps, with 64 blocks {len(roomy_lines['a'])}")
print("the same tokens as with 64 blocks:", tokens == roomy_tokens)
preempting = [i for i in range(len(frames)) if "x" in (line[i] for line in lines.values())]
first = preempting[0] if preempting else 1
for step in (first - 1, first):
    display(SvgPicture(frames[step], f"After step {step}", columns=32))

# %% [markdown]
# ## 3. Stories, as they come
#
# Now the real engine with a real model, `opt-stories`, that is in the repository. Sixteen requests
# arrive at random, two in five steps on average, while the engine steps. Prompt and story are a
# sixteenth as long as ShareGPT's. `PLACES` of them may run at a time. They are served twice: with
# *iteration-level* batching, where each step has its own batch, and with *request-level* batching,
# where a batch is closed until its last member is done.
#
# **Prediction 3.** How many steps does each of the two take, about? Will the stories be the same?
# Then set `PLACES` to 16: how much is left of the difference?

# %%
STORY = [
    "Once upon a time, there was a little bear who lived near a small lake. Every morning he went "
    "to the water to look for fish. ",
    "One day he found a red boat in the grass. The boat was old and had a hole, but the bear liked "
    "it very much. He asked his friend the rabbit to help him. ",
    "The rabbit brought some wood and the bear brought a hammer. They worked all day long in the "
    "warm sun. When the boat was ready, they put it on the lake and it did not sink. ",
    "The bear laughed and the rabbit clapped. They sailed to the other side, where a duck was "
    "waiting for them with a basket of apples. They ate the apples until the moon came up. ",
]
BATCHINGS = ("request", "iteration")

llm = LLM(
    "opt-stories",
    parts=replace(parts, attention=reference_attention),  # which is fast
    cache=CacheConfig(num_gpu_blocks=512, num_cpu_blocks=0),
)
dice = np.random.default_rng(SEED)
lengths = load_lengths("sharegpt").sample(16, dice)
prompts = [llm.tokenize("".join(STORY[i % 4 :] + STORY)) for i in range(len(lengths))]
prompts = [tokens[: 5 + prompt // 16] for tokens, (prompt, _) in zip(prompts, lengths)]
arrivals = np.cumsum(dice.exponential(2.5, len(prompts))).tolist()


def tell(batching):
    """The stories, and (arrived, first step, last step) of each."""
    engine = llm.make_engine(
        llm.cache_config, SchedulerConfig(max_num_seqs=PLACES, batching=batching)
    )
    texts, begun, ended, sizes = {}, {}, {}, []
    step = coming = 0
    while coming < len(prompts) or engine.has_unfinished():
        while coming < len(prompts) and arrivals[coming] <= step:
            wish = SamplingParams(
                seed=SEED + coming,
                temperature=0.7,
                max_tokens=1 + lengths[coming][1] // 16,
                ignore_eos=True,
            )
            engine.add_request(str(coming), prompts[coming], wish)
            coming += 1
        for output in engine.step():
            texts[int(output.request_id)] = output.outputs[0].text
            ended[int(output.request_id)] = step
        for request in engine.last_plan.admitted:
            begun.setdefault(int(request), step)
        sizes.append(len(engine.last_plan.spans))
        step += 1
    bars = [(arrivals[i], begun[i], ended[i]) for i in range(len(prompts))]
    return [texts[i] for i in range(len(prompts))], bars, sizes


told = {batching: tell(batching) for batching in BATCHINGS}
for batching, (_, bars, sizes) in told.items():
    waited = sum(start - arrived for arrived, start, _ in bars) / len(bars)
    print(
        f"{batching:>9}: {len(sizes)} steps, {sum(sizes) / len(sizes):.2f} stories a step, "
        f"a story waits {waited:.0f} steps before it begins"
    )
same_texts = told["request"][0] == told["iteration"][0]
print("the same stories:", same_texts)
for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i]))[:3]:
    words = f"{llm.tokenizer.decode(prompts[i])}|{told['iteration'][0][i]}".split()
    print(" ".join(words)[:95], "…")

figure, both = plt.subplots(1, 2, figsize=(8, 3.2), sharex=True, sharey=True, layout="constrained")
for axes, (batching, (_, bars, sizes)) in zip(both, told.items()):
    for i, (arrived, start, end) in enumerate(bars):
        axes.plot([arrived, start], [i, i], color="0.75", lw=2)
        axes.plot([start, end + 1], [i, i], color="C0", lw=4, solid_capstyle="butt")
    axes.set(xlabel="step", title=f"{batching} level: {len(sizes)} steps")
both[0].set(ylabel="request", ylim=(len(prompts), -1), yticks=range(0, len(prompts), 3))
plt.show()

# %% [markdown]
# Gray is waiting, blue is running. On the left the blue bars begin in columns: a batch. Where a
# short bar ends beside a long one, a place is empty, and there are gray ones that want it.
#
# ## 4. ShareGPT on an A100, by the clock
#
# OPT-13B on an A100 with 40 GB has 983 blocks of 16 slots in the paper's setting. Requests arrive
# at random, `RATE` a second, for three minutes, with ShareGPT's lengths (figure 11), and all are
# served to their end. Queues, blocks and decisions are the real ones, and yours. Only the model is
# pretended: it says token 0 until a request is as long as it was drawn to be. A clock of our own
# moves on by what such a step takes on that card.
#
# Both runs have paged memory. So the difference between them is your scheduler's alone.
#
# **Prediction 4.** One request a second. About how many run at a time with each of the two, and how
# long does a request wait for its first token? What happens with 0.25 a second, and with 2?

# %%
SECONDS = 180


def step_seconds(plan):
    """Roughly what the authors' system took: fitted to the curves of their figures 1 and 12."""
    cached = sum(span.context_len for span in plan.spans)
    return 28e-3 + 0.31e-3 * len(plan.spans) + 0.4e-6 * cached + 0.14e-3 * plan.num_tokens


class Pretended:
    """An executor and a sampler without a model."""

    def execute(self, plan):
        return StepLogits(rows=None)

    def decide(self, plan, logits, groups):
        sampled = {span.seq_id for span in plan.spans if span.sample}
        decisions = []
        for group in groups:
            (seq,) = group.seqs.values()
            if seq.seq_id in sampled:
                is_last = seq.num_output_tokens + 1 == group.params.max_tokens
                token = Decision(seq, token_id=0, logprob=0.0, finish="length" if is_last else None)
                decisions.append(GroupDecision(group, [token]))
        return decisions

    def select_outputs(self, group):
        return list(group.all_seqs())


def serve(rate, scheduler, watermark=0.01):
    """What became of every request, the queues after every step, and the gaps between tokens."""
    random = np.random.default_rng(SEED)
    times = np.cumsum(random.exponential(1 / rate, int(2 * rate * SECONDS) + 50))
    times = times[times < SECONDS].tolist()
    coming = list(zip(times, load_lengths("sharegpt").sample(len(times), random)))[::-1]
    now, model, preemptions = 0.0, Pretended(), 0
    cache = CacheConfig(num_gpu_blocks=983, num_cpu_blocks=0, watermark=watermark)
    engine = Engine(scheduler, cache, model, model, parts=parts, clock=lambda: now)
    done, history, gaps, last_token = [], [], [], {}
    while coming or engine.has_unfinished():
        if not engine.has_unfinished():
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            arrival, (prompt, output) = coming.pop()
            wish = SamplingParams(max_tokens=output)
            engine.add_request(str(arrival), [0] * prompt, wish, arrival_time=arrival)
        done += engine.step()
        now += step_seconds(engine.last_plan)
        preemptions += len(engine.last_plan.preempted)
        for group in engine.scheduler.sampled:
            if group.request_id in last_token:
                gaps.append(now - last_token[group.request_id])
            last_token[group.request_id] = now
        history.append((now, len(engine.scheduler.running), len(engine.scheduler.waiting)))
    return done, np.array(history), np.array(gaps), preemptions


def summary(run):
    """Of a run: minutes until all were served; requests that ran at a time, while others still
    came; seconds until a request's first token, and for each of its tokens (the paper's normalized
    latency); seconds between two tokens of a request, at most and in 99 of 100 cases."""
    done, history, gaps, preemptions = run
    ends, batch, _ = history[history[:, 0] < SECONDS].T
    latency = [
        (out.metrics.finished_time - out.metrics.arrival_time) / len(out.outputs[0].token_ids)
        for out in done
    ]
    wait = [out.metrics.first_token_time - out.metrics.arrival_time for out in done]
    return {
        "minutes": round(float(history[-1, 0]) / 60, 2),
        "batch": round(float(np.average(batch[1:], weights=np.diff(ends))), 2),
        "first token": round(float(np.mean(wait)), 3),
        "s/token": round(float(np.mean(latency)), 4),
        "longest gap": round(float(gaps.max()), 3),
        "p99 gap": round(float(np.quantile(gaps, 0.99)), 3),
        "preemptions": preemptions,
    }


def table(rows, columns):
    print(" " * 14 + "".join(f"{column:>14}" for column in columns))
    for name, row in rows.items():
        print(f"{name:14}" + "".join(f"{row[column]:>14}" for column in columns))


traffic = {batching: serve(RATE, SchedulerConfig(batching=batching)) for batching in BATCHINGS}
served = {batching: summary(run) for batching, run in traffic.items()}
table(served, ["minutes", "batch", "first token", "s/token"])

figure, axes = plt.subplots(3, figsize=(7, 5.2), sharex=True, layout="constrained")
for style, (batching, (_, history, *_)) in zip(("-", "--"), traffic.items()):
    ends, running, waiting = history.T
    axes[0].step(ends, running, style, where="post", label=f"{batching} level", lw=1)
    axes[1].step(ends, waiting, style, where="post", lw=1)
for marker, (batching, (done, *_)) in zip(("x", "."), traffic.items()):
    arrived = [out.metrics.arrival_time for out in done]
    latency = [
        (out.metrics.finished_time - out.metrics.arrival_time) / len(out.outputs[0].token_ids)
        for out in done
    ]
    axes[2].semilogy(arrived, latency, marker, label=f"{batching} level", ms=4)
axes[0].set(ylabel="running", title=f"{RATE} requests a second for {SECONDS} seconds")
axes[1].set(ylabel="waiting")
axes[2].set(xlabel="seconds (below: when it arrived)", ylabel="s/token")
axes[0].legend(frameon=False, loc="upper right", ncols=2)
axes[2].legend(frameon=False)
for each in axes:
    each.grid(alpha=0.3)
plt.show()

# %% [markdown]
# With request-level batching a batch takes as long as its longest member, and requests are waiting
# when it is done. They are the next batch: a large one, with a still longer member. On average only
# a few of them run, since most are done long before the last one is.
#
# The paper compares with FasterTransformer, whose batches are of this kind, on contiguous memory:
# at 0.2 seconds a token it bears 0.13 requests a second, and vLLM 1.9 (figure 12a). Try `RATE`: how
# much of that distance is batching, and how much is left for memory?
#
# ## 5. What the watermark is good for
#
# Admission leaves 1 % of the blocks free. Here come two requests a second, which is as much as this
# card can do.
#
# **Prediction 5.** From a watermark of 0 to one of 50 %: how does the number of preemptions change,
# and how the batch? At which of the two ends is the latency worse? Then put a value of your own
# into `WATERMARKS`: what would you ship?

# %%
WATERMARKS = [0, 0.01, 0.05, 0.2, 0.5]

shares = {}
for watermark in WATERMARKS:
    shares[f"{watermark:.0%}"] = summary(serve(2.0, SchedulerConfig(), watermark))
table(shares, ["preemptions", "batch", "first token", "s/token"])

# %% [markdown]
# ## 6. Whose time does a prompt take?
#
# A step that computes a long prompt takes long, and everyone in it gets the next token that much
# later. Three ways to do it: prompts beside the decodes, as in the paper (*mixed*); prompts in
# steps of their own (*prefill first*); prompts in chunks, so that no step has more than 256 tokens
# (*chunked*). 1.2 requests a second: nobody is preempted, which would make gaps of another kind.
#
# **Prediction 6.** In which of the three is the longest gap between two tokens of a request the
# shortest, and in which does a request wait longest for its first token? Then set the chunks'
# budget to 1024.

# %%
WAYS = {
    "mixed": SchedulerConfig(),
    "prefill first": SchedulerConfig(prefill_first=True),
    "chunked": SchedulerConfig(chunked_prefill=True, max_num_batched_tokens=256),
}
ways = {name: summary(serve(1.2, scheduler)) for name, scheduler in WAYS.items()}
table(ways, ["p99 gap", "longest gap", "first token", "s/token"])

# %%
RESULTS = {
    "answers": answers,
    "refusals": refusals,
    "lines": lines,
    "preempting": [str(frames[first - 1]), str(frames[first])],
    "same_tokens": tokens == roomy_tokens,
    "stories": {batching: [bars, len(sizes)] for batching, (_, bars, sizes) in told.items()},
    "same_texts": same_texts,
    "served": served,
    "watermarks": shares,
    "ways": ways,
}
display({name: RESULTS[name] for name in ("served", "watermarks", "ways")})
