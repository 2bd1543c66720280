"""The rig of the trap tests: a whole engine on a tiny random decoder, checked and poisoned at
every step, and the same engine undisturbed to compare with."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import torch

from minipaged.attention.reference import ReferenceAttention
from minipaged.config import CacheConfig, ModelConfig, SchedulerConfig
from minipaged.contracts import StepLogits, StepPlan
from minipaged.engine import Engine
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.invariants import check_idle
from minipaged.kvcache.pool import KVPool
from minipaged.models import build_model
from minipaged.outputs import RequestOutput
from minipaged.sampling.decide import TorchSampling
from minipaged.sampling_params import SamplingParams
from minipaged.sequence import SequenceGroup, Status

VOCAB_SIZE = 97
BLOCK_SIZE = 4
BIG = 64
STEP_LIMIT = 400

_SHAPES = {
    "opt": {
        "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "num_kv_heads": 4,
        "head_dim": 8, "tie_word_embeddings": False,
    },
    "llama": {
        "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2,
        "head_dim": 16, "tie_word_embeddings": False,
    },
}  # fmt: skip


def tiny_model(
    architecture, vocab_size=VOCAB_SIZE, dtype=torch.float32, edit=lambda name, tensor: tensor
):
    """A random decoder of two layers; ``edit`` may change a weight before it is loaded."""
    config = ModelConfig(
        architecture=architecture, vocab_size=vocab_size, num_layers=2, max_model_len=128,
        **_SHAPES[architecture],
    )  # fmt: skip
    model = build_model(config, dtype, "cpu")
    generator = torch.Generator().manual_seed(3)
    for name, shape in model.expected_weights().items():
        tensor = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            tensor = 0.3 * tensor + ("norm" in name and name.endswith("weight"))
        else:
            # Sharp logits: each token of an output depends on the ones before it.
            tensor = 2 * tensor / shape[-1] ** 0.5
        model.load_weight(name, edit(name, tensor))
    model.finish_loading()
    return model


def prompt(length: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(vocab_size, (length,), generator=generator).tolist()


def greedy(**options) -> SamplingParams:
    options.setdefault("max_tokens", 12)
    return SamplingParams(temperature=0.0, **options)


class Pieces:
    """A tokenizer with a piece of text for each id, by default one that no other text contains:
    ``<id>``."""

    eos_token_ids = ()

    def __init__(self, pieces=None):
        self.pieces = pieces or [f"<{token}>" for token in range(VOCAB_SIZE)]
        self.vocab_size = len(self.pieces)

    def encode(self, text):
        return [self.pieces.index(letter) for letter in text]

    def decode(self, token_ids, skip_special_tokens=True):
        return "".join(self.pieces[token] for token in token_ids)


class Rig:
    """An engine whose invariants are checked at every step, and whose free blocks hold ``stale``
    before the first step and after each.

    Attributes:
        done: the last output of each request that has ended.
        deltas: the text pieces streamed for each (request, output).
        happened: how many blocks were copied and moved, and how many groups preempted.
        longest_table: the most entries of a block table that the executor was given.
    """

    def __init__(
        self,
        model,
        gpu: int = BIG,
        cpu: int = 0,
        *,
        tokenizer=None,
        eos=(),
        script=None,
        stale: float = math.nan,
        cache: CacheConfig | None = None,
        watermark: float = 0.0,
        **scheduler,
    ) -> None:
        """
        Args:
            script: for a request the output tokens that the model is made to choose.
            cache: its pool sizes are replaced.
            scheduler: fields of :class:`SchedulerConfig`.
        """
        cache = cache or CacheConfig(block_size=BLOCK_SIZE, watermark=watermark)
        self.cache = replace(cache, num_gpu_blocks=gpu, num_cpu_blocks=cpu)
        self.pool = KVPool(model.config, cache.block_size, gpu, cpu, dtype=_dtype(model))
        self.torch = TorchExecutor(model, self.pool, ReferenceAttention())
        scheduler.setdefault("max_model_len", 64)
        self.config = SchedulerConfig(**scheduler)
        self.script = script or {}
        self.stale = stale
        self.engine = Engine(
            self.config,
            self.cache,
            self,
            TorchSampling(
                self.config.max_model_len,
                vocab_size=tokenizer.vocab_size if tokenizer else None,
                eos_token_ids=eos,
            ),
            tokenizer=tokenizer,
            vocab_size=model.config.vocab_size,
            check=True,
        )
        self.kv, self.scheduler = self.engine.kv, self.engine.scheduler
        self.groups: dict[str, SequenceGroup] = {}
        self.done: dict[str, RequestOutput] = {}
        self.deltas: dict[tuple[str, int], list[str]] = {}
        self.happened: Counter[str] = Counter()
        self.longest_table = 0
        self._spoil()

    # -- driving -----------------------------------------------------------------------------
    def add(self, name, tokens, params=None, stream=True, **options) -> SequenceGroup:
        self.engine.add_request(name, tokens, params or greedy(), stream=stream, **options)
        (self.groups[name],) = (g for g in self.scheduler.waiting if g.request_id == name)
        return self.groups[name]

    def step(self) -> list[RequestOutput]:
        outputs = self.engine.step()
        plan = self.engine.last_plan
        self.happened.update(
            copies=len(plan.copies), swap_in=len(plan.swap_in), swap_out=len(plan.swap_out),
            preempted=len(plan.preempted),
        )  # fmt: skip
        self.take(outputs)
        self._spoil()
        return outputs

    def take(self, outputs) -> None:
        for output in outputs:
            name = output.request_id
            for one in output.outputs:
                pieces = self.deltas.setdefault((name, one.index), [])
                pieces.append(one.delta)
                if self.groups[name].params.best_of is None:
                    assert "".join(pieces) == one.text
            if output.finished:
                assert name not in self.done, f"{name} ended twice"
                self.done[name] = output

    def run(self) -> dict[str, RequestOutput]:
        """Step until every request has ended; nothing is left of any of them."""
        for _ in range(STEP_LIMIT):
            if not self.engine.has_unfinished():
                self.assert_idle()
                assert self.done.keys() == self.groups.keys()
                return self.done
            self.step()
        raise AssertionError(f"unfinished after {STEP_LIMIT} steps: {self.scheduler.groups}")

    def preempt_next(self, name: str) -> None:
        """The next step throws this running group out before it looks at anyone."""
        assert self.groups[name] in self.scheduler.running
        self.scheduler.config = replace(self.config, forced_preemption=1.0)
        self.scheduler._dice = self
        self._victim = name

    def random(self) -> float:
        return 0.0

    def choice(self, groups):
        self.scheduler.config = self.config
        return next(group for group in groups if group.request_id == self._victim)

    # -- the engine's executor is this object ------------------------------------------------
    def execute(self, plan: StepPlan) -> StepLogits:
        self.longest_table = max(
            [self.longest_table, *(len(span.block_table) for span in plan.spans)]
        )
        logits = self.torch.execute(plan)
        if not self.script:
            return logits
        logits.rows = logits.rows.clone()
        names = {seq: g.request_id for g in self.scheduler.running for seq in g.seqs}
        for row, span in enumerate(span for span in plan.spans if span.sample):
            name = names[span.seq_id]
            if name in self.script:
                at = span.context_len - len(self.groups[name].prompt_token_ids)
                logits.rows[row] = 0.0
                logits.rows[row, self.script[name][at]] = 50.0
        return logits

    # -- looking -----------------------------------------------------------------------------
    def tables(self, name: str) -> list[list[int]]:
        return [list(self.kv.block_table(seq_id)) for seq_id in self.groups[name].seqs]

    def gpu_used(self) -> int:
        return self.kv.num_gpu_blocks - self.kv.num_free_gpu_blocks

    def cpu_used(self) -> int:
        return self.kv.num_cpu_blocks - self.kv.num_free_cpu_blocks

    def cached(self, name: str) -> list[torch.Tensor]:
        """The keys and values of each live sequence, ``[layers, 2, computed tokens, heads, d]``,
        from the side that it is on."""
        found = []
        for seq in self.groups[name].live:
            side = (
                self.pool.host_blocks.movedim(0, 2)
                if seq.status is Status.SWAPPED
                else self.pool.device_blocks
            )
            blocks = side[:, :, self.kv.block_table(seq.seq_id)]  # [L, 2, n, H, B, d]
            tokens = blocks.transpose(3, 4).flatten(2, 3)
            found.append(tokens[:, :, : seq.num_computed].clone())
        return found

    def cached_blocks(self) -> set[int]:
        """The blocks that a later request may find."""
        prefixes = self.scheduler.prefixes
        if prefixes is None:
            return set()
        return {block for block in range(self.kv.num_gpu_blocks) if block in prefixes.cached}

    def assert_idle(self) -> None:
        check_idle(self.kv)
        assert not self.scheduler.groups
        assert not self.scheduler.ended
        assert not self.engine.has_unfinished()
        for group in self.groups.values():
            for seq in group.all_seqs():
                assert not self.kv.block_table(seq.seq_id), f"{seq} still holds a table"

    def _spoil(self) -> None:
        held: dict[bool, set[int]] = {True: set(), False: self.cached_blocks()}
        for group in self.scheduler.groups:
            for seq in group.live:
                held[seq.status is Status.SWAPPED].update(self.kv.block_table(seq.seq_id))
        for side, total, mine in (
            (self.pool.device_blocks, self.kv.num_gpu_blocks, held[False]),
            (self.pool.host_blocks.movedim(0, 2), self.kv.num_cpu_blocks, held[True]),
        ):
            side[:, :, sorted(set(range(total)) - mine)] = self.stale


def reference(model, tokens, params, **options) -> RequestOutput:
    """The output of a request that has a huge pool to itself."""
    return _reference(model, tuple(tokens), params, **options)


@lru_cache
def _reference(model, tokens, params, **options) -> RequestOutput:
    rig = Rig(model, gpu=BIG, **options)
    rig.add("alone", tokens, params)
    return rig.run()["alone"]


def ids(output: RequestOutput) -> list[list[int]]:
    return [one.token_ids for one in output.outputs]


def reasons(output: RequestOutput) -> list[str | None]:
    return [one.finish_reason for one in output.outputs]


def _dtype(model) -> torch.dtype:
    return next(iter(model.parameters())).dtype
