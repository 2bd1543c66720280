"""The offline interface: a model, prompts in, outputs out.

::

    from minipaged import LLM, SamplingParams

    llm = LLM("smollm2-135m")
    for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=40)):
        print(output.outputs[0].text)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

from minipaged.attention import AttentionKind, choose_attention
from minipaged.config import CacheConfig, SchedulerConfig
from minipaged.device import choose_device
from minipaged.engine import Engine
from minipaged.errors import ConfigError, RequestError
from minipaged.executor.decode_graphs import CudaCapture, bucket_sizes
from minipaged.executor.profile_run import CudaMemoryMeter, profiled_num_blocks
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.kvcache.block_mover import BlockKernels
from minipaged.kvcache.pool import KVPool, default_num_blocks
from minipaged.kvcache.sizing import kv_bytes_per_block
from minipaged.models.loader import LoadedModel, load_model
from minipaged.outputs import RequestOutput
from minipaged.parts import Parts
from minipaged.sampling.decide import TorchSampling
from minipaged.sampling_params import SamplingParams
from minipaged.trace import TraceWriter

Prompt = str | Seq[int]
Message = Mapping[str, Any]


class LLM:
    """A model, its engine and its KV pool.

    Attributes:
        config: the model's shape.
        tokenizer: text to token ids and back; None for a model without one.
        engine: the engine, for those who want to step it themselves.
        notes: what was decided for the user while loading (data type, pool size), as sentences.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        *,
        dtype: str = "auto",
        device: str = "auto",
        revision: str | None = None,
        cache: CacheConfig | None = None,
        scheduler: SchedulerConfig | None = None,
        max_model_len: int | None = None,
        seed: int = 0,
        parts: Parts | None = None,
        attention: str = "auto",
        cuda_graphs: bool | Literal["auto"] = "auto",
        check: bool = False,
        trace: TraceWriter | None = None,
    ) -> None:
        """
        Args:
            model: ``smollm2-135m``, ``opt-stories``, a folder, a GGUF file or a hub id; or one that
                is loaded already, with its data type and device.
            dtype: ``auto``, ``float32``, ``float16`` or ``bfloat16``.
            device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``, …
            cache: block size and pool sizes; sizes that it leaves open are chosen here.
            scheduler: its ``max_model_len`` is replaced by this method's.
            max_model_len: prompt plus output; None: what the model was trained for.
            seed: for requests that have none of their own.
            parts: whose parts the engine is built from; None: the reference's.
            attention: ``reference`` (PyTorch), ``triton`` (kernels; on a CPU in Triton's
                interpreter), or ``auto``: ``triton`` on a GPU where it can be used. With
                ``triton`` the model's norms and gates are kernels too.
            cuda_graphs: run decode steps as CUDA graphs; ``auto``: on a GPU with ``triton``.
            check: verify the engine's invariants in every step.

        Raises:
            ModelError: the model cannot be had or used; the message says why.
            ConfigError: settings that contradict each other.
        """
        if isinstance(model, LoadedModel):
            loaded = model
            device = str(next(loaded.model.parameters()).device)
        else:
            device = choose_device(device)
            loaded = load_model(model, dtype=dtype, device=device, revision=revision)
        self.config = loaded.config
        self.tokenizer = loaded.tokenizer
        self.name = loaded.config.name or loaded.path.name
        self.notes: list[str] = list(loaded.notes)
        self.max_model_len = self._choose_length(max_model_len)
        self.path = loaded.path
        self.model = loaded.model
        self.dtype = loaded.dtype
        self.device = device
        self.seed = seed
        self.parts = parts or Parts()
        self.attention = self._choose_attention(attention)
        self.model.use_kernels(self.attention == "triton")
        self.cuda_graphs = self._choose_graphs(cuda_graphs)
        scheduler = replace(scheduler or SchedulerConfig(), max_model_len=self.max_model_len)
        self.cache_config = self._choose_pool(cache or CacheConfig(), scheduler)
        self.engine = self.make_engine(self.cache_config, scheduler, check=check, trace=trace)
        self._ids = itertools.count()
        #: last outputs that nobody has taken yet
        self._ended: list[RequestOutput] = []

    def make_engine(
        self,
        cache: CacheConfig,
        scheduler: SchedulerConfig,
        *,
        check: bool = False,
        trace: TraceWriter | None = None,
    ) -> Engine:
        """Another engine on the same model, with a pool of its own.

        Args:
            cache: with the sizes of both pools settled.
            scheduler: its ``max_model_len`` is replaced by this object's.
        """
        pool = KVPool(
            self.config,
            cache.block_size,
            cache.num_gpu_blocks or 0,
            cache.num_cpu_blocks or 0,
            dtype=self.dtype,
            device=self.device,
            copy=self.parts.copy_blocks,
            kernels=self._block_kernels(),
        )
        executor = TorchExecutor(self.model, pool, self.parts.make_attention(self.attention))
        if self.cuda_graphs:
            sizes = bucket_sizes(scheduler.max_num_seqs)
            executor.capture_decodes(sizes, self.max_model_len, CudaCapture())
        return Engine(
            replace(scheduler, max_model_len=self.max_model_len),
            cache,
            executor,
            TorchSampling(
                self.max_model_len,
                vocab_size=self.tokenizer.vocab_size if self.tokenizer else None,
                eos_token_ids=(
                    self.tokenizer.eos_token_ids if self.tokenizer else self.config.eos_token_ids
                ),
                seed=self.seed,
            ),
            parts=self.parts,
            tokenizer=self.tokenizer,
            vocab_size=self.config.vocab_size,
            check=check,
            trace=trace,
        )

    def _choose_length(self, asked: int | None) -> int:
        limit = self.config.max_model_len
        if asked is None:
            return limit
        if not 1 < asked <= limit:
            raise RequestError(
                f"max_model_len must be between 2 and the model's {limit}, not {asked}"
            )
        return asked

    def _choose_attention(self, wish: str) -> AttentionKind:
        """Settle which attention runs, and note it where it is not the obvious one."""
        kind, note = choose_attention(wish, self.device, why_not_triton=self.parts.why_not_triton)
        if note:
            self.notes.append(note)
        own = self.parts.own_kernels
        if kind == "triton" and self.parts.decode_kernel in own:
            self.notes.append(f"{self.parts.decode_kernel} computes the decodes")
        if kind == "reference" and own:
            self.notes.append(f"not in use: {', '.join(own)} (attention triton runs them)")
        return kind

    def _choose_graphs(self, wish: bool | Literal["auto"]) -> bool:
        possible = self.attention == "triton" and torch.device(self.device).type == "cuda"
        if wish is True and not possible:
            raise ConfigError(
                "CUDA graphs need a GPU and attention triton; this engine runs attention "
                f"{self.attention} on {self.device}"
            )
        return possible if wish == "auto" else wish

    def _block_kernels(self) -> BlockKernels | None:
        if self.attention != "triton":
            return None
        parts = self.parts
        return BlockKernels(parts.copy_blocks_in_pool, parts.gather_blocks, parts.scatter_blocks)

    def _measure_pool(self, cache: CacheConfig, scheduler: SchedulerConfig) -> int:
        """Blocks that there is memory for."""
        if torch.device(self.device).type != "cuda":
            return default_num_blocks(self.config, cache.block_size, dtype=self.dtype)
        return profiled_num_blocks(
            self.model,
            self.parts.make_attention(self.attention),
            cache,
            scheduler,
            CudaMemoryMeter(self.device),
            num_graphs=len(bucket_sizes(scheduler.max_num_seqs)) if self.cuda_graphs else 0,
        )

    def _choose_pool(self, cache: CacheConfig, scheduler: SchedulerConfig) -> CacheConfig:
        """Settle the sizes that ``cache`` leaves open."""
        block_bytes = kv_bytes_per_block(self.config, self.dtype.itemsize, cache.block_size)
        num_gpu = cache.num_gpu_blocks
        if num_gpu is None:
            num_gpu = self._measure_pool(cache, scheduler)
            self.notes.append(
                f"KV pool: {num_gpu} blocks of {cache.block_size} tokens "
                f"({num_gpu * block_bytes / 2**30:.1f} GiB)"
            )
        num_cpu = cache.num_cpu_blocks
        if num_cpu is None:
            # More than the device's pool can never be swapped out: none is admitted meanwhile.
            num_cpu = min(cache.swap_space_bytes // block_bytes, num_gpu)
        if num_gpu * cache.block_size < self.max_model_len:
            self.notes.append(
                f"the KV pool holds {num_gpu * cache.block_size} tokens, fewer than the longest "
                f"request may have ({self.max_model_len}): what does not fit is refused, or "
                "ends early"
            )
        return replace(cache, num_gpu_blocks=num_gpu, num_cpu_blocks=num_cpu)

    # -- requests ----------------------------------------------------------------------------
    def add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        stream: bool = False,
    ) -> str:
        """Queue one request for :attr:`engine`, which the caller steps.

        Returns:
            The request's id.

        Raises:
            RequestError: as :meth:`Engine.add_request`.
        """
        request_id = str(next(self._ids)) if request_id is None else request_id
        text = prompt if isinstance(prompt, str) else None
        self.engine.add_request(
            request_id,
            self.tokenize(prompt),
            params,
            prompt=text,
            priority=priority,
            cache_salt=cache_salt,
            stream=stream,
        )
        return request_id

    def register_prefix(self, prefix: Prompt) -> int:
        """Let requests that begin with this text share its blocks; see
        :meth:`Engine.register_prefix`.

        A text is found by its token ids. Where a prompt goes on in the middle of a word, the ids
        at the end of the prefix may be others there, and its last blocks are not found.

        Returns:
            The tokens that are shared: whole blocks only.
        """
        return self.engine.register_prefix(self.tokenize(prefix))

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; ids pass through."""
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            raise RequestError(f"model {self.name} has no tokenizer: give the prompt as token ids")
        return self.tokenizer.encode(prompt)

    @property
    def can_chat(self) -> bool:
        """Has the model a template for conversations?"""
        return self.tokenizer is not None and self.tokenizer.has_chat_template

    def chat_tokens(self, messages: Seq[Message]) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins, by the model's
        own template.

        Args:
            messages: dictionaries with ``role`` and ``content``.
        """
        if self.tokenizer is None:
            raise RequestError(f"model {self.name} has no tokenizer, so it cannot chat")
        text = self.tokenizer.apply_chat_template(messages)
        # The template has written the special tokens.
        return self.tokenizer.encode(text, add_special_tokens=False)

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        progress: bool = True,
        on_step: Callable[[Engine], object] | None = None,
    ) -> list[RequestOutput]:
        """Serve prompts together, and return their outputs in the order of the prompts.

        Args:
            prompts: one or several, each a text or a list of token ids.
            params: one for all, or one for each; None: the defaults.
            progress: show a bar on stderr.
            on_step: called after each step of the engine.

        Raises:
            RequestError: one of the requests cannot be served; none has been started.
        """
        batch = _as_batch(prompts)
        if params is None:
            params = SamplingParams()
        each = [params] * len(batch) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(batch):
            raise RequestError(f"{len(each)} sampling parameters for {len(batch)} prompts")
        ids: list[str] = []
        done: dict[str, RequestOutput] = {}
        try:
            for prompt, wish in zip(batch, each):
                ids.append(self.add(prompt, wish))
            with tqdm(total=len(ids), unit="req", disable=not progress) as bar:
                while len(done) < len(ids):
                    self._step(on_step)
                    done |= self._take(ids)
                    bar.update(len(done) - bar.n)
        finally:
            # An interrupt, or an error in one prompt, leaves no request behind.
            self._ended += self.abort(ids)
            self._take(ids)
        return [done[request_id] for request_id in ids]

    def _step(self, on_step: Callable[[Engine], object] | None) -> None:
        self._ended += [output for output in self.engine.step() if output.finished]
        if on_step is not None:
            on_step(self.engine)

    def _take(self, request_ids: Iterable[str]) -> dict[str, RequestOutput]:
        """The last outputs of these requests, as far as they have come; those of others wait."""
        wanted = set(request_ids)
        taken = {o.request_id: o for o in self._ended if o.request_id in wanted}
        self._ended = [output for output in self._ended if output.request_id not in wanted]
        return taken

    def chat(
        self,
        messages: Seq[Message] | Seq[Seq[Message]],
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """As :meth:`generate`, for one conversation or several."""
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if one else messages
        prompts = [self.chat_tokens(conversation) for conversation in conversations]
        return self.generate(prompts, params, progress=progress)

    def run(self, on_step: Callable[[Engine], object] | None = None) -> Iterator[RequestOutput]:
        """Step the engine until it is idle; yields each request's last output as it ends."""
        while self._ended or self.engine.has_unfinished():
            if not self._ended:
                self._step(on_step)
            while self._ended:
                yield self._ended.pop(0)

    def abort(self, request_ids: str | Iterable[str]) -> list[RequestOutput]:
        """End one request or several at once; unknown ids are passed over.

        Returns:
            Their last outputs.
        """
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self.engine.abort(request_id)
        return self.engine.take_ended()


def _as_batch(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
