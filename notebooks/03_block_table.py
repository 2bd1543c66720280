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
# # Stage 03: the block table
#
# This notebook runs on *your* block table and *your* paged attention. Read
# [lesson 03](../lessons/03-block-table.md) first. A task that you have not written yet is taken
# from the reference, and the notebook says so.
#
# Four times you will be asked for a prediction. Write it down before you run the cell, then
# change the value that the cell names and predict again.

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
import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from IPython.display import display

from minipaged import LLM, SamplingParams
from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.contracts import Span, StepPlan
from minipaged.course.student_parts import load_parts
from minipaged.executor.inputs import InputBuilder
from minipaged.fetch import default_cache_dir, is_complete
from minipaged.viz.state import Pool, PoolState
from minipaged.viz.svg import SvgPicture

# %% tags=["parameters"]
PARTS = "mine"  # or "ref", "solutions", a folder
BLOCK_SIZE = 4
LENGTH = 14  # tokens of the first sequence
NUM_KV_HEADS = 2  # of the 6 query heads of the attention experiment: 1, 2, 3 or 6
SEED = 0

# %%
parts = load_parts(PARTS)
attention = parts.attention()
paged = sys.modules[type(attention).__module__]  # the file with write_kv, gather_kv, …
random = torch.Generator().manual_seed(SEED)
print("\n".join(getattr(parts, "notes", ())) or "parts: all are the reference's")


# %% [markdown]
# ## 1. Dense storage, and the same keys in blocks
#
# A dense cache keeps the keys of a sequence in one tensor `[length, num_kv_heads, head_dim]`. We
# write the same keys into a pool whose free blocks lie scattered, through your table, and gather
# them again. The dense tensor is the oracle: not one number may differ.


# %%
def used_pool(num_blocks):
    """A pool that has seen some life: its free blocks are in no order."""
    pool = parts.BlockAllocator(num_blocks)
    held = pool.allocate_many(num_blocks)
    order = torch.randperm(num_blocks, generator=random).tolist()
    pool.free_many(held[i] for i in order)
    return pool


def state(pool, tables):
    """What the course draws, of a pool and the tables that live in it."""
    refs = {b: pool.ref_count(b) for b in range(pool.num_blocks) if pool.ref_count(b)}
    blocks = {name: list(table.blocks) for name, table in tables.items()}
    tokens = {name: table.num_tokens for name, table in tables.items()}
    inside = Pool(pool.num_blocks, blocks, tokens, pool.free_blocks, refs)
    return PoolState(BLOCK_SIZE, inside)


pool = used_pool(-(-LENGTH // BLOCK_SIZE) + 6)
table = parts.BlockTable(pool, BLOCK_SIZE)
table.append(LENGTH)

dense_k = torch.randn(LENGTH, NUM_KV_HEADS, 16, generator=random)
dense_v = torch.randn(LENGTH, NUM_KV_HEADS, 16, generator=random)
k_cache = torch.full((pool.num_blocks, NUM_KV_HEADS, BLOCK_SIZE, 16), torch.nan)
v_cache = k_cache.clone()
slots = torch.tensor(table.slots(0, LENGTH))
paged.write_kv(dense_k, dense_v, k_cache, v_cache, slots)

row = torch.tensor(table.blocks, dtype=torch.int32)
gathered_k = paged.gather_kv(k_cache, row, LENGTH)
gathered_v = paged.gather_kv(v_cache, row, LENGTH)
same_keys = torch.equal(gathered_k, dense_k)
same_values = torch.equal(gathered_v, dense_v)
print("slots:", slots.tolist())
print("keys equal:", same_keys, " values equal:", same_values)
SvgPicture(state(pool, {"seq0": table}), "One sequence in a used pool")

# %% [markdown]
# **Prediction 1.** In the next cell the same sequence grows by `MORE` tokens. How many blocks does
# the pool lose, and how many slots of the last block stay empty? Set `MORE`, write both numbers
# down, and run. Try a `MORE` that fills the last block exactly, and one token more.

# %%
MORE = 3

before = pool.num_free
asked = table.blocks_to_append(MORE)
table.append(MORE)
taken = before - pool.num_free
print(f"blocks_to_append({MORE}) said {asked}; the pool lost {taken}")
print(f"{table.num_tokens} tokens, {table.num_free_slots} free slots in the last block")
SvgPicture(state(pool, {"seq0": table}), f"{MORE} tokens more")

# %% [markdown]
# ## 2. A table grows, token by token
#
# **Prediction 2.** An empty table takes one token at a time. Before which tokens does it take a
# block? Put their numbers (the first token is 0) into `GUESS`, and run. Then set `SIZE = 1`,
# guess again, and look at the two columns of remainders: which of the two still tells?

# %%
SIZE = BLOCK_SIZE
GUESS = [0]

pool = used_pool(16)
table = parts.BlockTable(pool, SIZE)
history = []
for token in range(3 * SIZE + 2):
    before, blocks = table.num_tokens, len(table.blocks)
    table.append(1)
    took = len(table.blocks) - blocks
    history.append((token, before % SIZE, table.num_tokens % SIZE, took, len(table.blocks)))

print("token  before % B  after % B  new blocks")
for token, was, now, took, _ in history:
    print(f"{token:5}  {was:10}  {now:9}  {'*' * took}")
growth = [token for token, _, _, took, _ in history if took]
print("guessed:", GUESS, " took a block before tokens:", growth)

# %%
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
counts = range(1, len(history) + 1)
axes.step(counts, [held * SIZE for *_, held in history], where="mid", label="slots held")
axes.plot(counts, counts, "o", ms=4, label="tokens")
axes.set(xlabel="tokens in the table", ylabel="slots", title=f"B = {SIZE}")
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 3. Attention through a table is attention
#
# One ragged batch: two decodes, a chunk of 5 tokens after a history, and a whole prompt. The
# engine's own `InputBuilder` makes the flat arrays from your tables. Every slot that holds no
# token is NaN. Dense attention, from the definition and in float64, is the oracle.

# %%
QUERY_HEADS, HEAD_DIM = 6, 16
SPANS = [(2 * BLOCK_SIZE, 1), (BLOCK_SIZE - 1, 1), (BLOCK_SIZE + 2, 5), (0, LENGTH)]


def dense_attention(q, k, v, kv_head_of):
    """`q: [Lq, H, d]` at the last positions of `k, v: [L, KVH, d]`; head by head, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    positions = torch.arange(len(k) - len(q), len(k))
    hidden = torch.arange(len(k)) > positions[:, None]  # [Lq, L]
    heads = []
    for h in range(q.shape[1]):
        scores = q[:, h] @ k[:, kv_head_of(h)].T * HEAD_DIM**-0.5
        heads.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, kv_head_of(h)])
    return torch.stack(heads, dim=1)


def attention_error(kv_head_of):
    """The largest difference between your attention and the dense one."""
    pool = used_pool(64)
    k_cache = torch.full((64, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM), torch.nan)
    v_cache = k_cache.clone()
    plan, sequences = StepPlan(), []
    for i, (start, count) in enumerate(SPANS):
        table = parts.BlockTable(pool, BLOCK_SIZE)
        table.append(start + count)
        plan.spans.append(Span(i, start, [0] * count, table.blocks))
        k, v = torch.randn(2, start + count, NUM_KV_HEADS, HEAD_DIM, generator=random)
        sequences.append((count, k, v))
        if start:  # what earlier steps have written
            old = torch.tensor(table.slots(0, start))
            paged.write_kv(k[:start], v[:start], k_cache, v_cache, old)
    batch = InputBuilder(BLOCK_SIZE).build(plan).batch
    rows = len(batch.slot_mapping)
    q = torch.randn(rows, QUERY_HEADS, HEAD_DIM, generator=random)
    new_k, new_v = torch.zeros(2, rows, NUM_KV_HEADS, HEAD_DIM)
    end = 0
    for count, k, v in sequences:
        new_k[end : end + count], new_v[end : end + count] = k[-count:], v[-count:]
        end += count
    attention.write(new_k, new_v, k_cache, v_cache, batch)
    out = attention.attend(q, k_cache, v_cache, batch, HEAD_DIM**-0.5)
    end, differences = 0, []
    for count, k, v in sequences:
        dense = dense_attention(q[end : end + count], k, v, kv_head_of)
        differences.append((out[end : end + count] - dense).abs().max())
        end += count
    return float(torch.stack(differences).max()), batch  # NaN stays NaN


group = QUERY_HEADS // NUM_KV_HEADS
error, batch = attention_error(lambda h: h // group)
print("query_start: ", batch.query_start.tolist())
print("context_lens:", batch.context_lens.tolist())
print("slot_mapping:", batch.slot_mapping.tolist())
print(f"largest difference from dense attention: {error:.1e} (must be below 1e-05)")

# %% [markdown]
# **Prediction 3.** The next cell compares with a dense attention whose query head `h` reads KV
# head `h % num_kv_heads`, a common mistake. For which values of `NUM_KV_HEADS` can nobody tell
# the difference? Change it in the parameters' cell, run again, and see.

# %%
modulo_error, _ = attention_error(lambda h: h % NUM_KV_HEADS)
print(f"{NUM_KV_HEADS} KV heads: largest difference {modulo_error:.1e}")

# %% [markdown]
# ## 4. What block size wastes
#
# Eight requests of different lengths run in the real engine, once for each block size, on your
# parts. After each step we ask the tables how many of the slots that they hold are empty.
#
# **Prediction 4.** From `B = 16` to `B = 64`: does the empty share double, grow fourfold, or
# more? Then give the requests longer prompts (`PROMPT_TOKENS`) and predict what the same curve
# does.

# %%
PROMPT_TOKENS = 20
SIZES = [1, 4, 16, 32, 64]

llm = LLM(
    "opt-stories",
    parts=parts,
    cache=CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=512 // BLOCK_SIZE, num_cpu_blocks=0),
)
story = llm.tokenizer.encode("Once upon a time a small boat sailed to the moon. " * 40)


def empty_share(block_size):
    """Share of the held slots that hold no token: a mean over the steps of a run."""
    cache = replace(
        llm.cache_config, block_size=block_size, num_gpu_blocks=-(-2048 // block_size) + 8
    )
    engine = llm.make_engine(cache, SchedulerConfig())
    for i in range(8):
        prompt = story[: PROMPT_TOKENS + 3 * i]
        wish = SamplingParams(temperature=0, max_tokens=20 + i, ignore_eos=True)
        engine.add_request(str(i), prompt, wish)
    held = empty = 0
    while engine.has_unfinished():
        engine.step()
        for table in engine.kv.tables.values():
            held += len(table.blocks) * block_size
            empty += table.num_free_slots
    if not held:
        raise RuntimeError("no request got as far as one token: is section 3 right?")
    return empty / held


shares = {size: empty_share(size) for size in SIZES}
for size, share in shares.items():
    print(f"B = {size:3}: {share:6.1%} of the held slots are empty")

figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
axes.plot(list(shares), [100 * share for share in shares.values()], "o-")
axes.set(xlabel="block size B (tokens)", ylabel="empty (%)", xscale="log", xticks=SIZES)
axes.set_xticks(SIZES, [str(size) for size in SIZES])
axes.set_title("Held slots that hold no token")
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# ## 5. Text from your paged cache
#
# Three stories at a time from one pool, with `opt-stories`, a model that is in the repository.
# Look at the blocks: the sequences grow into each other's gaps, and the text does not notice.

# %%
PROMPTS = ["Once upon a time", "The little bear was", "One day, a girl named Lily"]
frames = []


def watch(engine):
    groups = engine.scheduler.groups
    frames.append(PoolState.of(engine.kv, groups))


outputs = llm.generate(
    PROMPTS,
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    progress=False,
    on_step=watch,
)
for prompt, output in zip(PROMPTS, outputs):
    print(f"{prompt}|{output.outputs[0].text}\n")
for step in (0, len(frames) // 2, len(frames) - 2):
    display(SvgPicture(frames[step], f"After step {step}", columns=32))

# %%
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
steps = range(len(frames))
tokens = [sum(frame.gpu.num_tokens.values()) for frame in frames]
axes.step(steps, [f.gpu.num_used * f.block_size for f in frames], where="post", label="slots held")
axes.step(steps, tokens, where="post", label="tokens")
axes.set(xlabel="step", ylabel="slots", title="The pool while three stories are told")
axes.legend(frameon=False)
axes.grid(alpha=0.3)
plt.show()

# %% [markdown]
# And a real chat model, if it has been fetched (`minipaged fetch`, 93 MB, once).

# %%
answer = None
if is_complete(default_cache_dir() / "smollm2-135m"):
    chat = LLM("smollm2-135m", parts=parts, cache=CacheConfig(num_gpu_blocks=64))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    wish = SamplingParams(temperature=0, max_tokens=16)
    answer = chat.chat(question, wish, progress=False)[0].outputs[0].text
    print(answer)
else:
    print("SmolLM2 is not here yet: run `minipaged fetch`, then this cell again.")

# %%
RESULTS = {
    "slots": slots.tolist(),
    "same_keys": same_keys,
    "same_values": same_values,
    "blocks_taken": taken,
    "growth": growth,
    "empty_share": {str(size): round(share, 6) for size, share in shares.items()},
    "attention_equals_dense": error < 1e-5,
    "modulo_equals_dense": modulo_error < 1e-5,
    "texts": [output.outputs[0].text for output in outputs],
    "slots_held": [frame.gpu.num_used * frame.block_size for frame in frames],
}
display(RESULTS)
